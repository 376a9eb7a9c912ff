-- A board that is deleted for good. Its row stays, without its name, so that no other board gets its id.
ALTER TABLE boards
    ADD COLUMN deleted_at bigint,
    ADD COLUMN purged     boolean NOT NULL DEFAULT false;  -- everything that belonged to it is removed
CREATE INDEX boards_to_purge ON boards (id) WHERE deleted_at IS NOT NULL AND NOT purged;

-- The kinds of segments that were added and whose rankings don't have all users yet: a JSON list.
ALTER TABLE boards ADD COLUMN filling text NOT NULL DEFAULT '[]';

-- Boards to be: what a new board of a pod is like. `definition` is JSON.
CREATE TABLE templates (
    pod_id     text COLLATE "C" NOT NULL REFERENCES pods (pod_id),
    name       text COLLATE "C" NOT NULL,
    prefix     text COLLATE "C",  -- boards with UUIDs that begin with it are created by their first score
    definition text NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (pod_id, name)
);

-- The rules by which scores wait for a moderator: a JSON list. A score that waits is an event that is void by an action of
-- kind `review`; accepting it restores the event.
ALTER TABLE boards ADD COLUMN review text NOT NULL DEFAULT '[]';
CREATE INDEX reviews_pending ON actions (board_id, id) WHERE kind = 'review' AND undone_by IS NULL;

-- The metadata of events that were removed after the retention time and whose score still counts.
CREATE TABLE kept_metadata (
    board_id bigint NOT NULL,
    user_id  text COLLATE "C" NOT NULL,
    at       bigint NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    score    double precision NOT NULL,
    metadata text NOT NULL,
    PRIMARY KEY (board_id, user_id, at, event_id)
);

-- Subscores, which break ties before the time does. `subscore` of a board: its order; NULL: there are no subscores.
ALTER TABLE boards ADD COLUMN subscore text;
ALTER TABLE events ADD COLUMN subscore bigint NOT NULL DEFAULT 0;
ALTER TABLE scores ADD COLUMN subscore bigint NOT NULL DEFAULT 0;
ALTER TABLE bases ADD COLUMN subscore bigint NOT NULL DEFAULT 0;
ALTER TABLE finals ADD COLUMN subscore bigint NOT NULL DEFAULT 0;

-- Scores that expire, and operations other than the board's rule. `last_at`: the time of the user's last event, on boards that
-- need it. `operation` NULL: the rule of the board.
ALTER TABLE boards ADD COLUMN score_ttl_s bigint;
ALTER TABLE boards ADD COLUMN operations text NOT NULL DEFAULT '[]';  -- JSON list
ALTER TABLE events ADD COLUMN operation text;
ALTER TABLE scores ADD COLUMN last_at bigint;
ALTER TABLE bases ADD COLUMN last_at bigint;

-- A row whose score has expired has 4 added to `hidden`.
CREATE INDEX scores_expiring ON scores (period_id, last_at) WHERE last_at IS NOT NULL AND hidden < 4;
