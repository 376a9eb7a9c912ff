-- A row of `scores` before and after a batch. before_version 0: there was no row. Equal versions: the row did not change.
-- A total is NULL if the score states it exactly.
CREATE TYPE row_change_v1 AS (
    period_id      bigint,
    user_id        text COLLATE "C",
    before_score   double precision,
    before_at      bigint,
    before_total   text,
    before_nonzero boolean,
    before_version bigint,
    after_score    double precision,
    after_at       bigint,
    after_total    text,
    after_nonzero  boolean,
    after_version  bigint,
    after_hidden   smallint,
    after_segments text,
    before_subscore bigint,
    before_last    bigint,
    after_subscore bigint,
    after_last     bigint
);
