ALTER TABLE boards ADD COLUMN created_by TEXT;    -- the id of the key; NULL: unknown, or made by the server
ALTER TABLE profiles ADD COLUMN attributes TEXT;  -- canonical JSON object
ALTER TABLE replays ADD COLUMN reason TEXT;       -- why a dead letter was discarded
-- The segment whose rank earned the reward. `place` is that among all users, with or without a capacity.
ALTER TABLE grants ADD COLUMN segment TEXT NOT NULL DEFAULT 'global';
