-- Statements that only the PostgreSQL ledger runs.

-- name: profiles_locked
INSERT INTO profiles AS p (pod_id, user_id) SELECT $1, u FROM unnest($2::text[]) AS u ORDER BY u COLLATE "C"
ON CONFLICT (pod_id, user_id) DO UPDATE SET region_at = p.region_at
RETURNING user_id, display_name, avatar_url, region, region_at, circles, attributes;

-- name: put_profiles
UPDATE profiles AS p SET display_name = n.display_name, avatar_url = n.avatar_url, region = n.region,
                         region_at = n.region_at, circles = n.circles, name_key = n.name_key,
                         attributes = n.attributes
FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::text[], $8::text[], $9::text[])
    AS n (user_id, display_name, avatar_url, region, region_at, circles, name_key, attributes)
WHERE p.pod_id = $1 AND p.user_id = n.user_id;

-- name: resegment_users
SELECT count(*) FROM resegment_users_v1($1::profile_key_v1[]);

-- name: rows_with_segments
SELECT s.period_id, s.user_id, s.score, s.achieved_at, s.total::text, s.has_nonzero, s.version, s.hidden, s.segments, s.subscore, s.last_at
FROM boards b JOIN periods p ON p.board_id = b.id AND p.state = 'open'
JOIN scores s ON s.period_id = p.id AND s.user_id = ANY ($2::text[])
WHERE b.pod_id = $1 AND b.segments <> '["global"]';

-- name: lock_boards
SELECT pg_advisory_xact_lock(1279348562, b.id::int)
FROM (SELECT id FROM boards WHERE pod_id = $1 AND ($2::bigint = 0 OR id = $2) ORDER BY id) AS b;

-- name: hide_rows
WITH changed AS (
    UPDATE scores s SET hidden = s.hidden - s.hidden % 4 + hidden_on_v1(b.pod_id, b.id, s.user_id), version = nextval('versions')
    FROM boards b JOIN periods p ON p.board_id = b.id AND p.state = 'open'
    WHERE b.pod_id = $1 AND ($2::bigint = 0 OR b.id = $2) AND s.period_id = p.id AND s.user_id = $3
      AND s.hidden % 4 <> hidden_on_v1(b.pod_id, b.id, s.user_id)
    RETURNING b.id AS board_id, s.period_id, s.user_id, s.score, s.achieved_at, s.total, s.has_nonzero, s.version, s.hidden,
              s.segments, s.subscore, s.last_at
), touched AS (
    INSERT INTO touches (board_id, user_id) SELECT DISTINCT board_id, user_id FROM changed
)
SELECT period_id, user_id, score, achieved_at, total::text, has_nonzero, version, hidden, segments, subscore, last_at FROM changed;

-- name: open_rows
SELECT s.period_id, s.user_id, s.score, s.achieved_at, s.total::text, s.has_nonzero, s.version, s.hidden, s.segments, s.subscore, s.last_at
FROM boards b JOIN periods p ON p.board_id = b.id AND p.state = 'open'
JOIN scores s ON s.period_id = p.id AND s.user_id = $3
WHERE b.pod_id = $1 AND ($2::bigint = 0 OR b.id = $2);

-- name: events_like
SELECT seq, event_id, user_id, score, at, received_at, voided_by IS NOT NULL AS voided, metadata, stamped, subscore, operation FROM events
WHERE seq > $1 AND seq <= $2 AND board_id = $3 AND metadata IS NOT NULL AND received_at < $4
  AND NOT EXISTS (SELECT FROM unnest($5::text[]) AS t WHERE position(t IN metadata) = 0) ORDER BY seq;

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

-- name: clear_rows
WITH changed AS (
    UPDATE scores s
    SET score = NULL, achieved_at = NULL, total = NULL, has_nonzero = false, subscore = 0, last_at = NULL, hidden = 0, segments = NULL,
        version = nextval('versions')
    FROM boards b JOIN periods p ON p.board_id = b.id AND p.state = 'open'
    WHERE b.pod_id = $1 AND s.period_id = p.id AND s.user_id = $2
    RETURNING b.id AS board_id, s.period_id, s.user_id, s.score, s.achieved_at, s.total, s.has_nonzero, s.version, s.hidden,
              s.segments, s.subscore, s.last_at
), touched AS (
    INSERT INTO touches (board_id, user_id) SELECT DISTINCT board_id, user_id FROM changed
)
SELECT period_id, user_id, score, achieved_at, total::text, has_nonzero, version, hidden, segments, subscore, last_at FROM changed;

-- name: sweep_touches
WITH gone AS (
    DELETE FROM touches WHERE user_id = $2 AND board_id IN (SELECT id FROM boards WHERE pod_id = $1) RETURNING xact
) SELECT max(xact) FROM gone;

-- name: note_forgotten
INSERT INTO facts AS f (name, value) SELECT 'forgotten_version', last_value::text FROM versions
ON CONFLICT (name) DO UPDATE SET value = greatest(f.value::bigint, excluded.value::bigint)::text
RETURNING value::bigint;

-- name: boards_of
SELECT id FROM boards WHERE pod_id = $1 AND ($2::bigint = 0 OR id = $2);
