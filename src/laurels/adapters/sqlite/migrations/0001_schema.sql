-- Instants are microseconds since 1970. Booleans are 0 or 1.

CREATE TABLE pods (
    pod_id     TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The key itself is shown once and not stored, only its SHA-256.
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
    metadata    TEXT,           -- JSON object
    grace_s     INTEGER NOT NULL DEFAULT 60,
    flush_ms    INTEGER,
    rewards     TEXT NOT NULL DEFAULT '[]',  -- JSON list
    keep_events_days  INTEGER,
    keep_periods_days INTEGER,
    pruned_before     INTEGER
) STRICT;

CREATE TABLE periods (
    id          INTEGER PRIMARY KEY,
    board_id    INTEGER NOT NULL REFERENCES boards (id),
    window_name TEXT NOT NULL,
    name        TEXT NOT NULL,
    start_at    INTEGER,
    end_at      INTEGER,
    state       TEXT NOT NULL DEFAULT 'open',  -- open, closed, frozen, pruned; refreezing, superseded, discarded
    terms       TEXT,                          -- JSON: the terms of the final ranks, set when the period is closed
    total_users INTEGER,
    frozen_at   INTEGER,
    swept       INTEGER NOT NULL DEFAULT 0,    -- 1: its rows in `scores` were deleted; `finals` has the result
    replaces    INTEGER,                       -- the period whose final ranks this one corrects
    closed_seq  INTEGER,                       -- the last event received before the period was closed
    published   INTEGER NOT NULL DEFAULT 0,    -- 1: its end and its rewards were published to Kafka
    UNIQUE (board_id, name)
) STRICT;

CREATE INDEX periods_of_window ON periods (board_id, window_name, start_at);
CREATE INDEX periods_live ON periods (board_id) WHERE state IN ('open', 'closed');
CREATE INDEX periods_unswept ON periods (frozen_at) WHERE state = 'frozen' AND NOT swept;
CREATE INDEX periods_replaced ON periods (replaces) WHERE replaces IS NOT NULL;
CREATE INDEX periods_unpublished ON periods (id) WHERE frozen_at IS NOT NULL AND NOT published;

-- Every accepted submission, once. A voided event does not count, and its id stays taken.
CREATE TABLE events (
    seq         INTEGER PRIMARY KEY,
    board_id    INTEGER NOT NULL REFERENCES boards (id),
    event_id    TEXT NOT NULL,
    user_id     TEXT NOT NULL,
    score       REAL NOT NULL,
    at          INTEGER NOT NULL,
    stamped     INTEGER NOT NULL,  -- 1: the server set `at`, not the sender
    received_at INTEGER NOT NULL,
    voided_by   INTEGER REFERENCES actions (id),
    metadata    TEXT,              -- canonical JSON object
    UNIQUE (board_id, event_id)
) STRICT;

CREATE INDEX events_by_user ON events (board_id, user_id);
-- Events with a time ahead of the server's clock: only these can lie after a reset that is moved to now.
CREATE INDEX events_ahead ON events (board_id, at) WHERE at > received_at;
CREATE INDEX events_voided ON events (voided_by) WHERE voided_by IS NOT NULL;

-- The fold of a user's events in a period. score NULL: removed; the version still guards against older rows.
CREATE TABLE scores (
    period_id   INTEGER NOT NULL REFERENCES periods (id),
    user_id     TEXT NOT NULL,
    score       REAL,
    achieved_at INTEGER,
    total       TEXT,              -- exact decimal sum where `score` is not that number
    has_nonzero INTEGER NOT NULL,  -- increment: 1 after an event other than 0
    version     INTEGER NOT NULL,
    hidden      INTEGER NOT NULL DEFAULT 0,  -- 1: hidden from everybody; 2: from everybody but the user
    segments    TEXT,              -- the user's segments other than global: `region:eu circle:a`
    PRIMARY KEY (period_id, user_id)
) STRICT, WITHOUT ROWID;

-- Moderation actions: who did what to stored scores, when and why. board_id 0: all boards of the pod.
CREATE TABLE actions (
    id        INTEGER PRIMARY KEY,
    pod_id    TEXT NOT NULL REFERENCES pods (pod_id),
    board_id  INTEGER NOT NULL,
    action_id TEXT NOT NULL,
    kind      TEXT NOT NULL,
    user_id   TEXT,
    by_key    TEXT NOT NULL,
    at        INTEGER NOT NULL,
    reason    TEXT,
    detail    TEXT,     -- JSON object
    events    INTEGER NOT NULL DEFAULT 0,
    done_at   INTEGER,  -- NULL: still running
    undone_by INTEGER,
    UNIQUE (pod_id, board_id, action_id)
) STRICT;

CREATE INDEX actions_of_board ON actions (board_id, at);
CREATE INDEX actions_unfinished ON actions (at) WHERE done_at IS NULL;
CREATE INDEX actions_of_user ON actions (user_id);

-- User profiles of a pod. `circles` has the format of `scores.segments`.
CREATE TABLE profiles (
    pod_id       TEXT NOT NULL REFERENCES pods (pod_id),
    user_id      TEXT NOT NULL,
    display_name TEXT,
    avatar_url   TEXT,
    region       TEXT,
    region_at    INTEGER NOT NULL DEFAULT 0,  -- when the region was set; an older event does not change it
    circles      TEXT NOT NULL DEFAULT '',
    name_key     TEXT,                        -- the name in the form that searches compare
    PRIMARY KEY (pod_id, user_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX profiles_named ON profiles (pod_id) WHERE display_name IS NOT NULL OR avatar_url IS NOT NULL;
CREATE INDEX profiles_by_name ON profiles (pod_id, name_key) WHERE name_key IS NOT NULL;

-- Hidden users, for rows created later. board_id 0: hidden on all boards of the pod.
CREATE TABLE hides (
    pod_id   TEXT NOT NULL REFERENCES pods (pod_id),
    user_id  TEXT NOT NULL,
    board_id INTEGER NOT NULL,
    hidden   INTEGER NOT NULL,
    PRIMARY KEY (pod_id, user_id, board_id)
) STRICT, WITHOUT ROWID;

-- Erased users: their earlier events are refused. user_id is set until their last rows are deleted.
CREATE TABLE erased (
    pod_id  TEXT NOT NULL REFERENCES pods (pod_id),
    digest  BLOB NOT NULL,
    at      INTEGER NOT NULL,
    user_id TEXT,
    PRIMARY KEY (pod_id, digest)
) STRICT, WITHOUT ROWID;

CREATE INDEX erased_unswept ON erased (at) WHERE user_id IS NOT NULL;

-- `version`: the last version of a row in `scores`. `event`: the last event number. `registry`: grows with every change of
-- pods, keys and boards.
CREATE TABLE counters (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The final ranks of frozen periods. `place` is the ordinal rank.
CREATE TABLE finals (
    period_id   INTEGER NOT NULL REFERENCES periods (id),
    segment     TEXT NOT NULL,
    place       INTEGER NOT NULL,
    user_id     TEXT NOT NULL,
    score       REAL NOT NULL,
    achieved_at INTEGER NOT NULL,
    competition INTEGER NOT NULL,
    dense       INTEGER NOT NULL,
    PRIMARY KEY (period_id, segment, place)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX finals_by_user ON finals (user_id, period_id, segment);

-- Rewards that users earned. `prize` is JSON.
CREATE TABLE grants (
    period_id  INTEGER NOT NULL REFERENCES periods (id),
    place      INTEGER NOT NULL,
    reward     TEXT NOT NULL,
    user_id    TEXT NOT NULL,
    rank       INTEGER NOT NULL,
    score      REAL NOT NULL,
    prize      TEXT NOT NULL,
    granted_at INTEGER NOT NULL,
    claimed_at INTEGER,
    claimed_by TEXT,
    PRIMARY KEY (period_id, place, reward)
) STRICT, WITHOUT ROWID;

CREATE INDEX grants_by_user ON grants (user_id, period_id);

-- The webhook of a pod. The secret signs its messages.
CREATE TABLE webhooks (
    pod_id     TEXT PRIMARY KEY REFERENCES pods (pod_id),
    url        TEXT NOT NULL,
    secret     TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Messages for webhooks. due_at NULL: not before its period is frozen.
CREATE TABLE outbox (
    id           INTEGER PRIMARY KEY,
    message_id   TEXT NOT NULL UNIQUE,
    pod_id       TEXT NOT NULL REFERENCES pods (pod_id),
    period_id    INTEGER NOT NULL,
    kind         TEXT NOT NULL,
    body         TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    due_at       INTEGER,
    attempts     INTEGER NOT NULL DEFAULT 0,
    error        TEXT,
    delivered_at INTEGER
) STRICT;

CREATE INDEX outbox_held ON outbox (period_id) WHERE due_at IS NULL;
CREATE INDEX outbox_due_of_pod ON outbox (pod_id, due_at, id) WHERE delivered_at IS NULL;

-- Event schemas of a pod. `terms` is JSON.
CREATE TABLE schemas (
    pod_id     TEXT NOT NULL REFERENCES pods (pod_id),
    version    TEXT NOT NULL,
    state      TEXT NOT NULL,
    terms      TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (pod_id, version)
) STRICT, WITHOUT ROWID;

-- Dead letters that were replayed, by partition, offset and time.
CREATE TABLE replays (
    pod_id      TEXT NOT NULL REFERENCES pods (pod_id),
    record_id   TEXT NOT NULL,
    outcome     TEXT NOT NULL,
    replayed_at INTEGER NOT NULL,
    PRIMARY KEY (pod_id, record_id)
) STRICT, WITHOUT ROWID;

-- Periodic jobs: who runs them, and the result of the last run.
CREATE TABLE jobs (
    name        TEXT PRIMARY KEY,
    owner       TEXT,
    started_at  INTEGER NOT NULL,
    finished_at INTEGER,
    result      TEXT,
    error       TEXT,
    runs        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The fold of a user's pruned events in an open period. A new fold starts from it.
CREATE TABLE bases (
    period_id   INTEGER NOT NULL REFERENCES periods (id),
    user_id     TEXT NOT NULL,
    score       REAL NOT NULL,
    achieved_at INTEGER NOT NULL,
    total       TEXT,
    has_nonzero INTEGER NOT NULL,
    PRIMARY KEY (period_id, user_id)
) STRICT, WITHOUT ROWID;

-- `ledger_id`: a random name, so that an index never mixes two ledgers up.
CREATE TABLE facts (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO counters (name, value) VALUES ('version', 0), ('event', 0), ('registry', 0);
INSERT INTO facts (name, value) VALUES ('ledger_id', lower(hex(randomblob(8))));
