ALTER TABLE boards
    ADD COLUMN shards        integer NOT NULL DEFAULT 1,
    ADD COLUMN reshard       text,     -- JSON object; NULL: the number of shards does not change
    ADD COLUMN rank_on_write boolean;  -- NULL: true for one shard, false for more
