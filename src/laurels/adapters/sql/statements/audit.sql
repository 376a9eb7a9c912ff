-- Statements that both ledgers run, in PostgreSQL's syntax. adapters/sql/files.py converts them for SQLite.

-- name: begin_audit
INSERT INTO audit (at, pod_id, uuid, user_id, key_id, role, address, request_id, route, path)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) RETURNING id;

-- name: finish_audit
UPDATE audit SET uuid = $1, changed_from = $2, changed_to = $3, status = $4, error = $5 WHERE id = $6;

-- name: audit_entries
SELECT id, at, pod_id, uuid, user_id, key_id, role, address, request_id, route, path, changed_from, changed_to, status,
       error
FROM audit
WHERE ($1::text IS NULL OR pod_id = $1) AND ($2::text IS NULL OR uuid = $2) AND ($3::text IS NULL OR user_id = $3)
  AND ($4::text IS NULL OR key_id = $4) AND ($5::bigint IS NULL OR at >= $5) AND ($6::bigint IS NULL OR at < $6)
  AND ($7::bigint IS NULL OR id < $7)
ORDER BY id DESC LIMIT $8;

-- name: forget_audit
DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE at < $1 ORDER BY at LIMIT $2);

-- name: erase_audit
UPDATE audit SET user_id = $3 WHERE user_id = $2 AND pod_id = $1;
