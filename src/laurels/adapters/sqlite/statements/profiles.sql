-- Statements that only the SQLite ledger runs.

-- name: need_profile
INSERT INTO profiles (pod_id, user_id) VALUES (?, ?) ON CONFLICT DO NOTHING;

-- name: put_profile
INSERT INTO profiles (pod_id, user_id, display_name, avatar_url, region, region_at, circles, name_key,
                      attributes)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (pod_id, user_id) DO UPDATE SET
    display_name = excluded.display_name, avatar_url = excluded.avatar_url, region = excluded.region,
    region_at = excluded.region_at, circles = excluded.circles, name_key = excluded.name_key,
    attributes = excluded.attributes;

-- name: open_rows
SELECT b.id, s.period_id, s.user_id, s.score, s.achieved_at, s.total, s.has_nonzero, s.version, s.hidden, s.segments, s.subscore, s.last_at
FROM boards b CROSS JOIN periods p ON p.board_id = b.id AND p.state = 'open'
CROSS JOIN scores s ON s.period_id = p.id AND s.user_id = :user
WHERE b.pod_id = :pod AND (:board = 0 OR b.id = :board);

-- name: events_like
SELECT seq, event_id, user_id, score, at, received_at, voided_by IS NOT NULL, metadata, stamped, subscore, operation FROM events
WHERE seq > ? AND seq <= ? AND +board_id = ? AND metadata IS NOT NULL AND received_at < ?
  AND NOT EXISTS (SELECT 1 FROM json_each(?) WHERE instr(metadata, value) = 0) ORDER BY seq;

-- name: void_events
UPDATE events SET voided_by = ? WHERE +board_id = ? AND seq IN (SELECT value FROM json_each(?)) AND voided_by IS NULL
RETURNING user_id;

-- name: restore_events
UPDATE events SET voided_by = NULL WHERE board_id = ? AND seq IN (SELECT value FROM json_each(?)) AND voided_by = ?
RETURNING user_id;

-- name: clear_row
UPDATE scores SET score = NULL, achieved_at = NULL, total = NULL, has_nonzero = 0, subscore = 0, last_at = NULL, hidden = 0, segments = ?, version = ?
WHERE period_id = ? AND user_id = ?;
