-- Where events of a batch count: a board as the caller knows it, and periods of it. `number`: from 1. `sign`: 1 if lower scores are better, else
-- -1. `is_segmented`: the board also ranks regions or circles.
CREATE TYPE event_target_v1 AS (
    number       int,
    board_id     bigint,
    revision     bigint,
    pod_id       text COLLATE "C",
    rule         text,
    sign         double precision,
    is_segmented boolean,
    periods      bigint[]
);
