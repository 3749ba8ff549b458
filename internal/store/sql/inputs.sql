-- name: put
INSERT INTO inputs (job, chunk, at, data) VALUES ($1, $2, $3, $4)
ON CONFLICT (job, chunk) DO UPDATE SET at = excluded.at, data = excluded.data

-- name: get
SELECT data FROM inputs WHERE job = $1 AND chunk = $2

-- name: prune
DELETE FROM inputs
WHERE (job, chunk) IN (SELECT i.job, i.chunk FROM jsonb_each($1) AS e JOIN inputs AS i ON i.job = e.key LIMIT $2)

-- name: prune_orphans
-- Chunks of jobs that never came.
DELETE FROM inputs
WHERE (job, chunk) IN (
    SELECT job, chunk FROM inputs
    WHERE at < $1 AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.id = inputs.job)
    LIMIT $2)
