-- Statements that only the PostgreSQL ledger runs.

-- name: read_as_of
-- $1, $2: number and token of the last mark that the caller has seen; $3: the history in which it saw the mark.
SELECT h.value AS history,
       ledger_identity_v1() IS NOT DISTINCT FROM (SELECT value FROM facts WHERE name = 'identity')
       AND ledger_system_v1() IS NOT DISTINCT FROM (SELECT value FROM facts WHERE name = 'system')
       AND ($1::bigint IS NULL OR h.value <> $3 OR $1 < (SELECT min(n) FROM marks)
            OR EXISTS (SELECT FROM marks WHERE n = $1 AND token = $2)) AS is_the_same,
       coalesce((SELECT value::bigint FROM facts WHERE name = 'forgotten_version'), 0) AS floor,
       m.n, m.token
FROM facts h, (SELECT n, token FROM marks ORDER BY n DESC LIMIT 1) AS m WHERE h.name = 'history';

-- name: begin_history
-- Skip the numbers that may have been assigned in the lost data, because other systems may still refer to them.
WITH put AS (
    INSERT INTO facts (name, value) VALUES ('history', $1), ('identity', ledger_identity_v1()), ('system', ledger_system_v1())
    ON CONFLICT (name) DO UPDATE SET value = excluded.value
)
SELECT setval('versions', nextval('versions') + 10000000000), setval('event_seqs', nextval('event_seqs') + 1000000000),
       setval(pg_get_serial_sequence('periods', 'id'), nextval(pg_get_serial_sequence('periods', 'id')) + 1000000),
       setval(pg_get_serial_sequence('actions', 'id'), nextval(pg_get_serial_sequence('actions', 'id')) + 1000000),
       setval(pg_get_serial_sequence('outbox', 'id'), nextval(pg_get_serial_sequence('outbox', 'id')) + 1000000),
       setval(pg_get_serial_sequence('marks', 'n'), nextval(pg_get_serial_sequence('marks', 'n')) + 1000000),
       setval(pg_get_serial_sequence('boards', 'id'), nextval(pg_get_serial_sequence('boards', 'id')) + 10000);

-- name: raise_floor
-- Raise the floor above all earlier ones, because an index may know a floor that the ledger has lost.
INSERT INTO facts (name, value) SELECT 'forgotten_version', last_value::text FROM versions
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: insert_mark
-- At most one mark per second, from all servers together.
INSERT INTO marks (token) SELECT substr(replace(gen_random_uuid()::text, '-', ''), 1, 16)
WHERE NOT EXISTS (SELECT FROM marks WHERE n = (SELECT max(n) FROM marks)
                  AND made_at BETWEEN clock_timestamp() - interval '1 second' AND clock_timestamp());

-- name: forget_marks
DELETE FROM marks WHERE n < (SELECT max(n) FROM marks) - 100000;

-- name: mark_now
INSERT INTO marks DEFAULT VALUES;

-- name: position
SELECT pg_current_snapshot()::text || ' ' || m.n || '.' || m.token FROM (SELECT n, token FROM marks ORDER BY n DESC LIMIT 1) AS m;

-- name: knows
-- is_known: the mark exists, and the database has reached the transaction id $3. is_old: the mark is older than all marks
-- that are kept, so its absence proves nothing.
SELECT EXISTS (SELECT FROM marks WHERE n = $1 AND token = $2)
       AND $3::bigint <= pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS is_known,
       $1::bigint < (SELECT min(n) FROM marks) AS is_old;

-- name: lock_history
SELECT pg_advisory_xact_lock(7236458138);

-- name: durability
SELECT current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS commits,
       current_setting('synchronous_standby_names') AS standbys,
       (SELECT count(*) FROM pg_stat_replication WHERE coalesce(application_name, '') <> 'pg_basebackup') AS followers,
       ledger_identity_v1() AS identity;

-- name: insert_history
INSERT INTO facts (name, value) VALUES
    ('history', substr(replace(gen_random_uuid()::text, '-', ''), 1, 16)),
    ('identity', ledger_identity_v1()),
    ('system', ledger_system_v1())
ON CONFLICT (name) DO NOTHING;
