-- name: meta
SELECT key, value FROM meta

-- name: meta_new
INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO NOTHING

-- name: meta_put
INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value

-- name: leader
SELECT holder, epoch, until_us, commits FROM leader WHERE name = 'broker'

-- name: lead
-- $1 holder, $2 leads until, $3 now: the epoch rises only when the holder changes.
UPDATE leader
SET holder = $1, until_us = $2,
    epoch = epoch + CASE WHEN holder = $1 THEN 0 ELSE 1 END,
    commits = commits + CASE WHEN holder = $1 THEN 0 ELSE 1 END
WHERE name = 'broker' AND (holder = $1 OR until_us < $3)
RETURNING epoch, commits

-- name: fence
-- Locks the row until the transaction ends, so that no other can take the lead
-- or commit meanwhile.
UPDATE leader SET commits = commits + 1
WHERE name = 'broker' AND epoch = $1 AND epoch > 0
RETURNING commits

-- name: committed
-- Waits for a transaction that may still hold the row.
UPDATE leader SET commits = commits
WHERE name = 'broker'
RETURNING epoch, commits
