-- The key of a profile.
CREATE TYPE profile_key_v1 AS (
    pod_id  text COLLATE "C",
    user_id text COLLATE "C"
);
