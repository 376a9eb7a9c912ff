-- Where events of a batch count: a board as the caller knows it, and periods of it. `number`: from 1. `sign`: 1 if lower scores are better, else
-- -1. `is_segmented`: the board also ranks regions or circles. `attempts`: how many scores of a
-- user count from `limited_from` (included) to `limited_to`; NULL: all. `sub_sign`: as `sign`,
-- for subscores; 0: there are none. `keeps_last`: rows store the time of the last event.
CREATE TYPE event_target_v1 AS (
    number       int,
    board_id     bigint,
    revision     bigint,
    pod_id       text COLLATE "C",
    rule         text,
    sign         double precision,
    is_segmented boolean,
    periods      bigint[],
    attempts     bigint,
    limited_from bigint,
    limited_to   bigint,
    sub_sign     bigint,
    keeps_last   boolean
);
