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
