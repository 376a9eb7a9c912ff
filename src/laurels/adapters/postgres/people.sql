-- Profiles, who is hidden, what was done to scores, and erasure.

-- name: profiles
SELECT user_id, display_name, avatar_url, region, region_at, circles FROM profiles
WHERE pod_id = $1 AND user_id = ANY ($2::text[]);

-- name: profiles_page
SELECT user_id, display_name, avatar_url, region, region_at, circles FROM profiles
WHERE pod_id = $1 AND user_id > $2 ORDER BY user_id LIMIT $3;

-- name: users_named
SELECT user_id FROM profiles WHERE pod_id = $1 AND name_key >= $2 AND name_key < $3 ORDER BY name_key, user_id LIMIT $4;

-- name: has_names
SELECT 1 FROM profiles WHERE pod_id = $1 AND (display_name IS NOT NULL OR avatar_url IS NOT NULL) LIMIT 1;

-- name: profiles_locked
INSERT INTO profiles AS p (pod_id, user_id) SELECT $1, u FROM unnest($2::text[]) AS u ORDER BY u COLLATE "C"
ON CONFLICT (pod_id, user_id) DO UPDATE SET region_at = p.region_at
RETURNING user_id, display_name, avatar_url, region, region_at, circles;

-- name: put_profiles
UPDATE profiles AS p SET display_name = n.display_name, avatar_url = n.avatar_url, region = n.region,
                         region_at = n.region_at, circles = n.circles, name_key = n.name_key
FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::text[], $8::text[])
    AS n (user_id, display_name, avatar_url, region, region_at, circles, name_key)
WHERE p.pod_id = $1 AND p.user_id = n.user_id;

-- name: move_users
SELECT count(*) FROM move_users($1::text[], $2::text[]);

-- name: rows_with_segments
SELECT s.period_id, s.user_id, s.score, s.achieved_at, s.total::text, s.moved, s.version, s.hidden, s.segments
FROM boards b JOIN periods p ON p.board_id = b.id AND p.state = 'open'
JOIN scores s ON s.period_id = p.id AND s.user_id = ANY ($2::text[])
WHERE b.pod_id = $1 AND b.segments <> '["global"]';

-- name: lock_boards
SELECT pg_advisory_xact_lock(1279348562, b.id::int)
FROM (SELECT id FROM boards WHERE pod_id = $1 AND ($2::bigint = 0 OR id = $2) ORDER BY id) AS b;

-- name: put_hide
INSERT INTO hides (pod_id, user_id, board_id, hidden) VALUES ($1, $2, $3, $4)
ON CONFLICT (pod_id, user_id, board_id) DO UPDATE SET hidden = excluded.hidden;

-- name: delete_hide
DELETE FROM hides WHERE pod_id = $1 AND user_id = $2 AND board_id = $3;

-- name: hides
SELECT board_id, hidden FROM hides WHERE pod_id = $1 AND user_id = $2;

-- name: hide_rows
WITH changed AS (
    UPDATE scores s SET hidden = hidden_on(b.pod_id, b.id, s.user_id), version = nextval('versions')
    FROM boards b JOIN periods p ON p.board_id = b.id AND p.state = 'open'
    WHERE b.pod_id = $1 AND ($2::bigint = 0 OR b.id = $2) AND s.period_id = p.id AND s.user_id = $3
      AND s.hidden <> hidden_on(b.pod_id, b.id, s.user_id)
    RETURNING b.id AS board_id, s.period_id, s.user_id, s.score, s.achieved_at, s.total, s.moved, s.version, s.hidden,
              s.segments
), touched AS (
    INSERT INTO touches (board_id, user_id) SELECT DISTINCT board_id, user_id FROM changed
)
SELECT period_id, user_id, score, achieved_at, total::text, moved, version, hidden, segments FROM changed;

-- name: open_rows
SELECT s.period_id, s.user_id, s.score, s.achieved_at, s.total::text, s.moved, s.version, s.hidden, s.segments
FROM boards b JOIN periods p ON p.board_id = b.id AND p.state = 'open'
JOIN scores s ON s.period_id = p.id AND s.user_id = $3
WHERE b.pod_id = $1 AND ($2::bigint = 0 OR b.id = $2);

-- name: find_act
SELECT id, pod_id, board_id, kind, user_id, by_key, at, reason, detail, events, done_at, undone_by FROM acts
WHERE pod_id = $1 AND id = $2;

-- name: acts
SELECT id, pod_id, board_id, kind, user_id, by_key, at, reason, detail, events, done_at, undone_by FROM acts
WHERE pod_id = $1 AND ($2::bigint IS NULL OR board_id IN (0, $2)) AND id < $3 ORDER BY id DESC LIMIT $4;

-- name: acts_of_user
SELECT id, pod_id, board_id, kind, user_id, by_key, at, reason, detail, events, done_at, undone_by FROM acts
WHERE pod_id = $1 AND user_id = $2 ORDER BY id;

-- name: unfinished_acts
SELECT id, pod_id, board_id, kind, user_id, by_key, at, reason, detail, events, done_at, undone_by FROM acts
WHERE done_at IS NULL AND at < $1 ORDER BY at;

-- name: end_act
UPDATE acts SET done_at = $1 WHERE id = $2;

-- name: count_act
UPDATE acts SET events = events + $1 WHERE id = $2;

-- name: undo_act
UPDATE acts SET undone_by = $1 WHERE id = $2;

-- name: events_by_id
SELECT seq, event_id, user_id, score, at, received_at, voided_by IS NOT NULL AS voided, metadata, stamped FROM events
WHERE board_id = $1 AND event_id = ANY ($2::text[]) ORDER BY seq;

-- name: events_like
SELECT seq, event_id, user_id, score, at, received_at, voided_by IS NOT NULL AS voided, metadata, stamped FROM events
WHERE seq > $1 AND seq <= $2 AND board_id = $3 AND metadata IS NOT NULL AND received_at < $4
  AND NOT EXISTS (SELECT FROM unnest($5::text[]) AS t WHERE position(t IN metadata) = 0) ORDER BY seq;

-- name: last_seq
SELECT coalesce(max(seq), 0) FROM events;

-- name: voided_by
-- What was of a user who was erased since stays void.
SELECT seq, event_id, user_id, score, at, received_at, voided_by IS NOT NULL AS voided, metadata, stamped FROM events
WHERE voided_by = $1 AND NOT EXISTS (SELECT FROM acts a WHERE a.user_id = events.user_id AND a.kind = 'erase') LIMIT $2;

-- name: users_of_events
SELECT DISTINCT user_id FROM events WHERE board_id = $1 AND seq = ANY ($2::bigint[]);

-- name: void_events
WITH locked AS (
    SELECT seq FROM events WHERE board_id = $2 AND seq = ANY ($3::bigint[]) AND voided_by IS NULL ORDER BY seq FOR UPDATE
)
UPDATE events e SET voided_by = $1 FROM locked WHERE e.seq = locked.seq RETURNING e.user_id;

-- name: restore_events
WITH locked AS (
    SELECT seq FROM events WHERE board_id = $2 AND seq = ANY ($3::bigint[]) AND voided_by = $1 ORDER BY seq FOR UPDATE
)
UPDATE events e SET voided_by = NULL FROM locked WHERE e.seq = locked.seq RETURNING e.user_id;

-- name: is_busy
SELECT EXISTS (SELECT FROM periods p JOIN boards b ON b.id = p.board_id
               WHERE b.pod_id = $1 AND p.state IN ('closed', 'refreezing'))
    OR EXISTS (SELECT FROM acts WHERE pod_id = $1 AND done_at IS NULL);

-- name: is_done
SELECT done_at IS NOT NULL FROM acts WHERE id = $1 FOR SHARE;

-- name: put_erased
INSERT INTO erased (pod_id, digest, at, user_id) VALUES ($1, $2, $3, $4)
ON CONFLICT (pod_id, digest) DO UPDATE SET at = excluded.at, user_id = excluded.user_id;

-- name: erase_events
WITH erased AS (
    UPDATE events SET user_id = $3, metadata = NULL, voided_by = coalesce(voided_by, $4)
    WHERE user_id = $2 AND board_id IN (SELECT id FROM boards WHERE pod_id = $1) RETURNING 1
) SELECT count(*) FROM erased;

-- name: erase_finals
UPDATE finals SET user_id = $3
WHERE user_id = $2 AND period_id IN (SELECT p.id FROM periods p JOIN boards b ON b.id = p.board_id WHERE b.pod_id = $1);

-- name: erase_grants
UPDATE grants SET user_id = $3
WHERE user_id = $2 AND period_id IN (SELECT p.id FROM periods p JOIN boards b ON b.id = p.board_id WHERE b.pod_id = $1);

-- name: erase_acts
UPDATE acts SET user_id = $3, detail = NULL, reason = NULL, act_id = 'erased/' || id WHERE user_id = $2 AND pod_id = $1;

-- name: erase_messages
UPDATE outbox SET body = replace(body, $2, $3) WHERE pod_id = $1 AND position($2 IN body) > 0;

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

-- name: clear_rows
WITH changed AS (
    UPDATE scores s
    SET score = NULL, achieved_at = NULL, total = NULL, moved = false, hidden = 0, segments = NULL,
        version = nextval('versions')
    FROM boards b JOIN periods p ON p.board_id = b.id AND p.state = 'open'
    WHERE b.pod_id = $1 AND s.period_id = p.id AND s.user_id = $2
    RETURNING b.id AS board_id, s.period_id, s.user_id, s.score, s.achieved_at, s.total, s.moved, s.version, s.hidden,
              s.segments
), touched AS (
    INSERT INTO touches (board_id, user_id) SELECT DISTINCT board_id, user_id FROM changed
)
SELECT period_id, user_id, score, achieved_at, total::text, moved, version, hidden, segments FROM changed;

-- name: unswept_erasures
SELECT pod_id, user_id FROM erased WHERE user_id IS NOT NULL AND at < $1 ORDER BY at;

-- name: sweep_cleared
DELETE FROM scores WHERE user_id = $2 AND score IS NULL AND period_id IN
    (SELECT p.id FROM periods p JOIN boards b ON b.id = p.board_id WHERE b.pod_id = $1);

-- name: sweep_touches
WITH gone AS (
    DELETE FROM touches WHERE user_id = $2 AND board_id IN (SELECT id FROM boards WHERE pod_id = $1) RETURNING xact
) SELECT max(xact) FROM gone;

-- name: note_forgotten
INSERT INTO facts AS f (name, value) SELECT 'forgotten_version', last_value::text FROM versions
ON CONFLICT (name) DO UPDATE SET value = greatest(f.value::bigint, excluded.value::bigint)::text
RETURNING value::bigint;

-- name: forget_erased
UPDATE erased SET user_id = NULL WHERE pod_id = $1 AND digest = $2;

-- name: boards_of
SELECT id FROM boards WHERE pod_id = $1 AND ($2::bigint = 0 OR id = $2);
