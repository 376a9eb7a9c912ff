-- Statements that only the SQLite ledger runs.

-- name: periods_at
SELECT k.key, p.id, p.window_name, p.name, p.start_at, p.end_at, p.state, p.terms, p.total_users, p.frozen_at, p.replaces
FROM json_each(?) AS k JOIN periods p ON p.id = (
    SELECT id FROM periods
    WHERE board_id = json_extract(k.value, '$[0]') AND window_name = json_extract(k.value, '$[1]')
      AND (start_at <= json_extract(k.value, '$[2]') OR start_at IS NULL)
      AND state NOT IN ('refreezing', 'superseded', 'discarded')
    ORDER BY start_at DESC, id DESC LIMIT 1
);

-- name: insert_final
INSERT INTO finals (period_id, segment, place, user_id, score, achieved_at, competition, dense, subscore)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- name: insert_grant
INSERT INTO grants (period_id, place, reward, user_id, rank, score, prize, granted_at, claimed_at, claimed_by, segment)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- name: old_events
-- The last column: it waits for a moderator, who may still let it count.
SELECT seq, board_id, user_id, score, at, received_at, voided_by IS NOT NULL, subscore, operation,
       EXISTS (SELECT 1 FROM actions a WHERE a.id = voided_by AND a.kind = 'review' AND a.undone_by IS NULL)
FROM events WHERE seq > ? ORDER BY seq LIMIT ?;

-- name: delete_event
DELETE FROM events WHERE seq = ?;

-- name: find_base
SELECT score, achieved_at, total, has_nonzero, subscore, last_at FROM bases WHERE period_id = ? AND user_id = ?;

-- name: put_base
INSERT INTO bases (period_id, user_id, score, achieved_at, total, has_nonzero, subscore, last_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (period_id, user_id) DO UPDATE SET
    score = excluded.score, achieved_at = excluded.achieved_at, total = excluded.total, has_nonzero = excluded.has_nonzero,
    subscore = excluded.subscore, last_at = excluded.last_at;

-- name: segments_of_erased
SELECT f.user_id, f.segment FROM finals f
WHERE f.period_id = ?3 AND f.segment <> 'global' AND f.user_id BETWEEN ?1 AND ?2
  AND EXISTS (SELECT 1 FROM actions a WHERE a.user_id = f.user_id AND a.kind = 'erase')
ORDER BY f.user_id, f.segment DESC;
