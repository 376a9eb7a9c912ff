-- Statements that only the SQLite ledger runs.

-- name: acquire_job
INSERT INTO jobs (name, owner, started_at, runs) VALUES (:name, :owner, :now, 0)
ON CONFLICT (name) DO UPDATE SET
    started_at = CASE WHEN owner IS excluded.owner THEN started_at ELSE excluded.started_at END, owner = excluded.owner;
