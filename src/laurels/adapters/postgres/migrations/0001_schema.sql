-- Instants are microseconds since 1970. Ids compare by their UTF-8 bytes. The functions are in ../functions.

CREATE TABLE pods (
    pod_id     text COLLATE "C" PRIMARY KEY,
    name       text NOT NULL,
    created_at bigint NOT NULL
);

-- The key itself is shown once and not stored, only its SHA-256.
CREATE TABLE keys (
    key_id     text COLLATE "C" PRIMARY KEY,
    pod_id     text COLLATE "C" NOT NULL REFERENCES pods (pod_id),
    role       text NOT NULL,
    label      text,
    digest     bytea NOT NULL,
    created_at bigint NOT NULL,
    revoked_at bigint
);

CREATE TABLE boards (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    uuid        text COLLATE "C" NOT NULL UNIQUE,
    pod_id      text COLLATE "C" NOT NULL REFERENCES pods (pod_id),
    name        text NOT NULL,
    rule        text NOT NULL,
    sort_order  text NOT NULL,
    ties        text NOT NULL,
    capacity    bigint,
    min_score   double precision,
    max_score   double precision,
    public      boolean NOT NULL,
    windows     text NOT NULL,  -- JSON list
    segments    text NOT NULL,  -- JSON list
    start_at    bigint,
    end_at      bigint,
    archived_at bigint,
    created_at  bigint NOT NULL,
    revision    bigint NOT NULL,
    metadata    text,           -- JSON object; text, because jsonb would reorder it
    grace_s     bigint NOT NULL,
    flush_ms    bigint,
    rewards     text NOT NULL,  -- JSON list
    keep_events_days  bigint,
    keep_periods_days bigint,
    pruned_before     bigint
);

CREATE TABLE periods (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    board_id    bigint NOT NULL REFERENCES boards (id),
    window_name text NOT NULL,
    name        text NOT NULL,
    start_at    bigint,
    end_at      bigint,
    state       text NOT NULL DEFAULT 'open',    -- open, closed, frozen, pruned; refreezing, superseded, discarded
    terms       text,                            -- JSON: the terms of the final ranks, set when the period is closed
    total_users bigint,
    frozen_at   bigint,
    swept       boolean NOT NULL DEFAULT false,  -- its rows in `scores` were deleted; `finals` has the result
    replaces    bigint,                          -- the period whose final ranks this one corrects
    closed_seq  bigint,                          -- the last event received before the period was closed
    published   boolean NOT NULL DEFAULT false,  -- its end and its rewards were published to Kafka
    UNIQUE (board_id, name)
);

CREATE INDEX periods_of_window ON periods (board_id, window_name, start_at);
CREATE INDEX periods_live ON periods (board_id) WHERE state IN ('open', 'closed');
CREATE INDEX periods_unswept ON periods (frozen_at) WHERE state = 'frozen' AND NOT swept;
CREATE INDEX periods_replaced ON periods (replaces) WHERE replaces IS NOT NULL;
CREATE INDEX periods_unpublished ON periods (id) WHERE frozen_at IS NOT NULL AND NOT published;

-- Every accepted submission, once. A voided event does not count, and its id stays taken. Boards and periods are never
-- deleted, so the two large tables do without foreign keys, which would cost a lookup per row.
CREATE TABLE events (
    seq         bigint PRIMARY KEY,
    board_id    bigint NOT NULL,
    event_id    text COLLATE "C" NOT NULL,
    user_id     text COLLATE "C" NOT NULL,
    score       double precision NOT NULL CHECK (score > '-Infinity' AND score < 'Infinity'),
    at          bigint NOT NULL,
    stamped     boolean NOT NULL,  -- the server set `at`, not the sender
    received_at bigint NOT NULL,
    voided_by   bigint,
    metadata    text,              -- canonical JSON object
    ahead       boolean NOT NULL DEFAULT false,  -- its time was in the future by the clock of the database
    xact        bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    UNIQUE (board_id, event_id)
);

CREATE SEQUENCE event_seqs OWNED BY events.seq;
CREATE INDEX events_by_user ON events (board_id, user_id, seq);
-- Recent changes: see Ledger.position. New entries are always at the end of the index.
CREATE INDEX events_by_xact ON events (xact, seq);

-- The only events that can lie after a reset that is moved to now.
CREATE INDEX events_ahead ON events (board_id, at) WHERE ahead;
CREATE INDEX events_voided ON events (voided_by) WHERE voided_by IS NOT NULL;

-- The fold of a user's events in a period. score NULL: removed; the version still guards against older rows.
CREATE TABLE scores (
    period_id   bigint NOT NULL,
    user_id     text COLLATE "C" NOT NULL,
    score       double precision,
    achieved_at bigint,
    total       numeric,           -- increment: the exact sum
    has_nonzero boolean NOT NULL,  -- increment: an event other than 0 was counted
    version     bigint NOT NULL,
    hidden      smallint NOT NULL DEFAULT 0,  -- 1: hidden from everybody; 2: from everybody but the user
    segments    text,              -- the user's segments other than global: `region:eu circle:a`
    PRIMARY KEY (period_id, user_id)
-- Leave room for the next version of a row on its page: an update then changes no index.
) WITH (fillfactor = 80);

CREATE SEQUENCE versions;

-- The fold of a user's pruned events in an open period. A new fold starts from it.
CREATE TABLE bases (
    period_id   bigint NOT NULL,
    user_id     text COLLATE "C" NOT NULL,
    score       double precision NOT NULL,
    achieved_at bigint NOT NULL,
    total       text,
    has_nonzero boolean NOT NULL,
    PRIMARY KEY (period_id, user_id)
);

-- The final ranks of frozen periods. `place` is the ordinal rank.
CREATE TABLE finals (
    period_id   bigint NOT NULL,
    segment     text COLLATE "C" NOT NULL,
    place       bigint NOT NULL,
    user_id     text COLLATE "C" NOT NULL,
    score       double precision NOT NULL,
    achieved_at bigint NOT NULL,
    competition bigint NOT NULL,
    dense       bigint NOT NULL,
    PRIMARY KEY (period_id, segment, place)
);

CREATE UNIQUE INDEX finals_by_user ON finals (user_id, period_id, segment);

-- Rewards that users earned. `prize` is JSON.
CREATE TABLE grants (
    period_id  bigint NOT NULL,
    place      bigint NOT NULL,
    reward     text COLLATE "C" NOT NULL,
    user_id    text COLLATE "C" NOT NULL,
    rank       bigint NOT NULL,
    score      double precision NOT NULL,
    prize      text NOT NULL,
    granted_at bigint NOT NULL,
    claimed_at bigint,
    claimed_by text,
    PRIMARY KEY (period_id, place, reward)
);

CREATE INDEX grants_by_user ON grants (user_id, period_id);

-- The webhook of a pod. The secret signs its messages.
CREATE TABLE webhooks (
    pod_id     text COLLATE "C" PRIMARY KEY REFERENCES pods (pod_id),
    url        text NOT NULL,
    secret     text NOT NULL,
    created_at bigint NOT NULL
);

-- Messages for webhooks. due_at NULL: not before its period is frozen.
CREATE TABLE outbox (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id   text COLLATE "C" NOT NULL UNIQUE,
    pod_id       text COLLATE "C" NOT NULL REFERENCES pods (pod_id),
    period_id    bigint NOT NULL,
    kind         text NOT NULL,
    body         text NOT NULL,
    created_at   bigint NOT NULL,
    due_at       bigint,
    attempts     bigint NOT NULL DEFAULT 0,
    error        text,
    delivered_at bigint
);

CREATE INDEX outbox_due_of_pod ON outbox (pod_id, due_at, id) WHERE delivered_at IS NULL;
CREATE INDEX outbox_held ON outbox (period_id) WHERE due_at IS NULL;

-- Periodic jobs: who has the lease until when, and the result of the last run.
CREATE TABLE jobs (
    name         text PRIMARY KEY,
    owner        text,
    leased_until timestamptz NOT NULL,
    lease_ms     bigint NOT NULL,  -- a lease that ends later than this from now was taken before the clock was set back
    started_at   bigint NOT NULL,
    finished_at  bigint,
    result       text,
    error        text,
    runs         bigint NOT NULL
);

-- Moderation actions: who did what to stored scores, when and why. board_id 0: all boards of the pod.
CREATE TABLE actions (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pod_id    text COLLATE "C" NOT NULL REFERENCES pods (pod_id),
    board_id  bigint NOT NULL,
    action_id text COLLATE "C" NOT NULL,
    kind      text NOT NULL,
    user_id   text COLLATE "C",
    by_key    text NOT NULL,
    at        bigint NOT NULL,
    reason    text,
    detail    text,    -- JSON object
    events    bigint NOT NULL DEFAULT 0,
    done_at   bigint,  -- NULL: still running
    undone_by bigint,
    UNIQUE (pod_id, board_id, action_id)
);

CREATE INDEX actions_of_board ON actions (board_id, at);
CREATE INDEX actions_unfinished ON actions (at) WHERE done_at IS NULL;
CREATE INDEX actions_of_user ON actions (user_id);

-- Users whose rows changed for another reason than an event: see Ledger.changes.
CREATE TABLE touches (
    xact     bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    board_id bigint NOT NULL,
    user_id  text COLLATE "C" NOT NULL
);

CREATE INDEX touches_by_xact ON touches (xact);
CREATE INDEX touches_by_user ON touches (user_id);

-- User profiles of a pod. `circles` has the format of `scores.segments`.
CREATE TABLE profiles (
    pod_id       text COLLATE "C" NOT NULL REFERENCES pods (pod_id),
    user_id      text COLLATE "C" NOT NULL,
    display_name text,
    avatar_url   text,
    region       text COLLATE "C",
    region_at    bigint NOT NULL DEFAULT 0,  -- when the region was set; an older event does not change it
    circles      text COLLATE "C" NOT NULL DEFAULT '',
    name_key     text COLLATE "C",           -- the name in the form that searches compare
    PRIMARY KEY (pod_id, user_id)
) WITH (fillfactor = 80);

CREATE INDEX profiles_named ON profiles (pod_id) WHERE display_name IS NOT NULL OR avatar_url IS NOT NULL;
CREATE INDEX profiles_by_name ON profiles (pod_id, name_key) WHERE name_key IS NOT NULL;

-- Hidden users, for rows created later. board_id 0: hidden on all boards of the pod.
CREATE TABLE hides (
    pod_id   text COLLATE "C" NOT NULL REFERENCES pods (pod_id),
    user_id  text COLLATE "C" NOT NULL,
    board_id bigint NOT NULL,
    hidden   smallint NOT NULL,
    PRIMARY KEY (pod_id, user_id, board_id)
);

-- Erased users: their earlier events are refused. user_id is set until their last rows are deleted.
CREATE TABLE erased (
    pod_id  text COLLATE "C" NOT NULL REFERENCES pods (pod_id),
    digest  bytea NOT NULL,
    at      bigint NOT NULL,
    user_id text COLLATE "C",
    PRIMARY KEY (pod_id, digest)
);

CREATE INDEX erased_unswept ON erased (at) WHERE user_id IS NOT NULL;

-- `registry` grows with every change of pods, keys and boards.
CREATE TABLE counters (
    name  text PRIMARY KEY,
    value bigint NOT NULL
);

INSERT INTO counters (name, value) VALUES ('registry', 0);

-- `ledger_id`: a random name, so that an index never mixes two ledgers up.
CREATE TABLE facts (
    name  text PRIMARY KEY,
    value text NOT NULL
);

INSERT INTO facts (name, value) VALUES ('ledger_id', substr(replace(gen_random_uuid()::text, '-', ''), 1, 16));

-- Event schemas of a pod. `terms` is JSON.
CREATE TABLE schemas (
    pod_id     text COLLATE "C" NOT NULL REFERENCES pods (pod_id),
    version    text COLLATE "C" NOT NULL,
    state      text NOT NULL,
    terms      text NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (pod_id, version)
);

-- Dead letters that were replayed, by partition, offset and time.
CREATE TABLE replays (
    pod_id      text COLLATE "C" NOT NULL REFERENCES pods (pod_id),
    record_id   text COLLATE "C" NOT NULL,
    outcome     text NOT NULL,
    replayed_at bigint NOT NULL,
    PRIMARY KEY (pod_id, record_id)
);

-- Written every few seconds. If a mark that a server has seen is missing, the database has lost data:
-- see laurels/ports/position.py.
CREATE TABLE marks (
    n       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    token   text NOT NULL DEFAULT substr(replace(gen_random_uuid()::text, '-', ''), 1, 16),
    made_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

INSERT INTO marks DEFAULT VALUES;
