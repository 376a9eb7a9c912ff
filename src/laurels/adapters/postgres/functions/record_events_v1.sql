-- Stores and folds a batch of events in one statement of the client: Ledger.record without the comparison of repeated events.
-- Every step takes its locks in the order of the keys, and the steps lock boards, users with attempts, events, profiles, new rows and rows in this
-- order, so two batches never wait for each other in a circle.
--
-- Raises LRL03 if the ledger is not in the history that the caller knows, and LRL02 if a board is not as the caller knows it.
--
-- Returns, in no order, rows of three kinds:
--   n            an event that was not accepted: repeated (its id was taken by `earlier`), refused (new, and not to be stored),
--                spent (over the attempts of its user) or erased
--   changed      a row of the users of the batch, in a period of their events, before and after
--   resegmented  another row that changed because an event named a new region: its state after
CREATE FUNCTION record_events_v1(history text, targets event_target_v1[], batch event_batch_v1) RETURNS TABLE (
    n int, outcome text, user_id text, earlier earlier_event_v1,
    period_id bigint,
    before_score double precision, before_at bigint, before_total text, before_nonzero boolean, before_version bigint,
    after_score double precision, after_at bigint, after_total text, after_nonzero boolean, after_version bigint,
    after_hidden smallint, after_segments text,
    before_subscore bigint, before_last bigint, after_subscore bigint, after_last bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    erased int[];
    spent int[];
    numbers int[];
    accepted event_batch_v1 := batch;
    others event_batch_v1;
    relocated profile_key_v1[];
    before scores[];
    changes row_change_v1[];
    resegmented scores[];
BEGIN
    PERFORM need_ledger_v1(history);
    PERFORM lock_boards_v1(targets);
    erased := erased_events_v1(targets, batch);
    spent := spent_events_v1(targets, batch, erased);
    numbers := insert_events_v1(targets, batch, erased || spent);
    IF numbers IS DISTINCT FROM batch.n THEN
        accepted := pick_events_v1(batch, numbers);
        others := pick_events_v1(batch, ARRAY(SELECT unnest(batch.n) EXCEPT SELECT unnest(numbers)));
    END IF;
    IF numbers IS NOT NULL THEN
        relocated := update_regions_v1(targets, accepted);
        before := lock_rows_v1(targets, accepted, relocated);
        changes := ARRAY(SELECT c FROM fold_events_v1(targets, accepted, before) c);
        IF relocated IS NOT NULL THEN
            resegmented := ARRAY(SELECT r FROM resegment_users_v1(relocated) r);
            -- The rows have changed once more.
            changes := ARRAY(
                SELECT (c.period_id, c.user_id, c.before_score, c.before_at, c.before_total, c.before_nonzero,
                        c.before_version, r.score, r.achieved_at, inexact_total_v1(r.score, r.total), r.has_nonzero,
                        r.version, r.hidden, r.segments, c.before_subscore, c.before_last, r.subscore,
                        r.last_at)::row_change_v1
                FROM unnest(changes) c JOIN scores r ON r.period_id = c.period_id AND r.user_id = c.user_id
            );
        END IF;
        RETURN QUERY
        SELECT NULL::int, 'changed', c.user_id, NULL::earlier_event_v1, c.period_id,
               c.before_score, c.before_at, c.before_total, c.before_nonzero, c.before_version,
               c.after_score, c.after_at, c.after_total, c.after_nonzero, c.after_version, c.after_hidden, c.after_segments,
               c.before_subscore, c.before_last, c.after_subscore, c.after_last
        FROM unnest(changes) c;
    END IF;

    IF others.n IS NOT NULL THEN
        RETURN QUERY
        SELECT e.n, e.outcome, e.user_id, e.earlier, NULL::bigint,
               NULL::double precision, NULL::bigint, NULL::text, NULL::boolean, NULL::bigint,
               NULL::double precision, NULL::bigint, NULL::text, NULL::boolean, NULL::bigint, NULL::smallint, NULL::text,
               NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint
        FROM compare_events_v1(targets, batch, numbers, erased, spent) e;
        others := pick_events_v1(others, ARRAY(SELECT unnest(others.n) EXCEPT SELECT unnest(erased || spent)));
        RETURN QUERY
        SELECT NULL::int, 'changed', s.user_id, NULL::earlier_event_v1, s.period_id,
               s.score, s.achieved_at, inexact_total_v1(s.score, s.total), s.has_nonzero, s.version,
               s.score, s.achieved_at, inexact_total_v1(s.score, s.total), s.has_nonzero, s.version, s.hidden, s.segments,
               s.subscore, s.last_at, s.subscore, s.last_at
        FROM rows_of_events_v1(targets, others) s
        WHERE NOT EXISTS (SELECT FROM unnest(changes) c WHERE c.period_id = s.period_id AND c.user_id = s.user_id);
        resegmented := coalesce(resegmented, '{}') || ARRAY(SELECT r FROM rows_returned_again_v1(targets, others) r);
    END IF;

    RETURN QUERY
    SELECT NULL::int, 'resegmented', r.user_id, NULL::earlier_event_v1, r.period_id,
           NULL::double precision, NULL::bigint, NULL::text, NULL::boolean, NULL::bigint,
           r.score, r.achieved_at, inexact_total_v1(r.score, r.total), r.has_nonzero, r.version, r.hidden, r.segments,
           NULL::bigint, NULL::bigint, r.subscore, r.last_at
    FROM unnest(resegmented) r;
END $$;
