-- Statements that only the PostgreSQL ledger runs.

-- name: note_replays
INSERT INTO replays (pod_id, record_id, outcome, replayed_at, reason)
SELECT $1, r.record_id, r.outcome, r.replayed_at, r.reason
FROM unnest($2::text[], $3::text[], $4::bigint[], $5::text[]) AS r (record_id, outcome, replayed_at, reason)
ORDER BY r.record_id COLLATE "C"
ON CONFLICT (pod_id, record_id) DO UPDATE SET outcome = excluded.outcome, replayed_at = excluded.replayed_at, reason = NULL
WHERE replays.outcome = 'discarded' AND excluded.outcome <> 'discarded';

-- name: published_up_to
SELECT value FROM facts WHERE name = $1;

-- name: oldest_xact
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint;

-- name: note_begun
INSERT INTO facts (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING;

-- name: note_published
-- Also replaces the cursors of pods that are behind, because they come from the same other database.
INSERT INTO facts (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: accepted_after
SELECT xact, board_id, seq, event_id, user_id, score, at, received_at, false, metadata, stamped, subscore, operation FROM events
WHERE (xact, seq) > ($1, $2) AND xact < pg_snapshot_xmin(pg_current_snapshot())::text::bigint AND voided_by IS NULL
  AND ($4::bigint IS NULL OR (xact, seq) <= ($4, $5::bigint))
  AND (cardinality($6::text[]) = 0 OR board_id NOT IN (SELECT id FROM boards WHERE pod_id = ANY ($6)))
  AND ($7::text IS NULL OR board_id IN (SELECT id FROM boards WHERE pod_id = $7))
ORDER BY xact, seq LIMIT $3;
