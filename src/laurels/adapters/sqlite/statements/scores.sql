-- Statements that only the SQLite ledger runs.

-- name: revisions_of
SELECT id, revision FROM boards WHERE id IN (SELECT value FROM json_each(?));

-- name: rows_of_keys
SELECT s.period_id, s.user_id, s.score, s.achieved_at, s.total, s.has_nonzero, s.version, s.hidden, s.segments, s.subscore, s.last_at
FROM json_each(?) AS k CROSS JOIN scores AS s ON s.period_id = json_extract(k.value, '$[0]')
    AND s.user_id = json_extract(k.value, '$[1]');

-- name: rows_of_keys_in_period
SELECT s.period_id, s.user_id, s.score, s.achieved_at, s.total, s.has_nonzero, s.version, s.hidden, s.segments, s.subscore, s.last_at
FROM json_each(?2) AS k CROSS JOIN scores AS s ON s.period_id = ?1 AND s.user_id = k.value;

-- name: insert_event
INSERT INTO events (seq, board_id, event_id, user_id, score, at, stamped, received_at, metadata, subscore, operation)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (board_id, event_id) DO NOTHING;

-- name: event_numbers
SELECT seq FROM events WHERE seq BETWEEN ? AND ?;

-- name: count_attempts
SELECT count(*) FROM events WHERE board_id = ? AND user_id = ? AND (? IS NULL OR at >= ?) AND (? IS NULL OR at < ?)
                              -- A score that waits for a moderator may still count.
                              AND (voided_by IS NULL OR EXISTS (SELECT 1 FROM actions a
                              WHERE a.id = voided_by AND a.kind = 'review' AND a.undone_by IS NULL));

-- name: find_event
SELECT seq, user_id, score, at, stamped, metadata, subscore, operation FROM events WHERE board_id = ? AND event_id = ?;

-- name: put_row
INSERT INTO scores (period_id, user_id, score, achieved_at, total, has_nonzero, version, hidden, segments, subscore, last_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (period_id, user_id) DO UPDATE SET
    score = excluded.score, achieved_at = excluded.achieved_at, total = excluded.total,
    has_nonzero = excluded.has_nonzero, version = excluded.version, subscore = excluded.subscore,
    last_at = excluded.last_at, hidden = excluded.hidden;

-- name: take_versions
UPDATE counters SET value = value + ? WHERE name = 'version' RETURNING value;

-- name: take_event_numbers
UPDATE counters SET value = value + ? WHERE name = 'event' RETURNING value;

-- name: last_version
SELECT value FROM counters WHERE name = 'version';

-- name: changed_rows
SELECT period_id, user_id, score, achieved_at, total, has_nonzero, version, hidden, segments, subscore, last_at FROM scores
WHERE version >= ? ORDER BY version LIMIT ?;

-- name: count_changed
SELECT count(*) FROM (SELECT 1 FROM scores WHERE version >= ? LIMIT ?);

-- name: events_at
SELECT seq, event_id, user_id, score, at, received_at, voided, metadata, stamped, subscore, operation FROM (
    SELECT e.seq, e.event_id, e.user_id, e.score, e.at, e.received_at, e.voided_by IS NOT NULL AS voided, e.metadata,
           e.stamped, e.subscore, e.operation,
           row_number() OVER (PARTITION BY e.user_id ORDER BY e.score <> 0 DESC, e.event_id) AS n
    FROM json_each(?) AS m CROSS JOIN events e
        ON e.user_id = json_extract(m.value, '$[0]') AND e.at = json_extract(m.value, '$[1]')
    WHERE e.board_id = ? AND e.voided_by IS NULL
      AND (json_extract(m.value, '$[2]') IS NULL OR e.score = json_extract(m.value, '$[2]'))
) WHERE n = 1;

-- name: sum_scores
SELECT count(*), sum(score / :unit) FROM (
    SELECT score FROM scores WHERE period_id = :period AND score IS NOT NULL AND hidden = 0
      AND (:segment = 'global' OR instr(' ' || segments || ' ', ' ' || :segment || ' ') > 0)
    ORDER BY CASE WHEN :capacity < 0 THEN 0 ELSE score * :sign END LIMIT :capacity);

-- name: ordered_rows_desc_earliest
SELECT period_id, user_id, score, achieved_at, total, has_nonzero, version, hidden, segments, subscore, last_at FROM scores
WHERE period_id = ?1 AND score IS NOT NULL AND hidden = 0 ORDER BY score DESC, subscore * ?3, achieved_at, user_id LIMIT ?2;

-- name: ordered_rows_desc_latest
SELECT period_id, user_id, score, achieved_at, total, has_nonzero, version, hidden, segments, subscore, last_at FROM scores
WHERE period_id = ?1 AND score IS NOT NULL AND hidden = 0 ORDER BY score DESC, subscore * ?3, achieved_at DESC, user_id LIMIT ?2;

-- name: ordered_rows_asc_earliest
SELECT period_id, user_id, score, achieved_at, total, has_nonzero, version, hidden, segments, subscore, last_at FROM scores
WHERE period_id = ?1 AND score IS NOT NULL AND hidden = 0 ORDER BY score, subscore * ?3, achieved_at, user_id LIMIT ?2;

-- name: ordered_rows_asc_latest
SELECT period_id, user_id, score, achieved_at, total, has_nonzero, version, hidden, segments, subscore, last_at FROM scores
WHERE period_id = ?1 AND score IS NOT NULL AND hidden = 0 ORDER BY score, subscore * ?3, achieved_at DESC, user_id LIMIT ?2;

-- name: void_user_events
UPDATE events SET voided_by = ? WHERE board_id = ? AND user_id = ? AND voided_by IS NULL;

-- name: board_rows_of_user
SELECT period_id, user_id, score, achieved_at, total, has_nonzero, version, hidden, segments, subscore, last_at FROM scores
WHERE period_id IN (SELECT id FROM periods WHERE board_id = ? AND state = 'open') AND user_id = ?;

-- name: delete_bases
DELETE FROM bases WHERE user_id = ? AND period_id IN (SELECT id FROM periods WHERE board_id = ? AND state = 'open');

-- name: special_cases
SELECT EXISTS (SELECT 1 FROM erased), EXISTS (SELECT 1 FROM hides);

-- name: erased_at
SELECT at FROM erased WHERE pod_id = ? AND digest = ?;

-- name: find_profile
SELECT user_id, display_name, avatar_url, region, region_at, circles, attributes FROM profiles WHERE pod_id = ? AND user_id = ?;

-- name: put_region
INSERT INTO profiles (pod_id, user_id, region, region_at) VALUES (?, ?, ?, ?)
ON CONFLICT (pod_id, user_id) DO UPDATE SET region = excluded.region, region_at = excluded.region_at;

-- name: rows_to_resegment
SELECT b.segments, s.period_id, s.user_id, s.score, s.achieved_at, s.total, s.has_nonzero, s.version, s.hidden, s.segments, s.subscore, s.last_at
FROM boards b CROSS JOIN periods p ON p.board_id = b.id AND p.state = 'open'
CROSS JOIN scores s ON s.period_id = p.id AND s.user_id = ?
WHERE b.pod_id = ? AND b.segments <> '["global"]';

-- name: resegment_row
UPDATE scores SET segments = ?, version = ? WHERE period_id = ? AND user_id = ?;

-- name: hide_row
UPDATE scores SET hidden = ?, version = ? WHERE period_id = ? AND user_id = ?;

-- name: rows_of_users
SELECT period_id, user_id, score, achieved_at, total, has_nonzero, version, hidden, segments, subscore, last_at FROM scores
WHERE period_id IN (SELECT id FROM periods WHERE board_id = ? AND state = 'open')
  AND user_id IN (SELECT value FROM json_each(?));

-- name: is_pod_refreezing
SELECT 1 FROM periods p JOIN boards b ON b.id = p.board_id WHERE p.state = 'refreezing' AND b.pod_id = ?;

-- name: metadata_kept
SELECT user_id, metadata FROM (
    SELECT k.user_id, k.metadata, row_number() OVER (PARTITION BY k.user_id ORDER BY k.score <> 0 DESC, k.event_id) AS n
    FROM json_each(?) AS m CROSS JOIN kept_metadata k
        ON k.user_id = json_extract(m.value, '$[0]') AND k.at = json_extract(m.value, '$[1]')
    WHERE k.board_id = ?
      AND (json_extract(m.value, '$[2]') IS NULL OR k.score = json_extract(m.value, '$[2]'))
) WHERE n = 1;

-- name: void_event
UPDATE events SET voided_by = ? WHERE seq = ?;

-- name: due_rows
SELECT period_id, user_id, score, achieved_at, total, has_nonzero, version, hidden, segments, subscore, last_at FROM scores
WHERE period_id = ? AND last_at IS NOT NULL AND last_at <= ? AND hidden < 4 LIMIT ?;

-- name: oldest_last_at
SELECT p.value, (SELECT min(last_at) FROM scores WHERE period_id = p.value AND last_at IS NOT NULL AND hidden < 4) AS oldest
FROM json_each(?) AS p WHERE oldest IS NOT NULL;
