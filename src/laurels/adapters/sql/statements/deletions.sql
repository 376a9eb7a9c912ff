-- The deletion of boards for good, in PostgreSQL's syntax. Each purge_ statement removes up to $2 rows of board $1.

-- name: delete_board
UPDATE boards SET deleted_at = $1, uuid = $2, name = '', metadata = NULL, rewards = '[]', created_by = NULL,
                  revision = revision + 1
WHERE id = $3 AND revision = $4;

-- name: end_periods_of_board
-- No job looks at periods in this state.
UPDATE periods SET state = 'discarded', swept = true, published = true, terms = NULL WHERE board_id = $1;

-- name: end_actions_of_board
UPDATE actions SET done_at = $1 WHERE board_id = $2 AND done_at IS NULL;

-- name: boards_to_purge
SELECT id FROM boards WHERE deleted_at IS NOT NULL AND NOT purged ORDER BY id;

-- name: purge_events
DELETE FROM events WHERE seq IN (SELECT seq FROM events WHERE board_id = $1 LIMIT $2);

-- name: purge_actions
DELETE FROM actions WHERE id IN (SELECT id FROM actions WHERE board_id = $1 LIMIT $2);

-- name: purge_hides
DELETE FROM hides WHERE (pod_id, user_id, board_id) IN
    (SELECT pod_id, user_id, board_id FROM hides WHERE board_id = $1 LIMIT $2);

-- name: purge_scores
DELETE FROM scores WHERE (period_id, user_id) IN
    (SELECT period_id, user_id FROM scores WHERE period_id IN (SELECT id FROM periods WHERE board_id = $1) LIMIT $2);

-- name: purge_bases
DELETE FROM bases WHERE (period_id, user_id) IN
    (SELECT period_id, user_id FROM bases WHERE period_id IN (SELECT id FROM periods WHERE board_id = $1) LIMIT $2);

-- name: purge_finals
DELETE FROM finals WHERE (period_id, segment, place) IN
    (SELECT period_id, segment, place FROM finals WHERE period_id IN (SELECT id FROM periods WHERE board_id = $1) LIMIT $2);

-- name: purge_grants
DELETE FROM grants WHERE (period_id, place, reward) IN
    (SELECT period_id, place, reward FROM grants WHERE period_id IN (SELECT id FROM periods WHERE board_id = $1) LIMIT $2);

-- name: purge_messages
DELETE FROM outbox WHERE id IN
    (SELECT id FROM outbox WHERE period_id IN (SELECT id FROM periods WHERE board_id = $1) LIMIT $2);

-- name: purge_metadata
DELETE FROM kept_metadata WHERE (board_id, user_id, at, event_id) IN
    (SELECT board_id, user_id, at, event_id FROM kept_metadata WHERE board_id = $1 LIMIT $2);

-- name: purge_periods
-- The last period stays, so that no other period gets its id.
DELETE FROM periods WHERE id IN (SELECT id FROM periods WHERE board_id = $1
                                 AND id < (SELECT max(id) FROM periods WHERE board_id = $1) LIMIT $2);

-- name: board_purged
UPDATE boards SET purged = true WHERE id = $1;
