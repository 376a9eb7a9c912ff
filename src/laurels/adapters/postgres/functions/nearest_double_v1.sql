-- The double nearest to a sum. Beyond the largest double it is the largest double; what is too small is zero.
CREATE FUNCTION nearest_double_v1(total numeric) RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN abs(total) <= 2.47032822920623272088284396434110686182e-324 THEN 0
                ELSE least(greatest(total, -1.7976931348623157e308), 1.7976931348623157e308)::double precision END
$$;
