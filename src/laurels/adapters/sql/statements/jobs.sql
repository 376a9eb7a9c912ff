-- Statements that both ledgers run, in PostgreSQL's syntax. adapters/sql/files.py converts them for SQLite.

-- name: release_job
UPDATE jobs SET owner = NULL, finished_at = $1, result = $2, error = $3, runs = runs + 1 WHERE name = $4 AND owner = $5;

-- name: jobs
SELECT name, owner, started_at, finished_at, result, error, runs FROM jobs ORDER BY name;
