-- Step 4 of record_events: stores the events whose id is new, and returns their numbers. Of two with one id in a batch the
-- first is stored. They get their `seq` in the order of the batch, and are inserted in the order of their keys.
CREATE FUNCTION insert_events_v1(targets event_target_v1[], batch event_batch_v1, without int[]) RETURNS int[]
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now_us bigint := now_us_v1();
    own_xact bigint := pg_current_xact_id()::text::bigint;
    accepted int[];
BEGIN
    WITH input AS MATERIALIZED (
        SELECT e.*, nextval('event_seqs') AS seq
        FROM unnest(
            batch.n, batch.target, batch.event_id, batch.user_id, batch.score, batch.at, batch.stamped, batch.received_at,
            batch.metadata, batch.stored, batch.subscore
        ) AS e (n, target, event_id, user_id, score, at, stamped, received_at, metadata, stored, subscore)
        WHERE e.stored AND e.n <> ALL (without)
    ), inserted AS (
        INSERT INTO events AS s (
            seq, board_id, event_id, user_id, score, at, stamped, received_at, metadata, subscore, ahead, xact
        )
        SELECT i.seq, t.board_id, i.event_id, i.user_id, i.score, i.at, i.stamped, i.received_at, i.metadata,
               coalesce(i.subscore, 0),
               i.at > now_us, own_xact
        FROM input i
        JOIN unnest(targets) t ON t.number = i.target
        ORDER BY t.board_id, i.event_id, i.n
        ON CONFLICT (board_id, event_id) DO NOTHING
        RETURNING s.seq
    )
    SELECT array_agg(i.n ORDER BY i.n) INTO accepted FROM input i JOIN inserted d ON d.seq = i.seq;
    RETURN accepted;
END $$;
