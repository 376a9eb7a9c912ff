-- Every statement that the PostgreSQL ledger runs, by name. What writes scores is in the functions of the schema.
-- `score * $sign` orders by what is better: the sign is -1 where higher is better; likewise for times.

-- name: record
-- If the check fails, all of the statement is undone, whichever of the two comes first.
SELECT r.* FROM need_ledger($20, $1::bigint[]),
    record_events($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::double precision[], $6::bigint[],
                  $7::boolean[], $8::bigint[], $9::text[], $10::boolean[], $11::int[], $12::bigint[],
                  $13::text[], $14::double precision[], $15::text[], $16::bigint[], $17::text[],
                  $18::double precision[], $19::text[]) AS r;

-- name: remove_user
SELECT period_id, user_id, score, achieved_at, total::text, moved, version, hidden, segments
FROM remove_user($1, $2, $3, $4, $5, $6, $7);

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
SELECT s.period_id, s.user_id, s.score, s.achieved_at, s.total::text, s.moved, s.version, s.hidden, s.segments
FROM unnest($1::bigint[], $2::text[]) AS c (board_id, user_id)
JOIN periods p ON p.board_id = c.board_id AND p.state IN ('open', 'closed')
JOIN scores s ON s.period_id = p.id AND s.user_id = c.user_id;

-- name: forget_touches
-- All but the last $1, so many at once. What is gone is noted first: whoever follows from there on has to build anew.
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

-- name: count_changes
-- $1, $3: the transactions that were not begun at a position, and those that were not finished. What is not finished now
-- can't have been forgotten.
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

-- name: rows_page
SELECT period_id, user_id, score, achieved_at, total::text, moved, version, hidden, segments FROM scores
WHERE period_id = $1 AND user_id > $2 ORDER BY user_id LIMIT $3;

-- name: count_rows
SELECT count(*) FROM scores;

-- name: rows_of_user
SELECT period_id, user_id, score, achieved_at, total::text, moved, version, hidden, segments FROM scores
WHERE period_id = ANY ($1::bigint[]) AND user_id = $2 AND score IS NOT NULL;

-- name: best_rows
SELECT period_id, user_id, score, achieved_at, total::text, moved, version, hidden, segments FROM scores
WHERE period_id = $1 AND score IS NOT NULL AND hidden = 0
ORDER BY score * $2::double precision, achieved_at * $3::bigint, user_id LIMIT $4;

-- name: user_events
SELECT seq, event_id, user_id, score, at, received_at, voided_by IS NOT NULL AS voided, metadata, stamped FROM events
WHERE board_id = $1 AND user_id = $2 AND seq < $3 ORDER BY seq DESC LIMIT $4;

-- name: board_events
SELECT seq, event_id, user_id, score, at, received_at, voided_by IS NOT NULL AS voided, metadata, stamped FROM events
WHERE board_id = $1 AND seq > $2 AND (voided_by IS NULL OR $3) ORDER BY seq LIMIT $4;

-- name: count_board_events
SELECT count(*) FROM events WHERE board_id = $1 AND voided_by IS NULL;

-- name: count_events
SELECT count(*) FROM events WHERE voided_by IS NULL;

-- name: next_users
SELECT user_id FROM (SELECT DISTINCT user_id FROM events
                     WHERE board_id = $1 AND user_id > $2 ORDER BY user_id LIMIT $3) AS of_events
UNION
SELECT user_id FROM (SELECT DISTINCT user_id FROM scores
                     WHERE period_id IN (SELECT id FROM periods WHERE board_id = $1 AND state = 'open')
                       AND user_id > $2
                     ORDER BY user_id LIMIT $3) AS of_scores
ORDER BY user_id LIMIT $3;

-- name: rows_between
SELECT period_id, user_id, score, achieved_at, total::text, moved, version, hidden, segments FROM scores
WHERE period_id IN (SELECT id FROM periods WHERE board_id = $1 AND state = 'open') AND user_id BETWEEN $2 AND $3
ORDER BY user_id;

-- name: events_between
SELECT user_id, score, at FROM events
WHERE board_id = $1 AND user_id BETWEEN $2 AND $3 AND voided_by IS NULL ORDER BY user_id, seq;

-- Ranks straight from the rows: $1 to $3 are the period, the segment, and who looks; then what orders them.

-- name: ranks_total
SELECT count(*) FROM ranked_rows($1, $2, $3);

-- name: ranks_has
SELECT EXISTS (SELECT FROM ranked_rows($1, $2, $3) WHERE user_id = $4);

-- name: ranks_page
SELECT user_id, score, achieved_at FROM ranked_rows($1, $2, $3)
ORDER BY score * $4::double precision, achieved_at * $5::bigint, user_id OFFSET $6 LIMIT $7;

-- name: ranks_better
SELECT count(*) FROM ranked_rows($1, $2, $3) WHERE score * $4::double precision < $5;

-- name: ranks_distinct_better
SELECT count(DISTINCT score) FROM ranked_rows($1, $2, $3) WHERE score * $4::double precision < $5;

-- name: ranks_find
SELECT me.score, me.achieved_at,
       count(*) FILTER (WHERE (o.score * $4::double precision, o.achieved_at * $5::bigint, o.user_id)
                            < (me.score * $4::double precision, me.achieved_at * $5::bigint, me.user_id)) AS ahead,
       count(*) FILTER (WHERE o.score * $4::double precision < me.score * $4::double precision) AS better,
       count(*) AS total
FROM ranked_rows($1, $2, $3) me CROSS JOIN ranked_rows($1, $2, $3) o
WHERE me.user_id = $6
GROUP BY me.score, me.achieved_at, me.user_id;

-- name: ranks_places
SELECT user_id, score, achieved_at, ordinal, competition, dense FROM (
    SELECT user_id, score, achieved_at,
           row_number() OVER (ORDER BY score * $4::double precision, achieved_at * $5::bigint, user_id) AS ordinal,
           rank() OVER (ORDER BY score * $4::double precision) AS competition,
           dense_rank() OVER (ORDER BY score * $4::double precision) AS dense
    FROM ranked_rows($1, $2, $3)
) AS ranked WHERE user_id = ANY ($6::text[]);

-- name: ranks_ends
SELECT min(score) AS low, max(score) AS high, count(*) AS total FROM (
    SELECT score FROM ranked_rows($1, $2, $3)
    ORDER BY score * $4::double precision, achieved_at * $5::bigint, user_id LIMIT $6
) AS ranked;

-- name: ranks_buckets
SELECT width_bucket(score, $7::double precision[]) AS bucket, count(*) AS users FROM (
    SELECT score FROM ranked_rows($1, $2, $3)
    ORDER BY score * $4::double precision, achieved_at * $5::bigint, user_id LIMIT $6
) AS ranked GROUP BY 1;

-- name: ranks_deciles
SELECT score FROM (
    SELECT score, row_number() OVER (ORDER BY score) - 1 AS place FROM (
    SELECT score FROM ranked_rows($1, $2, $3)
    ORDER BY score * $4::double precision, achieved_at * $5::bigint, user_id LIMIT $6
    ) AS ranked
) AS placed WHERE place = ANY ($7::bigint[]) ORDER BY place;

-- name: ledger_id
SELECT value FROM facts WHERE name = 'ledger_id';

-- name: sender
-- That of the ledger that was taken over, if there was one.
SELECT value FROM facts WHERE name IN ('sender', 'ledger_id') ORDER BY name DESC LIMIT 1;

-- name: registry_revision
SELECT value FROM counters WHERE name = 'registry';

-- name: registry_changed
UPDATE counters SET value = value + 1 WHERE name = 'registry';

-- name: insert_pod
INSERT INTO pods (pod_id, name, created_at) VALUES ($1, $2, $3) ON CONFLICT (pod_id) DO NOTHING RETURNING pod_id;

-- name: find_pod
SELECT pod_id, name, created_at FROM pods WHERE pod_id = $1;

-- name: pods
SELECT pod_id, name, created_at FROM pods ORDER BY pod_id;

-- name: insert_key
INSERT INTO keys (key_id, pod_id, role, label, digest, created_at) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (key_id) DO NOTHING RETURNING key_id;

-- name: keys
SELECT key_id, pod_id, role, label, digest, created_at FROM keys
WHERE revoked_at IS NULL ORDER BY created_at, key_id;

-- name: revoke_key
UPDATE keys SET revoked_at = $1 WHERE key_id = $2 AND revoked_at IS NULL RETURNING key_id;

-- name: insert_board
INSERT INTO boards (uuid, pod_id, name, rule, sort_order, ties, capacity, min_score, max_score, public,
                    windows, segments, start_at, end_at, archived_at, created_at, revision, metadata,
                    grace_s, flush_ms, rewards, keep_events_days, keep_periods_days, pruned_before)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23,
        $24)
ON CONFLICT (uuid) DO NOTHING RETURNING id;

-- name: update_board
UPDATE boards SET name = $1, capacity = $2, min_score = $3, max_score = $4, public = $5, windows = $6, start_at = $7,
                  end_at = $8, archived_at = $9, metadata = $10, grace_s = $11, flush_ms = $12, rewards = $13,
                  keep_events_days = $14, keep_periods_days = $15, pruned_before = $16, revision = revision + 1
WHERE id = $17 AND revision = $18 RETURNING id;

-- name: boards
SELECT id, uuid, pod_id, name, rule, sort_order, ties, capacity, min_score, max_score, public, windows, segments,
       start_at, end_at, archived_at, created_at, revision, metadata, grace_s, flush_ms, rewards, keep_events_days,
       keep_periods_days, pruned_before
FROM boards WHERE $1::bigint[] IS NULL OR id = ANY ($1) ORDER BY id;

-- name: insert_period
INSERT INTO periods (board_id, window_name, name, start_at, end_at) VALUES ($1, $2, $3, $4, $5) RETURNING id;

-- name: update_period
UPDATE periods SET start_at = $1, end_at = $2, state = $3, terms = $4,
                   closed_seq = CASE WHEN $3 <> 'closed' THEN NULL
                                     ELSE coalesce(closed_seq, (SELECT last_value FROM event_seqs)) END
WHERE id = $5 AND state IN ('open', 'closed');

-- name: live_periods
SELECT board_id, id, window_name, name, start_at, end_at, state, terms, total_users, frozen_at, replaces FROM periods
WHERE state IN ('open', 'closed') AND ($1::bigint[] IS NULL OR board_id = ANY ($1)) ORDER BY start_at NULLS FIRST, id;

-- name: open_periods_of
SELECT id, window_name, name, start_at, end_at, state, terms, total_users, frozen_at, replaces FROM periods
WHERE board_id = $1 AND state = 'open' ORDER BY start_at NULLS FIRST, id;

-- name: lock_board
SELECT pg_advisory_xact_lock(1279348562, $1::bigint::int);

-- name: latest_event_ahead
SELECT max(at) FROM events WHERE board_id = $1 AND at >= $2 AND ahead;

-- name: now_us
SELECT now_us();

-- name: now_and_oldest
SELECT now_us() AS now, pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest;

-- name: has_events_from
-- $3: a transaction. Events of older ones are known, but for those that were ahead of the clock.
SELECT CASE WHEN $3::bigint IS NULL AND $2 <= now_us()
            THEN EXISTS (SELECT FROM events WHERE board_id = $1 AND at >= $2 AND voided_by IS NULL)
            ELSE EXISTS (SELECT FROM events WHERE board_id = $1 AND at >= $2 AND ahead AND voided_by IS NULL)
              OR EXISTS (SELECT FROM events WHERE xact >= $3 AND board_id = $1 AND at >= $2 AND voided_by IS NULL) END;

-- name: bases_between
SELECT period_id, user_id, score, achieved_at, total, moved FROM bases
WHERE period_id IN (SELECT id FROM periods WHERE board_id = $1 AND state = 'open') AND user_id BETWEEN $2 AND $3;

-- name: need_live
SELECT state IN ('open', 'closed') FROM periods WHERE id = $1;

-- name: lock_schema
SELECT pg_advisory_xact_lock(7236458137);

-- name: schema_is_free
SELECT pg_try_advisory_xact_lock_shared(7236458137);

-- name: create_migrations
CREATE TABLE IF NOT EXISTS migrations (
    number     int PRIMARY KEY,
    name       text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- name: last_migration
SELECT coalesce(max(number), 0) FROM migrations;

-- name: insert_migration
INSERT INTO migrations (number, name) VALUES ($1, $2);

-- name: profiles_between
SELECT user_id, display_name, avatar_url, region, region_at, circles FROM profiles
WHERE pod_id = $1 AND user_id BETWEEN $2 AND $3;

-- name: hides_between
SELECT user_id, board_id, hidden FROM hides WHERE pod_id = $1 AND user_id BETWEEN $2 AND $3;

-- name: rows_of_period_users
SELECT period_id, user_id, score, achieved_at, total::text, moved, version, hidden, segments FROM scores
WHERE period_id = $1 AND user_id = ANY ($2::text[]);

-- name: rows_of_users_now
SELECT period_id, user_id, score, achieved_at, total::text, moved, version, hidden, segments FROM scores
WHERE period_id IN (SELECT id FROM periods WHERE board_id = $1 AND state = 'open') AND user_id = ANY ($2::text[]);

-- name: lock_profiles
SELECT FROM profiles WHERE pod_id = $1 AND user_id = ANY ($2::text[]) ORDER BY pod_id, user_id FOR NO KEY UPDATE;

-- name: need_profiles
INSERT INTO profiles (pod_id, user_id) SELECT $1, u FROM unnest($2::text[]) AS u ORDER BY u COLLATE "C"
ON CONFLICT DO NOTHING;

-- name: need_rows
INSERT INTO scores (period_id, user_id, moved, version, hidden, segments)
SELECT r.period_id, r.user_id, false, nextval('versions'), hidden_on(b.pod_id, b.id, r.user_id),
       segments_of(b.segments, f.region, f.circles)
FROM unnest($2::bigint[], $3::text[]) AS r (period_id, user_id)
JOIN boards b ON b.id = $1
LEFT JOIN profiles f ON f.pod_id = b.pod_id AND f.user_id = r.user_id
ORDER BY 1, 2
ON CONFLICT (period_id, user_id) DO NOTHING;

-- name: rows_of_users_locked
SELECT period_id, user_id, score, achieved_at, total::text, moved, version, hidden, segments FROM scores
WHERE period_id IN (SELECT id FROM periods WHERE board_id = $1 AND state = 'open') AND user_id = ANY ($2::text[])
ORDER BY period_id, user_id FOR NO KEY UPDATE;

-- name: bases_of_users
SELECT period_id, user_id, score, achieved_at, total, moved FROM bases
WHERE period_id IN (SELECT id FROM periods WHERE board_id = $1 AND state = 'open') AND user_id = ANY ($2::text[]);

-- name: events_of_users
SELECT user_id, score, at FROM events
WHERE board_id = $1 AND user_id = ANY ($2::text[]) AND voided_by IS NULL ORDER BY user_id, seq;

-- name: refolded_rows
UPDATE scores AS s
SET score = f.score, achieved_at = f.achieved_at, total = f.total::numeric, moved = f.moved, version = nextval('versions')
FROM unnest($1::bigint[], $2::text[], $3::double precision[], $4::bigint[], $5::text[], $6::boolean[])
    AS f (period_id, user_id, score, achieved_at, total, moved)
WHERE s.period_id = f.period_id AND s.user_id = f.user_id;

-- name: touch
INSERT INTO touches (board_id, user_id) SELECT * FROM unnest($1::bigint[], $2::text[]);

-- name: share_board
SELECT pg_advisory_xact_lock_shared(1279348562, $1::bigint::int);

-- name: insert_act
INSERT INTO acts (pod_id, board_id, act_id, kind, user_id, by_key, at, reason, detail)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (pod_id, board_id, act_id) DO NOTHING RETURNING id;

-- name: act_by_key
SELECT id, pod_id, board_id, kind, user_id, by_key, at, reason, detail, events, done_at, undone_by FROM acts
WHERE pod_id = $1 AND board_id = $2 AND act_id = $3;

-- name: is_refreezing
SELECT EXISTS (SELECT FROM periods WHERE board_id = ANY ($1::bigint[]) AND state = 'refreezing');
