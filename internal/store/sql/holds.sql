-- name: insert
INSERT INTO holds (instance, budget, start, version, settled, doc)
SELECT value->>0, value->>1, CAST(value->>2 AS BIGINT), CAST(value->>3 AS BIGINT), CAST(value->>4 AS BIGINT), value->>5
FROM jsonb_each($1) WHERE true
ON CONFLICT DO NOTHING

-- name: update
UPDATE holds SET version = r.version, settled = r.settled, doc = r.doc
FROM (SELECT value->>0 AS instance, value->>1 AS budget, CAST(value->>2 AS BIGINT) AS start,
             CAST(value->>3 AS BIGINT) AS version, CAST(value->>4 AS BIGINT) AS settled, value->>5 AS doc
      FROM jsonb_each($1)) AS r
WHERE holds.instance = r.instance AND holds.budget = r.budget AND holds.start = r.start
  AND holds.version = r.version - 1

-- name: stale
SELECT CAST(e.key AS BIGINT), COALESCE(t.version, 0)
FROM jsonb_each($1) AS e LEFT JOIN holds AS t
  ON t.instance = e.value->>0 AND t.budget = e.value->>1 AND t.start = CAST(e.value->>2 AS BIGINT)
WHERE COALESCE(t.version, 0) <> CAST(e.value->>3 AS BIGINT) - 1
ORDER BY 1 LIMIT 1

-- name: of_instance
SELECT doc FROM holds WHERE instance = $1 ORDER BY budget, start

-- name: load
SELECT doc FROM holds WHERE settled = 0 ORDER BY instance, budget, start

-- name: prune
DELETE FROM holds
WHERE (instance, budget, start) IN (SELECT h.instance, h.budget, h.start FROM jsonb_each($1) AS e JOIN holds AS h ON h.instance = e.key LIMIT $2)
