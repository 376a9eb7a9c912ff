-- Statements that only the SQLite ledger runs.

-- name: webhook_pods
SELECT pod_id FROM webhooks;

-- name: due_messages
SELECT due_at, message_id, pod_id, period_id, kind, body, created_at, attempts FROM outbox
WHERE pod_id = ? AND delivered_at IS NULL AND due_at <= ? ORDER BY due_at, id LIMIT ?;
