-- Statements that only the SQLite ledger runs.

-- name: forgotten_version
SELECT value FROM facts WHERE name = 'forgotten_version';

-- name: update_period
UPDATE periods SET start_at = ?1, end_at = ?2, state = ?3, terms = ?4,
                   closed_seq = CASE WHEN ?3 <> 'closed' THEN NULL
                                     ELSE coalesce(closed_seq, (SELECT value FROM counters WHERE name = 'event')) END
WHERE id = ?5 AND state IN ('open', 'closed');

-- name: latest_event_ahead
SELECT max(at) FROM events WHERE board_id = ? AND at >= ? AND at > received_at;

-- name: last_event_number
SELECT value FROM counters WHERE name = 'event';

-- name: has_events_from
-- ?3: an event number. Events up to it were checked before, except those with a time ahead of the clock.
SELECT CASE WHEN ?3 IS NULL
            THEN EXISTS (SELECT 1 FROM events WHERE board_id = ?1 AND at >= ?2 AND voided_by IS NULL)
            ELSE EXISTS (SELECT 1 FROM events
                         WHERE board_id = ?1 AND at >= ?2 AND at > received_at AND voided_by IS NULL)
              OR EXISTS (SELECT 1 FROM events
                         WHERE seq > ?3 AND +board_id = ?1 AND at >= ?2 AND voided_by IS NULL) END;
