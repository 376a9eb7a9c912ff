-- Statements that both ledgers run, in PostgreSQL's syntax. adapters/sql/files.py converts them for SQLite.

-- name: profiles
SELECT user_id, display_name, avatar_url, region, region_at, circles, attributes FROM profiles
WHERE pod_id = $1 AND user_id = ANY ($2::text[]);

-- name: profiles_page
SELECT user_id, display_name, avatar_url, region, region_at, circles, attributes FROM profiles
WHERE pod_id = $1 AND user_id > $2 ORDER BY user_id LIMIT $3;

-- name: users_named
SELECT user_id FROM profiles WHERE pod_id = $1 AND name_key >= $2 AND name_key < $3 ORDER BY name_key, user_id LIMIT $4;

-- name: has_names
SELECT 1 FROM profiles WHERE pod_id = $1 AND (display_name IS NOT NULL OR avatar_url IS NOT NULL) LIMIT 1;

-- name: put_hide
INSERT INTO hides (pod_id, user_id, board_id, hidden) VALUES ($1, $2, $3, $4)
ON CONFLICT (pod_id, user_id, board_id) DO UPDATE SET hidden = excluded.hidden;

-- name: delete_hide
DELETE FROM hides WHERE pod_id = $1 AND user_id = $2 AND board_id = $3;

-- name: find_action
SELECT id, pod_id, board_id, kind, user_id, by_key, at, reason, detail, events, done_at, undone_by FROM actions
WHERE pod_id = $1 AND id = $2;

-- name: actions
SELECT id, pod_id, board_id, kind, user_id, by_key, at, reason, detail, events, done_at, undone_by FROM actions
WHERE pod_id = $1 AND ($2::bigint IS NULL OR board_id IN (0, $2)) AND id < $3
  AND board_id NOT IN (SELECT id FROM boards WHERE deleted_at IS NOT NULL) ORDER BY id DESC LIMIT $4;

-- name: actions_of_user
SELECT id, pod_id, board_id, kind, user_id, by_key, at, reason, detail, events, done_at, undone_by FROM actions
WHERE pod_id = $1 AND user_id = $2 ORDER BY id;

-- name: unfinished_actions
SELECT id, pod_id, board_id, kind, user_id, by_key, at, reason, detail, events, done_at, undone_by FROM actions
WHERE done_at IS NULL AND at < $1 ORDER BY at;

-- name: undo_action
UPDATE actions SET undone_by = $1 WHERE id = $2;

-- name: events_by_id
SELECT seq, event_id, user_id, score, at, received_at, voided_by IS NOT NULL AS voided, metadata, stamped, subscore, operation FROM events
WHERE board_id = $1 AND event_id = ANY ($2::text[]) ORDER BY seq;

-- name: last_seq
SELECT coalesce(max(seq), 0) FROM events;

-- name: voided_by
-- The events of erased users stay void.
SELECT seq, event_id, user_id, score, at, received_at, voided_by IS NOT NULL AS voided, metadata, stamped, subscore, operation FROM events
WHERE voided_by = $1 AND NOT EXISTS (SELECT 1 FROM actions a WHERE a.user_id = events.user_id AND a.kind = 'erase') LIMIT $2;

-- name: is_busy
SELECT EXISTS (SELECT 1 FROM periods WHERE state IN ('closed', 'refreezing')
               AND board_id IN (SELECT id FROM boards WHERE pod_id = $1))
    OR EXISTS (SELECT 1 FROM actions WHERE pod_id = $1 AND done_at IS NULL);

-- name: is_done
SELECT done_at IS NOT NULL FROM actions WHERE id = $1 FOR SHARE;

-- name: put_erased
INSERT INTO erased (pod_id, digest, at, user_id) VALUES ($1, $2, $3, $4)
ON CONFLICT (pod_id, digest) DO UPDATE SET at = excluded.at, user_id = excluded.user_id;

-- name: erase_events
UPDATE events SET user_id = $3, metadata = NULL, voided_by = coalesce(voided_by, $4)
WHERE user_id = $2 AND board_id IN (SELECT id FROM boards WHERE pod_id = $1);

-- name: erase_metadata
DELETE FROM kept_metadata WHERE user_id = $2 AND board_id IN (SELECT id FROM boards WHERE pod_id = $1);

-- name: erase_finals
UPDATE finals SET user_id = $3
WHERE user_id = $2 AND period_id IN (SELECT p.id FROM periods p JOIN boards b ON b.id = p.board_id WHERE b.pod_id = $1);

-- name: erase_grants
UPDATE grants SET user_id = $3
WHERE user_id = $2 AND period_id IN (SELECT p.id FROM periods p JOIN boards b ON b.id = p.board_id WHERE b.pod_id = $1);

-- name: erase_actions
UPDATE actions SET user_id = $3, detail = NULL, reason = NULL, action_id = 'erased/' || id WHERE user_id = $2 AND pod_id = $1;

-- name: erase_messages
UPDATE outbox SET body = replace(body, $2, $3) WHERE pod_id = $1 AND replace(body, $2, $3) <> body;

-- name: erase_bases
DELETE FROM bases
WHERE user_id = $2 AND period_id IN (SELECT p.id FROM periods p JOIN boards b ON b.id = p.board_id WHERE b.pod_id = $1);

-- name: erase_unswept
DELETE FROM scores WHERE user_id = $2 AND period_id IN
    (SELECT p.id FROM periods p JOIN boards b ON b.id = p.board_id WHERE b.pod_id = $1 AND p.state <> 'open');

-- name: erase_profile
DELETE FROM profiles WHERE pod_id = $1 AND user_id = $2;

-- name: erase_hides
DELETE FROM hides WHERE pod_id = $1 AND user_id = $2;

-- name: unswept_erasures
SELECT pod_id, user_id FROM erased WHERE user_id IS NOT NULL AND at < $1 ORDER BY at;

-- name: sweep_cleared
DELETE FROM scores WHERE user_id = $2 AND score IS NULL AND period_id IN
    (SELECT p.id FROM periods p JOIN boards b ON b.id = p.board_id WHERE b.pod_id = $1);

-- name: forget_erased
UPDATE erased SET user_id = NULL WHERE pod_id = $1 AND digest = $2;

-- name: count_action_events
UPDATE actions SET events = events + $1 WHERE id = $2;

-- name: end_action
UPDATE actions SET done_at = $1 WHERE id = $2;

-- name: hides
SELECT board_id, hidden FROM hides WHERE pod_id = $1 AND user_id = $2;
