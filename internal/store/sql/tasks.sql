-- name: insert
INSERT INTO tasks (job, idx, version, state, doc)
SELECT value->>0, CAST(value->>1 AS BIGINT), CAST(value->>2 AS BIGINT), value->>3, value->>4
FROM jsonb_each($1) WHERE true
ON CONFLICT DO NOTHING

-- name: update
UPDATE tasks SET version = r.version, state = r.state, doc = r.doc
FROM (SELECT value->>0 AS job, CAST(value->>1 AS BIGINT) AS idx, CAST(value->>2 AS BIGINT) AS version,
             value->>3 AS state, value->>4 AS doc
      FROM jsonb_each($1)) AS r
WHERE tasks.job = r.job AND tasks.idx = r.idx AND tasks.version = r.version - 1

-- name: stale
SELECT CAST(e.key AS BIGINT), COALESCE(t.version, 0)
FROM jsonb_each($1) AS e LEFT JOIN tasks AS t ON t.job = e.value->>0 AND t.idx = CAST(e.value->>1 AS BIGINT)
WHERE COALESCE(t.version, 0) <> CAST(e.value->>2 AS BIGINT) - 1
ORDER BY 1 LIMIT 1

-- name: get
SELECT doc FROM tasks WHERE job = $1 AND idx = $2

-- name: page
SELECT doc FROM tasks
WHERE job = $1 AND idx > $2 AND ($3 = '' OR state = $3)
ORDER BY idx LIMIT $4

-- name: load
SELECT doc FROM tasks WHERE state IN ('queued', 'held', 'running') ORDER BY job, idx

-- name: prune
DELETE FROM tasks
WHERE (job, idx) IN (SELECT t.job, t.idx FROM jsonb_each($1) AS e JOIN tasks AS t ON t.job = e.key LIMIT $2)
