-- Identifies this database: its files and its timeline. A promoted standby and a restored dump differ. If the timeline can't
-- be read, the text ends with a question mark.
CREATE FUNCTION ledger_identity_v1() RETURNS text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'this server is a standby' USING ERRCODE = 'read_only_sql_transaction';
    END IF;
    RETURN pg_relation_filepath('facts')
        -- Without fsync every restart may have lost data.
        || CASE WHEN current_setting('fsync') = 'off' THEN ' ' || extract(epoch FROM pg_postmaster_start_time()) ELSE '' END
        || ' ' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8);
EXCEPTION
    WHEN insufficient_privilege OR undefined_function OR feature_not_supported THEN
        RETURN pg_relation_filepath('facts') || ' ?';
END $$;
