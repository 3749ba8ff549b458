-- name: cooldowns_put
INSERT INTO cooldowns (key, until_us, doc)
SELECT value->>0, CAST(value->>1 AS BIGINT), value->>2 FROM jsonb_each($1) WHERE true
ON CONFLICT (key) DO UPDATE SET until_us = excluded.until_us, doc = excluded.doc

-- name: cooldowns_load
SELECT doc FROM cooldowns ORDER BY key

-- name: cooldowns_prune
DELETE FROM cooldowns WHERE key IN (SELECT key FROM cooldowns WHERE until_us < $1 ORDER BY key LIMIT $2)

-- name: settings_put
INSERT INTO settings (key, doc)
SELECT value->>0, value->>1 FROM jsonb_each($1) WHERE true
ON CONFLICT (key) DO UPDATE SET doc = excluded.doc

-- name: settings_load
SELECT doc FROM settings ORDER BY key

-- name: tokens_put
INSERT INTO tokens (id, doc)
SELECT value->>0, value->>1 FROM jsonb_each($1) WHERE true
ON CONFLICT (id) DO UPDATE SET doc = excluded.doc

-- name: tokens_load
SELECT doc FROM tokens ORDER BY id
