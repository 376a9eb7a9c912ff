-- Windows with resets: the life of periods, final ranks, rewards, what others are told, and who sees to it.
ALTER TABLE boards ADD COLUMN grace_s INTEGER NOT NULL DEFAULT 60;
ALTER TABLE boards ADD COLUMN flush_ms INTEGER;
ALTER TABLE boards ADD COLUMN rewards TEXT NOT NULL DEFAULT '[]';
ALTER TABLE boards ADD COLUMN keep_events_days INTEGER;
ALTER TABLE boards ADD COLUMN keep_periods_days INTEGER;
ALTER TABLE boards ADD COLUMN pruned_before INTEGER;
-- Windows were names before.
UPDATE boards SET windows = (SELECT json_group_array(json_object('name', value)) FROM json_each(windows));

ALTER TABLE periods ADD COLUMN state TEXT NOT NULL DEFAULT 'open';
ALTER TABLE periods ADD COLUMN terms TEXT;
ALTER TABLE periods ADD COLUMN total_users INTEGER;
ALTER TABLE periods ADD COLUMN frozen_at INTEGER;
ALTER TABLE periods ADD COLUMN swept INTEGER NOT NULL DEFAULT 0;
CREATE INDEX periods_of_window ON periods (board_id, window_name, start_at);
CREATE INDEX periods_live ON periods (board_id) WHERE state IN ('open', 'closed');
CREATE INDEX periods_unswept ON periods (frozen_at) WHERE state = 'frozen' AND swept = 0;

-- Events that were ahead of the server's clock when they came: the only ones that can lie beyond a reset moved to now.
CREATE INDEX events_ahead ON events (board_id, at) WHERE at > received_at;

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

CREATE TABLE webhooks (
    pod_id     TEXT PRIMARY KEY REFERENCES pods (pod_id),
    url        TEXT NOT NULL,
    secret     TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

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

CREATE INDEX outbox_due ON outbox (due_at) WHERE delivered_at IS NULL;
CREATE INDEX outbox_held ON outbox (period_id) WHERE due_at IS NULL;

CREATE TABLE jobs (
    name        TEXT PRIMARY KEY,
    owner       TEXT,
    started_at  INTEGER NOT NULL,
    finished_at INTEGER,
    result      TEXT,
    error       TEXT,
    runs        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE bases (
    period_id   INTEGER NOT NULL REFERENCES periods (id),
    user_id     TEXT NOT NULL,
    score       REAL NOT NULL,
    achieved_at INTEGER NOT NULL,
    total       TEXT,
    moved       INTEGER NOT NULL,
    PRIMARY KEY (period_id, user_id)
) STRICT, WITHOUT ROWID;
