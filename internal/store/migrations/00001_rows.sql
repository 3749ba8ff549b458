-- One table for each kind of row, the same text for SQLite and PostgreSQL.
-- `doc` is the row as JSON and all that is read back; the other columns are its
-- key, its version, and what queries select by. Times are microseconds since
-- 1970 in UTC (0: none), flags are 0 or 1.

-- +goose Up

-- generation, home, copied: see doc.go.
CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

-- The one row that every commit locks, checks and counts in.
CREATE TABLE leader (
    name     TEXT PRIMARY KEY,
    holder   TEXT NOT NULL,
    epoch    BIGINT NOT NULL,
    until_us BIGINT NOT NULL,
    commits  BIGINT NOT NULL
);
INSERT INTO leader (name, holder, epoch, until_us, commits) VALUES ('broker', '', 0, 0, 0);

CREATE TABLE jobs (
    id       TEXT PRIMARY KEY,
    version  BIGINT NOT NULL,
    project  TEXT NOT NULL,
    queue    TEXT NOT NULL,
    name     TEXT NOT NULL,
    key      TEXT NOT NULL,
    accepted BIGINT NOT NULL,
    ended    BIGINT NOT NULL,
    done     BIGINT NOT NULL,
    doc      TEXT NOT NULL
);
CREATE INDEX jobs_accepted ON jobs (accepted, id);
CREATE INDEX jobs_key ON jobs (key) WHERE key <> '';
CREATE INDEX jobs_live ON jobs (accepted, id) WHERE done = 0;
CREATE INDEX jobs_ended ON jobs (ended) WHERE done = 1;

CREATE TABLE tasks (
    job     TEXT NOT NULL,
    idx     BIGINT NOT NULL,
    version BIGINT NOT NULL,
    state   TEXT NOT NULL,
    doc     TEXT NOT NULL,
    PRIMARY KEY (job, idx)
);
CREATE INDEX tasks_live ON tasks (job, idx) WHERE state IN ('queued', 'held', 'running');

CREATE TABLE attempts (
    id       TEXT PRIMARY KEY,
    version  BIGINT NOT NULL,
    job      TEXT NOT NULL,
    idx      BIGINT NOT NULL,
    number   BIGINT NOT NULL,
    instance TEXT NOT NULL,
    created  BIGINT NOT NULL,
    ended    BIGINT NOT NULL,
    live     BIGINT NOT NULL,
    doc      TEXT NOT NULL
);
CREATE INDEX attempts_created ON attempts (created, id);
CREATE INDEX attempts_task ON attempts (job, idx, number);
CREATE INDEX attempts_instance ON attempts (instance, created, id);
CREATE INDEX attempts_live ON attempts (job) WHERE live = 1;

CREATE TABLE checkpoints (
    job     TEXT NOT NULL,
    idx     BIGINT NOT NULL,
    number  BIGINT NOT NULL,
    version BIGINT NOT NULL,
    swept   BIGINT NOT NULL,
    doc     TEXT NOT NULL,
    PRIMARY KEY (job, idx, number)
);

CREATE TABLE instances (
    id        TEXT PRIMARY KEY,
    version   BIGINT NOT NULL,
    project   TEXT NOT NULL,
    provider  TEXT NOT NULL,
    requested BIGINT NOT NULL,
    ended     BIGINT NOT NULL,
    gone      BIGINT NOT NULL,
    settled   BIGINT NOT NULL,
    doc       TEXT NOT NULL
);
CREATE INDEX instances_requested ON instances (requested, id);
CREATE INDEX instances_open ON instances (id) WHERE settled = 0;
CREATE INDEX instances_ended ON instances (ended) WHERE settled = 1;

CREATE TABLE accounts (
    budget  TEXT NOT NULL,
    start   BIGINT NOT NULL,
    version BIGINT NOT NULL,
    doc     TEXT NOT NULL,
    PRIMARY KEY (budget, start)
);

CREATE TABLE holds (
    instance TEXT NOT NULL,
    budget   TEXT NOT NULL,
    start    BIGINT NOT NULL,
    version  BIGINT NOT NULL,
    settled  BIGINT NOT NULL,
    doc      TEXT NOT NULL,
    PRIMARY KEY (instance, budget, start)
);
CREATE INDEX holds_open ON holds (instance) WHERE settled = 0;

CREATE TABLE entries (
    seq      BIGINT PRIMARY KEY,
    at       BIGINT NOT NULL,
    budget   TEXT NOT NULL,
    project  TEXT NOT NULL,
    job      TEXT NOT NULL,
    instance TEXT NOT NULL,
    doc      TEXT NOT NULL
);
CREATE INDEX entries_job ON entries (job, seq) WHERE job <> '';
CREATE INDEX entries_instance ON entries (instance, seq) WHERE instance <> '';

CREATE TABLE events (
    seq     BIGINT PRIMARY KEY,
    at      BIGINT NOT NULL,
    job     TEXT NOT NULL,
    project TEXT NOT NULL,
    doc     TEXT NOT NULL
);
CREATE INDEX events_job ON events (job, seq) WHERE job <> '';

CREATE TABLE cooldowns (
    key      TEXT PRIMARY KEY,
    until_us BIGINT NOT NULL,
    doc      TEXT NOT NULL
);

CREATE TABLE settings (
    key TEXT PRIMARY KEY,
    doc TEXT NOT NULL
);

CREATE TABLE tokens (
    id  TEXT PRIMARY KEY,
    doc TEXT NOT NULL
);

-- BYTEA is PostgreSQL's name for bytes; SQLite keeps a blob as it is in a
-- column of any type that it does not know.
CREATE TABLE inputs (
    job   TEXT NOT NULL,
    chunk BIGINT NOT NULL,
    at    BIGINT NOT NULL,
    data  BYTEA NOT NULL,
    PRIMARY KEY (job, chunk)
);
