-- What becomes of periods: final ranks, rewards, retention; and the outbox and the jobs that see to it.

-- name: find_period
SELECT id, window_name, name, start_at, end_at, state, terms, total_users, frozen_at, replaces FROM periods
WHERE board_id = $1 AND name = $2;

-- name: periods_at
SELECT k.number, p.* FROM unnest($1::bigint[], $2::text[], $3::bigint[]) WITH ORDINALITY AS k (board_id, window_name, at, number)
CROSS JOIN LATERAL (
    SELECT id, window_name, name, start_at, end_at, state, terms, total_users, frozen_at, replaces FROM periods
    WHERE board_id = k.board_id AND window_name = k.window_name AND (start_at <= k.at OR start_at IS NULL)
      AND state NOT IN ('refreezing', 'superseded', 'discarded')
    ORDER BY start_at DESC NULLS LAST, id DESC LIMIT 1
) AS p;

-- name: periods_page
SELECT id, window_name, name, start_at, end_at, state, terms, total_users, frozen_at, replaces FROM periods
WHERE board_id = $1 AND ($2::text IS NULL OR window_name = $2) AND state <> 'refreezing'
  AND (coalesce(start_at, 0), id) < ($3, $4)
ORDER BY coalesce(start_at, 0) DESC, id DESC LIMIT $5;

-- name: count_ranked
SELECT count(*) FROM scores WHERE period_id = $1 AND score IS NOT NULL AND hidden = 0;

-- name: last_place
SELECT coalesce(max(place), 0) FROM finals WHERE period_id = $1 AND segment = 'global';

-- name: insert_final
INSERT INTO finals (period_id, segment, place, user_id, score, achieved_at, competition, dense)
SELECT $1, * FROM unnest($2::text[], $3::bigint[], $4::text[], $5::double precision[], $6::bigint[], $7::bigint[],
                         $8::bigint[])
ON CONFLICT DO NOTHING;

-- name: insert_grant
INSERT INTO grants (period_id, place, reward, user_id, rank, score, prize, granted_at, claimed_at, claimed_by)
SELECT $1, * FROM unnest($2::bigint[], $3::text[], $4::text[], $5::bigint[], $6::double precision[], $7::text[],
                         $8::bigint[], $9::bigint[], $10::text[])
ON CONFLICT DO NOTHING;

-- name: insert_message
INSERT INTO outbox (message_id, pod_id, period_id, kind, body, created_at)
SELECT $1, $2, $3, $4, $5, $6 WHERE EXISTS (SELECT FROM webhooks WHERE pod_id = $2)
ON CONFLICT DO NOTHING;

-- name: freeze_period
UPDATE periods SET state = 'frozen', total_users = $1, frozen_at = $2 WHERE id = $3 AND state = 'closed' RETURNING id;

-- name: release_messages
UPDATE outbox SET due_at = $1 WHERE period_id = $2 AND due_at IS NULL;

-- name: grow_revision
UPDATE boards SET revision = revision + 1 WHERE id = $1;

-- name: unswept
SELECT board_id, id, window_name, name, start_at, end_at, state, terms, total_users, frozen_at, replaces FROM periods
WHERE state IN ('frozen', 'superseded') AND NOT swept AND frozen_at < $1 ORDER BY frozen_at;

-- name: owned_periods
SELECT id FROM periods WHERE id = ANY ($1::bigint[]) AND NOT swept;

-- name: sweep_rows
WITH removed AS (
    DELETE FROM scores WHERE period_id = $1 AND user_id IN (SELECT user_id FROM scores WHERE period_id = $1 LIMIT $2)
    RETURNING 1
) SELECT count(*) FROM removed;

-- name: sweep_bases
WITH removed AS (
    DELETE FROM bases WHERE period_id = $1 AND user_id IN (SELECT user_id FROM bases WHERE period_id = $1 LIMIT $2)
    RETURNING 1
) SELECT count(*) FROM removed;

-- name: mark_swept
UPDATE periods SET swept = true WHERE id = $1;

-- name: results
SELECT p.board_id, p.id, p.window_name, p.name, p.start_at, p.end_at, p.state, p.terms, p.total_users, p.frozen_at, p.replaces,
       f.place, f.user_id, f.score, f.achieved_at, f.competition, f.dense
FROM finals f JOIN periods p ON p.id = f.period_id
WHERE f.user_id = $1 AND f.segment = 'global' AND (p.frozen_at, p.id) < ($2, $3) AND p.state = 'frozen'
  AND p.board_id = ANY ($4::bigint[])
ORDER BY p.frozen_at DESC, p.id DESC LIMIT $5;

-- name: finals_of_user
SELECT p.board_id, p.id, p.window_name, p.name, p.start_at, p.end_at, p.state, p.terms, p.total_users, p.frozen_at, p.replaces,
       f.place, f.user_id, f.score, f.achieved_at, f.competition, f.dense, f.segment
FROM finals f JOIN periods p ON p.id = f.period_id
WHERE f.user_id = $1 AND (f.period_id, f.segment) > ($2, $3) AND p.state IN ('frozen', 'superseded')
  AND p.board_id = ANY ($4::bigint[])
ORDER BY f.period_id, f.segment LIMIT $5;

-- name: grants_of_user
SELECT p.board_id, p.id, p.window_name, p.name, p.start_at, p.end_at, p.state, p.terms, p.total_users, p.frozen_at, p.replaces,
       g.period_id, g.place, g.reward, g.user_id, g.rank, g.score, g.prize, g.granted_at, g.claimed_at, g.claimed_by
FROM grants g JOIN periods p ON p.id = g.period_id
WHERE g.user_id = $1 AND p.board_id = ANY ($2::bigint[])
  AND (p.state IN ('frozen', 'pruned') OR ($7 AND p.state IN ('superseded', 'discarded')))
  AND ((p.frozen_at, p.id) < ($3, $4) OR (p.id = $4 AND g.reward > $5))
ORDER BY p.frozen_at DESC, p.id DESC, g.reward LIMIT $6;

-- name: grants_of_period
SELECT period_id, place, reward, user_id, rank, score, prize, granted_at, claimed_at, claimed_by FROM grants
WHERE period_id = $1 AND (place, reward) > ($2, $3) ORDER BY place, reward LIMIT $4;

-- name: find_grant
SELECT p.board_id, p.id, p.window_name, p.name, p.start_at, p.end_at, p.state, p.terms, p.total_users, p.frozen_at, p.replaces,
       g.period_id, g.place, g.reward, g.user_id, g.rank, g.score, g.prize, g.granted_at, g.claimed_at, g.claimed_by
FROM grants g JOIN periods p ON p.id = g.period_id
WHERE g.period_id = $1 AND g.place = $2 AND g.reward = $3 AND p.state IN ('frozen', 'pruned', 'superseded', 'discarded');

-- name: claim_grant
UPDATE grants SET claimed_at = $1, claimed_by = $2
WHERE period_id = $3 AND place = $4 AND reward = $5 AND claimed_at IS NULL RETURNING place;

-- name: old_events
SELECT seq, board_id, user_id, score, at, received_at, xact FROM events
WHERE seq > $1 ORDER BY seq LIMIT $2;

-- name: lock_events
SELECT seq, voided_by IS NOT NULL AS voided FROM events WHERE seq = ANY ($1::bigint[]) ORDER BY seq FOR UPDATE;

-- name: latest_act
SELECT max(at) FROM acts
WHERE board_id = $1 OR (board_id = 0 AND pod_id = (SELECT pod_id FROM boards WHERE id = $1));

-- name: delete_event
DELETE FROM events WHERE seq = ANY ($1::bigint[]);

-- name: find_base
SELECT b.period_id, b.user_id, b.score, b.achieved_at, b.total, b.moved
FROM unnest($1::bigint[], $2::text[]) AS k (period_id, user_id)
JOIN bases b ON b.period_id = k.period_id AND b.user_id = k.user_id;

-- name: put_base
INSERT INTO bases (period_id, user_id, score, achieved_at, total, moved)
SELECT * FROM unnest($1::bigint[], $2::text[], $3::double precision[], $4::bigint[], $5::text[], $6::boolean[])
ON CONFLICT (period_id, user_id) DO UPDATE SET
    score = excluded.score, achieved_at = excluded.achieved_at, total = excluded.total, moved = excluded.moved;

-- name: find_fact
SELECT value FROM facts WHERE name = $1;

-- name: replace_fact
UPDATE facts SET value = $3 WHERE name = $1 AND value = $2 RETURNING name;

-- name: put_fact
INSERT INTO facts (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: prunable_periods
SELECT id, window_name, name, start_at, end_at, state, terms, total_users, frozen_at, replaces FROM periods
WHERE board_id = $1 AND ((state IN ('frozen', 'superseded') AND swept AND frozen_at < $2)
                         OR (state IN ('pruned', 'discarded')
                            AND EXISTS (SELECT FROM finals WHERE period_id = periods.id)))
ORDER BY id;

-- name: mark_pruned
UPDATE periods SET state = CASE WHEN state IN ('superseded', 'discarded') THEN 'discarded' ELSE 'pruned' END
WHERE id = $1;

-- name: prune_finals
WITH removed AS (
    DELETE FROM finals WHERE (period_id, segment, place) IN
        (SELECT period_id, segment, place FROM finals WHERE period_id = $1 LIMIT $2)
    RETURNING 1
) SELECT count(*) FROM removed;

-- name: final_total
SELECT CASE WHEN $2::text = 'global' THEN total_users
            ELSE (SELECT coalesce(max(place), 0) FROM finals WHERE period_id = $1 AND segment = $2) END
FROM periods WHERE id = $1 AND state IN ('frozen', 'superseded');

-- name: state_of
SELECT state FROM periods WHERE id = $1 FOR SHARE;

-- name: final_page
SELECT place, user_id, score, achieved_at, competition, dense FROM finals
WHERE period_id = $1 AND segment = $2 AND place > $3 ORDER BY place LIMIT $4;

-- name: find_final
SELECT place, user_id, score, achieved_at, competition, dense FROM finals
WHERE period_id = $1 AND segment = $2 AND user_id = ANY ($3::text[]);

-- name: final_score
SELECT place, score FROM finals WHERE period_id = $1 AND segment = $2 AND place = ANY ($3::bigint[]);

-- name: put_webhook
INSERT INTO webhooks (pod_id, url, secret, created_at) VALUES ($1, $2, $3, $4)
ON CONFLICT (pod_id) DO UPDATE SET url = excluded.url, secret = excluded.secret, created_at = excluded.created_at;

-- name: find_webhook
SELECT pod_id, url, secret, created_at FROM webhooks WHERE pod_id = $1;

-- name: delete_webhook
DELETE FROM webhooks WHERE pod_id = $1 RETURNING pod_id;

-- name: drop_messages
DELETE FROM outbox WHERE pod_id = $1 AND delivered_at IS NULL;

-- name: post_message
INSERT INTO outbox (message_id, pod_id, period_id, kind, body, created_at, due_at)
SELECT $1, $2, $3, $4, $5, $6, $6 WHERE EXISTS (SELECT FROM webhooks WHERE pod_id = $2)
ON CONFLICT (message_id) DO NOTHING;

-- name: due_messages
SELECT m.message_id, m.pod_id, m.period_id, m.kind, m.body, m.created_at, m.attempts
FROM webhooks w CROSS JOIN LATERAL (
    SELECT * FROM outbox WHERE pod_id = w.pod_id AND delivered_at IS NULL AND due_at <= $1 ORDER BY due_at, id LIMIT $2
) AS m
WHERE w.pod_id <> ALL ($3::text[]) ORDER BY m.due_at, m.id;

-- name: message_delivered
UPDATE outbox SET delivered_at = $1, attempts = attempts + 1, error = NULL WHERE message_id = $2;

-- name: message_failed
UPDATE outbox SET due_at = $1, attempts = attempts + 1, error = $2 WHERE message_id = $3;

-- name: count_messages
SELECT count(*) FROM outbox WHERE delivered_at IS NULL AND due_at IS NOT NULL;

-- name: forget_messages
WITH removed AS (
    DELETE FROM outbox WHERE id IN (SELECT id FROM outbox WHERE delivered_at < $1 LIMIT $2) RETURNING 1
) SELECT count(*) FROM removed;

-- name: take_job
INSERT INTO jobs AS j (name, owner, leased_until, lease_ms, started_at, runs)
VALUES ($1, $2, clock_timestamp() + $3 * interval '1 millisecond', $3, $4, 0)
ON CONFLICT (name) DO UPDATE SET
    started_at = CASE WHEN j.owner = excluded.owner THEN j.started_at ELSE excluded.started_at END,
    owner = excluded.owner, leased_until = excluded.leased_until, lease_ms = excluded.lease_ms
WHERE j.owner IS NULL OR j.owner = excluded.owner OR j.leased_until < clock_timestamp()
   -- No lease is longer than it was given for: the clock was set back.
   OR j.leased_until > clock_timestamp() + j.lease_ms * interval '1 millisecond'
RETURNING name;

-- name: leave_job
UPDATE jobs SET owner = NULL, finished_at = $1, result = $2, error = $3, runs = runs + 1 WHERE name = $4 AND owner = $5;

-- name: jobs
SELECT name, owner, started_at, finished_at, result, error, runs FROM jobs ORDER BY name;

-- name: note_pruned
INSERT INTO facts AS f (name, value) VALUES ('pruned_xact', $1)
ON CONFLICT (name) DO UPDATE SET value = greatest(f.value::bigint, excluded.value::bigint)::text;

-- name: act_going_on
SELECT EXISTS (SELECT FROM acts WHERE board_id = $1 AND done_at IS NULL AND kind <> 'refreeze');

-- name: insert_refreezing
INSERT INTO periods (board_id, window_name, name, start_at, end_at, state, terms, replaces, closed_seq)
SELECT board_id, window_name, name || '@', start_at, end_at, 'refreezing', terms, id, closed_seq
FROM periods WHERE id = $1 AND state = 'frozen' AND closed_seq IS NOT NULL RETURNING id;

-- name: pruned_before
SELECT pruned_before FROM boards WHERE id = $1;

-- name: copy_claims
UPDATE grants n SET claimed_at = o.claimed_at, claimed_by = o.claimed_by FROM grants o
WHERE n.period_id = $2 AND o.period_id = $1 AND o.user_id = n.user_id AND o.reward = n.reward
  AND o.claimed_at IS NOT NULL;

-- name: successor
WITH RECURSIVE newer (id) AS (
    SELECT id FROM periods WHERE replaces = $1 UNION ALL
    SELECT p.id FROM periods p JOIN newer ON p.replaces = newer.id
)
SELECT n.period_id, n.place, n.reward FROM grants o JOIN periods p ON p.id IN (SELECT id FROM newer)
LEFT JOIN grants n ON n.period_id = p.id AND n.user_id = o.user_id AND n.reward = o.reward
WHERE o.period_id = $1 AND o.place = $2 AND o.reward = $3 AND p.state IN ('frozen', 'pruned')
ORDER BY p.id DESC LIMIT 1;

-- name: claimed_edition
WITH RECURSIVE newer (id) AS (
    SELECT id FROM periods WHERE replaces = $1 UNION ALL
    SELECT p.id FROM periods p JOIN newer ON p.replaces = newer.id
)
SELECT p.board_id, p.id, p.window_name, p.name, p.start_at, p.end_at, p.state, p.terms, p.total_users, p.frozen_at, p.replaces,
       g.period_id, g.place, g.reward, g.user_id, g.rank, g.score, g.prize, g.granted_at, g.claimed_at, g.claimed_by
FROM grants o JOIN periods p ON p.id IN (SELECT id FROM newer)
JOIN grants g ON g.period_id = p.id AND g.user_id = o.user_id AND g.reward = o.reward AND g.claimed_at IS NOT NULL
WHERE o.period_id = $1 AND o.place = $2 AND o.reward = $3 AND p.state <> 'refreezing'
ORDER BY p.id DESC LIMIT 1;

-- name: need_claimable
SELECT FROM periods WHERE id = $1 AND state IN ('frozen', 'pruned') FOR SHARE;

-- name: refreezing
SELECT board_id, id, window_name, name, start_at, end_at, state, terms, total_users, frozen_at, replaces FROM periods
WHERE state = 'refreezing' ORDER BY id;

-- name: last_refolded
SELECT coalesce(max(user_id), '') FROM scores WHERE period_id = $1;

-- name: next_event_users
SELECT DISTINCT user_id FROM events WHERE board_id = $1 AND user_id > $2 ORDER BY user_id LIMIT $3;

-- name: events_of_period
-- Users who stood in the final ranks and were erased since stay there, so that nobody else gets their places.
SELECT user_id, score, at FROM events e
WHERE board_id = $1 AND user_id BETWEEN $2 AND $3
  AND (e.voided_by IS NULL OR (e.voided_by IN (SELECT id FROM acts WHERE kind = 'erase') AND EXISTS (
      SELECT FROM finals f WHERE f.period_id = $6 AND f.segment = 'global' AND f.user_id = e.user_id)))
  AND ($4::bigint IS NULL OR at >= $4) AND ($5::bigint IS NULL OR at < $5)
  AND seq <= (SELECT coalesce(closed_seq, 9223372036854775807) FROM periods WHERE id = $6)
ORDER BY user_id, seq;

-- name: refolded_rows
INSERT INTO scores (period_id, user_id, score, achieved_at, total, moved, version, hidden, segments)
SELECT $1, r.user_id, r.score, r.achieved_at, r.total::numeric, r.moved, nextval('versions'),
       hidden_on(b.pod_id, b.id, r.user_id),
       -- Who was erased has no profile any more, and stays in the segments of the final ranks ($8).
       CASE WHEN EXISTS (SELECT FROM acts a WHERE a.user_id = r.user_id AND a.kind = 'erase')
            THEN (SELECT string_agg(o.segment, ' ' ORDER BY o.segment DESC) FROM finals o
                  WHERE o.period_id = $8 AND o.user_id = r.user_id AND o.segment <> 'global')
            ELSE segments_of(b.segments, f.region, f.circles) END
FROM unnest($3::text[], $4::double precision[], $5::bigint[], $6::text[], $7::boolean[])
    AS r (user_id, score, achieved_at, total, moved)
JOIN boards b ON b.id = $2
LEFT JOIN profiles f ON f.pod_id = b.pod_id AND f.user_id = r.user_id
ON CONFLICT (period_id, user_id) DO NOTHING;

-- name: grants_of_users
SELECT period_id, place, reward, user_id, rank, score, prize, granted_at, claimed_at, claimed_by FROM grants
WHERE user_id = ANY ($2::text[]) AND period_id IN (
    WITH RECURSIVE old (id) AS (
        SELECT $1::bigint UNION ALL
        SELECT p.replaces FROM periods p JOIN old ON p.id = old.id WHERE p.replaces IS NOT NULL
    ) SELECT id FROM old
)
ORDER BY claimed_at IS NULL, granted_at DESC;

-- name: count_editions
SELECT count(*) FROM periods WHERE board_id = $1 AND starts_with(name, $2 || '@') AND state <> 'refreezing';

-- name: supersede
UPDATE periods SET state = 'superseded', name = $1 WHERE id = $2;

-- name: take_place
UPDATE periods SET state = 'frozen', name = $1, total_users = $2, frozen_at = $3 WHERE id = $4;

-- name: end_refreeze
UPDATE acts SET done_at = $1 WHERE board_id = $2 AND kind = 'refreeze' AND done_at IS NULL;
