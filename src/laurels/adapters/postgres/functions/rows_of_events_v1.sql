-- Step 8 of record_events: returns the rows of the users of some events, in the periods of these events.
CREATE FUNCTION rows_of_events_v1(targets event_target_v1[], batch event_batch_v1) RETURNS SETOF scores LANGUAGE sql AS $$
    SELECT s.* FROM (
        SELECT DISTINCT p.id, e.user_id
        FROM unnest(batch.target, batch.user_id) AS e (target, user_id)
        JOIN unnest(targets) t ON t.number = e.target
        CROSS JOIN LATERAL unnest(t.periods) AS p (id)
    ) AS wanted (period_id, user_id)
    JOIN scores s ON s.period_id = wanted.period_id AND s.user_id = wanted.user_id
$$;
