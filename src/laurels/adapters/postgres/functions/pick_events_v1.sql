-- Some events of a batch, by their numbers.
CREATE FUNCTION pick_events_v1(batch event_batch_v1, numbers int[]) RETURNS event_batch_v1 LANGUAGE sql AS $$
    SELECT array_agg(e.n ORDER BY e.n), array_agg(e.target ORDER BY e.n), array_agg(e.event_id ORDER BY e.n),
           array_agg(e.user_id ORDER BY e.n), array_agg(e.score ORDER BY e.n), array_agg(e.amount ORDER BY e.n),
           array_agg(e.at ORDER BY e.n), array_agg(e.stamped ORDER BY e.n), array_agg(e.received_at ORDER BY e.n),
           array_agg(e.metadata ORDER BY e.n), array_agg(e.region ORDER BY e.n), array_agg(e.stored ORDER BY e.n),
           CASE WHEN batch.subscore IS NOT NULL THEN array_agg(e.subscore ORDER BY e.n) END
    FROM unnest(
        batch.n, batch.target, batch.event_id, batch.user_id, batch.score, batch.amount, batch.at, batch.stamped,
        batch.received_at, batch.metadata, batch.region, batch.stored, batch.subscore
    ) AS e (n, target, event_id, user_id, score, amount, at, stamped, received_at, metadata, region, stored, subscore)
    WHERE e.n = ANY (numbers)
$$;
