-- Moves users to the segments of their profiles in every open period, and returns the rows that changed. The caller has
-- locked the profiles. A period can't be closed until this transaction ends.
CREATE FUNCTION resegment_users_v1(users profile_key_v1[]) RETURNS SETOF scores LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    open_periods bigint[];
    changed scores[];
BEGIN
    SELECT array_agg(locked.id) INTO open_periods FROM (
        SELECT p.id FROM periods p JOIN boards b ON b.id = p.board_id
        WHERE b.pod_id IN (SELECT u.pod_id FROM unnest(users) u) AND b.segments <> '["global"]' AND p.state = 'open'
        ORDER BY p.id FOR SHARE OF p
    ) AS locked;
    PERFORM FROM scores s
    WHERE s.period_id = ANY (open_periods) AND s.user_id IN (SELECT u.user_id FROM unnest(users) u)
    ORDER BY s.period_id, s.user_id FOR NO KEY UPDATE;
    WITH resegmented AS (
        UPDATE scores s SET segments = segments_of_v1(b.segments, f.region, f.circles), version = nextval('versions')
        FROM unnest(users) u
        JOIN profiles f ON f.pod_id = u.pod_id AND f.user_id = u.user_id
        JOIN boards b ON b.pod_id = u.pod_id
        JOIN periods p ON p.board_id = b.id
        WHERE s.period_id = p.id AND s.user_id = u.user_id AND p.id = ANY (open_periods)
          AND s.segments IS DISTINCT FROM segments_of_v1(b.segments, f.region, f.circles)
        RETURNING s
    )
    SELECT array_agg(r.s) INTO changed FROM resegmented r;
    INSERT INTO touches (board_id, user_id)
    SELECT DISTINCT p.board_id, c.user_id FROM unnest(changed) c JOIN periods p ON p.id = c.period_id;
    RETURN QUERY SELECT * FROM unnest(changed);
END $$;
