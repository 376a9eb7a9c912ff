-- What becomes of periods: final ranks, rewards, retention; and the outbox and the jobs that see to it.

-- name: find_period
SELECT id, window_name, name, start_at, end_at, state, terms, total_users, frozen_at, replaces FROM periods
WHERE board_id = ? AND name = ?;

-- name: periods_at
SELECT k.key, p.id, p.window_name, p.name, p.start_at, p.end_at, p.state, p.terms, p.total_users, p.frozen_at, p.replaces
FROM json_each(?) AS k JOIN periods p ON p.id = (
    SELECT id FROM periods
    WHERE board_id = json_extract(k.value, '$[0]') AND window_name = json_extract(k.value, '$[1]')
      AND (start_at <= json_extract(k.value, '$[2]') OR start_at IS NULL)
      AND state NOT IN ('refreezing', 'superseded', 'discarded')
    ORDER BY start_at DESC, id DESC LIMIT 1
);

-- name: periods_page
SELECT id, window_name, name, start_at, end_at, state, terms, total_users, frozen_at, replaces FROM periods
WHERE board_id = :board AND (:window IS NULL OR window_name = :window) AND state <> 'refreezing'
  AND (coalesce(start_at, 0), id) < (:start, :id)
ORDER BY coalesce(start_at, 0) DESC, id DESC LIMIT :limit;

-- name: count_ranked
SELECT count(*) FROM scores WHERE period_id = ? AND score IS NOT NULL AND hidden = 0;

-- name: last_place
SELECT coalesce(max(place), 0) FROM finals WHERE period_id = ? AND segment = 'global';

-- name: insert_final
INSERT INTO finals (period_id, segment, place, user_id, score, achieved_at, competition, dense)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- name: insert_grant
INSERT INTO grants (period_id, place, reward, user_id, rank, score, prize, granted_at, claimed_at, claimed_by)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- name: insert_message
INSERT INTO outbox (message_id, pod_id, period_id, kind, body, created_at)
SELECT :id, :pod, :period, :kind, :body, :at WHERE EXISTS (SELECT 1 FROM webhooks WHERE pod_id = :pod)
ON CONFLICT DO NOTHING;

-- name: freeze_period
UPDATE periods SET state = 'frozen', total_users = ?, frozen_at = ? WHERE id = ? AND state = 'closed';

-- name: release_messages
UPDATE outbox SET due_at = ? WHERE period_id = ? AND due_at IS NULL;

-- name: grow_revision
UPDATE boards SET revision = revision + 1 WHERE id = ?;

-- name: unswept
SELECT board_id, id, window_name, name, start_at, end_at, state, terms, total_users, frozen_at, replaces FROM periods
WHERE state IN ('frozen', 'superseded') AND swept = 0 AND frozen_at < ? ORDER BY frozen_at;

-- name: owned_periods
SELECT id FROM periods WHERE id IN (SELECT value FROM json_each(?)) AND swept = 0;

-- name: sweep_rows
DELETE FROM scores WHERE period_id = :period AND user_id IN
    (SELECT user_id FROM scores WHERE period_id = :period LIMIT :limit);

-- name: sweep_bases
DELETE FROM bases WHERE period_id = :period AND user_id IN
    (SELECT user_id FROM bases WHERE period_id = :period LIMIT :limit);

-- name: mark_swept
UPDATE periods SET swept = 1 WHERE id = ?;

-- name: results
SELECT p.board_id, p.id, p.window_name, p.name, p.start_at, p.end_at, p.state, p.terms, p.total_users, p.frozen_at, p.replaces,
       f.place, f.user_id, f.score, f.achieved_at, f.competition, f.dense
FROM finals f JOIN periods p ON p.id = f.period_id
WHERE f.user_id = ? AND f.segment = 'global' AND (p.frozen_at, p.id) < (?, ?) AND p.state = 'frozen'
  AND p.board_id IN (SELECT value FROM json_each(?))
ORDER BY p.frozen_at DESC, p.id DESC LIMIT ?;

-- name: finals_of_user
SELECT p.board_id, p.id, p.window_name, p.name, p.start_at, p.end_at, p.state, p.terms, p.total_users, p.frozen_at, p.replaces,
       f.place, f.user_id, f.score, f.achieved_at, f.competition, f.dense, f.segment
FROM finals f JOIN periods p ON p.id = f.period_id
WHERE f.user_id = ? AND (f.period_id, f.segment) > (?, ?) AND p.state IN ('frozen', 'superseded')
  AND p.board_id IN (SELECT value FROM json_each(?))
ORDER BY f.period_id, f.segment LIMIT ?;

-- name: grants_of_user
SELECT p.board_id, p.id, p.window_name, p.name, p.start_at, p.end_at, p.state, p.terms, p.total_users, p.frozen_at, p.replaces,
       g.period_id, g.place, g.reward, g.user_id, g.rank, g.score, g.prize, g.granted_at, g.claimed_at, g.claimed_by
FROM grants g JOIN periods p ON p.id = g.period_id
WHERE g.user_id = :user AND p.board_id IN (SELECT value FROM json_each(:boards))
  AND (p.state IN ('frozen', 'pruned') OR (:withdrawn AND p.state IN ('superseded', 'discarded')))
  AND ((p.frozen_at, p.id) < (:frozen, :period) OR (p.id = :period AND g.reward > :reward))
ORDER BY p.frozen_at DESC, p.id DESC, g.reward LIMIT :limit;

-- name: grants_of_period
SELECT period_id, place, reward, user_id, rank, score, prize, granted_at, claimed_at, claimed_by FROM grants
WHERE period_id = ? AND (place, reward) > (?, ?) ORDER BY place, reward LIMIT ?;

-- name: find_grant
SELECT p.board_id, p.id, p.window_name, p.name, p.start_at, p.end_at, p.state, p.terms, p.total_users, p.frozen_at, p.replaces,
       g.period_id, g.place, g.reward, g.user_id, g.rank, g.score, g.prize, g.granted_at, g.claimed_at, g.claimed_by
FROM grants g JOIN periods p ON p.id = g.period_id
WHERE g.period_id = ? AND g.place = ? AND g.reward = ? AND p.state IN ('frozen', 'pruned', 'superseded', 'discarded');

-- name: claim_grant
UPDATE grants SET claimed_at = ?, claimed_by = ?
WHERE period_id = ? AND place = ? AND reward = ? AND claimed_at IS NULL
  AND EXISTS (SELECT 1 FROM periods p WHERE p.id = period_id AND p.state IN ('frozen', 'pruned'));

-- name: old_events
SELECT seq, board_id, user_id, score, at, received_at, voided_by IS NOT NULL FROM events
WHERE seq > ? ORDER BY seq LIMIT ?;

-- name: latest_act
SELECT max(at) FROM acts
WHERE board_id = :board OR (board_id = 0 AND pod_id = (SELECT pod_id FROM boards WHERE id = :board));

-- name: delete_event
DELETE FROM events WHERE seq = ?;

-- name: find_base
SELECT score, achieved_at, total, moved FROM bases WHERE period_id = ? AND user_id = ?;

-- name: put_base
INSERT INTO bases (period_id, user_id, score, achieved_at, total, moved) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (period_id, user_id) DO UPDATE SET
    score = excluded.score, achieved_at = excluded.achieved_at, total = excluded.total, moved = excluded.moved;

-- name: find_fact
SELECT value FROM facts WHERE name = ?;

-- name: replace_fact
UPDATE facts SET value = ?3 WHERE name = ?1 AND value = ?2;

-- name: put_fact
INSERT INTO facts (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: prunable_periods
SELECT id, window_name, name, start_at, end_at, state, terms, total_users, frozen_at, replaces FROM periods
WHERE board_id = ? AND ((state IN ('frozen', 'superseded') AND swept = 1 AND frozen_at < ?)
                        OR (state IN ('pruned', 'discarded')
                           AND EXISTS (SELECT 1 FROM finals WHERE period_id = periods.id)))
ORDER BY id;

-- name: mark_pruned
UPDATE periods SET state = CASE WHEN state IN ('superseded', 'discarded') THEN 'discarded' ELSE 'pruned' END
WHERE id = ?;

-- name: prune_finals
DELETE FROM finals WHERE (period_id, segment, place) IN
    (SELECT period_id, segment, place FROM finals WHERE period_id = :period LIMIT :limit);

-- name: final_total
SELECT CASE WHEN :segment = 'global' THEN total_users
            ELSE (SELECT coalesce(max(place), 0) FROM finals WHERE period_id = :period AND segment = :segment) END
FROM periods WHERE id = :period AND state IN ('frozen', 'superseded');

-- name: state_of
SELECT state FROM periods WHERE id = ?;

-- name: final_page
SELECT place, user_id, score, achieved_at, competition, dense FROM finals
WHERE period_id = ? AND segment = ? AND place > ? ORDER BY place LIMIT ?;

-- name: find_final
SELECT place, user_id, score, achieved_at, competition, dense FROM finals
WHERE period_id = ? AND segment = ? AND user_id = ?;

-- name: final_score
SELECT score FROM finals WHERE period_id = ? AND segment = ? AND place = ?;

-- name: put_webhook
INSERT INTO webhooks (pod_id, url, secret, created_at) VALUES (?, ?, ?, ?)
ON CONFLICT (pod_id) DO UPDATE SET url = excluded.url, secret = excluded.secret, created_at = excluded.created_at;

-- name: find_webhook
SELECT pod_id, url, secret, created_at FROM webhooks WHERE pod_id = ?;

-- name: delete_webhook
DELETE FROM webhooks WHERE pod_id = ?;

-- name: drop_messages
DELETE FROM outbox WHERE pod_id = ? AND delivered_at IS NULL;

-- name: post_message
INSERT INTO outbox (message_id, pod_id, period_id, kind, body, created_at, due_at, attempts)
SELECT :message_id, :pod_id, :period_id, :kind, :body, :created_at, :created_at, :attempts
WHERE EXISTS (SELECT 1 FROM webhooks WHERE pod_id = :pod_id)
ON CONFLICT (message_id) DO NOTHING;

-- name: webhook_pods
SELECT pod_id FROM webhooks;

-- name: due_messages
SELECT due_at, message_id, pod_id, period_id, kind, body, created_at, attempts FROM outbox
WHERE pod_id = ? AND delivered_at IS NULL AND due_at <= ? ORDER BY due_at, id LIMIT ?;

-- name: message_delivered
UPDATE outbox SET delivered_at = ?, attempts = attempts + 1, error = NULL WHERE message_id = ?;

-- name: message_failed
UPDATE outbox SET due_at = ?, attempts = attempts + 1, error = ? WHERE message_id = ?;

-- name: count_messages
SELECT count(*) FROM outbox WHERE delivered_at IS NULL AND due_at IS NOT NULL;

-- name: forget_messages
DELETE FROM outbox WHERE id IN (SELECT id FROM outbox WHERE delivered_at < ? LIMIT ?);

-- name: take_job
INSERT INTO jobs (name, owner, started_at, runs) VALUES (:name, :owner, :now, 0)
ON CONFLICT (name) DO UPDATE SET
    started_at = CASE WHEN owner IS excluded.owner THEN started_at ELSE excluded.started_at END, owner = excluded.owner;

-- name: leave_job
UPDATE jobs SET owner = NULL, finished_at = ?, result = ?, error = ?, runs = runs + 1 WHERE name = ? AND owner = ?;

-- name: jobs
SELECT name, owner, started_at, finished_at, result, error, runs FROM jobs ORDER BY name;

-- name: act_going_on
SELECT 1 FROM acts WHERE board_id = ? AND done_at IS NULL AND kind <> 'refreeze';

-- name: insert_refreezing
INSERT INTO periods (board_id, window_name, name, start_at, end_at, state, terms, swept, replaces, closed_seq)
SELECT board_id, window_name, name || '@', start_at, end_at, 'refreezing', terms, 0, id, closed_seq
FROM periods WHERE id = ? AND state = 'frozen' AND closed_seq IS NOT NULL;

-- name: pruned_before
SELECT pruned_before FROM boards WHERE id = ?;

-- name: copy_claims
UPDATE grants SET (claimed_at, claimed_by) =
    (SELECT o.claimed_at, o.claimed_by FROM grants o
     WHERE o.period_id = :old AND o.user_id = grants.user_id AND o.reward = grants.reward)
WHERE period_id = :new AND EXISTS
    (SELECT 1 FROM grants o WHERE o.period_id = :old AND o.user_id = grants.user_id AND o.reward = grants.reward
                              AND o.claimed_at IS NOT NULL);

-- name: successor
WITH RECURSIVE newer (id) AS (
    SELECT id FROM periods WHERE replaces = :period UNION ALL
    SELECT p.id FROM periods p JOIN newer ON p.replaces = newer.id
)
SELECT n.period_id, n.place, n.reward FROM grants o JOIN periods p ON p.id IN (SELECT id FROM newer)
LEFT JOIN grants n ON n.period_id = p.id AND n.user_id = o.user_id AND n.reward = o.reward
WHERE o.period_id = :period AND o.place = :place AND o.reward = :reward AND p.state IN ('frozen', 'pruned')
ORDER BY p.id DESC LIMIT 1;

-- name: claimed_edition
WITH RECURSIVE newer (id) AS (
    SELECT id FROM periods WHERE replaces = :period UNION ALL
    SELECT p.id FROM periods p JOIN newer ON p.replaces = newer.id
)
SELECT p.board_id, p.id, p.window_name, p.name, p.start_at, p.end_at, p.state, p.terms, p.total_users, p.frozen_at, p.replaces,
       g.period_id, g.place, g.reward, g.user_id, g.rank, g.score, g.prize, g.granted_at, g.claimed_at, g.claimed_by
FROM grants o JOIN periods p ON p.id IN (SELECT id FROM newer)
JOIN grants g ON g.period_id = p.id AND g.user_id = o.user_id AND g.reward = o.reward AND g.claimed_at IS NOT NULL
WHERE o.period_id = :period AND o.place = :place AND o.reward = :reward AND p.state <> 'refreezing'
ORDER BY p.id DESC LIMIT 1;

-- name: refreezing
SELECT board_id, id, window_name, name, start_at, end_at, state, terms, total_users, frozen_at, replaces FROM periods
WHERE state = 'refreezing' ORDER BY id;

-- name: last_refolded
SELECT coalesce(max(user_id), '') FROM scores WHERE period_id = ?;

-- name: next_event_users
SELECT DISTINCT user_id FROM events WHERE board_id = ? AND user_id > ? ORDER BY user_id LIMIT ?;

-- name: events_of_period
-- Users who stood in the final ranks and were erased since stay there, so that nobody else gets their places.
SELECT user_id, score, at FROM events e
WHERE board_id = :board AND user_id BETWEEN :first AND :last
  AND (e.voided_by IS NULL OR (EXISTS (SELECT 1 FROM acts a WHERE a.id = e.voided_by AND a.kind = 'erase') AND EXISTS (
      SELECT 1 FROM finals f WHERE f.period_id = :period AND f.segment = 'global' AND f.user_id = e.user_id)))
  AND (:start IS NULL OR at >= :start) AND (:end IS NULL OR at < :end)
  AND seq <= (SELECT coalesce(closed_seq, 9223372036854775807) FROM periods WHERE id = :period)
ORDER BY user_id, seq;

-- name: segments_of_erased
SELECT f.user_id, f.segment FROM finals f
WHERE f.period_id = :period AND f.segment <> 'global' AND f.user_id BETWEEN :first AND :last
  AND EXISTS (SELECT 1 FROM acts a WHERE a.user_id = f.user_id AND a.kind = 'erase')
ORDER BY f.user_id, f.segment DESC;

-- name: grants_of_users
SELECT period_id, place, reward, user_id, rank, score, prize, granted_at, claimed_at, claimed_by FROM grants
WHERE user_id IN (SELECT value FROM json_each(:users)) AND period_id IN (
    WITH RECURSIVE old (id) AS (
        SELECT :period UNION ALL SELECT p.replaces FROM periods p JOIN old ON p.id = old.id WHERE p.replaces IS NOT NULL
    ) SELECT id FROM old
)
ORDER BY claimed_at IS NULL, granted_at DESC;

-- name: count_editions
SELECT count(*) FROM periods WHERE board_id = ?1 AND substr(name, 1, length(?2) + 1) = ?2 || '@' AND state <> 'refreezing';

-- name: supersede
UPDATE periods SET state = 'superseded', name = ? WHERE id = ?;

-- name: take_place
UPDATE periods SET state = 'frozen', name = ?, total_users = ?, frozen_at = ? WHERE id = ?;

-- name: end_refreeze
UPDATE acts SET done_at = ? WHERE board_id = ? AND kind = 'refreeze' AND done_at IS NULL;
