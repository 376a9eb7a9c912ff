-- People: profiles and segments, who is hidden, what was erased; acts of a whole pod, with a reason, that take a while.
ALTER TABLE scores ADD COLUMN hidden INTEGER NOT NULL DEFAULT 0;
ALTER TABLE scores ADD COLUMN segments TEXT;

ALTER TABLE periods ADD COLUMN replaces INTEGER;
ALTER TABLE periods ADD COLUMN closed_seq INTEGER;
CREATE INDEX periods_replaced ON periods (replaces) WHERE replaces IS NOT NULL;

CREATE TABLE profiles (
    pod_id       TEXT NOT NULL REFERENCES pods (pod_id),
    user_id      TEXT NOT NULL,
    display_name TEXT,
    avatar_url   TEXT,
    region       TEXT,
    region_at    INTEGER NOT NULL DEFAULT 0,
    circles      TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (pod_id, user_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX profiles_named ON profiles (pod_id) WHERE display_name IS NOT NULL OR avatar_url IS NOT NULL;

CREATE TABLE hides (
    pod_id   TEXT NOT NULL REFERENCES pods (pod_id),
    user_id  TEXT NOT NULL,
    board_id INTEGER NOT NULL,
    hidden   INTEGER NOT NULL,
    PRIMARY KEY (pod_id, user_id, board_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE erased (
    pod_id  TEXT NOT NULL REFERENCES pods (pod_id),
    digest  BLOB NOT NULL,
    at      INTEGER NOT NULL,
    user_id TEXT,
    PRIMARY KEY (pod_id, digest)
) STRICT, WITHOUT ROWID;

CREATE INDEX erased_unswept ON erased (at) WHERE user_id IS NOT NULL;

CREATE TABLE acts_before AS SELECT * FROM acts;
DROP TABLE acts;

CREATE TABLE acts (
    id        INTEGER PRIMARY KEY,
    pod_id    TEXT NOT NULL REFERENCES pods (pod_id),
    board_id  INTEGER NOT NULL,
    act_id    TEXT NOT NULL,
    kind      TEXT NOT NULL,
    user_id   TEXT,
    by_key    TEXT NOT NULL,
    at        INTEGER NOT NULL,
    reason    TEXT,
    detail    TEXT,
    events    INTEGER NOT NULL DEFAULT 0,
    done_at   INTEGER,
    undone_by INTEGER,
    UNIQUE (pod_id, board_id, act_id)
) STRICT;

INSERT INTO acts (id, pod_id, board_id, act_id, kind, user_id, by_key, at, done_at)
SELECT a.id, b.pod_id, a.board_id, a.act_id, a.kind, a.user_id, a.by_key, a.at, a.at
FROM acts_before a JOIN boards b ON b.id = a.board_id;

DROP TABLE acts_before;

CREATE INDEX acts_of_board ON acts (board_id, at);
CREATE INDEX acts_unfinished ON acts (at) WHERE done_at IS NULL;
CREATE INDEX acts_of_user ON acts (user_id);
CREATE INDEX events_voided ON events (voided_by) WHERE voided_by IS NOT NULL;
