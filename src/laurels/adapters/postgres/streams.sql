-- Statements about events from Kafka and for it.

-- name: schemas
SELECT pod_id, version, state, terms, created_at, updated_at FROM schemas ORDER BY created_at DESC, version DESC;

-- name: put_schema
INSERT INTO schemas AS s (pod_id, version, state, terms, created_at, updated_at) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (pod_id, version) DO UPDATE SET
    state = CASE WHEN $7 THEN s.state ELSE excluded.state END, terms = excluded.terms, updated_at = excluded.updated_at
RETURNING s.pod_id, s.version, s.state, s.terms, s.created_at, s.updated_at;

-- name: set_schema_state
UPDATE schemas SET state = $1, updated_at = $2 WHERE pod_id = $3 AND version = $4
RETURNING pod_id, version, state, terms, created_at, updated_at;

-- name: delete_schema
DELETE FROM schemas WHERE pod_id = $1 AND version = $2 AND state IN ('draft', 'retired') RETURNING version;

-- name: replays
SELECT place, outcome, replayed_at FROM replays WHERE pod_id = $1 AND place = ANY ($2);

-- name: note_replays
INSERT INTO replays (pod_id, place, outcome, replayed_at)
SELECT $1, r.place, r.outcome, r.replayed_at
FROM unnest($2::text[], $3::text[], $4::bigint[]) AS r (place, outcome, replayed_at) ORDER BY r.place COLLATE "C"
ON CONFLICT (pod_id, place) DO NOTHING;

-- name: published_up_to
SELECT value FROM facts WHERE name = $1;

-- name: oldest_xact
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint;

-- name: note_begun
INSERT INTO facts (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING;

-- name: note_published
-- What is behind is of the same other database.
INSERT INTO facts (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: accepted_after
SELECT xact, board_id, seq, event_id, user_id, score, at, received_at, false, metadata, stamped FROM events
WHERE (xact, seq) > ($1, $2) AND xact < pg_snapshot_xmin(pg_current_snapshot())::text::bigint AND voided_by IS NULL
  AND ($4::bigint IS NULL OR (xact, seq) <= ($4, $5::bigint))
  AND (cardinality($6::text[]) = 0 OR board_id NOT IN (SELECT id FROM boards WHERE pod_id = ANY ($6)))
  AND ($7::text IS NULL OR board_id IN (SELECT id FROM boards WHERE pod_id = $7))
ORDER BY xact, seq LIMIT $3;

-- name: unpublished_periods
SELECT board_id, id, window_name, name, start_at, end_at, state, terms, total_users, frozen_at, replaces FROM periods
WHERE frozen_at IS NOT NULL AND NOT published
  AND board_id NOT IN (SELECT id FROM boards WHERE pod_id = ANY ($2::text[]))
ORDER BY id LIMIT $1;

-- name: period_published
UPDATE periods SET published = true WHERE id = $1;

-- name: publish_no_past
UPDATE periods SET published = true WHERE frozen_at IS NOT NULL AND NOT published;
