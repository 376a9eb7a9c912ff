ALTER TABLE boards ADD COLUMN created_by text;    -- the id of the key; NULL: unknown, or made by the server
ALTER TABLE profiles ADD COLUMN attributes text;  -- canonical JSON object
ALTER TABLE replays ADD COLUMN reason text;       -- why a dead letter was discarded
-- The segment whose rank earned the reward. `place` is that among all users, with or without a capacity.
ALTER TABLE grants ADD COLUMN segment text NOT NULL DEFAULT 'global';
