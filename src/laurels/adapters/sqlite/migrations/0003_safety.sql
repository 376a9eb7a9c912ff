-- Administrative calls. status NULL: the server stopped before the call was answered.
CREATE TABLE audit (
    id           INTEGER PRIMARY KEY,
    at           INTEGER NOT NULL,
    pod_id       TEXT,           -- not a reference, because a call may name a pod that does not exist
    uuid         TEXT,
    user_id      TEXT,
    key_id       TEXT NOT NULL,
    role         TEXT NOT NULL,
    address      TEXT NOT NULL,
    request_id   TEXT NOT NULL,
    route        TEXT NOT NULL,
    path         TEXT NOT NULL,  -- JSON object
    changed_from TEXT,           -- JSON object
    changed_to   TEXT,           -- JSON object
    status       INTEGER,
    error        TEXT
) STRICT;

CREATE INDEX audit_of_pod ON audit (pod_id, id);
CREATE INDEX audit_of_user ON audit (user_id) WHERE user_id IS NOT NULL;
CREATE INDEX audit_by_time ON audit (at);

-- The limits of a pod that differ from those in the settings: a JSON object.
ALTER TABLE pods ADD COLUMN quotas TEXT NOT NULL DEFAULT '{}';

-- How many events of a pod were accepted on a day, counted from 1970.
CREATE TABLE usage (
    pod_id TEXT NOT NULL REFERENCES pods (pod_id),
    day    INTEGER NOT NULL,
    events INTEGER NOT NULL,
    PRIMARY KEY (pod_id, day)
) STRICT, WITHOUT ROWID;
