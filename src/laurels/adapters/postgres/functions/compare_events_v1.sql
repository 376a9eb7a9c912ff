-- Step 8 of record_events: says of the events that were not accepted whether they are erased, spent (over the attempts of
-- their users), refused (new, and not to be stored) or repeated, with the event that took the id. An event that comes later in the batch did not.
CREATE FUNCTION compare_events_v1(targets event_target_v1[], batch event_batch_v1, accepted int[], erased int[], spent int[])
RETURNS TABLE (n int, outcome text, user_id text, earlier earlier_event_v1) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH input AS (
        SELECT e.n, t.board_id, e.event_id, e.user_id
        FROM unnest(batch.n, batch.target, batch.event_id, batch.user_id) AS e (n, target, event_id, user_id)
        JOIN unnest(targets) t ON t.number = e.target
    ), taken AS MATERIALIZED (
        SELECT board_id, event_id, n FROM input WHERE n = ANY (accepted)
    )
    SELECT e.n,
           CASE WHEN e.n = ANY (erased) THEN 'erased' WHEN o.seq IS NOT NULL THEN 'repeated'
                WHEN e.n = ANY (spent) THEN 'spent' ELSE 'refused' END,
           e.user_id,
           CASE WHEN o.seq IS NOT NULL
                THEN (o.user_id, o.score, o.at, o.stamped, o.metadata, o.subscore, o.operation)::earlier_event_v1 END
    FROM input e
    LEFT JOIN taken later ON later.board_id = e.board_id AND later.event_id = e.event_id AND later.n > e.n
    LEFT JOIN events o ON later.n IS NULL AND o.board_id = e.board_id AND o.event_id = e.event_id
    WHERE accepted IS NULL OR e.n <> ALL (accepted);
END $$;
