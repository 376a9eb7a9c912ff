-- The rows of a ranking, as a viewer sees them who may be shadow-banned.
CREATE FUNCTION ranked_rows_v1(period bigint, segment text, viewer text) RETURNS SETOF scores LANGUAGE sql STABLE AS $$
    SELECT * FROM scores s
    WHERE s.period_id = period AND s.score IS NOT NULL AND (s.hidden = 0 OR (s.user_id = viewer AND s.hidden < 4))
      AND (segment = 'global' OR position(' ' || segment || ' ' IN ' ' || s.segments || ' ') > 0)
$$;
