-- Removes a user from a board: voids the events, clears the rows of open periods and returns them. A repeated action only
-- returns the rows. Raises LRL01 if there is nothing to remove, and LRL04 while final ranks of the board are being corrected.
CREATE FUNCTION remove_user_v1(
    board bigint, action text, action_kind text, removed_user text, by_whom text, acted_at bigint, why text
)
RETURNS SETOF scores LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    new_action bigint;
    ranked boolean;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1279348562, board::int);
    INSERT INTO actions (pod_id, board_id, action_id, kind, user_id, by_key, at, reason, done_at)
    SELECT b.pod_id, board, action, action_kind, removed_user, by_whom, acted_at, why, acted_at FROM boards b WHERE b.id = board
    ON CONFLICT (pod_id, board_id, action_id) DO NOTHING RETURNING id INTO new_action;
    IF new_action IS NOT NULL THEN
        IF EXISTS (SELECT FROM periods WHERE board_id = board AND state = 'refreezing') THEN
            RAISE EXCEPTION 'final ranks are being corrected' USING ERRCODE = 'LRL04';
        END IF;
        SELECT coalesce(bool_or(locked.score IS NOT NULL), false) INTO ranked FROM (
            SELECT s.score FROM scores s
            WHERE s.user_id = removed_user AND s.period_id IN (SELECT id FROM periods WHERE board_id = board AND state = 'open')
            ORDER BY s.period_id FOR NO KEY UPDATE OF s
        ) AS locked;
        IF NOT ranked THEN
            RAISE EXCEPTION 'nothing to remove' USING ERRCODE = 'LRL01';
        END IF;
        WITH voided AS (
            UPDATE events SET voided_by = new_action
            WHERE board_id = board AND user_id = removed_user AND voided_by IS NULL RETURNING 1
        )
        UPDATE actions SET events = (SELECT count(*) FROM voided) WHERE id = new_action;
        INSERT INTO touches (board_id, user_id) VALUES (board, removed_user);
        -- After the events: pruning holds their locks until it has stored their fold.
        DELETE FROM bases b
        WHERE b.user_id = removed_user AND b.period_id IN (SELECT id FROM periods WHERE board_id = board AND state = 'open');
        UPDATE scores s
        SET score = NULL, achieved_at = NULL, total = NULL, has_nonzero = false, subscore = 0, last_at = NULL, hidden = hidden % 4,
            version = nextval('versions')
        WHERE s.user_id = removed_user AND s.score IS NOT NULL
          AND s.period_id IN (SELECT id FROM periods WHERE board_id = board AND state = 'open');
    END IF;
    RETURN QUERY
    SELECT s.* FROM scores s
    WHERE s.user_id = removed_user AND s.period_id IN (SELECT id FROM periods WHERE board_id = board AND state = 'open')
    ORDER BY s.period_id;
END $$;
