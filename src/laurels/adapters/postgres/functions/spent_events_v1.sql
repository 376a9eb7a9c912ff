-- Step 3 of record_events: returns the numbers of new events that are over the attempts of their users. Two batches that count
-- the attempts of the same user wait for each other.
CREATE FUNCTION spent_events_v1(targets event_target_v1[], batch event_batch_v1, without int[]) RETURNS int[]
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM unnest(targets) t WHERE t.attempts IS NOT NULL) THEN
        RETURN '{}';
    END IF;
    PERFORM pg_advisory_xact_lock(k.lock) FROM (
        SELECT DISTINCT hashtextextended(e.user_id, t.board_id) AS lock
        FROM unnest(batch.target, batch.user_id) AS e (target, user_id)
        JOIN unnest(targets) t ON t.number = e.target
        WHERE t.attempts IS NOT NULL
        ORDER BY 1
    ) AS k;
    RETURN (
        WITH input AS MATERIALIZED (
            SELECT DISTINCT ON (t.board_id, e.event_id)
                   e.n, e.user_id, t.board_id, t.attempts, t.limited_from, t.limited_to
            FROM unnest(batch.n, batch.target, batch.event_id, batch.user_id, batch.stored)
                 AS e (n, target, event_id, user_id, stored)
            JOIN unnest(targets) t ON t.number = e.target
            WHERE t.attempts IS NOT NULL AND e.stored AND e.n <> ALL (without)
              AND NOT EXISTS (SELECT FROM events o WHERE o.board_id = t.board_id AND o.event_id = e.event_id)
            ORDER BY t.board_id, e.event_id, e.n
        ), users AS (
            SELECT k.*, (
                SELECT count(*) FROM events o
                WHERE o.board_id = k.board_id AND o.user_id = k.user_id
                  AND (o.voided_by IS NULL OR EXISTS (SELECT FROM actions a WHERE a.id = o.voided_by AND a.kind = 'review'
                                                                              AND a.undone_by IS NULL))
                  AND (k.limited_from IS NULL OR o.at >= k.limited_from) AND (k.limited_to IS NULL OR o.at < k.limited_to)
            ) AS used
            FROM (SELECT DISTINCT board_id, user_id, limited_from, limited_to FROM input) AS k
        ), numbered AS (
            SELECT i.n, i.attempts, u.used + row_number() OVER (
                PARTITION BY i.board_id, i.user_id, i.limited_from ORDER BY i.n) AS number
            FROM input i
            JOIN users u ON u.board_id = i.board_id AND u.user_id = i.user_id
                        AND u.limited_from IS NOT DISTINCT FROM i.limited_from
        ), spent AS (
            SELECT n FROM numbered WHERE number > attempts
        )
        -- A repetition within the batch is as spent as the first.
        SELECT coalesce(array_agg(e.n), '{}')
        FROM unnest(batch.n, batch.target, batch.event_id) AS e (n, target, event_id)
        JOIN unnest(targets) t ON t.number = e.target
        WHERE EXISTS (
            SELECT FROM spent s JOIN unnest(batch.n, batch.target, batch.event_id) AS f (n, target, event_id) ON f.n = s.n
            JOIN unnest(targets) g ON g.number = f.target
            WHERE g.board_id = t.board_id AND f.event_id = e.event_id
        )
    );
END $$;
