-- Step 5 of record_events: stores the regions that events name, and returns the users whose region changed. Locks their
-- profiles, and those of users who are new to a board with segments, until the transaction ends.
CREATE FUNCTION update_regions_v1(targets event_target_v1[], accepted event_batch_v1) RETURNS profile_key_v1[]
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    needed profile_key_v1[];
    changed profile_key_v1[];
BEGIN
    IF accepted.region IS NULL AND NOT EXISTS (SELECT FROM unnest(targets) t WHERE t.is_segmented) THEN
        RETURN NULL;
    END IF;
    SELECT array_agg(DISTINCT (t.pod_id, e.user_id)::profile_key_v1) INTO needed
    FROM unnest(accepted.target, accepted.user_id, accepted.region) AS e (target, user_id, region)
    JOIN unnest(targets) t ON t.number = e.target
    WHERE e.region IS NOT NULL OR t.is_segmented AND EXISTS (
        SELECT FROM unnest(t.periods) AS p (id)
        WHERE NOT EXISTS (SELECT FROM scores s WHERE s.period_id = p.id AND s.user_id = e.user_id)
    );
    IF needed IS NULL THEN
        RETURN NULL;
    END IF;
    INSERT INTO profiles (pod_id, user_id) SELECT w.pod_id, w.user_id FROM unnest(needed) w ORDER BY 1, 2
    ON CONFLICT DO NOTHING;
    PERFORM FROM profiles f JOIN unnest(needed) w ON f.pod_id = w.pod_id AND f.user_id = w.user_id
    ORDER BY f.pod_id, f.user_id FOR NO KEY UPDATE OF f;
    WITH latest AS (
        SELECT DISTINCT ON (t.pod_id, e.user_id) t.pod_id, e.user_id, e.region, e.at
        FROM unnest(accepted.target, accepted.user_id, accepted.region, accepted.at) AS e (target, user_id, region, at)
        JOIN unnest(targets) t ON t.number = e.target
        WHERE e.region IS NOT NULL
        ORDER BY t.pod_id, e.user_id, e.at DESC, e.region DESC
    ), before AS (
        SELECT f.pod_id, f.user_id, f.region, l.region AS new_region, l.at
        FROM latest l JOIN profiles f ON f.pod_id = l.pod_id AND f.user_id = l.user_id
        WHERE (l.at, l.region) > (f.region_at, coalesce(f.region, ''))
    ), updated AS (
        UPDATE profiles f SET region = o.new_region, region_at = o.at
        FROM before o WHERE f.pod_id = o.pod_id AND f.user_id = o.user_id
    )
    SELECT array_agg((o.pod_id, o.user_id)::profile_key_v1) INTO changed
    FROM before o WHERE o.region IS DISTINCT FROM o.new_region;
    RETURN changed;
END $$;
