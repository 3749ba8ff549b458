-- name: insert
INSERT INTO entries (seq, at, budget, project, job, instance, doc)
SELECT CAST(value->>0 AS BIGINT), CAST(value->>1 AS BIGINT), value->>2, value->>3, value->>4, value->>5, value->>6
FROM jsonb_each($1) WHERE true
ON CONFLICT DO NOTHING

-- name: page
SELECT doc FROM entries
WHERE seq > $1 AND at >= $2 AND at < $3 AND ($4 = '' OR budget = $4) AND ($5 = '' OR project = $5)
ORDER BY seq LIMIT $6

-- name: page_job
SELECT doc FROM entries
WHERE job = $1 AND job <> '' AND seq > $2 AND at >= $3 AND at < $4
  AND ($5 = '' OR budget = $5) AND ($6 = '' OR project = $6) AND ($7 = '' OR instance = $7)
ORDER BY seq LIMIT $8

-- name: page_instance
SELECT doc FROM entries
WHERE instance = $1 AND instance <> '' AND seq > $2 AND at >= $3 AND at < $4
  AND ($5 = '' OR budget = $5) AND ($6 = '' OR project = $6)
ORDER BY seq LIMIT $7

-- name: last
SELECT COALESCE(MAX(seq), 0) FROM entries
