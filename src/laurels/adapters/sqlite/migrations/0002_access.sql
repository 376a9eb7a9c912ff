-- Keys with scopes and an end, also for administrators (pod_id NULL).
CREATE TABLE new_keys (
    key_id     TEXT PRIMARY KEY,
    pod_id     TEXT REFERENCES pods (pod_id),
    role       TEXT NOT NULL,
    label      TEXT,
    digest     BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    revoked_at INTEGER,
    expires_at INTEGER,
    scopes     TEXT,     -- separated by spaces; NULL: all scopes of the role
    used_at    INTEGER
) STRICT, WITHOUT ROWID;

INSERT INTO new_keys (key_id, pod_id, role, label, digest, created_at, revoked_at)
SELECT key_id, pod_id, role, label, digest, created_at, revoked_at FROM keys;
DROP TABLE keys;
ALTER TABLE new_keys RENAME TO keys;

-- Player tokens that were issued before these instants are refused.
CREATE TABLE token_revocations (
    pod_id  TEXT NOT NULL REFERENCES pods (pod_id),
    user_id TEXT NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (pod_id, user_id)
) STRICT, WITHOUT ROWID;

ALTER TABLE pods ADD COLUMN origins TEXT NOT NULL DEFAULT '';  -- allowed origins, separated by spaces
ALTER TABLE boards ADD COLUMN public_fields TEXT NOT NULL DEFAULT '[]';  -- JSON list
ALTER TABLE boards ADD COLUMN players_may_write INTEGER NOT NULL DEFAULT 0;
ALTER TABLE boards ADD COLUMN player_writes_per_minute INTEGER NOT NULL DEFAULT 60;
-- The secret before the last rotation also signs messages until then.
ALTER TABLE webhooks ADD COLUMN old_secret TEXT;
ALTER TABLE webhooks ADD COLUMN old_until INTEGER;
