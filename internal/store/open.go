package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"time"

	"github.com/pressly/goose/v3"

	"gpubroker/queue"
)

// Open opens the store at a URL: "sqlite:PATH" or a plain path for a SQLite
// file, which is made if its folder exists, or "postgres://…" for a PostgreSQL
// database. The schema is brought up to date; one from a newer version is left
// alone and refused with [queue.ErrNewer], a SQLite file that another broker
// has open with [queue.ErrLocked], and a file that is no database of ours or is
// torn with [queue.ErrDamaged].
func Open(ctx context.Context, url string, opts Options) (*Store, error) {
	q, err := readQueries()
	if err != nil {
		return nil, fmt.Errorf("store: reading the embedded queries: %w", err)
	}
	s := &Store{q: q, turn: make(chan struct{}, 1), log: opts.Log, onFault: opts.Fault}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	switch scheme, rest, found := strings.Cut(url, ":"); {
	case found && (scheme == "postgres" || scheme == "postgresql"):
		err = s.openPostgres(ctx, url)
	case found && scheme == "sqlite":
		err = s.openSQLite(ctx, strings.TrimPrefix(rest, "//"))
	case strings.Contains(url, "://"):
		err = fmt.Errorf("store: scheme %q is not known; write sqlite:PATH, a plain path, or postgres://HOST/DATABASE", scheme)
	default:
		err = s.openSQLite(ctx, url)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// migrate brings the schema up to date.
func (s *Store) migrate(ctx context.Context, dialect goose.Dialect, opts ...goose.ProviderOption) error {
	files, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return err
	}
	opts = append(opts, goose.WithDisableGlobalRegistry(true), goose.WithSlog(slog.New(slog.DiscardHandler)))
	p, err := goose.NewProvider(dialect, s.writer, files, opts...)
	if err != nil {
		return err
	}
	sources := p.ListSources()
	known := sources[len(sources)-1].Version
	have, err := p.GetDBVersion(ctx)
	if err != nil {
		return err
	}
	if have > known {
		return fmt.Errorf("%w: %s has schema %d, this version knows up to %d; run the newer version, or restore a backup from before it",
			queue.ErrNewer, s.where, have, known)
	}
	s.schema = int(known)
	if have == known {
		return nil
	}
	_, err = p.Up(ctx)
	return err
}

// settleIn gives a new store its generation, and finds out whether an old one
// is where its generation was made.
func (s *Store) settleIn(ctx context.Context) error {
	tx, err := s.writer.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	home, err := s.engine.home(ctx, tx)
	if err != nil {
		return err
	}
	result, err := tx.ExecContext(ctx, s.q.text("store.meta_new"), "generation", newGeneration())
	if err != nil {
		return err
	}
	fresh, err := result.RowsAffected()
	if err != nil {
		return err
	}
	meta, err := s.metaRows(ctx, tx)
	if err != nil {
		return err
	}
	if fresh == 1 {
		if _, err := tx.ExecContext(ctx, s.q.text("store.meta_put"), "home", home); err != nil {
			return err
		}
	}
	var holder string
	var epoch, untilUS, commits int64
	if err := tx.QueryRowContext(ctx, s.q.text("store.leader")).Scan(&holder, &epoch, &untilUS, &commits); err != nil {
		return err
	}
	why := meta["copied"]
	switch {
	case why != "":
	case fresh == 1:
		why, err = s.mark.begin(meta["generation"])
	case meta["home"] != home:
		why = fmt.Sprintf("it was made as %s and is now %s", meta["home"], home)
	default:
		why = s.mark.compare(meta["generation"], commits)
	}
	if err != nil {
		return err
	}
	if why != "" {
		// Kept, since later commits outgrow the evidence.
		if _, err := tx.ExecContext(ctx, s.q.text("store.meta_put"), "copied", why); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func (s *Store) metaRows(ctx context.Context, tx *sql.Tx) (map[string]string, error) {
	rows, err := tx.QueryContext(ctx, s.q.text("store.meta"))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	meta := map[string]string{}
	for rows.Next() {
		var key, value string
		if err := rows.Scan(&key, &value); err != nil {
			return nil, err
		}
		meta[key] = value
	}
	return meta, rows.Err()
}

// Meta says what the store is.
func (s *Store) Meta(ctx context.Context) (queue.Meta, error) {
	var m queue.Meta
	err := s.view(ctx, "meta", func(tx *sql.Tx) error {
		rows, err := s.metaRows(ctx, tx)
		m = s.meta(rows)
		return err
	})
	return m, err
}

func (s *Store) meta(rows map[string]string) queue.Meta {
	return queue.Meta{Generation: rows["generation"], Copied: rows["copied"] != "", Why: rows["copied"], Schema: s.schema}
}

// Adopt draws a new generation and makes the store's present place its own.
// Interrupted, it leaves a store that is still a copy, to be adopted again.
func (s *Store) Adopt(ctx context.Context) (queue.Meta, error) {
	var m queue.Meta
	err := s.write(ctx, "adopt", 0, func(tx *sql.Tx) (int64, error) {
		home, err := s.engine.home(ctx, tx)
		if err != nil {
			return 0, err
		}
		var epoch, commits int64
		if err := tx.QueryRowContext(ctx, s.q.text("store.committed")).Scan(&epoch, &commits); err != nil {
			return 0, err
		}
		rows := map[string]string{"generation": newGeneration(), "home": home, "copied": ""}
		for key, value := range rows {
			if _, err := tx.ExecContext(ctx, s.q.text("store.meta_put"), key, value); err != nil {
				return 0, err
			}
		}
		m = s.meta(rows)
		return 0, s.mark.reset(m.Generation, commits)
	})
	if err != nil {
		return queue.Meta{}, err
	}
	return m, nil
}

// Lead takes or renews the leadership: see [queue.Store]. The holder's name must
// be its own for each process, since the epoch rises only with another name.
func (s *Store) Lead(ctx context.Context, holder string, ttl time.Duration) (int64, error) {
	var epoch int64
	err := s.write(ctx, "lead", 0, func(tx *sql.Tx) (commits int64, err error) {
		now := time.Now()
		err = tx.QueryRowContext(ctx, s.q.text("store.lead"), holder, now.Add(ttl).UnixMicro(), now.UnixMicro()).Scan(&epoch, &commits)
		if errors.Is(err, sql.ErrNoRows) {
			return 0, s.led(ctx, tx, holder+" asks for the lead")
		}
		return commits, err
	})
	if err != nil {
		return 0, err
	}
	return epoch, nil
}
