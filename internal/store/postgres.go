package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"gpubroker/queue"
)

// postgresEngine is PostgreSQL 13 or newer by pgx.
type postgresEngine struct{}

// openPostgres opens a database that exists. Its messages name the host and
// the database, never the password.
func (s *Store) openPostgres(ctx context.Context, url string) error {
	s.where, s.engine = "postgres", postgresEngine{}
	config, err := pgx.ParseConfig(url) // its errors hide the password
	if err != nil {
		return fmt.Errorf("store: the PostgreSQL address: %w", err)
	}
	s.where = fmt.Sprintf("postgres://%s:%d/%s", config.Host, config.Port, config.Database)
	s.writer = stdlib.OpenDB(*config)
	s.writer.SetMaxOpenConns(10)
	s.writer.SetMaxIdleConns(10)
	s.reader = s.writer
	if err := s.durable(ctx); err != nil {
		return s.wrap("open", err)
	}
	// Replicas that start at once take turns with the schema.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 60))
	if err != nil {
		return s.wrap("open", err)
	}
	if err := s.migrate(ctx, goose.DialectPostgres, goose.WithSessionLocker(locker)); err != nil {
		return s.wrap("open", err)
	}
	return s.wrap("open", s.settleIn(ctx))
}

// durable refuses a session that forgets the last commits when the server's
// machine stops.
func (s *Store) durable(ctx context.Context) error {
	var setting string
	if err := s.writer.QueryRowContext(ctx, `SHOW synchronous_commit`).Scan(&setting); err != nil {
		return err
	}
	if setting == "off" {
		return errors.New("synchronous_commit is off, so commits could be lost; run ALTER DATABASE … SET synchronous_commit = on")
	}
	return nil
}

func (postgresEngine) home(ctx context.Context, tx *sql.Tx) (string, error) {
	var home string
	err := tx.QueryRowContext(ctx, `SELECT format('system %s database %s table %s', system_identifier,
		(SELECT oid FROM pg_database WHERE datname = current_database()), CAST('leader' AS regclass)::oid)
		FROM pg_control_system()`).Scan(&home)
	return home, err
}

func (postgresEngine) classify(err error) (advice string, sentinel error) {
	pe, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return "", nil
	}
	switch pe.Code {
	case "53100": // disk_full
		return "free space on the server's disk", queue.ErrFull
	case "55P03": // lock_not_available
		return "look in pg_locks for who holds the tables", queue.ErrLocked
	case "XX001", "XX002": // data_corrupted, index_corrupted
		return "restore the database from a backup", queue.ErrDamaged
	}
	return "", nil
}
