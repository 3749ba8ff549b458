package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"gpubroker/queue"
)

// Options change how a store is opened. The zero value is right for a broker.
type Options struct {
	// Log gets what goes wrong without failing a call; nil discards it.
	Log *slog.Logger
	// Fault, for tests, is called before (done false) and after (done true) each
	// write transaction with its name: commit, lead, adopt, inputs, prune. An
	// error it returns is the call's error: nothing was written if done is
	// false, all was if it is true. It may also panic or end the goroutine.
	Fault func(op string, done bool) error
}

// Store is a [queue.Store] over SQLite or PostgreSQL. It is safe for concurrent
// use; writes take turns.
type Store struct {
	where    string // for messages, without secrets
	schema   int
	q        queries
	engine   engine
	reader   *sql.DB
	writer   *sql.DB
	turn     chan struct{}
	mark     *mark
	lock     io.Closer
	log      *slog.Logger
	onFault  func(op string, done bool) error
	closing  sync.Once
	closeErr error
}

var _ queue.Store = (*Store)(nil)

// engine is what differs between the two.
type engine interface {
	// classify returns the error of package queue that err amounts to, and what
	// to do about it; nil for any other.
	classify(err error) (advice string, sentinel error)
	// home says where the store is, in a text that a copy does not share.
	home(ctx context.Context, tx *sql.Tx) (string, error)
}

// Close ends the store and gives up its lock. Calls under way fail.
func (s *Store) Close() error {
	s.closing.Do(func() {
		if s.reader != nil && s.reader != s.writer {
			s.closeErr = errors.Join(s.closeErr, s.reader.Close())
		}
		if s.writer != nil {
			s.closeErr = errors.Join(s.closeErr, s.writer.Close())
		}
		s.closeErr = errors.Join(s.closeErr, s.mark.close())
		if s.lock != nil { // the last: the next broker may begin
			s.closeErr = errors.Join(s.closeErr, s.lock.Close())
		}
		if s.closeErr != nil {
			s.closeErr = fmt.Errorf("store %s: close: %w", s.where, s.closeErr)
		}
	})
	return s.closeErr
}

func (s *Store) fault(op string, done bool) error {
	if s.onFault == nil {
		return nil
	}
	return s.onFault(op, done)
}

// wrap gives an error its place and, where the engine's code says what it is,
// its kind. A context's error stays one: both drivers return it.
func (s *Store) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	if advice, sentinel := s.engine.classify(err); sentinel != nil && !errors.Is(err, sentinel) {
		return fmt.Errorf("%w: %s in %s: %w; %s", sentinel, op, s.where, err, advice)
	}
	return fmt.Errorf("%s in %s: %w", op, s.where, err)
}
