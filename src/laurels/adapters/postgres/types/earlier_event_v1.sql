-- The stored event whose id an event of a batch repeats.
CREATE TYPE earlier_event_v1 AS (
    user_id  text COLLATE "C",
    score    double precision,
    at       bigint,
    stamped  boolean,
    metadata text,
    subscore bigint,
    operation text
);
