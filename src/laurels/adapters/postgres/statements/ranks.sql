-- Statements that only the PostgreSQL ledger runs.

-- name: ranks_total
SELECT count(*) FROM ranked_rows_v1($1, $2, $3);

-- name: ranks_page
SELECT user_id, score, achieved_at, subscore FROM ranked_rows_v1($1, $2, $3)
ORDER BY score * $4::double precision, subscore * $8::bigint, achieved_at * $5::bigint, user_id OFFSET $6 LIMIT $7;

-- name: ranks_better
SELECT count(*) FROM ranked_rows_v1($1, $2, $3)
WHERE (score * $4::double precision, subscore * $6::bigint) < ($5::double precision, $7::bigint);

-- name: ranks_distinct_better
SELECT count(DISTINCT (score, subscore)) FROM ranked_rows_v1($1, $2, $3)
WHERE (score * $4::double precision, subscore * $6::bigint) < ($5::double precision, $7::bigint);

-- name: ranks_find
SELECT me.score, me.achieved_at, me.subscore,
       count(*) FILTER (WHERE (o.score * $4::double precision, o.subscore * $7::bigint, o.achieved_at * $5::bigint, o.user_id)
                            < (me.score * $4::double precision, me.subscore * $7::bigint, me.achieved_at * $5::bigint,
                               me.user_id)) AS ahead,
       count(*) FILTER (WHERE (o.score * $4::double precision, o.subscore * $7::bigint)
                            < (me.score * $4::double precision, me.subscore * $7::bigint)) AS better,
       count(*) AS total
FROM ranked_rows_v1($1, $2, $3) me CROSS JOIN ranked_rows_v1($1, $2, $3) o
WHERE me.user_id = $6
GROUP BY me.score, me.subscore, me.achieved_at, me.user_id;

-- name: ranks_find_many
SELECT user_id, score, achieved_at, subscore, ordinal, competition, dense FROM (
    SELECT user_id, score, achieved_at, subscore,
           row_number() OVER (ORDER BY score * $4::double precision, subscore * $7::bigint, achieved_at * $5::bigint, user_id)
               AS ordinal,
           rank() OVER (ORDER BY score * $4::double precision, subscore * $7::bigint) AS competition,
           dense_rank() OVER (ORDER BY score * $4::double precision, subscore * $7::bigint) AS dense
    FROM ranked_rows_v1($1, $2, $3)
) AS ranked WHERE user_id = ANY ($6::text[]);

-- name: ranks_in_range
SELECT count(*) FILTER (WHERE score * $4::double precision < $5::double precision * $4) AS before,
       count(*) FILTER (WHERE $6::double precision IS NULL OR score * $4 <= $6 * $4) AS up_to,
       count(*) AS total
FROM ranked_rows_v1($1, $2, $3);

-- name: sum_scores
-- PostgreSQL refuses a quotient that is too small for a double.
SELECT count(*), sum(CASE WHEN abs(score) > 1e-304 THEN score / $5::double precision ELSE 0 END) FROM (
    SELECT score FROM ranked_rows_v1($1, $2, NULL) ORDER BY CASE WHEN $4::bigint IS NULL THEN 0 ELSE score * $3 END LIMIT $4
) AS ranked;

-- name: ranks_ends
SELECT min(score) AS low, max(score) AS high, count(*) AS total FROM (
    SELECT score FROM ranked_rows_v1($1, $2, $3)
    ORDER BY score * $4::double precision, achieved_at * $5::bigint, user_id LIMIT $6
) AS ranked;

-- name: ranks_buckets
SELECT width_bucket(score, $7::double precision[]) AS bucket, count(*) AS users FROM (
    SELECT score FROM ranked_rows_v1($1, $2, $3)
    ORDER BY score * $4::double precision, achieved_at * $5::bigint, user_id LIMIT $6
) AS ranked GROUP BY 1;

-- name: ranks_at_offsets
SELECT score FROM (
    SELECT score, row_number() OVER (ORDER BY score) - 1 AS n FROM (
    SELECT score FROM ranked_rows_v1($1, $2, $3)
    ORDER BY score * $4::double precision, achieved_at * $5::bigint, user_id LIMIT $6
    ) AS ranked
) AS numbered WHERE n = ANY ($7::bigint[]) ORDER BY n;
