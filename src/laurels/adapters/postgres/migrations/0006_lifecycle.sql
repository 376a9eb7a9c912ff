-- A board that is deleted for good. Its row stays, without its name, so that no other board gets its id.
ALTER TABLE boards
    ADD COLUMN deleted_at bigint,
    ADD COLUMN purged     boolean NOT NULL DEFAULT false;  -- everything that belonged to it is removed
CREATE INDEX boards_to_purge ON boards (id) WHERE deleted_at IS NOT NULL AND NOT purged;

-- The kinds of segments that were added and whose rankings don't have all users yet: a JSON list.
ALTER TABLE boards ADD COLUMN filling text NOT NULL DEFAULT '[]';
