-- name: insert
INSERT INTO checkpoints (job, idx, number, version, swept, doc)
SELECT value->>0, CAST(value->>1 AS BIGINT), CAST(value->>2 AS BIGINT), CAST(value->>3 AS BIGINT),
       CAST(value->>4 AS BIGINT), value->>5
FROM jsonb_each($1) WHERE true
ON CONFLICT DO NOTHING

-- name: update
UPDATE checkpoints SET version = r.version, swept = r.swept, doc = r.doc
FROM (SELECT value->>0 AS job, CAST(value->>1 AS BIGINT) AS idx, CAST(value->>2 AS BIGINT) AS number,
             CAST(value->>3 AS BIGINT) AS version, CAST(value->>4 AS BIGINT) AS swept, value->>5 AS doc
      FROM jsonb_each($1)) AS r
WHERE checkpoints.job = r.job AND checkpoints.idx = r.idx AND checkpoints.number = r.number
  AND checkpoints.version = r.version - 1

-- name: stale
SELECT CAST(e.key AS BIGINT), COALESCE(t.version, 0)
FROM jsonb_each($1) AS e LEFT JOIN checkpoints AS t
  ON t.job = e.value->>0 AND t.idx = CAST(e.value->>1 AS BIGINT) AND t.number = CAST(e.value->>2 AS BIGINT)
WHERE COALESCE(t.version, 0) <> CAST(e.value->>3 AS BIGINT) - 1
ORDER BY 1 LIMIT 1

-- name: of_task
SELECT doc FROM checkpoints WHERE job = $1 AND idx = $2 ORDER BY number

-- name: load
-- CROSS JOIN keeps SQLite from reading all checkpoints first.
SELECT c.doc
FROM tasks AS t CROSS JOIN checkpoints AS c
WHERE t.state IN ('queued', 'held', 'running') AND c.job = t.job AND c.idx = t.idx AND c.swept = 0

-- name: prune
DELETE FROM checkpoints
WHERE (job, idx, number) IN (SELECT c.job, c.idx, c.number FROM jsonb_each($1) AS e JOIN checkpoints AS c ON c.job = e.key LIMIT $2)
