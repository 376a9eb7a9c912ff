-- Statements that only the SQLite ledger runs.

-- name: note_replay
INSERT INTO replays (pod_id, record_id, outcome, replayed_at, reason) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (pod_id, record_id) DO UPDATE SET outcome = excluded.outcome, replayed_at = excluded.replayed_at, reason = NULL
WHERE replays.outcome = 'discarded' AND excluded.outcome <> 'discarded';

-- name: last_event
SELECT value FROM counters WHERE name = 'event';

-- name: accepted_after
SELECT board_id, seq, event_id, user_id, score, at, received_at, 0, metadata, stamped, subscore, operation FROM events
WHERE seq > :after AND (:up_to IS NULL OR seq <= :up_to) AND voided_by IS NULL
  AND (:without = '[]' OR +board_id NOT IN
       (SELECT id FROM boards WHERE pod_id IN (SELECT value FROM json_each(:without))))
  AND (:pod IS NULL OR +board_id IN (SELECT id FROM boards WHERE pod_id = :pod))
ORDER BY seq LIMIT :limit;
