-- A database that comes back with less than it had is in another history: see laurels/ports/position.py.

-- Where this database is: its files and its timeline. A promoted standby and a restored dump are elsewhere. Where the
-- timeline can't be read there is a question mark in its place.
CREATE FUNCTION ledger_place() RETURNS text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'this server is a standby' USING ERRCODE = 'read_only_sql_transaction';
    END IF;
    RETURN pg_relation_filepath('facts')
        -- Without fsync nobody knows what a restart has lost.
        || CASE WHEN current_setting('fsync') = 'off' THEN ' ' || extract(epoch FROM pg_postmaster_start_time()) ELSE '' END
        || ' ' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8);
EXCEPTION
    WHEN insufficient_privilege OR undefined_function OR feature_not_supported THEN
        RETURN pg_relation_filepath('facts') || ' ?';
END $$;

-- Which cluster of databases this is; '?' where it can't be read.
CREATE FUNCTION ledger_system() RETURNS text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT system_identifier::text FROM pg_control_system());
EXCEPTION
    WHEN insufficient_privilege OR undefined_function OR feature_not_supported THEN
        RETURN '?';
END $$;

-- The error LRL03 says that the ledger is not in the history that the caller knows, LRL02 that a board is not there.
CREATE FUNCTION need_ledger(expected text, board_ids bigint[]) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF expected IS DISTINCT FROM (SELECT value FROM facts WHERE name = 'history')
       OR ledger_place() IS DISTINCT FROM (SELECT value FROM facts WHERE name = 'place') THEN
        RAISE EXCEPTION 'the ledger is in another history' USING ERRCODE = 'LRL03';
    END IF;
    IF EXISTS (SELECT FROM unnest(board_ids) AS k (id) WHERE NOT EXISTS (SELECT FROM boards b WHERE b.id = k.id)) THEN
        RAISE EXCEPTION 'a board is not there' USING ERRCODE = 'LRL02';
    END IF;
    RETURN true;
END $$;

-- Left every few seconds. One that somebody has seen and that is not there any more was lost, and more with it.
CREATE TABLE marks (
    n       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    token   text NOT NULL DEFAULT substr(replace(gen_random_uuid()::text, '-', ''), 1, 16),
    made_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

INSERT INTO marks DEFAULT VALUES;

INSERT INTO facts (name, value) VALUES
    ('history', substr(replace(gen_random_uuid()::text, '-', ''), 1, 16)),
    ('place', ledger_place()),
    ('system', ledger_system());

-- For how long a job was leased: one that ends later than that was leased by a clock that was set back since.
ALTER TABLE jobs ADD COLUMN lease_ms bigint NOT NULL DEFAULT 0;

-- What is to be sent to each receiver, by itself.
CREATE INDEX outbox_due_of_pod ON outbox (pod_id, due_at, id) WHERE delivered_at IS NULL;
DROP INDEX outbox_due;
