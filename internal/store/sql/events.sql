-- name: insert
INSERT INTO events (seq, at, job, project, doc)
SELECT CAST(value->>0 AS BIGINT), CAST(value->>1 AS BIGINT), value->>2, value->>3, value->>4
FROM jsonb_each($1) WHERE true
ON CONFLICT DO NOTHING

-- name: page
SELECT doc FROM events WHERE seq > $1 AND ($2 = '' OR project = $2) ORDER BY seq LIMIT $3

-- name: page_last
SELECT doc FROM events WHERE seq > $1 AND ($2 = '' OR project = $2) ORDER BY seq DESC LIMIT $3

-- name: page_job
SELECT doc FROM events
WHERE job = $1 AND job <> '' AND seq > $2 AND ($3 = '' OR project = $3)
ORDER BY seq LIMIT $4

-- name: page_job_last
SELECT doc FROM events
WHERE job = $1 AND job <> '' AND seq > $2 AND ($3 = '' OR project = $3)
ORDER BY seq DESC LIMIT $4

-- name: last
SELECT COALESCE(MAX(seq), 0) FROM events

-- name: prune
-- Those before the first that is young enough. The newest stays, so that its
-- number is not given again.
DELETE FROM events
WHERE seq IN (
    SELECT seq FROM events
    WHERE seq < COALESCE((SELECT seq FROM events WHERE at >= $1 ORDER BY seq LIMIT 1), (SELECT MAX(seq) FROM events))
    ORDER BY seq LIMIT $2)
