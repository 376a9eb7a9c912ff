-- Statements that only the PostgreSQL ledger runs.

-- name: acquire_job
INSERT INTO jobs AS j (name, owner, leased_until, lease_ms, started_at, runs)
VALUES ($1, $2, clock_timestamp() + $3 * interval '1 millisecond', $3, $4, 0)
ON CONFLICT (name) DO UPDATE SET
    started_at = CASE WHEN j.owner = excluded.owner THEN j.started_at ELSE excluded.started_at END,
    owner = excluded.owner, leased_until = excluded.leased_until, lease_ms = excluded.lease_ms
WHERE j.owner IS NULL OR j.owner = excluded.owner OR j.leased_until < clock_timestamp()
   -- A lease that ends later than lease_ms from now was taken before the clock was set back.
   OR j.leased_until > clock_timestamp() + j.lease_ms * interval '1 millisecond'
RETURNING name;
