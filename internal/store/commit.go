package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"gpubroker/queue"
)

// Commit writes the batch, or nothing of it: see [queue.Batch] for the rules
// and the package comment for what an error means.
func (s *Store) Commit(ctx context.Context, b *queue.Batch) error {
	return s.write(ctx, "commit", b.Epoch, func(tx *sql.Tx) (commits int64, err error) {
		if commits, err = s.fence(ctx, tx, b.Epoch); err != nil {
			return 0, err
		}
		for _, step := range []func() error{
			func() error { return put(ctx, s, tx, jobs, b.Jobs) },
			func() error { return put(ctx, s, tx, tasks, b.Tasks) },
			func() error { return put(ctx, s, tx, attempts, b.Attempts) },
			func() error { return put(ctx, s, tx, checkpoints, b.Checkpoints) },
			func() error { return put(ctx, s, tx, instances, b.Instances) },
			func() error { return put(ctx, s, tx, accounts, b.Accounts) },
			func() error { return put(ctx, s, tx, holds, b.Holds) },
			func() error { return put(ctx, s, tx, entries, b.Entries) },
			func() error { return put(ctx, s, tx, cooldowns, b.Cooldowns) },
			func() error { return put(ctx, s, tx, settings, b.Settings) },
			func() error { return put(ctx, s, tx, tokens, b.Tokens) },
			func() error { return put(ctx, s, tx, events, b.Events) },
		} {
			if err := step(); err != nil {
				return 0, err
			}
		}
		return commits, nil
	})
}

// fence locks the leader's row for this transaction and counts the commit in it,
// or returns [queue.ErrFenced].
func (s *Store) fence(ctx context.Context, tx *sql.Tx, epoch int64) (commits int64, err error) {
	err = tx.QueryRowContext(ctx, s.q.text("store.fence"), epoch).Scan(&commits)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, s.led(ctx, tx, fmt.Sprintf("the batch is of epoch %d", epoch))
	}
	return commits, err
}

// led is [queue.ErrFenced] with who leads.
func (s *Store) led(ctx context.Context, tx *sql.Tx, what string) error {
	var holder string
	var epoch, untilUS, commits int64
	err := tx.QueryRowContext(ctx, s.q.text("store.leader")).Scan(&holder, &epoch, &untilUS, &commits)
	switch {
	case err != nil:
		return err
	case epoch == 0:
		return fmt.Errorf("%w: %s, and nobody has taken the lead yet", queue.ErrFenced, what)
	}
	return fmt.Errorf("%w: %s, and %s leads in epoch %d until %s",
		queue.ErrFenced, what, holder, epoch, time.UnixMicro(untilUS).UTC().Format(time.RFC3339))
}

// put writes the rows of one kind: those of version 1 are inserted, the others
// updated where the stored version is the one before.
func put[T any](ctx context.Context, s *Store, tx *sql.Tx, k kind[T], rows []*T) error {
	if len(rows) == 0 {
		return nil
	}
	if err := k.distinct(rows); err != nil {
		return err
	}
	if k.version == nil {
		return k.exec(ctx, s, tx, k.put, rows)
	}
	fresh := slices.Clone(rows)
	changed := make([]*T, 0, len(rows))
	fresh = slices.DeleteFunc(fresh, func(row *T) bool {
		if k.version(row) == 1 {
			return false
		}
		changed = append(changed, row)
		return true
	})
	if err := k.exec(ctx, s, tx, k.table+".insert", fresh); err != nil {
		return err
	}
	return k.exec(ctx, s, tx, k.table+".update", changed)
}

// distinct refuses a row that is twice in a batch: which of the two would stand
// depends on the engine.
func (k kind[T]) distinct(rows []*T) error {
	seen := make(map[string]struct{}, len(rows))
	for _, row := range rows {
		id := k.id(row)
		if _, twice := seen[id]; twice {
			return fmt.Errorf("%s %s is twice in the batch; stage a row once", k.what, id)
		}
		seen[id] = struct{}{}
	}
	return nil
}

func (k kind[T]) exec(ctx context.Context, s *Store, tx *sql.Tx, query string, rows []*T) error {
	if len(rows) == 0 {
		return nil
	}
	set := rowset{buf: make([]byte, 0, 512*len(rows))}
	for _, row := range rows {
		set.begin()
		k.columns(&set, row)
		set.end()
		if set.err != nil {
			return fmt.Errorf("%s %s: %w", k.what, k.id(row), set.err)
		}
	}
	param := set.String()
	result, err := tx.ExecContext(ctx, s.q.text(query), param)
	if err != nil {
		return fmt.Errorf("%ss: %w", k.what, err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return err
	}
	if n == int64(len(rows)) {
		return nil
	}
	return &mismatch{what: k.what, query: k.table, param: param, id: func(i int) (string, int64) {
		if k.version == nil {
			return k.id(rows[i]), 0
		}
		return k.id(rows[i]), k.version(rows[i])
	}}
}

// mismatch says that a statement changed fewer rows than it was given. Which
// one was stale is asked after the transaction was rolled back, so that its own
// rows do not stand in the way.
type mismatch struct {
	what  string
	query string
	param string
	id    func(i int) (string, int64)
}

func (m *mismatch) Error() string { return "a " + m.what + " has changed" }
func (m *mismatch) Unwrap() error { return queue.ErrConflict }

func (s *Store) name(ctx context.Context, m *mismatch) error {
	if m.query == "" {
		return fmt.Errorf("%w: an %s with one of the batch's numbers exists", queue.ErrConflict, m.what)
	}
	var i int
	var have int64
	err := s.reader.QueryRowContext(ctx, s.q.text(m.query+".stale"), m.param).Scan(&i, &have)
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("%w: a %s", queue.ErrConflict, m.what) // another writer has put it right since
	}
	if err != nil {
		return fmt.Errorf("%w: a %s, and asking which failed: %w", queue.ErrConflict, m.what, err)
	}
	id, want := m.id(i)
	return fmt.Errorf("%w: %s %s is stored with version %d, the batch brings version %d",
		queue.ErrConflict, m.what, id, have, want)
}

// write runs one transaction. do returns the count of commits to note in the
// mark, 0 for none.
func (s *Store) write(ctx context.Context, op string, epoch int64, do func(*sql.Tx) (commits int64, err error)) error {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return s.wrap(op, ctx.Err())
	}
	defer func() { <-s.turn }()
	if err := s.fault(op, false); err != nil {
		return s.wrap(op, err)
	}
	commits, err := s.transact(ctx, epoch, do)
	if stale, ok := errors.AsType[*mismatch](err); ok {
		err = s.name(ctx, stale)
	}
	if err != nil {
		if over := ctx.Err(); over != nil && !errors.Is(err, over) {
			err = fmt.Errorf("%w: %w", over, err) // which the driver may call a bad connection
		}
		return s.wrap(op, err)
	}
	if err := s.mark.note(commits); err != nil {
		s.log.Error("the store's mark could not be written; an older backup put back later may go unnoticed",
			"file", s.mark.path, "error", err)
	}
	if err := s.fault(op, true); err != nil {
		return s.wrap(op, err)
	}
	return nil
}

func (s *Store) transact(ctx context.Context, epoch int64, do func(*sql.Tx) (int64, error)) (int64, error) {
	tx, err := s.writer.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback() // after a commit it does nothing
	commits, err := do(tx)
	if err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if err := tx.Commit(); err != nil {
		return commits, s.settle(ctx, epoch, commits, err)
	}
	return commits, nil
}

// settleTime is how long settle waits for the engine to come back.
const settleTime = 5 * time.Second

// settle finds out what became of a commit whose last step failed with cause.
// The leader's row holds the number of commits, this broker alone raises it in
// its epoch, and asking waits for the row's lock, so the answer is final. It
// returns nil if the rows were written after all.
func (s *Store) settle(ctx context.Context, epoch, commits int64, cause error) error {
	if epoch == 0 {
		return fmt.Errorf("%w: %w", queue.ErrUnknown, cause)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	var nowEpoch, nowCommits int64
	err := s.writer.QueryRowContext(ctx, s.q.text("store.committed")).Scan(&nowEpoch, &nowCommits)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w; asking failed too: %w", queue.ErrUnknown, cause, err)
	case nowEpoch != epoch:
		return fmt.Errorf("%w: %w: epoch %d has begun meanwhile: %w", queue.ErrUnknown, queue.ErrFenced, nowEpoch, cause)
	case nowCommits >= commits:
		return nil
	}
	return cause
}
