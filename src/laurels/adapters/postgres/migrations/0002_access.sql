-- Keys with scopes and an end, also for administrators (pod_id NULL).
ALTER TABLE keys
    ALTER COLUMN pod_id DROP NOT NULL,
    ADD COLUMN expires_at bigint,
    ADD COLUMN scopes     text,  -- separated by spaces; NULL: all scopes of the role
    ADD COLUMN used_at    bigint;

-- Player tokens that were issued before these instants are refused.
CREATE TABLE token_revocations (
    pod_id  text COLLATE "C" NOT NULL REFERENCES pods (pod_id),
    user_id text COLLATE "C" NOT NULL,
    at      bigint NOT NULL,
    PRIMARY KEY (pod_id, user_id)
);

ALTER TABLE pods ADD COLUMN origins text NOT NULL DEFAULT '';  -- allowed origins, separated by spaces
ALTER TABLE boards
    ADD COLUMN public_fields            text NOT NULL DEFAULT '[]',  -- JSON list
    ADD COLUMN players_may_write        boolean NOT NULL DEFAULT false,
    ADD COLUMN player_writes_per_minute integer NOT NULL DEFAULT 60;
-- The secret before the last rotation also signs messages until then.
ALTER TABLE webhooks ADD COLUMN old_secret text, ADD COLUMN old_until bigint;
