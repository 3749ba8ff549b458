-- name: insert
INSERT INTO instances (id, version, project, provider, requested, ended, gone, settled, doc)
SELECT value->>0, CAST(value->>1 AS BIGINT), value->>2, value->>3, CAST(value->>4 AS BIGINT),
       CAST(value->>5 AS BIGINT), CAST(value->>6 AS BIGINT), CAST(value->>7 AS BIGINT), value->>8
FROM jsonb_each($1) WHERE true
ON CONFLICT DO NOTHING

-- name: update
UPDATE instances SET version = r.version, ended = r.ended, gone = r.gone, settled = r.settled, doc = r.doc
FROM (SELECT value->>0 AS id, CAST(value->>1 AS BIGINT) AS version, CAST(value->>5 AS BIGINT) AS ended,
             CAST(value->>6 AS BIGINT) AS gone, CAST(value->>7 AS BIGINT) AS settled, value->>8 AS doc
      FROM jsonb_each($1)) AS r
WHERE instances.id = r.id AND instances.version = r.version - 1

-- name: stale
SELECT CAST(e.key AS BIGINT), COALESCE(t.version, 0)
FROM jsonb_each($1) AS e LEFT JOIN instances AS t ON t.id = e.value->>0
WHERE COALESCE(t.version, 0) <> CAST(e.value->>1 AS BIGINT) - 1
ORDER BY 1 LIMIT 1

-- name: get
SELECT doc FROM instances WHERE id = $1

-- name: anchor
SELECT requested FROM instances WHERE id = $1

-- name: page
SELECT doc FROM instances
WHERE (requested, id) < ($1, $2) AND (gone = 0 OR ($3 = 0 AND ended >= $4))
  AND ($5 = '' OR project = $5) AND ($6 = '' OR provider = $6)
ORDER BY requested DESC, id DESC LIMIT $7

-- name: load
SELECT doc FROM instances WHERE settled = 0 ORDER BY id

-- name: old
-- Machines that ended before $1 and whose money is settled.
SELECT id FROM instances
WHERE settled = 1 AND gone = 1 AND ended > 0 AND ended < $1
  AND NOT EXISTS (SELECT 1 FROM holds WHERE holds.instance = instances.id AND holds.settled = 0)
ORDER BY ended LIMIT $2

-- name: prune
DELETE FROM instances
WHERE id IN (
    SELECT i.id FROM jsonb_each($1) AS e JOIN instances AS i ON i.id = e.key
    WHERE NOT EXISTS (SELECT 1 FROM holds WHERE holds.instance = i.id)
    LIMIT $2)
