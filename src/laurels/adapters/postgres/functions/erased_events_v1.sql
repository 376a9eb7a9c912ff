-- Step 2 of record_events: returns the numbers of events from before the erasure of their user.
CREATE FUNCTION erased_events_v1(targets event_target_v1[], batch event_batch_v1) RETURNS int[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM erased) THEN
        RETURN '{}';
    END IF;
    RETURN (
        SELECT coalesce(array_agg(e.n), '{}')
        FROM unnest(batch.n, batch.target, batch.user_id, batch.at, batch.received_at)
             AS e (n, target, user_id, at, received_at)
        JOIN unnest(targets) t ON t.number = e.target
        JOIN erased d ON d.pod_id = t.pod_id AND d.digest = sha256(convert_to(t.pod_id || '/' || e.user_id, 'UTF8'))
        WHERE least(e.at, e.received_at) < d.at
    );
END $$;
