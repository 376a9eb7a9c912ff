-- Statements that only the PostgreSQL ledger runs.

-- name: update_refolded_rows
UPDATE scores AS s
SET score = f.score, achieved_at = f.achieved_at, total = f.total::numeric, has_nonzero = f.has_nonzero, subscore = f.subscore,
    last_at = f.last_at, hidden = s.hidden % 4, version = nextval('versions')
FROM unnest($1::bigint[], $2::text[], $3::double precision[], $4::bigint[], $5::text[], $6::boolean[], $7::bigint[],
            $8::bigint[])
    AS f (period_id, user_id, score, achieved_at, total, has_nonzero, subscore, last_at)
WHERE s.period_id = f.period_id AND s.user_id = f.user_id;

-- name: record
SELECT * FROM record_events_v1($1, $2::event_target_v1[], $3::event_batch_v1);

-- name: remove_user
SELECT period_id, user_id, score, achieved_at, total::text, has_nonzero, version, hidden, segments, subscore, last_at
FROM remove_user_v1($1, $2, $3, $4, $5, $6, $7);

-- name: end_of_changes
SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint;

-- name: late_events
SELECT xact, seq, board_id, user_id FROM events
WHERE xact = ANY ($1::bigint[]) AND (xact, seq) > ($2, $3) ORDER BY xact, seq LIMIT $4;

-- name: new_events
SELECT xact, seq, board_id, user_id FROM events
WHERE xact >= $1 AND xact < $2 AND (xact, seq) > ($3, $4) ORDER BY xact, seq LIMIT $5;

-- name: touched
SELECT DISTINCT board_id, user_id FROM touches
WHERE xact = ANY ($1::bigint[]) OR (xact >= $2 AND xact < $3);

-- name: rows_of_users
SELECT s.period_id, s.user_id, s.score, s.achieved_at, s.total::text, s.has_nonzero, s.version, s.hidden, s.segments, s.subscore, s.last_at
FROM unnest($1::bigint[], $2::text[]) AS c (board_id, user_id)
JOIN periods p ON p.board_id = c.board_id AND p.state IN ('open', 'closed')
JOIN scores s ON s.period_id = p.id AND s.user_id = c.user_id;

-- name: forget_touches
-- Keeps the last $1 touches, and deletes at most $2 of the others. Also stores up to which transaction touches may be
-- missing, because an index with an older position must be rebuilt.
WITH last AS (
    SELECT xact FROM touches ORDER BY xact DESC OFFSET $1 LIMIT 1
), noted AS (
    INSERT INTO facts AS f (name, value) SELECT 'pruned_xact', xact::text FROM last
    ON CONFLICT (name) DO UPDATE SET value = greatest(f.value::bigint, excluded.value::bigint)::text
), gone AS (
    DELETE FROM touches
    WHERE ctid IN (SELECT ctid FROM touches WHERE xact <= (SELECT xact FROM last) LIMIT $2) RETURNING 1
)
SELECT count(*) FROM gone;

-- name: remembers_changes
-- $1: the first transaction that had not begun at the position; $2: the transactions that were unfinished then. Changes of
-- a transaction that is still unfinished can't have been forgotten.
SELECT NOT EXISTS (
    SELECT FROM facts WHERE name = 'pruned_xact'
    AND (value::bigint >= $1 OR EXISTS (
        SELECT FROM unnest($2::bigint[]) AS unfinished (xact) WHERE xact <= value::bigint
        AND pg_visible_in_snapshot(xact::text::xid8, pg_current_snapshot())))
    AND value::bigint < pg_snapshot_xmax(pg_current_snapshot())::text::bigint
);

-- name: count_changes
-- $1: the first transaction that had not begun at the position; $3: the transactions that were unfinished then. Changes of
-- a transaction that is still unfinished can't have been forgotten.
SELECT CASE WHEN EXISTS (SELECT FROM facts WHERE name = 'pruned_xact'
                         AND (value::bigint >= $1 OR EXISTS (
                             SELECT FROM unnest($3::bigint[]) AS unfinished (xact) WHERE xact <= value::bigint
                             AND pg_visible_in_snapshot(xact::text::xid8, pg_current_snapshot())))
                         AND value::bigint < pg_snapshot_xmax(pg_current_snapshot())::text::bigint) THEN $2
ELSE (SELECT count(*) FROM (
    (SELECT FROM events WHERE xact >= $1 AND xact < pg_snapshot_xmax(pg_current_snapshot())::text::bigint LIMIT $2)
    UNION ALL
    (SELECT FROM touches WHERE xact >= $1 AND xact < pg_snapshot_xmax(pg_current_snapshot())::text::bigint LIMIT $2)
) AS changes) END;

-- name: ordered_rows
SELECT period_id, user_id, score, achieved_at, total::text, has_nonzero, version, hidden, segments, subscore, last_at FROM scores
WHERE period_id = $1 AND score IS NOT NULL AND hidden = 0
ORDER BY score * $2::double precision, subscore * $5::bigint, achieved_at * $3::bigint, user_id LIMIT $4;

-- name: need_live
SELECT state IN ('open', 'closed') FROM periods WHERE id = $1;

-- name: rows_of_users_now
SELECT period_id, user_id, score, achieved_at, total::text, has_nonzero, version, hidden, segments, subscore, last_at FROM scores
WHERE period_id IN (SELECT id FROM periods WHERE board_id = $1 AND state = 'open') AND user_id = ANY ($2::text[]);

-- name: lock_profiles
SELECT FROM profiles WHERE pod_id = $1 AND user_id = ANY ($2::text[]) ORDER BY pod_id, user_id FOR NO KEY UPDATE;

-- name: need_profiles
INSERT INTO profiles (pod_id, user_id) SELECT $1, u FROM unnest($2::text[]) AS u ORDER BY u COLLATE "C"
ON CONFLICT DO NOTHING;

-- name: need_rows
INSERT INTO scores (period_id, user_id, has_nonzero, version, hidden, segments)
SELECT r.period_id, r.user_id, false, nextval('versions'), hidden_on_v1(b.pod_id, b.id, r.user_id),
       segments_of_v1(b.segments, f.region, f.circles)
FROM unnest($2::bigint[], $3::text[]) AS r (period_id, user_id)
JOIN boards b ON b.id = $1
LEFT JOIN profiles f ON f.pod_id = b.pod_id AND f.user_id = r.user_id
ORDER BY 1, 2
ON CONFLICT (period_id, user_id) DO NOTHING;

-- name: missing_rows_of_events
SELECT DISTINCT p.id, e.user_id FROM events e
JOIN periods p ON p.board_id = e.board_id AND p.state = 'open' AND (p.start_at IS NULL OR e.at >= p.start_at)
              AND (p.end_at IS NULL OR e.at < p.end_at)
WHERE e.board_id = $1 AND e.seq = ANY ($2::bigint[]) AND e.voided_by = $3
  AND NOT EXISTS (SELECT FROM scores s WHERE s.period_id = p.id AND s.user_id = e.user_id);

-- name: rows_of_users_locked
SELECT period_id, user_id, score, achieved_at, total::text, has_nonzero, version, hidden, segments, subscore, last_at FROM scores
WHERE period_id IN (SELECT id FROM periods WHERE board_id = $1 AND state = 'open') AND user_id = ANY ($2::text[])
ORDER BY period_id, user_id FOR NO KEY UPDATE;

-- name: touch
INSERT INTO touches (board_id, user_id) SELECT * FROM unnest($1::bigint[], $2::text[]);

-- name: events_at
SELECT DISTINCT ON (e.user_id) seq, event_id, e.user_id, e.score, e.at, received_at, voided_by IS NOT NULL AS voided,
       metadata, stamped, subscore, operation
FROM unnest($2::text[], $3::bigint[], $4::double precision[]) AS m (user_id, at, score)
JOIN events e ON e.board_id = $1 AND e.user_id = m.user_id COLLATE "C" AND e.at = m.at
WHERE voided_by IS NULL AND (m.score IS NULL OR e.score = m.score)
ORDER BY e.user_id, e.score <> 0 DESC, event_id;

-- name: metadata_kept
SELECT DISTINCT ON (k.user_id) k.user_id, k.metadata
FROM unnest($2::text[], $3::bigint[], $4::double precision[]) AS m (user_id, at, score)
JOIN kept_metadata k ON k.board_id = $1 AND k.user_id = m.user_id COLLATE "C" AND k.at = m.at
WHERE m.score IS NULL OR k.score = m.score
ORDER BY k.user_id, k.score <> 0 DESC, k.event_id;

-- name: revision_of
SELECT revision FROM boards WHERE id = $1;

-- name: insert_void_event
INSERT INTO events (seq, board_id, event_id, user_id, score, at, stamped, received_at, metadata, subscore, operation, ahead,
                    voided_by)
VALUES (nextval('event_seqs'), $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $5 > now_us_v1(), $11)
ON CONFLICT (board_id, event_id) DO NOTHING RETURNING seq;

-- name: erased_at
SELECT at FROM erased WHERE pod_id = $1 AND digest = $2;

-- name: delete_action
DELETE FROM actions WHERE id = $1;

-- name: count_attempts
SELECT count(*) FROM events
WHERE board_id = $1 AND user_id = $2 AND ($3::bigint IS NULL OR at >= $3) AND ($4::bigint IS NULL OR at < $4)
  -- A score that waits for a moderator may still count.
  AND (voided_by IS NULL OR EXISTS (SELECT 1 FROM actions a
                              WHERE a.id = voided_by AND a.kind = 'review' AND a.undone_by IS NULL));

-- name: state_region
UPDATE profiles SET region = $3, region_at = $4
WHERE pod_id = $1 AND user_id = $2 AND ($4::bigint, $3::text) > (region_at, coalesce(region, '')) RETURNING 1;

-- name: expire_rows
WITH due AS (
    SELECT s.period_id, s.user_id FROM scores s
    JOIN unnest($2::bigint[], $3::bigint[]) AS c (period_id, cutoff) ON s.period_id = c.period_id AND s.last_at <= c.cutoff
    WHERE s.last_at IS NOT NULL AND s.hidden < 4
    ORDER BY s.period_id, s.user_id LIMIT $4 FOR NO KEY UPDATE OF s
), changed AS (
    UPDATE scores s SET hidden = s.hidden + 4, version = nextval('versions') FROM due
    WHERE s.period_id = due.period_id AND s.user_id = due.user_id
    RETURNING s.*
), touched AS (
    INSERT INTO touches (board_id, user_id) SELECT DISTINCT $1::bigint, user_id FROM changed
)
SELECT period_id, user_id, score, achieved_at, total::text, has_nonzero, version, hidden, segments, subscore, last_at FROM changed;

-- name: oldest_last_at
SELECT p.id, o.last_at FROM unnest($1::bigint[]) AS p (id)
CROSS JOIN LATERAL (
    SELECT min(last_at) AS last_at FROM scores WHERE period_id = p.id AND last_at IS NOT NULL AND hidden < 4
) AS o WHERE o.last_at IS NOT NULL;

-- name: erasures_of
SELECT digest, at FROM erased WHERE pod_id = $1 AND digest = ANY ($2::bytea[]);

-- name: events_with_acts
SELECT event_id, user_id, score, at, stamped, metadata, subscore, operation FROM events
WHERE board_id = $1 AND event_id = ANY ($2::text[]);

-- name: lock_attempts
SELECT pg_advisory_xact_lock(hashtextextended($1, $2::bigint));
