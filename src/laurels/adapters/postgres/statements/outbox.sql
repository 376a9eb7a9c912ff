-- Statements that only the PostgreSQL ledger runs.

-- name: due_messages
SELECT m.message_id, m.pod_id, m.period_id, m.kind, m.body, m.created_at, m.attempts
FROM webhooks w CROSS JOIN LATERAL (
    SELECT * FROM outbox WHERE pod_id = w.pod_id AND delivered_at IS NULL AND due_at <= $1 ORDER BY due_at, id LIMIT $2
) AS m
WHERE w.pod_id <> ALL ($3::text[]) ORDER BY m.due_at, m.id;
