-- Step 8 of record_events: returns the rows of users whose region a repeated event names. The sender of the first one may not
-- have received the rows that changed with it.
CREATE FUNCTION rows_returned_again_v1(targets event_target_v1[], repeated event_batch_v1) RETURNS SETOF scores
LANGUAGE sql AS $$
    SELECT s.* FROM (
        SELECT DISTINCT t.pod_id, e.user_id
        FROM unnest(repeated.target, repeated.user_id, repeated.region) AS e (target, user_id, region)
        JOIN unnest(targets) t ON t.number = e.target
        WHERE e.region IS NOT NULL
    ) AS again
    JOIN boards b ON b.pod_id = again.pod_id AND b.segments <> '["global"]'
    JOIN periods p ON p.board_id = b.id AND p.state = 'open'
    JOIN scores s ON s.period_id = p.id AND s.user_id = again.user_id
$$;
