-- Statements about events from Kafka and for it.

-- name: schemas
SELECT pod_id, version, state, terms, created_at, updated_at FROM schemas ORDER BY created_at DESC, version DESC;

-- name: put_schema
INSERT INTO schemas (pod_id, version, state, terms, created_at, updated_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (pod_id, version) DO UPDATE SET
    state = CASE WHEN ?7 THEN schemas.state ELSE excluded.state END, terms = excluded.terms,
    updated_at = excluded.updated_at
RETURNING pod_id, version, state, terms, created_at, updated_at;

-- name: set_schema_state
UPDATE schemas SET state = ?, updated_at = ? WHERE pod_id = ? AND version = ?
RETURNING pod_id, version, state, terms, created_at, updated_at;

-- name: delete_schema
DELETE FROM schemas WHERE pod_id = ? AND version = ? AND state IN ('draft', 'retired');

-- name: replays
SELECT place, outcome, replayed_at FROM replays WHERE pod_id = ? AND place IN (SELECT value FROM json_each(?));

-- name: note_replay
INSERT INTO replays (pod_id, place, outcome, replayed_at) VALUES (?, ?, ?, ?) ON CONFLICT (pod_id, place) DO NOTHING;

-- name: last_event
SELECT value FROM counters WHERE name = 'event';

-- name: accepted_after
SELECT board_id, seq, event_id, user_id, score, at, received_at, 0, metadata, stamped FROM events
WHERE seq > :after AND (:up_to IS NULL OR seq <= :up_to) AND voided_by IS NULL
  AND (:without = '[]' OR +board_id NOT IN
       (SELECT id FROM boards WHERE pod_id IN (SELECT value FROM json_each(:without))))
  AND (:pod IS NULL OR +board_id IN (SELECT id FROM boards WHERE pod_id = :pod))
ORDER BY seq LIMIT :limit;

-- name: unpublished_periods
SELECT board_id, id, window_name, name, start_at, end_at, state, terms, total_users, frozen_at, replaces FROM periods
WHERE frozen_at IS NOT NULL AND published = 0
  AND board_id NOT IN (SELECT id FROM boards WHERE pod_id IN (SELECT value FROM json_each(?2)))
ORDER BY id LIMIT ?1;

-- name: period_published
UPDATE periods SET published = 1 WHERE id = ?;

-- name: publish_no_past
UPDATE periods SET published = 1 WHERE frozen_at IS NOT NULL AND published = 0;
