-- name: insert
INSERT INTO attempts (id, version, job, idx, number, instance, created, ended, live, doc)
SELECT value->>0, CAST(value->>1 AS BIGINT), value->>2, CAST(value->>3 AS BIGINT), CAST(value->>4 AS BIGINT), value->>5,
       CAST(value->>6 AS BIGINT), CAST(value->>7 AS BIGINT), CAST(value->>8 AS BIGINT), value->>9
FROM jsonb_each($1) WHERE true
ON CONFLICT DO NOTHING

-- name: update
UPDATE attempts SET version = r.version, ended = r.ended, live = r.live, doc = r.doc
FROM (SELECT value->>0 AS id, CAST(value->>1 AS BIGINT) AS version, CAST(value->>7 AS BIGINT) AS ended,
             CAST(value->>8 AS BIGINT) AS live, value->>9 AS doc
      FROM jsonb_each($1)) AS r
WHERE attempts.id = r.id AND attempts.version = r.version - 1

-- name: stale
SELECT CAST(e.key AS BIGINT), COALESCE(t.version, 0)
FROM jsonb_each($1) AS e LEFT JOIN attempts AS t ON t.id = e.value->>0
WHERE COALESCE(t.version, 0) <> CAST(e.value->>1 AS BIGINT) - 1
ORDER BY 1 LIMIT 1

-- name: get
SELECT doc FROM attempts WHERE id = $1

-- name: anchor
SELECT created FROM attempts WHERE id = $1

-- name: page
SELECT doc FROM attempts
WHERE (created, id) > ($1, $2) AND (live = 1 OR ended >= $3)
ORDER BY created, id LIMIT $4

-- name: page_job
SELECT doc FROM attempts
WHERE job = $1 AND idx BETWEEN $2 AND $3 AND (created, id) > ($4, $5) AND (live = 1 OR ended >= $6)
  AND ($7 = '' OR instance = $7)
ORDER BY created, id LIMIT $8

-- name: page_instance
SELECT doc FROM attempts
WHERE instance = $1 AND (created, id) > ($2, $3) AND (live = 1 OR ended >= $4)
ORDER BY created, id LIMIT $5

-- name: load
-- CROSS JOIN keeps SQLite from reading all attempts first.
SELECT doc FROM attempts WHERE live = 1
UNION ALL
SELECT a.doc
FROM tasks AS t CROSS JOIN attempts AS a
WHERE t.state IN ('queued', 'held', 'running') AND a.job = t.job AND a.idx = t.idx AND a.live = 0
  AND a.number = (SELECT MAX(b.number) FROM attempts AS b WHERE b.job = t.job AND b.idx = t.idx)

-- name: prune
DELETE FROM attempts
WHERE id IN (SELECT a.id FROM jsonb_each($1) AS e JOIN attempts AS a ON a.job = e.key LIMIT $2)
