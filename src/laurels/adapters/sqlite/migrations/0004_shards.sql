ALTER TABLE boards ADD COLUMN shards INTEGER NOT NULL DEFAULT 1;
ALTER TABLE boards ADD COLUMN reshard TEXT;            -- JSON object; NULL: the number of shards does not change
ALTER TABLE boards ADD COLUMN rank_on_write INTEGER;   -- NULL: true for one shard, false for more
