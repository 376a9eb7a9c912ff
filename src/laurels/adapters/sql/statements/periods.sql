-- Statements that both ledgers run, in PostgreSQL's syntax. adapters/sql/files.py converts them for SQLite.

-- name: find_period
SELECT id, window_name, name, start_at, end_at, state, terms, total_users, frozen_at, replaces FROM periods
WHERE board_id = $1 AND name = $2;

-- name: periods_page
SELECT id, window_name, name, start_at, end_at, state, terms, total_users, frozen_at, replaces FROM periods
WHERE board_id = $1 AND ($2::text IS NULL OR window_name = $2) AND state <> 'refreezing'
  AND (coalesce(start_at, 0), id) < ($3, $4)
ORDER BY coalesce(start_at, 0) DESC, id DESC LIMIT $5;

-- name: count_ranked
SELECT count(*) FROM scores WHERE period_id = $1 AND score IS NOT NULL AND hidden = 0;

-- name: last_place
SELECT coalesce(max(place), 0) FROM finals WHERE period_id = $1 AND segment = 'global';

-- name: freeze_period
UPDATE periods SET state = 'frozen', total_users = $1, frozen_at = $2 WHERE id = $3 AND state = 'closed';

-- name: grow_revision
UPDATE boards SET revision = revision + 1 WHERE id = $1;

-- name: unswept
SELECT board_id, id, window_name, name, start_at, end_at, state, terms, total_users, frozen_at, replaces FROM periods
WHERE state IN ('frozen', 'superseded') AND NOT swept AND frozen_at < $1 ORDER BY frozen_at;

-- name: owned_periods
SELECT id FROM periods WHERE id = ANY ($1::bigint[]) AND NOT swept;

-- name: sweep_rows
DELETE FROM scores WHERE period_id = $1 AND user_id IN (SELECT user_id FROM scores WHERE period_id = $1 LIMIT $2);

-- name: sweep_bases
DELETE FROM bases WHERE period_id = $1 AND user_id IN (SELECT user_id FROM bases WHERE period_id = $1 LIMIT $2);

-- name: mark_swept
UPDATE periods SET swept = true WHERE id = $1;

-- name: results
SELECT p.board_id, p.id, p.window_name, p.name, p.start_at, p.end_at, p.state, p.terms, p.total_users, p.frozen_at, p.replaces,
       f.place, f.user_id, f.score, f.achieved_at, f.competition, f.dense, f.segment, f.subscore
FROM finals f JOIN periods p ON p.id = f.period_id
WHERE f.user_id = $1 AND f.segment = 'global' AND (p.frozen_at, p.id) < ($2, $3) AND p.state = 'frozen'
  AND p.board_id = ANY ($4::bigint[])
ORDER BY p.frozen_at DESC, p.id DESC LIMIT $5;

-- name: sum_finals
-- PostgreSQL refuses a quotient that is too small for a double.
SELECT count(*), sum(CASE WHEN abs(score) > 1e-304 THEN score / $3::double precision ELSE 0 END) FROM finals
WHERE period_id = $1 AND segment = $2;

-- name: finals_of_user
SELECT p.board_id, p.id, p.window_name, p.name, p.start_at, p.end_at, p.state, p.terms, p.total_users, p.frozen_at, p.replaces,
       f.place, f.user_id, f.score, f.achieved_at, f.competition, f.dense, f.segment, f.subscore
FROM finals f JOIN periods p ON p.id = f.period_id
WHERE f.user_id = $1 AND (f.period_id, f.segment) > ($2, $3) AND p.state IN ('frozen', 'superseded')
  AND p.board_id = ANY ($4::bigint[])
ORDER BY f.period_id, f.segment LIMIT $5;

-- name: grants_of_user
SELECT p.board_id, p.id, p.window_name, p.name, p.start_at, p.end_at, p.state, p.terms, p.total_users, p.frozen_at, p.replaces,
       g.period_id, g.place, g.reward, g.user_id, g.rank, g.score, g.prize, g.granted_at, g.claimed_at, g.claimed_by, g.segment
FROM grants g JOIN periods p ON p.id = g.period_id
WHERE g.user_id = $1 AND p.board_id = ANY ($2::bigint[])
  AND (p.state IN ('frozen', 'pruned') OR ($7 AND p.state IN ('superseded', 'discarded')))
  AND ((p.frozen_at, p.id) < ($3, $4) OR (p.id = $4 AND g.reward > $5))
ORDER BY p.frozen_at DESC, p.id DESC, g.reward LIMIT $6;

-- name: grants_of_period
SELECT period_id, place, reward, user_id, rank, score, prize, granted_at, claimed_at, claimed_by, segment FROM grants
WHERE period_id = $1 AND (place, reward) > ($2, $3) ORDER BY place, reward LIMIT $4;

-- name: find_grant
SELECT p.board_id, p.id, p.window_name, p.name, p.start_at, p.end_at, p.state, p.terms, p.total_users, p.frozen_at, p.replaces,
       g.period_id, g.place, g.reward, g.user_id, g.rank, g.score, g.prize, g.granted_at, g.claimed_at, g.claimed_by, g.segment
FROM grants g JOIN periods p ON p.id = g.period_id
WHERE g.period_id = $1 AND g.place = $2 AND g.reward = $3 AND p.state IN ('frozen', 'pruned', 'superseded', 'discarded');

-- name: claim_grant
UPDATE grants SET claimed_at = $1, claimed_by = $2
WHERE period_id = $3 AND place = $4 AND reward = $5 AND claimed_at IS NULL
  AND EXISTS (SELECT 1 FROM periods p WHERE p.id = period_id AND p.state IN ('frozen', 'pruned'));

-- name: prunable_periods
SELECT id, window_name, name, start_at, end_at, state, terms, total_users, frozen_at, replaces FROM periods
WHERE board_id = $1 AND ((state IN ('frozen', 'superseded') AND swept AND frozen_at < $2)
                         OR (state IN ('pruned', 'discarded')
                            AND EXISTS (SELECT 1 FROM finals WHERE period_id = periods.id)))
ORDER BY id;

-- name: mark_pruned
UPDATE periods SET state = CASE WHEN state IN ('superseded', 'discarded') THEN 'discarded' ELSE 'pruned' END
WHERE id = $1;

-- name: prune_finals
DELETE FROM finals WHERE (period_id, segment, place) IN
    (SELECT period_id, segment, place FROM finals WHERE period_id = $1 LIMIT $2);

-- name: final_total
SELECT CASE WHEN $2::text = 'global' THEN total_users
            ELSE (SELECT coalesce(max(place), 0) FROM finals WHERE period_id = $1 AND segment = $2) END
FROM periods WHERE id = $1 AND state IN ('frozen', 'superseded');

-- name: state_of
SELECT state FROM periods WHERE id = $1 FOR SHARE;

-- name: final_segments
-- Jumps from one segment to the next, because there may be millions of rows.
WITH RECURSIVE named (segment) AS (
    SELECT min(segment) FROM finals WHERE period_id = $1 AND segment >= $2 AND segment < $3
    UNION ALL
    SELECT (SELECT min(f.segment) FROM finals f WHERE f.period_id = $1 AND f.segment > n.segment AND f.segment < $3)
    FROM named n WHERE n.segment IS NOT NULL
)
SELECT n.segment, (SELECT max(f.place) FROM finals f WHERE f.period_id = $1 AND f.segment = n.segment) AS users
FROM named n WHERE n.segment IS NOT NULL LIMIT $4;

-- name: final_page
SELECT place, user_id, score, achieved_at, competition, dense, segment, subscore FROM finals
WHERE period_id = $1 AND segment = $2 AND place > $3 ORDER BY place LIMIT $4;

-- name: find_final
SELECT place, user_id, score, achieved_at, competition, dense, segment, subscore FROM finals
WHERE period_id = $1 AND segment = $2 AND user_id = ANY ($3::text[]);

-- name: final_score
SELECT place, score FROM finals WHERE period_id = $1 AND segment = $2 AND place = ANY ($3::bigint[]);

-- name: is_action_running
SELECT EXISTS (SELECT 1 FROM actions WHERE board_id = $1 AND done_at IS NULL AND kind <> 'refreeze');

-- name: insert_refreezing
INSERT INTO periods (board_id, window_name, name, start_at, end_at, state, terms, replaces, closed_seq)
SELECT board_id, window_name, name || '@', start_at, end_at, 'refreezing', terms, id, closed_seq
FROM periods WHERE id = $1 AND state = 'frozen' AND closed_seq IS NOT NULL;

-- name: pruned_before
SELECT pruned_before FROM boards WHERE id = $1;

-- name: copy_claims
UPDATE grants SET (claimed_at, claimed_by) = (
    SELECT o.claimed_at, o.claimed_by FROM grants o
    WHERE o.period_id = $1 AND o.user_id = grants.user_id AND o.reward = grants.reward)
WHERE period_id = $2 AND EXISTS (
    SELECT 1 FROM grants o WHERE o.period_id = $1 AND o.user_id = grants.user_id AND o.reward = grants.reward
    AND o.claimed_at IS NOT NULL);

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
       g.period_id, g.place, g.reward, g.user_id, g.rank, g.score, g.prize, g.granted_at, g.claimed_at, g.claimed_by, g.segment
FROM grants o JOIN periods p ON p.id IN (SELECT id FROM newer)
JOIN grants g ON g.period_id = p.id AND g.user_id = o.user_id AND g.reward = o.reward AND g.claimed_at IS NOT NULL
WHERE o.period_id = $1 AND o.place = $2 AND o.reward = $3 AND p.state <> 'refreezing'
ORDER BY p.id DESC LIMIT 1;

-- name: refreezing
SELECT board_id, id, window_name, name, start_at, end_at, state, terms, total_users, frozen_at, replaces FROM periods
WHERE state = 'refreezing' ORDER BY id;

-- name: last_refolded
SELECT coalesce(max(user_id), '') FROM scores WHERE period_id = $1;

-- name: next_event_users
SELECT DISTINCT user_id FROM events WHERE board_id = $1 AND user_id > $2 ORDER BY user_id LIMIT $3;

-- name: events_of_period
-- Erased users keep their places in the final ranks, so that the places of other users do not change.
SELECT user_id, score, at, subscore, operation FROM events e
WHERE board_id = $1 AND user_id BETWEEN $2 AND $3
  AND (e.voided_by IS NULL OR (EXISTS (SELECT 1 FROM actions a WHERE a.id = e.voided_by AND a.kind = 'erase') AND EXISTS (
      SELECT 1 FROM finals f WHERE f.period_id = $6 AND f.segment = 'global' AND f.user_id = e.user_id)))
  AND ($4::bigint IS NULL OR at >= $4) AND ($5::bigint IS NULL OR at < $5)
  AND seq <= (SELECT coalesce(closed_seq, 9223372036854775807) FROM periods WHERE id = $6)
ORDER BY user_id, seq;

-- name: events_of_period_in_order
-- Erased users keep their places in the final ranks, so that the places of other users do not change.
SELECT user_id, score, at, subscore, operation FROM events e
WHERE board_id = $1 AND user_id BETWEEN $2 AND $3
  AND (e.voided_by IS NULL OR (EXISTS (SELECT 1 FROM actions a WHERE a.id = e.voided_by AND a.kind = 'erase') AND EXISTS (
      SELECT 1 FROM finals f WHERE f.period_id = $6 AND f.segment = 'global' AND f.user_id = e.user_id)))
  AND ($4::bigint IS NULL OR at >= $4) AND ($5::bigint IS NULL OR at < $5)
  AND seq <= (SELECT coalesce(closed_seq, 9223372036854775807) FROM periods WHERE id = $6)
ORDER BY user_id, at, event_id;

-- name: grants_of_users
SELECT period_id, place, reward, user_id, rank, score, prize, granted_at, claimed_at, claimed_by, segment FROM grants
WHERE user_id = ANY ($2::text[]) AND period_id IN (
    WITH RECURSIVE old (id) AS (
        SELECT $1::bigint UNION ALL
        SELECT p.replaces FROM periods p JOIN old ON p.id = old.id WHERE p.replaces IS NOT NULL
    ) SELECT id FROM old
)
ORDER BY claimed_at IS NULL, granted_at DESC;

-- name: count_editions
SELECT count(*) FROM periods
WHERE board_id = $1 AND substr(name, 1, length($2::text) + 1) = $2 || '@' AND state <> 'refreezing';

-- name: supersede
UPDATE periods SET state = 'superseded', name = $1 WHERE id = $2;

-- name: replace_period
UPDATE periods SET state = 'frozen', name = $1, total_users = $2, frozen_at = $3 WHERE id = $4;

-- name: end_refreeze
UPDATE actions SET done_at = $1 WHERE board_id = $2 AND kind = 'refreeze' AND done_at IS NULL;

-- name: keep_metadata
-- Keeps the metadata of those of some events whose scores count in a row or in final ranks.
INSERT INTO kept_metadata (board_id, user_id, at, event_id, score, metadata)
SELECT e.board_id, e.user_id, e.at, e.event_id, e.score, e.metadata FROM events e
WHERE e.seq = ANY ($1::bigint[]) AND e.metadata IS NOT NULL AND e.voided_by IS NULL
  AND (EXISTS (SELECT 1 FROM periods p JOIN scores s ON s.period_id = p.id AND s.user_id = e.user_id
               WHERE p.board_id = e.board_id AND p.state IN ('open', 'closed') AND s.achieved_at = e.at)
    OR EXISTS (SELECT 1 FROM finals f JOIN periods p ON p.id = f.period_id AND p.board_id = e.board_id
               WHERE f.user_id = e.user_id AND f.achieved_at = e.at))
ON CONFLICT DO NOTHING;

-- name: forget_metadata
-- Removes what `keep_metadata` kept for scores that no longer count.
DELETE FROM kept_metadata
WHERE board_id = $1
  AND NOT EXISTS (SELECT 1 FROM periods p JOIN scores s ON s.period_id = p.id AND s.user_id = kept_metadata.user_id
                  WHERE p.board_id = $1 AND p.state IN ('open', 'closed') AND s.achieved_at = kept_metadata.at)
  AND NOT EXISTS (SELECT 1 FROM finals f JOIN periods p ON p.id = f.period_id AND p.board_id = $1
                  WHERE f.user_id = kept_metadata.user_id AND f.achieved_at = kept_metadata.at);
