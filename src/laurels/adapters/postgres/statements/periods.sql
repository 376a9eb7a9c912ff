-- Statements that only the PostgreSQL ledger runs.

-- name: periods_at
SELECT k.number, p.* FROM unnest($1::bigint[], $2::text[], $3::bigint[]) WITH ORDINALITY AS k (board_id, window_name, at, number)
CROSS JOIN LATERAL (
    SELECT id, window_name, name, start_at, end_at, state, terms, total_users, frozen_at, replaces FROM periods
    WHERE board_id = k.board_id AND window_name = k.window_name AND (start_at <= k.at OR start_at IS NULL)
      AND state NOT IN ('refreezing', 'superseded', 'discarded')
    ORDER BY start_at DESC NULLS LAST, id DESC LIMIT 1
) AS p;

-- name: insert_final
INSERT INTO finals (period_id, segment, place, user_id, score, achieved_at, competition, dense, subscore)
SELECT $1, * FROM unnest($2::text[], $3::bigint[], $4::text[], $5::double precision[], $6::bigint[], $7::bigint[],
                         $8::bigint[], $9::bigint[])
ON CONFLICT DO NOTHING;

-- name: insert_grant
INSERT INTO grants (period_id, place, reward, user_id, rank, score, prize, granted_at, claimed_at, claimed_by, segment)
SELECT $1, * FROM unnest($2::bigint[], $3::text[], $4::text[], $5::bigint[], $6::double precision[], $7::text[],
                         $8::bigint[], $9::bigint[], $10::text[], $11::text[])
ON CONFLICT DO NOTHING;

-- name: old_events
SELECT seq, board_id, user_id, score, at, received_at, xact, subscore, operation FROM events
WHERE seq > $1 ORDER BY seq LIMIT $2;

-- name: lock_events
-- Without those that wait for a moderator, who may still let them count.
SELECT seq, voided_by IS NOT NULL AS voided FROM events e
WHERE seq = ANY ($1::bigint[])
  AND NOT EXISTS (SELECT FROM actions a WHERE a.id = e.voided_by AND a.kind = 'review' AND a.undone_by IS NULL)
ORDER BY seq FOR UPDATE OF e;

-- name: delete_event
DELETE FROM events WHERE seq = ANY ($1::bigint[]);

-- name: find_base
SELECT b.period_id, b.user_id, b.score, b.achieved_at, b.total, b.has_nonzero, b.subscore, b.last_at
FROM unnest($1::bigint[], $2::text[]) AS k (period_id, user_id)
JOIN bases b ON b.period_id = k.period_id AND b.user_id = k.user_id;

-- name: put_base
INSERT INTO bases (period_id, user_id, score, achieved_at, total, has_nonzero, subscore, last_at)
SELECT * FROM unnest($1::bigint[], $2::text[], $3::double precision[], $4::bigint[], $5::text[], $6::boolean[],
                     $7::bigint[], $8::bigint[])
ON CONFLICT (period_id, user_id) DO UPDATE SET
    score = excluded.score, achieved_at = excluded.achieved_at, total = excluded.total, has_nonzero = excluded.has_nonzero,
    subscore = excluded.subscore, last_at = excluded.last_at;

-- name: need_claimable
SELECT FROM periods WHERE id = $1 AND state IN ('frozen', 'pruned') FOR SHARE;

-- name: insert_refolded_rows
INSERT INTO scores (period_id, user_id, score, achieved_at, total, has_nonzero, subscore, last_at, version, hidden, segments)
SELECT $1, r.user_id, r.score, r.achieved_at, r.total::numeric, r.has_nonzero, r.subscore, r.last_at, nextval('versions'),
       hidden_on_v1(b.pod_id, b.id, r.user_id),
       -- An erased user has no profile, and keeps the segments of the final ranks ($8).
       CASE WHEN EXISTS (SELECT FROM actions a WHERE a.user_id = r.user_id AND a.kind = 'erase')
            THEN (SELECT string_agg(o.segment, ' ' ORDER BY o.segment DESC) FROM finals o
                  WHERE o.period_id = $8 AND o.user_id = r.user_id AND o.segment <> 'global')
            ELSE segments_of_v1(b.segments, f.region, f.circles) END
FROM unnest($3::text[], $4::double precision[], $5::bigint[], $6::text[], $7::boolean[], $9::bigint[], $10::bigint[])
    AS r (user_id, score, achieved_at, total, has_nonzero, subscore, last_at)
JOIN boards b ON b.id = $2
LEFT JOIN profiles f ON f.pod_id = b.pod_id AND f.user_id = r.user_id
ON CONFLICT (period_id, user_id) DO NOTHING;
