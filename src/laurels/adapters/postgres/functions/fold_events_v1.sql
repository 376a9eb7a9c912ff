-- Step 7 of record_events: adds the accepted events to their rows, which are `before` and locked, and returns the rows before
-- and after. laurels/core/scores.py says what each rule means.
CREATE FUNCTION fold_events_v1(targets event_target_v1[], accepted event_batch_v1, before scores[])
RETURNS SETOF row_change_v1 LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH fresh AS (
        SELECT p.id AS period_id, e.user_id, e.score, e.amount, e.at, t.rule, t.sign, coalesce(e.subscore, 0) AS subscore,
               t.sub_sign, t.keeps_last
        FROM unnest(accepted.target, accepted.user_id, accepted.score, accepted.amount, accepted.at, accepted.subscore)
             AS e (target, user_id, score, amount, at, subscore)
        JOIN unnest(targets) t ON t.number = e.target
        CROSS JOIN LATERAL unnest(t.periods) AS p (id)
    ), sums AS (
        SELECT f.period_id, f.user_id, sum(coalesce(f.amount::numeric, f.score::numeric)) AS amount,
               sum(f.subscore)::bigint AS subscore, bool_or(f.score <> 0) AS has_nonzero,
               max(f.at) FILTER (WHERE f.score <> 0) AS nonzero_at, min(f.at) AS first_at,
               max(f.at) FILTER (WHERE f.keeps_last) AS last_at
        FROM fresh f WHERE f.rule = 'increment' GROUP BY f.period_id, f.user_id
    ), chosen AS (
        SELECT DISTINCT ON (c.period_id, c.user_id) c.period_id, c.user_id, c.score, c.at, c.subscore,
               max(c.last_at) OVER (PARTITION BY c.period_id, c.user_id) AS last_at
        FROM (
            SELECT f.period_id, f.user_id, f.score, f.at, f.rule, f.sign, f.subscore, f.sub_sign,
                   CASE WHEN f.keeps_last THEN f.at END AS last_at
            FROM fresh f WHERE f.rule IN ('best', 'latest')
            UNION ALL
            SELECT r.period_id, r.user_id, r.score, r.achieved_at, f.rule, f.sign, r.subscore, f.sub_sign, r.last_at
            FROM unnest(before) r
            JOIN (SELECT DISTINCT period_id, user_id, rule, sign, sub_sign FROM fresh WHERE rule IN ('best', 'latest')) f
                ON f.period_id = r.period_id AND f.user_id = r.user_id
            WHERE r.score IS NOT NULL
        ) c
        ORDER BY c.period_id, c.user_id, CASE WHEN c.rule = 'latest' THEN -c.at END, c.score * c.sign,
                 c.subscore * c.sub_sign, c.at
    ), folded AS (
        SELECT r.*, c.score AS new_score, c.at AS new_at, NULL::numeric AS new_total, false AS new_nonzero,
               c.subscore AS new_subscore, c.last_at AS new_last
        FROM unnest(before) r JOIN chosen c ON c.period_id = r.period_id AND c.user_id = r.user_id
        UNION ALL
        SELECT r.*, nearest_double_v1(coalesce(r.total, 0) + s.amount),
               CASE WHEN r.score IS NULL THEN coalesce(s.nonzero_at, s.first_at)
                    WHEN s.has_nonzero AND r.has_nonzero THEN greatest(r.achieved_at, s.nonzero_at)
                    WHEN s.has_nonzero THEN s.nonzero_at
                    WHEN r.has_nonzero THEN r.achieved_at
                    ELSE least(r.achieved_at, s.first_at) END,
               coalesce(r.total, 0) + s.amount, r.has_nonzero OR s.has_nonzero,
               r.subscore + s.subscore, greatest(r.last_at, s.last_at)
        FROM unnest(before) r JOIN sums s ON s.period_id = r.period_id AND s.user_id = r.user_id
    ), updated AS (
        UPDATE scores AS s
        SET score = f.new_score, achieved_at = f.new_at, total = f.new_total, has_nonzero = f.new_nonzero,
            subscore = f.new_subscore, last_at = f.new_last, hidden = s.hidden % 4, version = nextval('versions')
        FROM folded f
        WHERE s.period_id = f.period_id AND s.user_id = f.user_id
          AND (f.score, f.achieved_at, f.total, f.has_nonzero, f.subscore, f.last_at)
              IS DISTINCT FROM (f.new_score, f.new_at, f.new_total, f.new_nonzero, f.new_subscore, f.new_last)
        RETURNING s.period_id, s.user_id, f.score, f.achieved_at, f.total, f.has_nonzero, f.version,
                  s.score AS new_score, s.achieved_at AS new_at, s.total AS new_total, s.has_nonzero AS new_nonzero,
                  s.version AS new_version, s.hidden, s.segments, f.subscore, f.last_at, s.subscore AS new_subscore,
                  s.last_at AS new_last
    ), changes AS (
        SELECT * FROM updated
        UNION ALL
        SELECT f.period_id, f.user_id, f.score, f.achieved_at, f.total, f.has_nonzero, f.version,
               f.score, f.achieved_at, f.total, f.has_nonzero, f.version, f.hidden, f.segments, f.subscore, f.last_at,
               f.subscore, f.last_at
        FROM folded f
        WHERE (f.score, f.achieved_at, f.total, f.has_nonzero, f.subscore, f.last_at)
              IS NOT DISTINCT FROM (f.new_score, f.new_at, f.new_total, f.new_nonzero, f.new_subscore, f.new_last)
    )
    SELECT c.period_id, c.user_id,
           c.score, c.achieved_at, inexact_total_v1(c.score, c.total), c.has_nonzero, c.version,
           c.new_score, c.new_at, inexact_total_v1(c.new_score, c.new_total), c.new_nonzero, c.new_version,
           c.hidden, c.segments, c.subscore, c.last_at, c.new_subscore, c.new_last
    FROM changes c;
END $$;
