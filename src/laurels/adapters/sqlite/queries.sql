-- Every statement that the SQLite ledger runs, by name.

-- name: insert_event
INSERT INTO events (seq, board_id, event_id, user_id, score, at, stamped, received_at, metadata)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (board_id, event_id) DO NOTHING;

-- name: find_event
SELECT user_id, score, at, stamped, metadata FROM events WHERE board_id = ? AND event_id = ?;

-- name: find_row
SELECT score, achieved_at, total, moved, version, hidden, segments FROM scores WHERE period_id = ? AND user_id = ?;

-- name: put_row
INSERT INTO scores (period_id, user_id, score, achieved_at, total, moved, version, hidden, segments)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (period_id, user_id) DO UPDATE SET
    score = excluded.score, achieved_at = excluded.achieved_at, total = excluded.total,
    moved = excluded.moved, version = excluded.version;

-- name: take_versions
UPDATE counters SET value = value + ? WHERE name = 'version' RETURNING value;

-- name: take_event_numbers
UPDATE counters SET value = value + ? WHERE name = 'event' RETURNING value;

-- name: last_version
SELECT value FROM counters WHERE name = 'version';

-- name: changed_rows
SELECT period_id, user_id, score, achieved_at, total, moved, version, hidden, segments FROM scores
WHERE version >= ? ORDER BY version LIMIT ?;

-- name: count_changed
SELECT count(*) FROM (SELECT 1 FROM scores WHERE version >= ? LIMIT ?);

-- name: ledger_id
SELECT value FROM facts WHERE name = 'ledger_id';

-- name: forgotten_version
SELECT value FROM facts WHERE name = 'forgotten_version';

-- name: registry_revision
SELECT value FROM counters WHERE name = 'registry';

-- name: registry_changed
UPDATE counters SET value = value + 1 WHERE name = 'registry';

-- name: rows_page
SELECT period_id, user_id, score, achieved_at, total, moved, version, hidden, segments FROM scores
WHERE period_id = ? AND user_id > ? ORDER BY user_id LIMIT ?;

-- name: count_rows
SELECT count(*) FROM scores;

-- name: rows_of_user
SELECT period_id, user_id, score, achieved_at, total, moved, version, hidden, segments FROM scores
WHERE period_id IN (SELECT value FROM json_each(?)) AND user_id = ?;

-- name: best_rows_desc_earliest
SELECT period_id, user_id, score, achieved_at, total, moved, version, hidden, segments FROM scores
WHERE period_id = ? AND score IS NOT NULL AND hidden = 0 ORDER BY score DESC, achieved_at, user_id LIMIT ?;

-- name: best_rows_desc_latest
SELECT period_id, user_id, score, achieved_at, total, moved, version, hidden, segments FROM scores
WHERE period_id = ? AND score IS NOT NULL AND hidden = 0 ORDER BY score DESC, achieved_at DESC, user_id LIMIT ?;

-- name: best_rows_asc_earliest
SELECT period_id, user_id, score, achieved_at, total, moved, version, hidden, segments FROM scores
WHERE period_id = ? AND score IS NOT NULL AND hidden = 0 ORDER BY score, achieved_at, user_id LIMIT ?;

-- name: best_rows_asc_latest
SELECT period_id, user_id, score, achieved_at, total, moved, version, hidden, segments FROM scores
WHERE period_id = ? AND score IS NOT NULL AND hidden = 0 ORDER BY score, achieved_at DESC, user_id LIMIT ?;

-- name: user_events
SELECT seq, event_id, user_id, score, at, received_at, voided_by IS NOT NULL, metadata, stamped FROM events
WHERE board_id = ? AND user_id = ? AND seq < ? ORDER BY seq DESC LIMIT ?;

-- name: board_events
SELECT seq, event_id, user_id, score, at, received_at, voided_by IS NOT NULL, metadata, stamped FROM events
WHERE board_id = ? AND seq > ? AND (voided_by IS NULL OR ?) ORDER BY seq LIMIT ?;

-- name: count_board_events
SELECT count(*) FROM events WHERE board_id = ? AND voided_by IS NULL;

-- name: count_events
SELECT count(*) FROM events WHERE voided_by IS NULL;

-- name: next_users
SELECT user_id FROM (SELECT DISTINCT user_id FROM events
                     WHERE board_id = :board AND user_id > :after ORDER BY user_id LIMIT :limit)
UNION
SELECT user_id FROM (SELECT DISTINCT user_id FROM scores
                     WHERE period_id IN (SELECT id FROM periods WHERE board_id = :board AND state = 'open')
                       AND user_id > :after
                     ORDER BY user_id LIMIT :limit)
ORDER BY user_id LIMIT :limit;

-- name: rows_between
SELECT period_id, user_id, score, achieved_at, total, moved, version, hidden, segments FROM scores
WHERE period_id IN (SELECT id FROM periods WHERE board_id = ? AND state = 'open') AND user_id BETWEEN ? AND ?
ORDER BY user_id;

-- name: events_between
SELECT user_id, score, at FROM events
WHERE board_id = ? AND user_id BETWEEN ? AND ? AND voided_by IS NULL ORDER BY user_id, seq;

-- name: insert_act
INSERT INTO acts (pod_id, board_id, act_id, kind, user_id, by_key, at, reason, detail) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (pod_id, board_id, act_id) DO NOTHING RETURNING id;

-- name: void_user_events
UPDATE events SET voided_by = ? WHERE board_id = ? AND user_id = ? AND voided_by IS NULL;

-- name: count_act
UPDATE acts SET events = events + ? WHERE id = ?;

-- name: end_act
UPDATE acts SET done_at = ? WHERE id = ?;

-- name: board_rows_of_user
SELECT period_id, user_id, score, achieved_at, total, moved, version, hidden, segments FROM scores
WHERE period_id IN (SELECT id FROM periods WHERE board_id = ? AND state = 'open') AND user_id = ?;

-- name: insert_pod
INSERT INTO pods (pod_id, name, created_at) VALUES (?, ?, ?) ON CONFLICT (pod_id) DO NOTHING;

-- name: find_pod
SELECT pod_id, name, created_at FROM pods WHERE pod_id = ?;

-- name: pods
SELECT pod_id, name, created_at FROM pods ORDER BY pod_id;

-- name: insert_key
INSERT INTO keys (key_id, pod_id, role, label, digest, created_at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (key_id) DO NOTHING;

-- name: keys
SELECT key_id, pod_id, role, label, digest, created_at FROM keys
WHERE revoked_at IS NULL ORDER BY created_at, key_id;

-- name: revoke_key
UPDATE keys SET revoked_at = ? WHERE key_id = ? AND revoked_at IS NULL;

-- name: insert_board
INSERT INTO boards (uuid, pod_id, name, rule, sort_order, ties, capacity, min_score, max_score, public,
                    windows, segments, start_at, end_at, archived_at, created_at, revision, metadata,
                    grace_s, flush_ms, rewards, keep_events_days, keep_periods_days, pruned_before)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (uuid) DO NOTHING RETURNING id;

-- name: update_board
UPDATE boards SET name = ?, capacity = ?, min_score = ?, max_score = ?, public = ?, windows = ?, start_at = ?,
                  end_at = ?, archived_at = ?, metadata = ?, grace_s = ?, flush_ms = ?, rewards = ?,
                  keep_events_days = ?, keep_periods_days = ?, pruned_before = ?, revision = revision + 1
WHERE id = ? AND revision = ?;

-- name: boards
SELECT id, uuid, pod_id, name, rule, sort_order, ties, capacity, min_score, max_score, public, windows, segments,
       start_at, end_at, archived_at, created_at, revision, metadata, grace_s, flush_ms, rewards, keep_events_days,
       keep_periods_days, pruned_before
FROM boards WHERE :ids IS NULL OR id IN (SELECT value FROM json_each(:ids)) ORDER BY id;

-- name: insert_period
INSERT INTO periods (board_id, window_name, name, start_at, end_at) VALUES (?, ?, ?, ?, ?) RETURNING id;

-- name: update_period
UPDATE periods SET start_at = ?1, end_at = ?2, state = ?3, terms = ?4,
                   closed_seq = CASE WHEN ?3 <> 'closed' THEN NULL
                                     ELSE coalesce(closed_seq, (SELECT value FROM counters WHERE name = 'event')) END
WHERE id = ?5 AND state IN ('open', 'closed');

-- name: live_periods
SELECT board_id, id, window_name, name, start_at, end_at, state, terms, total_users, frozen_at, replaces FROM periods
WHERE state IN ('open', 'closed') AND (:ids IS NULL OR board_id IN (SELECT value FROM json_each(:ids)))
ORDER BY start_at, id;

-- name: open_periods_of
SELECT id, window_name, name, start_at, end_at, state, terms, total_users, frozen_at, replaces FROM periods
WHERE board_id = ? AND state = 'open' ORDER BY start_at, id;

-- name: revision_of
SELECT revision FROM boards WHERE id = ?;

-- name: latest_event_ahead
SELECT max(at) FROM events WHERE board_id = ? AND at >= ? AND at > received_at;

-- name: last_event_number
SELECT value FROM counters WHERE name = 'event';

-- name: has_events_from
-- ?3: the number of an event. Those before it are known, but for those that were ahead of the clock.
SELECT CASE WHEN ?3 IS NULL
            THEN EXISTS (SELECT 1 FROM events WHERE board_id = ?1 AND at >= ?2 AND voided_by IS NULL)
            ELSE EXISTS (SELECT 1 FROM events
                         WHERE board_id = ?1 AND at >= ?2 AND at > received_at AND voided_by IS NULL)
              OR EXISTS (SELECT 1 FROM events
                         WHERE seq > ?3 AND +board_id = ?1 AND at >= ?2 AND voided_by IS NULL) END;

-- name: bases_between
SELECT period_id, user_id, score, achieved_at, total, moved FROM bases
WHERE period_id IN (SELECT id FROM periods WHERE board_id = ? AND state = 'open') AND user_id BETWEEN ? AND ?;

-- name: delete_bases
DELETE FROM bases WHERE user_id = ? AND period_id IN (SELECT id FROM periods WHERE board_id = ? AND state = 'open');

-- name: special_cases
SELECT EXISTS (SELECT 1 FROM erased), EXISTS (SELECT 1 FROM hides);

-- name: erased_at
SELECT at FROM erased WHERE pod_id = ? AND digest = ?;

-- name: find_profile
SELECT user_id, display_name, avatar_url, region, region_at, circles FROM profiles WHERE pod_id = ? AND user_id = ?;

-- name: profiles_between
SELECT user_id, display_name, avatar_url, region, region_at, circles FROM profiles
WHERE pod_id = ? AND user_id BETWEEN ? AND ?;

-- name: put_region
INSERT INTO profiles (pod_id, user_id, region, region_at) VALUES (?, ?, ?, ?)
ON CONFLICT (pod_id, user_id) DO UPDATE SET region = excluded.region, region_at = excluded.region_at;

-- name: hides
SELECT board_id, hidden FROM hides WHERE pod_id = ? AND user_id = ?;

-- name: hides_between
SELECT user_id, board_id, hidden FROM hides WHERE pod_id = ? AND user_id BETWEEN ? AND ?;

-- name: rows_to_move
SELECT b.segments, s.period_id, s.user_id, s.score, s.achieved_at, s.total, s.moved, s.version, s.hidden, s.segments
FROM boards b CROSS JOIN periods p ON p.board_id = b.id AND p.state = 'open'
CROSS JOIN scores s ON s.period_id = p.id AND s.user_id = ?
WHERE b.pod_id = ? AND b.segments <> '["global"]';

-- name: move_row
UPDATE scores SET segments = ?, version = ? WHERE period_id = ? AND user_id = ?;

-- name: hide_row
UPDATE scores SET hidden = ?, version = ? WHERE period_id = ? AND user_id = ?;

-- name: rows_of_users
SELECT period_id, user_id, score, achieved_at, total, moved, version, hidden, segments FROM scores
WHERE period_id IN (SELECT id FROM periods WHERE board_id = ? AND state = 'open')
  AND user_id IN (SELECT value FROM json_each(?));

-- name: rows_of_period_users
SELECT period_id, user_id, score, achieved_at, total, moved, version, hidden, segments FROM scores
WHERE period_id = ? AND user_id IN (SELECT value FROM json_each(?));

-- name: bases_of_users
SELECT period_id, user_id, score, achieved_at, total, moved FROM bases
WHERE period_id IN (SELECT id FROM periods WHERE board_id = ? AND state = 'open')
  AND user_id IN (SELECT value FROM json_each(?));

-- name: events_of_users
SELECT user_id, score, at FROM events
WHERE board_id = ? AND user_id IN (SELECT value FROM json_each(?)) AND voided_by IS NULL ORDER BY user_id, seq;

-- name: act_by_key
SELECT id, pod_id, board_id, kind, user_id, by_key, at, reason, detail, events, done_at, undone_by FROM acts
WHERE pod_id = ? AND board_id = ? AND act_id = ?;

-- name: is_refreezing
SELECT 1 FROM periods WHERE board_id = ? AND state = 'refreezing';

-- name: is_pod_refreezing
SELECT 1 FROM periods p JOIN boards b ON b.id = p.board_id WHERE p.state = 'refreezing' AND b.pod_id = ?;
