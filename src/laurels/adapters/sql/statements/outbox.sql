-- Statements that both ledgers run, in PostgreSQL's syntax. adapters/sql/files.py converts them for SQLite.

-- name: insert_message
INSERT INTO outbox (message_id, pod_id, period_id, kind, body, created_at)
SELECT $1, $2, $3, $4, $5, $6 WHERE EXISTS (SELECT 1 FROM webhooks WHERE pod_id = $2)
ON CONFLICT DO NOTHING;

-- name: release_messages
UPDATE outbox SET due_at = $1 WHERE period_id = $2 AND due_at IS NULL;

-- name: put_webhook
INSERT INTO webhooks (pod_id, url, secret, created_at, old_secret, old_until) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (pod_id) DO UPDATE SET url = excluded.url, secret = excluded.secret, created_at = excluded.created_at,
    old_secret = excluded.old_secret, old_until = excluded.old_until;

-- name: find_webhook
SELECT pod_id, url, secret, created_at, old_secret, old_until FROM webhooks WHERE pod_id = $1;

-- name: delete_webhook
DELETE FROM webhooks WHERE pod_id = $1;

-- name: drop_messages
DELETE FROM outbox WHERE pod_id = $1 AND delivered_at IS NULL;

-- name: post_message
INSERT INTO outbox (message_id, pod_id, period_id, kind, body, created_at, due_at)
SELECT $1, $2, $3, $4, $5, $6, $6 WHERE EXISTS (SELECT 1 FROM webhooks WHERE pod_id = $2)
ON CONFLICT (message_id) DO NOTHING;

-- name: message_delivered
UPDATE outbox SET delivered_at = $1, attempts = attempts + 1, error = NULL WHERE message_id = $2;

-- name: message_failed
UPDATE outbox SET due_at = $1, attempts = attempts + 1, error = $2 WHERE message_id = $3;

-- name: count_messages
SELECT count(*) FROM outbox WHERE delivered_at IS NULL AND due_at IS NOT NULL;

-- name: forget_messages
DELETE FROM outbox WHERE id IN (SELECT id FROM outbox WHERE delivered_at < $1 LIMIT $2);
