-- The ledger as it is after all migrations; a test proves that they lead here.
-- Instants are microseconds since 1970. Booleans are 0 or 1.

CREATE TABLE pods (
    pod_id     TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- A key is shown once and not kept: only its SHA-256 is.
CREATE TABLE keys (
    key_id     TEXT PRIMARY KEY,
    pod_id     TEXT NOT NULL REFERENCES pods (pod_id),
    role       TEXT NOT NULL,
    label      TEXT,
    digest     BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    revoked_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE boards (
    id          INTEGER PRIMARY KEY,
    uuid        TEXT NOT NULL UNIQUE,
    pod_id      TEXT NOT NULL REFERENCES pods (pod_id),
    name        TEXT NOT NULL,
    rule        TEXT NOT NULL,
    sort_order  TEXT NOT NULL,
    ties        TEXT NOT NULL,
    capacity    INTEGER,
    min_score   REAL,
    max_score   REAL,
    public      INTEGER NOT NULL,
    windows     TEXT NOT NULL,  -- JSON list
    segments    TEXT NOT NULL,  -- JSON list
    start_at    INTEGER,
    end_at      INTEGER,
    archived_at INTEGER,
    created_at  INTEGER NOT NULL,
    revision    INTEGER NOT NULL,
    metadata    TEXT            -- JSON object
) STRICT;

CREATE TABLE periods (
    id          INTEGER PRIMARY KEY,
    board_id    INTEGER NOT NULL REFERENCES boards (id),
    window_name TEXT NOT NULL,
    name        TEXT NOT NULL,
    start_at    INTEGER,
    end_at      INTEGER,
    UNIQUE (board_id, name)
) STRICT;

-- Every accepted submission, once. A voided event no longer counts and its id stays taken.
CREATE TABLE events (
    seq         INTEGER PRIMARY KEY,
    board_id    INTEGER NOT NULL REFERENCES boards (id),
    event_id    TEXT NOT NULL,
    user_id     TEXT NOT NULL,
    score       REAL NOT NULL,
    at          INTEGER NOT NULL,
    stamped     INTEGER NOT NULL,  -- 1: `at` is the server's clock, not the sender's word
    received_at INTEGER NOT NULL,
    voided_by   INTEGER REFERENCES acts (id),
    metadata    TEXT,              -- canonical JSON object
    UNIQUE (board_id, event_id)
) STRICT;

CREATE INDEX events_by_user ON events (board_id, user_id);

-- The fold of a user's events in a period. score NULL: removed; the version stays as a guard.
CREATE TABLE scores (
    period_id   INTEGER NOT NULL REFERENCES periods (id),
    user_id     TEXT NOT NULL,
    score       REAL,
    achieved_at INTEGER,
    total       TEXT,              -- exact decimal sum where `score` is not that number
    moved       INTEGER NOT NULL,  -- increment: 1 once an event other than 0 was counted
    version     INTEGER NOT NULL,
    PRIMARY KEY (period_id, user_id)
) STRICT, WITHOUT ROWID;

-- What people did to stored scores: who, what, when.
CREATE TABLE acts (
    id       INTEGER PRIMARY KEY,
    board_id INTEGER NOT NULL REFERENCES boards (id),
    act_id   TEXT NOT NULL,
    kind     TEXT NOT NULL,
    user_id  TEXT,
    by_key   TEXT NOT NULL,
    at       INTEGER NOT NULL,
    UNIQUE (board_id, act_id)
) STRICT;

-- `version`: the last version given to a row of `scores`, over all periods. `registry`: grows with pods, keys, boards.
CREATE TABLE counters (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- `ledger_id`: a name for this ledger, so that an index never mixes it up with another.
CREATE TABLE facts (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
