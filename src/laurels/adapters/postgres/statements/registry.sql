-- Statements that only the PostgreSQL ledger runs.

-- name: note_pruned
INSERT INTO facts AS f (name, value) VALUES ('pruned_xact', $1)
ON CONFLICT (name) DO UPDATE SET value = greatest(f.value::bigint, excluded.value::bigint)::text;

-- name: sender
-- The id of the ledger whose data was taken over, if there was one; else the id of this ledger.
SELECT value FROM facts WHERE name IN ('sender', 'ledger_id') ORDER BY name DESC LIMIT 1;

-- name: update_period
UPDATE periods SET start_at = $1, end_at = $2, state = $3, terms = $4,
                   closed_seq = CASE WHEN $3 <> 'closed' THEN NULL
                                     ELSE coalesce(closed_seq, (SELECT last_value FROM event_seqs)) END
WHERE id = $5 AND state IN ('open', 'closed');

-- name: lock_board
SELECT pg_advisory_xact_lock(1279348562, $1::bigint::int);

-- name: latest_event_ahead
SELECT max(at) FROM events WHERE board_id = $1 AND at >= $2 AND ahead;

-- name: now_us
SELECT now_us_v1();

-- name: now_and_oldest
SELECT now_us_v1() AS now, pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest;

-- name: has_events_from
-- $3: a transaction id. Events of older transactions were checked before, except those with a time ahead of the clock.
SELECT CASE WHEN $3::bigint IS NULL AND $2 <= now_us_v1()
            THEN EXISTS (SELECT FROM events WHERE board_id = $1 AND at >= $2 AND voided_by IS NULL)
            ELSE EXISTS (SELECT FROM events WHERE board_id = $1 AND at >= $2 AND ahead AND voided_by IS NULL)
              OR EXISTS (SELECT FROM events WHERE xact >= $3 AND board_id = $1 AND at >= $2 AND voided_by IS NULL) END;

-- name: lock_schema
SELECT pg_advisory_xact_lock(7236458137);

-- name: schema_is_free
SELECT pg_try_advisory_xact_lock_shared(7236458137);

-- name: create_migrations
CREATE TABLE IF NOT EXISTS migrations (
    number     int PRIMARY KEY,
    name       text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- name: last_migration
SELECT coalesce(max(number), 0) FROM migrations;

-- name: insert_migration
INSERT INTO migrations (number, name) VALUES ($1, $2);

-- name: share_board
SELECT pg_advisory_xact_lock_shared(1279348562, $1::bigint::int);

-- name: routines
-- The types and functions with these names. The comment of each is the checksum of its script.
SELECT p.proname AS name, obj_description(p.oid, 'pg_proc') AS checksum FROM pg_proc p
WHERE p.pronamespace = current_schema()::regnamespace AND p.proname = ANY ($1::text[])
UNION ALL
SELECT t.typname, obj_description(t.oid, 'pg_type') FROM pg_type t
WHERE t.typnamespace = current_schema()::regnamespace AND t.typname = ANY ($1::text[]);
