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
    terms       TEXT,                          -- JSON: what the final ranks are made with, from `closed` on
    total_users INTEGER,
    frozen_at   INTEGER,
    swept       INTEGER NOT NULL DEFAULT 0,    -- 1: its rows in `scores` are gone, for `finals` stands in their place
    replaces    INTEGER,                       -- the period whose final ranks it sets right
    closed_seq  INTEGER,                       -- the last event that came before it was closed
    published   INTEGER NOT NULL DEFAULT 0,    -- 1: its end and its rewards were published
    UNIQUE (board_id, name)
) STRICT;

CREATE INDEX periods_of_window ON periods (board_id, window_name, start_at);
CREATE INDEX periods_live ON periods (board_id) WHERE state IN ('open', 'closed');
CREATE INDEX periods_unswept ON periods (frozen_at) WHERE state = 'frozen' AND swept = 0;
CREATE INDEX periods_replaced ON periods (replaces) WHERE replaces IS NOT NULL;
CREATE INDEX periods_unpublished ON periods (id) WHERE frozen_at IS NOT NULL AND published = 0;

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
-- Events that were ahead of the server's clock when they came: the only ones that can lie beyond a reset moved to now.
CREATE INDEX events_ahead ON events (board_id, at) WHERE at > received_at;
CREATE INDEX events_voided ON events (voided_by) WHERE voided_by IS NOT NULL;

-- The fold of a user's events in a period. score NULL: removed; the version stays as a guard.
CREATE TABLE scores (
    period_id   INTEGER NOT NULL REFERENCES periods (id),
    user_id     TEXT NOT NULL,
    score       REAL,
    achieved_at INTEGER,
    total       TEXT,              -- exact decimal sum where `score` is not that number
    moved       INTEGER NOT NULL,  -- increment: 1 once an event other than 0 was counted
    version     INTEGER NOT NULL,
    hidden      INTEGER NOT NULL DEFAULT 0,  -- 1: left out of the ranks; 2: of all but the user's own view
    segments    TEXT,              -- those, beside the world, that the user is in: `region:eu circle:a`
    PRIMARY KEY (period_id, user_id)
) STRICT, WITHOUT ROWID;

-- What people did to stored scores: who, what, when, why. board_id 0: all boards of the pod.
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
    detail    TEXT,     -- JSON object
    events    INTEGER NOT NULL DEFAULT 0,
    done_at   INTEGER,  -- NULL: it is going on
    undone_by INTEGER,
    UNIQUE (pod_id, board_id, act_id)
) STRICT;

CREATE INDEX acts_of_board ON acts (board_id, at);
CREATE INDEX acts_unfinished ON acts (at) WHERE done_at IS NULL;
CREATE INDEX acts_of_user ON acts (user_id);

-- What a pod knows of a user. `circles` is as it stands in `scores.segments`.
CREATE TABLE profiles (
    pod_id       TEXT NOT NULL REFERENCES pods (pod_id),
    user_id      TEXT NOT NULL,
    display_name TEXT,
    avatar_url   TEXT,
    region       TEXT,
    region_at    INTEGER NOT NULL DEFAULT 0,  -- an older word on the region changes nothing
    circles      TEXT NOT NULL DEFAULT '',
    name_key     TEXT,                        -- the name as it is searched for
    PRIMARY KEY (pod_id, user_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX profiles_named ON profiles (pod_id) WHERE display_name IS NOT NULL OR avatar_url IS NOT NULL;
CREATE INDEX profiles_by_name ON profiles (pod_id, name_key) WHERE name_key IS NOT NULL;

-- Who is hidden, for rows that are made later. board_id 0: on all boards of the pod.
CREATE TABLE hides (
    pod_id   TEXT NOT NULL REFERENCES pods (pod_id),
    user_id  TEXT NOT NULL,
    board_id INTEGER NOT NULL,
    hidden   INTEGER NOT NULL,
    PRIMARY KEY (pod_id, user_id, board_id)
) STRICT, WITHOUT ROWID;

-- Whose events of an earlier time are not taken any more. user_id: until the last traces are swept.
CREATE TABLE erased (
    pod_id  TEXT NOT NULL REFERENCES pods (pod_id),
    digest  BLOB NOT NULL,
    at      INTEGER NOT NULL,
    user_id TEXT,
    PRIMARY KEY (pod_id, digest)
) STRICT, WITHOUT ROWID;

CREATE INDEX erased_unswept ON erased (at) WHERE user_id IS NOT NULL;

-- `version`: the last version given to a row of `scores`, over all periods. `event`: the last number given to an event.
-- `registry`: grows with pods, keys, boards.
CREATE TABLE counters (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The final ranks of frozen periods; `place` is the ordinal one.
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

-- Prizes that were won. `prize` is JSON.
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

-- Where the messages of a pod go. The secret signs them.
CREATE TABLE webhooks (
    pod_id     TEXT PRIMARY KEY REFERENCES pods (pod_id),
    url        TEXT NOT NULL,
    secret     TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What others are to be told. due_at NULL: not before its period is frozen.
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

-- How the events of a pod's games are read. `terms` is JSON.
CREATE TABLE schemas (
    pod_id     TEXT NOT NULL REFERENCES pods (pod_id),
    version    TEXT NOT NULL,
    state      TEXT NOT NULL,
    terms      TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (pod_id, version)
) STRICT, WITHOUT ROWID;

-- Dead letters that were counted after all, by their partition and offset.
CREATE TABLE replays (
    pod_id      TEXT NOT NULL REFERENCES pods (pod_id),
    place       TEXT NOT NULL,
    outcome     TEXT NOT NULL,
    replayed_at INTEGER NOT NULL,
    PRIMARY KEY (pod_id, place)
) STRICT, WITHOUT ROWID;

-- What is done now and then: who does it, and what came of the last run.
CREATE TABLE jobs (
    name        TEXT PRIMARY KEY,
    owner       TEXT,
    started_at  INTEGER NOT NULL,
    finished_at INTEGER,
    result      TEXT,
    error       TEXT,
    runs        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What the events of a user in an open period added up to that are not kept any more.
CREATE TABLE bases (
    period_id   INTEGER NOT NULL REFERENCES periods (id),
    user_id     TEXT NOT NULL,
    score       REAL NOT NULL,
    achieved_at INTEGER NOT NULL,
    total       TEXT,
    moved       INTEGER NOT NULL,
    PRIMARY KEY (period_id, user_id)
) STRICT, WITHOUT ROWID;

-- `ledger_id`: a name for this ledger, so that an index never mixes it up with another.
CREATE TABLE facts (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
