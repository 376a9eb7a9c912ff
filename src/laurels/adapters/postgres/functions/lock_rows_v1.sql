-- Step 6 of record_events: creates the rows that are missing (with version 0), and locks and returns the rows of the batch,
-- with those of users whose region changed.
CREATE FUNCTION lock_rows_v1(targets event_target_v1[], accepted event_batch_v1, relocated profile_key_v1[]) RETURNS scores[]
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    locked scores[];
    -- Checked once per batch, because most pods hide no users.
    has_hidden boolean := EXISTS (SELECT FROM hides);
BEGIN
    INSERT INTO scores (period_id, user_id, has_nonzero, version, hidden, segments)
    SELECT DISTINCT p.id, e.user_id, false, 0,
           CASE WHEN has_hidden THEN hidden_on_v1(t.pod_id, t.board_id, e.user_id) ELSE 0 END,
           CASE WHEN t.is_segmented THEN segments_of_v1(b.segments, f.region, f.circles) END
    FROM unnest(accepted.target, accepted.user_id) AS e (target, user_id)
    JOIN unnest(targets) t ON t.number = e.target
    CROSS JOIN LATERAL unnest(t.periods) AS p (id)
    LEFT JOIN boards b ON t.is_segmented AND b.id = t.board_id
    LEFT JOIN profiles f ON t.is_segmented AND f.pod_id = t.pod_id AND f.user_id = e.user_id
    WHERE NOT EXISTS (SELECT FROM scores s WHERE s.period_id = p.id AND s.user_id = e.user_id)
    ORDER BY 1, 2
    ON CONFLICT (period_id, user_id) DO NOTHING;
    IF relocated IS NOT NULL THEN
        PERFORM FROM periods p JOIN boards b ON b.id = p.board_id
        WHERE b.pod_id IN (SELECT r.pod_id FROM unnest(relocated) r) AND b.segments <> '["global"]' AND p.state = 'open'
        ORDER BY p.id FOR SHARE OF p;
    END IF;
    SELECT array_agg(found.s) INTO locked FROM (
        SELECT s FROM scores s JOIN (
            SELECT p.id, e.user_id
            FROM unnest(accepted.target, accepted.user_id) AS e (target, user_id)
            JOIN unnest(targets) t ON t.number = e.target
            CROSS JOIN LATERAL unnest(t.periods) AS p (id)
            UNION
            SELECT p.id, r.user_id
            FROM unnest(relocated) r
            JOIN boards b ON b.pod_id = r.pod_id AND b.segments <> '["global"]'
            JOIN periods p ON p.board_id = b.id AND p.state = 'open'
        ) wanted (period_id, user_id) ON s.period_id = wanted.period_id AND s.user_id = wanted.user_id
        ORDER BY s.period_id, s.user_id
        FOR NO KEY UPDATE OF s
    ) AS found;
    RETURN locked;
END $$;
