-- Statements that both ledgers run, in PostgreSQL's syntax. adapters/sql/files.py converts them for SQLite.

-- name: schemas
SELECT pod_id, version, state, terms, created_at, updated_at FROM schemas ORDER BY created_at DESC, version DESC;

-- name: put_schema
INSERT INTO schemas (pod_id, version, state, terms, created_at, updated_at) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (pod_id, version) DO UPDATE SET
    state = CASE WHEN $7::boolean THEN schemas.state ELSE excluded.state END, terms = excluded.terms,
    updated_at = excluded.updated_at
RETURNING pod_id, version, state, terms, created_at, updated_at;

-- name: set_schema_state
UPDATE schemas SET state = $1, updated_at = $2 WHERE pod_id = $3 AND version = $4
RETURNING pod_id, version, state, terms, created_at, updated_at;

-- name: delete_schema
DELETE FROM schemas WHERE pod_id = $1 AND version = $2 AND state IN ('draft', 'retired');

-- name: replays
SELECT record_id, outcome, replayed_at, reason FROM replays WHERE pod_id = $1 AND record_id = ANY ($2::text[]);

-- name: unpublished_periods
SELECT board_id, id, window_name, name, start_at, end_at, state, terms, total_users, frozen_at, replaces FROM periods
WHERE frozen_at IS NOT NULL AND NOT published
  AND board_id NOT IN (SELECT id FROM boards WHERE pod_id = ANY ($2::text[]))
ORDER BY id LIMIT $1;

-- name: period_published
UPDATE periods SET published = true WHERE id = $1;

-- name: skip_past_periods
UPDATE periods SET published = true WHERE frozen_at IS NOT NULL AND NOT published;
