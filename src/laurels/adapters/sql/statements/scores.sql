-- Statements that both ledgers run, in PostgreSQL's syntax. adapters/sql/files.py converts them for SQLite.

-- name: rows_page
SELECT period_id, user_id, score, achieved_at, total::text, has_nonzero, version, hidden, segments, subscore, last_at FROM scores
WHERE period_id = $1 AND user_id > $2 ORDER BY user_id LIMIT $3;

-- name: count_rows
SELECT count(*) FROM scores;

-- name: rows_of_user
SELECT period_id, user_id, score, achieved_at, total::text, has_nonzero, version, hidden, segments, subscore, last_at FROM scores
WHERE period_id = ANY ($1::bigint[]) AND user_id = $2 AND score IS NOT NULL;

-- name: user_events
SELECT seq, event_id, user_id, score, at, received_at, voided_by IS NOT NULL AS voided, metadata, stamped, subscore, operation FROM events
WHERE board_id = $1 AND user_id = $2 AND seq < $3 ORDER BY seq DESC LIMIT $4;

-- name: board_events
SELECT seq, event_id, user_id, score, at, received_at, voided_by IS NOT NULL AS voided, metadata, stamped, subscore, operation FROM events
WHERE board_id = $1 AND seq > $2 AND (voided_by IS NULL OR $3) ORDER BY seq LIMIT $4;

-- name: count_board_events
SELECT count(*) FROM events WHERE board_id = $1 AND voided_by IS NULL;

-- name: count_events
SELECT count(*) FROM events WHERE voided_by IS NULL;

-- name: next_users
SELECT user_id FROM (SELECT DISTINCT user_id FROM events
                     WHERE board_id = $1 AND user_id > $2 ORDER BY user_id LIMIT $3) AS of_events
UNION
SELECT user_id FROM (SELECT DISTINCT user_id FROM scores
                     WHERE period_id IN (SELECT id FROM periods WHERE board_id = $1 AND state = 'open')
                       AND user_id > $2
                     ORDER BY user_id LIMIT $3) AS of_scores
ORDER BY user_id LIMIT $3;

-- name: rows_between
SELECT period_id, user_id, score, achieved_at, total::text, has_nonzero, version, hidden, segments, subscore, last_at FROM scores
WHERE period_id IN (SELECT id FROM periods WHERE board_id = $1 AND state = 'open') AND user_id BETWEEN $2 AND $3
ORDER BY user_id;

-- name: events_between
SELECT user_id, score, at, subscore, operation FROM events
WHERE board_id = $1 AND user_id BETWEEN $2 AND $3 AND voided_by IS NULL ORDER BY user_id, seq;

-- name: insert_action
INSERT INTO actions (pod_id, board_id, action_id, kind, user_id, by_key, at, reason, detail)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (pod_id, board_id, action_id) DO NOTHING RETURNING id;

-- name: bases_between
SELECT period_id, user_id, score, achieved_at, total, has_nonzero, subscore, last_at FROM bases
WHERE period_id IN (SELECT id FROM periods WHERE board_id = $1 AND state = 'open') AND user_id BETWEEN $2 AND $3;

-- name: profiles_between
SELECT user_id, display_name, avatar_url, region, region_at, circles, attributes FROM profiles
WHERE pod_id = $1 AND user_id BETWEEN $2 AND $3;

-- name: hides_between
SELECT user_id, board_id, hidden FROM hides WHERE pod_id = $1 AND user_id BETWEEN $2 AND $3;

-- name: rows_of_period_users
SELECT period_id, user_id, score, achieved_at, total::text, has_nonzero, version, hidden, segments, subscore, last_at FROM scores
WHERE period_id = $1 AND user_id = ANY ($2::text[]);

-- name: bases_of_users
SELECT period_id, user_id, score, achieved_at, total, has_nonzero, subscore, last_at FROM bases
WHERE period_id IN (SELECT id FROM periods WHERE board_id = $1 AND state = 'open') AND user_id = ANY ($2::text[]);

-- name: events_of_users
SELECT user_id, score, at, subscore, operation FROM events
WHERE board_id = $1 AND user_id = ANY ($2::text[]) AND voided_by IS NULL ORDER BY user_id, seq;

-- name: action_by_key
SELECT id, pod_id, board_id, kind, user_id, by_key, at, reason, detail, events, done_at, undone_by FROM actions
WHERE pod_id = $1 AND board_id = $2 AND action_id = $3;

-- name: is_refreezing
SELECT EXISTS (SELECT 1 FROM periods WHERE board_id = ANY ($1::bigint[]) AND state = 'refreezing');

-- name: event_with_act
-- The event that has an id, and the action that voided it.
SELECT e.user_id, e.score, e.at, e.stamped, e.metadata, e.subscore, e.operation, a.kind, a.undone_by
FROM events e LEFT JOIN actions a ON a.id = e.voided_by WHERE e.board_id = $1 AND e.event_id = $2;

-- name: reviews
-- $3: the kind of the action that undid the review, '' for none, or NULL for all.
SELECT a.id, a.pod_id, a.board_id, a.kind, a.user_id, a.by_key, a.at, a.reason, a.detail, a.events, a.done_at, a.undone_by,
       u.kind, u.by_key, u.at, u.reason
FROM actions a LEFT JOIN actions u ON u.id = a.undone_by
WHERE a.board_id = $1 AND a.kind = 'review' AND a.id < $2 AND ($3::text IS NULL OR coalesce(u.kind, '') = $3::text)
ORDER BY a.id DESC LIMIT $4;

-- name: pending_reviews
SELECT a.id, a.pod_id, a.board_id, a.kind, a.user_id, a.by_key, a.at, a.reason, a.detail, a.events, a.done_at, a.undone_by,
       NULL, NULL, NULL, NULL
FROM actions a
WHERE a.board_id = $1 AND a.kind = 'review' AND a.undone_by IS NULL AND a.id < $2 ORDER BY a.id DESC LIMIT $3;

-- name: events_between_in_order
-- Boards with operations fold events in the order of time, and those of one time by their ids.
SELECT user_id, score, at, subscore, operation FROM events
WHERE board_id = $1 AND user_id BETWEEN $2 AND $3 AND voided_by IS NULL ORDER BY user_id, at, event_id;

-- name: events_of_users_in_order
SELECT user_id, score, at, subscore, operation FROM events
WHERE board_id = $1 AND user_id = ANY ($2::text[]) AND voided_by IS NULL ORDER BY user_id, at, event_id;

-- name: latest_between
SELECT max(at) FROM events WHERE board_id = $1 AND user_id = $2 AND at >= $3 AND at < $4;
