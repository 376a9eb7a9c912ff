-- Profiles, who is hidden, what was done to scores, and erasure. A plus before a column, and CROSS JOIN, keep SQLite from
-- choosing an order that looks through everything.

-- name: profiles
SELECT user_id, display_name, avatar_url, region, region_at, circles FROM profiles
WHERE pod_id = ? AND user_id IN (SELECT value FROM json_each(?));

-- name: profiles_page
SELECT user_id, display_name, avatar_url, region, region_at, circles FROM profiles
WHERE pod_id = ? AND user_id > ? ORDER BY user_id LIMIT ?;

-- name: users_named
SELECT user_id FROM profiles WHERE pod_id = ? AND name_key >= ? AND name_key < ? ORDER BY name_key, user_id LIMIT ?;

-- name: has_names
SELECT 1 FROM profiles WHERE pod_id = ? AND (display_name IS NOT NULL OR avatar_url IS NOT NULL) LIMIT 1;

-- name: need_profile
INSERT INTO profiles (pod_id, user_id) VALUES (?, ?) ON CONFLICT DO NOTHING;

-- name: put_profile
INSERT INTO profiles (pod_id, user_id, display_name, avatar_url, region, region_at, circles, name_key)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (pod_id, user_id) DO UPDATE SET
    display_name = excluded.display_name, avatar_url = excluded.avatar_url, region = excluded.region,
    region_at = excluded.region_at, circles = excluded.circles, name_key = excluded.name_key;

-- name: put_hide
INSERT INTO hides (pod_id, user_id, board_id, hidden) VALUES (?, ?, ?, ?)
ON CONFLICT (pod_id, user_id, board_id) DO UPDATE SET hidden = excluded.hidden;

-- name: delete_hide
DELETE FROM hides WHERE pod_id = ? AND user_id = ? AND board_id = ?;

-- name: open_rows
SELECT b.id, s.period_id, s.user_id, s.score, s.achieved_at, s.total, s.moved, s.version, s.hidden, s.segments
FROM boards b CROSS JOIN periods p ON p.board_id = b.id AND p.state = 'open'
CROSS JOIN scores s ON s.period_id = p.id AND s.user_id = :user
WHERE b.pod_id = :pod AND (:board = 0 OR b.id = :board);

-- name: find_act
SELECT id, pod_id, board_id, kind, user_id, by_key, at, reason, detail, events, done_at, undone_by FROM acts
WHERE pod_id = ? AND id = ?;

-- name: acts
SELECT id, pod_id, board_id, kind, user_id, by_key, at, reason, detail, events, done_at, undone_by FROM acts
WHERE pod_id = :pod AND (:board IS NULL OR board_id IN (0, :board)) AND id < :before ORDER BY id DESC LIMIT :limit;

-- name: acts_of_user
SELECT id, pod_id, board_id, kind, user_id, by_key, at, reason, detail, events, done_at, undone_by FROM acts
WHERE pod_id = ? AND user_id = ? ORDER BY id;

-- name: unfinished_acts
SELECT id, pod_id, board_id, kind, user_id, by_key, at, reason, detail, events, done_at, undone_by FROM acts
WHERE done_at IS NULL AND at < ? ORDER BY at;

-- name: undo_act
UPDATE acts SET undone_by = ? WHERE id = ?;

-- name: events_by_id
SELECT seq, event_id, user_id, score, at, received_at, voided_by IS NOT NULL, metadata, stamped FROM events
WHERE board_id = ? AND event_id IN (SELECT value FROM json_each(?)) ORDER BY seq;

-- name: events_like
SELECT seq, event_id, user_id, score, at, received_at, voided_by IS NOT NULL, metadata, stamped FROM events
WHERE seq > ? AND seq <= ? AND +board_id = ? AND metadata IS NOT NULL AND received_at < ?
  AND NOT EXISTS (SELECT 1 FROM json_each(?) WHERE instr(metadata, value) = 0) ORDER BY seq;

-- name: last_seq
SELECT coalesce(max(seq), 0) FROM events;

-- name: voided_by
-- What was of a user who was erased since stays void.
SELECT seq, event_id, user_id, score, at, received_at, voided_by IS NOT NULL, metadata, stamped FROM events
WHERE voided_by = ? AND NOT EXISTS (SELECT 1 FROM acts a WHERE a.user_id = events.user_id AND a.kind = 'erase') LIMIT ?;

-- name: void_events
UPDATE events SET voided_by = ? WHERE +board_id = ? AND seq IN (SELECT value FROM json_each(?)) AND voided_by IS NULL
RETURNING user_id;

-- name: restore_events
UPDATE events SET voided_by = NULL WHERE board_id = ? AND seq IN (SELECT value FROM json_each(?)) AND voided_by = ?
RETURNING user_id;

-- name: is_busy
SELECT EXISTS (SELECT 1 FROM boards b CROSS JOIN periods p ON p.board_id = b.id
               WHERE b.pod_id = :pod AND p.state IN ('closed', 'refreezing'))
    OR EXISTS (SELECT 1 FROM acts WHERE pod_id = :pod AND done_at IS NULL);

-- name: is_done
SELECT done_at IS NOT NULL FROM acts WHERE id = ?;

-- name: put_erased
INSERT INTO erased (pod_id, digest, at, user_id) VALUES (?, ?, ?, ?)
ON CONFLICT (pod_id, digest) DO UPDATE SET at = excluded.at, user_id = excluded.user_id;

-- name: erase_events
UPDATE events SET user_id = :stand_in, metadata = NULL, voided_by = coalesce(voided_by, :act)
WHERE user_id = :user AND board_id IN (SELECT id FROM boards WHERE pod_id = :pod);

-- name: erase_finals
UPDATE finals SET user_id = :stand_in
WHERE user_id = :user AND period_id IN
    (SELECT p.id FROM periods p JOIN boards b ON b.id = p.board_id WHERE b.pod_id = :pod);

-- name: erase_grants
UPDATE grants SET user_id = :stand_in
WHERE user_id = :user AND period_id IN
    (SELECT p.id FROM periods p JOIN boards b ON b.id = p.board_id WHERE b.pod_id = :pod);

-- name: erase_acts
UPDATE acts SET user_id = :stand_in, detail = NULL, reason = NULL, act_id = 'erased/' || id
WHERE user_id = :user AND pod_id = :pod;

-- name: erase_messages
UPDATE outbox SET body = replace(body, :named, :unnamed) WHERE pod_id = :pod AND instr(body, :named) > 0;

-- name: erase_bases
DELETE FROM bases WHERE user_id = :user AND period_id IN
    (SELECT p.id FROM periods p JOIN boards b ON b.id = p.board_id WHERE b.pod_id = :pod);

-- name: erase_unswept
DELETE FROM scores WHERE user_id = :user AND period_id IN
    (SELECT p.id FROM periods p JOIN boards b ON b.id = p.board_id WHERE b.pod_id = :pod AND p.state <> 'open');

-- name: erase_profile
DELETE FROM profiles WHERE pod_id = :pod AND user_id = :user;

-- name: erase_hides
DELETE FROM hides WHERE pod_id = :pod AND user_id = :user;

-- name: clear_row
UPDATE scores SET score = NULL, achieved_at = NULL, total = NULL, moved = 0, hidden = 0, segments = ?, version = ?
WHERE period_id = ? AND user_id = ?;

-- name: unswept_erasures
SELECT pod_id, user_id FROM erased WHERE user_id IS NOT NULL AND at < ? ORDER BY at;

-- name: sweep_cleared
DELETE FROM scores WHERE user_id = :user AND score IS NULL AND period_id IN
    (SELECT p.id FROM periods p JOIN boards b ON b.id = p.board_id WHERE b.pod_id = :pod);

-- name: forget_erased
UPDATE erased SET user_id = NULL WHERE pod_id = ? AND digest = ?;
