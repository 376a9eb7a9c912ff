-- How a user is hidden on a board. Hidden from everybody (1) takes precedence over a shadow ban (2).
CREATE FUNCTION hidden_on_v1(pod text, board bigint, who text) RETURNS smallint LANGUAGE sql STABLE AS $$
    SELECT coalesce(min(h.hidden), 0::smallint) FROM hides h
    WHERE h.pod_id = pod AND h.user_id = who AND h.board_id IN (0, board)
$$;
