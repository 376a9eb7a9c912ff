-- Raises LRL03 if the ledger is not in the history that the caller knows: it lost data since.
CREATE FUNCTION need_ledger_v1(expected text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF expected IS DISTINCT FROM (SELECT value FROM facts WHERE name = 'history')
       OR ledger_identity_v1() IS DISTINCT FROM (SELECT value FROM facts WHERE name = 'identity') THEN
        RAISE EXCEPTION 'the ledger is in another history' USING ERRCODE = 'LRL03';
    END IF;
END $$;
