-- Step 1 of record_events: locks the boards of a batch against changes until the transaction ends. Raises LRL02 if a board is
-- missing, or is not as the caller knows it. A change of a board holds the same lock alone, so what the board is at the
-- commit decides which periods an event counts in.
CREATE FUNCTION lock_boards_v1(targets event_target_v1[]) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1279348562, k.board_id::int)
    FROM (SELECT DISTINCT t.board_id FROM unnest(targets) t ORDER BY t.board_id) AS k;
    PERFORM FROM (SELECT DISTINCT t.board_id, t.revision FROM unnest(targets) t) AS k
    LEFT JOIN boards b ON b.id = k.board_id WHERE b.revision IS DISTINCT FROM k.revision;
    IF FOUND THEN
        RAISE EXCEPTION 'a board was changed' USING ERRCODE = 'LRL02';
    END IF;
END $$;
