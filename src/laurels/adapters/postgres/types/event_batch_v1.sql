-- A batch of events by column: arrays of the same length, or NULL if all values of the column are NULL. Columns are faster to
-- pass and to read than an array of events.
--   n       the event's number in the batch, from 1
--   target  the number of its event_target_v1
--   amount  rule increment: the exact number that the score counts as, if it is not an integer below 10^15
--   stored  store it if its id is new; otherwise only compare
CREATE TYPE event_batch_v1 AS (
    n           int[],
    target      int[],
    event_id    text[] COLLATE "C",
    user_id     text[] COLLATE "C",
    score       double precision[],
    amount      text[],
    at          bigint[],
    stamped     boolean[],
    received_at bigint[],
    metadata    text[],
    region      text[] COLLATE "C",
    stored      boolean[],
    subscore    bigint[]
);
