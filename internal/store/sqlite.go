package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"syscall"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"gpubroker/queue"
)

// sqliteEngine is SQLite by modernc.org/sqlite, without cgo.
type sqliteEngine struct {
	path string // absolute, links resolved
}

// openSQLite opens the file, under its lock: one connection writes, a few read.
// Every commit is synced to the disk.
func (s *Store) openSQLite(ctx context.Context, path string) error {
	if path == "" {
		return errors.New("store: the path is empty; write for example sqlite:/var/lib/gpubroker/broker.db")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("store %s: %w", path, err)
	}
	s.where = path
	// Made here for its rights: the rows hold digests of secrets. Where there is a
	// file the call changes nothing.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("store %s: its folder does not exist; make it, or name another: %w", path, err)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return fmt.Errorf("store %s: %w", path, err)
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return fmt.Errorf("store %s: %w", s.where, err)
	}
	s.where = path
	s.engine = sqliteEngine{path: path}
	if s.lock, err = lockFile(path + ".lock"); err != nil {
		return err
	}
	if s.mark, err = openMark(path + ".mark"); err != nil {
		return err
	}
	// busy_timeout comes first: the others may have to wait for a lock.
	const common = "?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_error_rc=1"
	name := (&url.URL{Scheme: "file", OmitHost: true, Path: filepath.ToSlash(path)}).String() + common
	if s.writer, err = sql.Open("sqlite", name+"&_txlock=immediate&_pragma=journal_size_limit(67108864)"); err != nil {
		return s.wrap("open", err)
	}
	s.writer.SetMaxOpenConns(1)
	if s.reader, err = sql.Open("sqlite", name+"&_pragma=query_only(1)"); err != nil {
		return s.wrap("open", err)
	}
	s.reader.SetMaxOpenConns(4)
	if err := s.migrate(ctx, goose.DialectSQLite3); err != nil {
		return s.wrap("open", err)
	}
	return s.wrap("open", s.settleIn(ctx))
}

func (e sqliteEngine) home(context.Context, *sql.Tx) (string, error) {
	inode, err := inodeOf(e.path)
	if err != nil {
		return "", err
	}
	return e.path + inode, nil
}

func (e sqliteEngine) classify(err error) (advice string, sentinel error) {
	if errors.Is(err, syscall.ENOSPC) {
		return "free space on its disk", queue.ErrFull
	}
	se, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return "", nil
	}
	switch se.Code() & 0xff {
	case sqlite3.SQLITE_FULL:
		return "free space on its disk", queue.ErrFull
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return "end the other program that writes to the file", queue.ErrLocked
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return "put a backup in its place, or name another file", queue.ErrDamaged
	}
	return "", nil
}
