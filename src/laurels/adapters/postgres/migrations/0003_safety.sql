-- Administrative calls. status NULL: the server stopped before the call was answered.
CREATE TABLE audit (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at           bigint NOT NULL,
    pod_id       text COLLATE "C",  -- not a reference, because a call may name a pod that does not exist
    uuid         text COLLATE "C",
    user_id      text COLLATE "C",
    key_id       text NOT NULL,
    role         text NOT NULL,
    address      text NOT NULL,
    request_id   text NOT NULL,
    route        text NOT NULL,
    path         text NOT NULL,     -- JSON object
    changed_from text,              -- JSON object
    changed_to   text,              -- JSON object
    status       integer,
    error        text
);

CREATE INDEX audit_of_pod ON audit (pod_id, id);
CREATE INDEX audit_of_user ON audit (user_id) WHERE user_id IS NOT NULL;
CREATE INDEX audit_by_time ON audit (at);

-- The limits of a pod that differ from those in the settings: a JSON object.
ALTER TABLE pods ADD COLUMN quotas text NOT NULL DEFAULT '{}';

-- How many events of a pod were accepted on a day, counted from 1970.
CREATE TABLE usage (
    pod_id text COLLATE "C" NOT NULL REFERENCES pods (pod_id),
    day    bigint NOT NULL,
    events bigint NOT NULL,
    PRIMARY KEY (pod_id, day)
);
