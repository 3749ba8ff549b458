-- name: insert
INSERT INTO accounts (budget, start, version, doc)
SELECT value->>0, CAST(value->>1 AS BIGINT), CAST(value->>2 AS BIGINT), value->>3
FROM jsonb_each($1) WHERE true
ON CONFLICT DO NOTHING

-- name: update
UPDATE accounts SET version = r.version, doc = r.doc
FROM (SELECT value->>0 AS budget, CAST(value->>1 AS BIGINT) AS start, CAST(value->>2 AS BIGINT) AS version, value->>3 AS doc
      FROM jsonb_each($1)) AS r
WHERE accounts.budget = r.budget AND accounts.start = r.start AND accounts.version = r.version - 1

-- name: stale
SELECT CAST(e.key AS BIGINT), COALESCE(t.version, 0)
FROM jsonb_each($1) AS e LEFT JOIN accounts AS t ON t.budget = e.value->>0 AND t.start = CAST(e.value->>1 AS BIGINT)
WHERE COALESCE(t.version, 0) <> CAST(e.value->>2 AS BIGINT) - 1
ORDER BY 1 LIMIT 1

-- name: of_budget
SELECT doc FROM accounts WHERE budget = $1 ORDER BY start

-- name: load
SELECT doc FROM accounts ORDER BY budget, start
