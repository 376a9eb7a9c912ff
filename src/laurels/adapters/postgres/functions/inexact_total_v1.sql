-- A sum as text if the score, its nearest double, does not state it exactly; else NULL.
CREATE FUNCTION inexact_total_v1(score double precision, total numeric) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN abs(score) < 9007199254740992 AND min_scale(total) = 0 THEN NULL ELSE total::text END
$$;
