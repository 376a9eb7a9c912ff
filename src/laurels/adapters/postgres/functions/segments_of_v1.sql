-- The segments of a user other than global. `kinds` has the format of `boards.segments`.
CREATE FUNCTION segments_of_v1(kinds text, region text, circles text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT nullif(concat_ws(' ', CASE WHEN kinds LIKE '%"region"%' THEN 'region:' || region END,
                                 CASE WHEN kinds LIKE '%"circle"%' THEN nullif(circles, '') END), '')
$$;
