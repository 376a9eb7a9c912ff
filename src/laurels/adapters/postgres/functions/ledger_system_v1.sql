-- Identifies the database cluster; '?' if it can't be read.
CREATE FUNCTION ledger_system_v1() RETURNS text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT system_identifier::text FROM pg_control_system());
EXCEPTION
    WHEN insufficient_privilege OR undefined_function OR feature_not_supported THEN
        RETURN '?';
END $$;
