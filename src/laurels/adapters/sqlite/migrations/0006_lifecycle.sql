-- A board that is deleted for good. Its row stays, without its name, so that no other board gets its id.
ALTER TABLE boards ADD COLUMN deleted_at INTEGER;
ALTER TABLE boards ADD COLUMN purged INTEGER NOT NULL DEFAULT 0;  -- everything that belonged to it is removed
CREATE INDEX boards_to_purge ON boards (id) WHERE deleted_at IS NOT NULL AND purged = 0;

-- The kinds of segments that were added and whose rankings don't have all users yet: a JSON list.
ALTER TABLE boards ADD COLUMN filling TEXT NOT NULL DEFAULT '[]';

-- Boards to be: what a new board of a pod is like. `definition` is JSON.
CREATE TABLE templates (
    pod_id     TEXT NOT NULL REFERENCES pods (pod_id),
    name       TEXT NOT NULL,
    prefix     TEXT,  -- boards with UUIDs that begin with it are created by their first score
    definition TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (pod_id, name)
) STRICT;

-- The rules by which scores wait for a moderator: a JSON list. A score that waits is an event that is void by an action of
-- kind `review`; accepting it restores the event.
ALTER TABLE boards ADD COLUMN review TEXT NOT NULL DEFAULT '[]';
CREATE INDEX reviews_pending ON actions (board_id, id) WHERE kind = 'review' AND undone_by IS NULL;

-- The metadata of events that were removed after the retention time and whose score still counts.
CREATE TABLE kept_metadata (
    board_id INTEGER NOT NULL,
    user_id  TEXT NOT NULL,
    at       INTEGER NOT NULL,
    event_id TEXT NOT NULL,
    score    REAL NOT NULL,
    metadata TEXT NOT NULL,
    PRIMARY KEY (board_id, user_id, at, event_id)
) STRICT;

-- Subscores, which break ties before the time does. `subscore` of a board: its order; NULL: there are no subscores.
ALTER TABLE boards ADD COLUMN subscore TEXT;
ALTER TABLE events ADD COLUMN subscore INTEGER NOT NULL DEFAULT 0;
ALTER TABLE scores ADD COLUMN subscore INTEGER NOT NULL DEFAULT 0;
ALTER TABLE bases ADD COLUMN subscore INTEGER NOT NULL DEFAULT 0;
ALTER TABLE finals ADD COLUMN subscore INTEGER NOT NULL DEFAULT 0;

-- Scores that expire, and operations other than the board's rule. `last_at`: the time of the user's last event, on boards that
-- need it. `operation` NULL: the rule of the board.
ALTER TABLE boards ADD COLUMN score_ttl_s INTEGER;
ALTER TABLE boards ADD COLUMN operations TEXT NOT NULL DEFAULT '[]';  -- JSON list
ALTER TABLE events ADD COLUMN operation TEXT;
ALTER TABLE scores ADD COLUMN last_at INTEGER;
ALTER TABLE bases ADD COLUMN last_at INTEGER;

-- A row whose score has expired has 4 added to `hidden`.
CREATE INDEX scores_expiring ON scores (period_id, last_at) WHERE last_at IS NOT NULL AND hidden < 4;
