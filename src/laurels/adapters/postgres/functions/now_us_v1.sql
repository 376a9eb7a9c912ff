-- The clock of the database, in microseconds since 1970.
CREATE FUNCTION now_us_v1() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;
