-- Statements that only the PostgreSQL ledger runs.

-- name: is_in_use
SELECT EXISTS (SELECT FROM pods);

-- name: booleans
SELECT table_name, column_name FROM information_schema.columns
WHERE table_schema = current_schema() AND data_type = 'boolean';

-- name: continue_sequences
-- Continue each sequence after the last number that was taken over.
SELECT setval(pg_get_serial_sequence('boards', 'id'), greatest((SELECT max(id) FROM boards), 1)),
       setval(pg_get_serial_sequence('periods', 'id'), greatest((SELECT max(id) FROM periods), 1)),
       setval(pg_get_serial_sequence('actions', 'id'), greatest((SELECT max(id) FROM actions), 1)),
       setval(pg_get_serial_sequence('audit', 'id'), greatest((SELECT max(id) FROM audit), 1)),
       setval(pg_get_serial_sequence('outbox', 'id'), greatest((SELECT max(id) FROM outbox), 1)),
       setval('event_seqs', greatest($2::bigint, 1)),
       setval('versions', greatest($1::bigint, 1));

-- name: set_registry
UPDATE counters SET value = $1 WHERE name = 'registry';

-- name: insert_fact
INSERT INTO facts (name, value) VALUES ($1, $2);
