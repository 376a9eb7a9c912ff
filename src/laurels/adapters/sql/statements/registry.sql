-- Statements that both ledgers run, in PostgreSQL's syntax. adapters/sql/files.py converts them for SQLite.

-- name: find_fact
SELECT value FROM facts WHERE name = $1;

-- name: replace_fact
UPDATE facts SET value = $3 WHERE name = $1 AND value = $2;

-- name: put_fact
INSERT INTO facts (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: ledger_id
SELECT value FROM facts WHERE name = 'ledger_id';

-- name: registry_revision
SELECT value FROM counters WHERE name = 'registry';

-- name: registry_changed
UPDATE counters SET value = value + 1 WHERE name = 'registry';

-- name: insert_pod
INSERT INTO pods (pod_id, name, created_at) VALUES ($1, $2, $3) ON CONFLICT (pod_id) DO NOTHING;

-- name: find_pod
SELECT pod_id, name, created_at, origins, quotas FROM pods WHERE pod_id = $1;

-- name: pods
SELECT pod_id, name, created_at, origins, quotas FROM pods ORDER BY pod_id;

-- name: change_pod
UPDATE pods SET origins = coalesce($1::text, origins), quotas = coalesce($2::text, quotas) WHERE pod_id = $3;

-- name: add_usage
INSERT INTO usage (pod_id, day, events) VALUES ($1, $2, $3)
ON CONFLICT (pod_id, day) DO UPDATE SET events = usage.events + excluded.events;

-- name: usage_of_day
SELECT pod_id, events FROM usage WHERE day = $1;

-- name: forget_usage
DELETE FROM usage WHERE day < $1;

-- name: insert_key
INSERT INTO keys (key_id, pod_id, role, label, digest, created_at, expires_at, scopes, used_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (key_id) DO NOTHING;

-- name: keys
SELECT key_id, pod_id, role, label, digest, created_at, expires_at, scopes, used_at FROM keys
WHERE revoked_at IS NULL ORDER BY created_at, key_id;

-- name: revoke_key
UPDATE keys SET revoked_at = $1 WHERE key_id = $2 AND revoked_at IS NULL;

-- name: expire_key
UPDATE keys SET expires_at = $1
WHERE key_id = $2 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $1);

-- name: key_used
UPDATE keys SET used_at = $1 WHERE key_id = $2 AND (used_at IS NULL OR used_at < $1);

-- name: revoke_tokens
INSERT INTO token_revocations (pod_id, user_id, at) VALUES ($1, $2, $3)
ON CONFLICT (pod_id, user_id) DO UPDATE SET at = excluded.at WHERE token_revocations.at < excluded.at;

-- name: token_revocations
SELECT pod_id, user_id, at FROM token_revocations WHERE at >= $1;

-- name: forget_revocations
DELETE FROM token_revocations WHERE at < $1;

-- name: insert_board
INSERT INTO boards (uuid, pod_id, name, rule, sort_order, ties, capacity, min_score, max_score, public,
                    windows, segments, start_at, end_at, archived_at, created_at, revision, metadata,
                    grace_s, flush_ms, rewards, keep_events_days, keep_periods_days, pruned_before, public_fields,
                    players_may_write, player_writes_per_minute, shards, reshard, rank_on_write, created_by, review,
                    subscore, score_ttl_s, operations)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23,
        $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35)
ON CONFLICT (uuid) DO NOTHING RETURNING id;

-- name: update_board
UPDATE boards SET name = $1, capacity = $2, min_score = $3, max_score = $4, public = $5, windows = $6, start_at = $7,
                  end_at = $8, archived_at = $9, metadata = $10, grace_s = $11, flush_ms = $12, rewards = $13,
                  keep_events_days = $14, keep_periods_days = $15, pruned_before = $16, public_fields = $17,
                  players_may_write = $18, player_writes_per_minute = $19, shards = $20, reshard = $21,
                  rank_on_write = $22, segments = $23, filling = $24, review = $25, score_ttl_s = $26, revision = revision + 1
WHERE id = $27 AND revision = $28;

-- name: boards
SELECT id, uuid, pod_id, name, rule, sort_order, ties, capacity, min_score, max_score, public, windows, segments,
       start_at, end_at, archived_at, created_at, revision, metadata, grace_s, flush_ms, rewards, keep_events_days,
       keep_periods_days, pruned_before, public_fields, players_may_write, player_writes_per_minute, shards, reshard,
       rank_on_write, created_by, filling, review, subscore, score_ttl_s, operations
FROM boards WHERE deleted_at IS NULL AND ($1::bigint[] IS NULL OR id = ANY ($1::bigint[])) ORDER BY id;

-- name: put_template
INSERT INTO templates (pod_id, name, prefix, definition, created_at, updated_at) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (pod_id, name) DO UPDATE
SET prefix = excluded.prefix, definition = excluded.definition, updated_at = excluded.updated_at
RETURNING pod_id, name, prefix, definition, created_at, updated_at;

-- name: templates
SELECT pod_id, name, prefix, definition, created_at, updated_at FROM templates ORDER BY pod_id, name;

-- name: delete_template
DELETE FROM templates WHERE pod_id = $1 AND name = $2;

-- name: insert_period
INSERT INTO periods (board_id, window_name, name, start_at, end_at) VALUES ($1, $2, $3, $4, $5) RETURNING id;

-- name: live_periods
SELECT board_id, id, window_name, name, start_at, end_at, state, terms, total_users, frozen_at, replaces FROM periods
WHERE state IN ('open', 'closed') AND ($1::bigint[] IS NULL OR board_id = ANY ($1::bigint[])) ORDER BY start_at NULLS FIRST, id;

-- name: open_periods_of
SELECT id, window_name, name, start_at, end_at, state, terms, total_users, frozen_at, replaces FROM periods
WHERE board_id = $1 AND state = 'open' ORDER BY start_at NULLS FIRST, id;
