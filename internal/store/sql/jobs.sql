-- name: insert
INSERT INTO jobs (id, version, project, queue, name, key, accepted, ended, done, doc)
SELECT value->>0, CAST(value->>1 AS BIGINT), value->>2, value->>3, value->>4, value->>5,
       CAST(value->>6 AS BIGINT), CAST(value->>7 AS BIGINT), CAST(value->>8 AS BIGINT), value->>9
FROM jsonb_each($1) WHERE true
ON CONFLICT DO NOTHING

-- name: update
UPDATE jobs SET version = r.version, ended = r.ended, done = r.done, doc = r.doc
FROM (SELECT value->>0 AS id, CAST(value->>1 AS BIGINT) AS version, CAST(value->>7 AS BIGINT) AS ended,
             CAST(value->>8 AS BIGINT) AS done, value->>9 AS doc
      FROM jsonb_each($1)) AS r
WHERE jobs.id = r.id AND jobs.version = r.version - 1

-- name: stale
SELECT CAST(e.key AS BIGINT), COALESCE(t.version, 0)
FROM jsonb_each($1) AS e LEFT JOIN jobs AS t ON t.id = e.value->>0
WHERE COALESCE(t.version, 0) <> CAST(e.value->>1 AS BIGINT) - 1
ORDER BY 1 LIMIT 1

-- name: get
SELECT doc FROM jobs WHERE id = $1

-- name: anchor
SELECT accepted FROM jobs WHERE id = $1

-- name: page
SELECT doc FROM jobs
WHERE (accepted, id) < ($1, $2) AND (done = 0 OR ended >= $3)
  AND ($4 = '' OR project = $4) AND ($5 = '' OR queue = $5) AND ($6 = '' OR name = $6)
ORDER BY accepted DESC, id DESC LIMIT $7

-- name: page_open
SELECT doc FROM jobs
WHERE done = 0 AND (accepted, id) < ($1, $2)
  AND ($3 = '' OR project = $3) AND ($4 = '' OR queue = $4) AND ($5 = '' OR name = $5)
ORDER BY accepted DESC, id DESC LIMIT $6

-- name: page_key
SELECT doc FROM jobs
WHERE key = $1 AND key <> '' AND (accepted, id) < ($2, $3) AND (done = 0 OR ($4 = 0 AND ended >= $5))
  AND ($6 = '' OR project = $6) AND ($7 = '' OR queue = $7) AND ($8 = '' OR name = $8)
ORDER BY accepted DESC, id DESC LIMIT $9

-- name: load
SELECT doc FROM jobs WHERE done = 0 ORDER BY accepted, id

-- name: old
-- Jobs that ended before $1 and of which no attempt lives.
SELECT id FROM jobs
WHERE done = 1 AND ended > 0 AND ended < $1
  AND NOT EXISTS (SELECT 1 FROM attempts WHERE attempts.job = jobs.id AND attempts.live = 1)
ORDER BY ended LIMIT $2

-- name: prune
-- The job goes when nothing of it is left.
DELETE FROM jobs
WHERE id IN (
    SELECT j.id FROM jsonb_each($1) AS e JOIN jobs AS j ON j.id = e.key
    WHERE NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.job = j.id)
      AND NOT EXISTS (SELECT 1 FROM attempts WHERE attempts.job = j.id)
      AND NOT EXISTS (SELECT 1 FROM checkpoints WHERE checkpoints.job = j.id)
      AND NOT EXISTS (SELECT 1 FROM inputs WHERE inputs.job = j.id)
    LIMIT $2)
