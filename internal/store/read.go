package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"gpubroker/internal/budget"
	"gpubroker/queue"
)

// querier is a pool or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// list reads rows by their documents.
func list[T any](ctx context.Context, s *Store, from querier, query string, args ...any) ([]*T, error) {
	rows, err := from.QueryContext(ctx, s.q.text(query), args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []*T
	var doc sql.RawBytes
	for rows.Next() {
		if err := rows.Scan(&doc); err != nil {
			return nil, err
		}
		row := new(T)
		if err := json.Unmarshal(doc, row); err != nil {
			return nil, fmt.Errorf("%w: %s: row %d is not what this version writes: %w", queue.ErrDamaged, query, len(all), err)
		}
		all = append(all, row)
	}
	return all, rows.Err()
}

func page[T any](ctx context.Context, s *Store, query string, args ...any) ([]*T, error) {
	all, err := list[T](ctx, s, s.reader, query, args...)
	if err != nil {
		return nil, s.wrap(query, err)
	}
	return all, nil
}

// one reads a single row, or returns [queue.ErrNotFound].
func one[T any](ctx context.Context, s *Store, what, query string, args ...any) (*T, error) {
	all, err := page[T](ctx, s, query, args...)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: %s", queue.ErrNotFound, what)
	}
	return all[0], nil
}

// view runs reads over one snapshot.
func (s *Store) view(ctx context.Context, op string, do func(*sql.Tx) error) error {
	tx, err := s.reader.BeginTx(ctx, &sql.TxOptions{ReadOnly: true, Isolation: sql.LevelRepeatableRead})
	if err != nil {
		return s.wrap(op, err)
	}
	defer tx.Rollback()
	return s.wrap(op, do(tx))
}

func limit(n int) int {
	if n <= 0 {
		return 100
	}
	return n
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// anchor returns the column that a list is ordered by for the row that the last
// page ended with; first is that of the first page.
func (s *Store) anchor(ctx context.Context, what, query, after string, first int64) (int64, error) {
	if after == "" {
		return first, nil
	}
	var at int64
	err := s.reader.QueryRowContext(ctx, s.q.text(query), after).Scan(&at)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, fmt.Errorf("%w: %s %s, which the page is to follow; begin with the first page", queue.ErrNotFound, what, after)
	}
	return at, s.wrap(query, err)
}

// Job returns a job.
func (s *Store) Job(ctx context.Context, id string) (*queue.Job, error) {
	return one[queue.Job](ctx, s, "job "+id, "jobs.get", id)
}

// Jobs returns a page of jobs.
func (s *Store) Jobs(ctx context.Context, q queue.JobQuery) ([]*queue.Job, error) {
	at, err := s.anchor(ctx, "job", "jobs.anchor", q.After, math.MaxInt64)
	if err != nil {
		return nil, err
	}
	switch {
	case q.Key != "":
		return page[queue.Job](ctx, s, "jobs.page_key", q.Key, at, q.After, flag(q.Open), micros(q.Since),
			q.Project, q.Queue, q.Name, limit(q.Limit))
	case q.Open:
		return page[queue.Job](ctx, s, "jobs.page_open", at, q.After, q.Project, q.Queue, q.Name, limit(q.Limit))
	}
	return page[queue.Job](ctx, s, "jobs.page", at, q.After, micros(q.Since), q.Project, q.Queue, q.Name, limit(q.Limit))
}

// Task returns a task that has a row.
func (s *Store) Task(ctx context.Context, id queue.TaskID) (*queue.Task, error) {
	return one[queue.Task](ctx, s, "task "+id.String(), "tasks.get", id.Job, id.Index)
}

// Tasks returns a page of a job's tasks.
func (s *Store) Tasks(ctx context.Context, q queue.TaskQuery) ([]*queue.Task, error) {
	after := int64(-1)
	if q.After != "" {
		n, err := strconv.ParseInt(q.After, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("store: tasks of job %s after %q: that is no index: %w", q.Job, q.After, err)
		}
		after = n
	}
	return page[queue.Task](ctx, s, "tasks.page", q.Job, after, string(q.State), limit(q.Limit))
}

// Attempt returns an attempt.
func (s *Store) Attempt(ctx context.Context, id string) (*queue.Attempt, error) {
	return one[queue.Attempt](ctx, s, "attempt "+id, "attempts.get", id)
}

// Attempts returns a page of attempts. An index counts only with its job.
func (s *Store) Attempts(ctx context.Context, q queue.AttemptQuery) ([]*queue.Attempt, error) {
	at, err := s.anchor(ctx, "attempt", "attempts.anchor", q.After, math.MinInt64)
	if err != nil {
		return nil, err
	}
	since := micros(q.Since)
	switch {
	case q.Job != "":
		low, high := int64(0), int64(math.MaxInt64)
		if q.Index != nil {
			low, high = int64(*q.Index), int64(*q.Index)
		}
		return page[queue.Attempt](ctx, s, "attempts.page_job", q.Job, low, high, at, q.After, since, q.Instance, limit(q.Limit))
	case q.Instance != "":
		return page[queue.Attempt](ctx, s, "attempts.page_instance", q.Instance, at, q.After, since, limit(q.Limit))
	}
	return page[queue.Attempt](ctx, s, "attempts.page", at, q.After, since, limit(q.Limit))
}

// Checkpoints returns a task's checkpoints by number.
func (s *Store) Checkpoints(ctx context.Context, id queue.TaskID) ([]*queue.Checkpoint, error) {
	return page[queue.Checkpoint](ctx, s, "checkpoints.of_task", id.Job, id.Index)
}

// Instance returns an instance.
func (s *Store) Instance(ctx context.Context, id string) (*queue.Instance, error) {
	return one[queue.Instance](ctx, s, "instance "+id, "instances.get", id)
}

// Instances returns a page of instances.
func (s *Store) Instances(ctx context.Context, q queue.InstanceQuery) ([]*queue.Instance, error) {
	at, err := s.anchor(ctx, "instance", "instances.anchor", q.After, math.MaxInt64)
	if err != nil {
		return nil, err
	}
	return page[queue.Instance](ctx, s, "instances.page", at, q.After, flag(q.Open), micros(q.Since), q.Project, q.Provider, limit(q.Limit))
}

// Accounts returns the periods of a budget, the oldest first.
func (s *Store) Accounts(ctx context.Context, name string) ([]*budget.Account, error) {
	return page[budget.Account](ctx, s, "accounts.of_budget", name)
}

// Holds returns what an instance has reserved, settled or not.
func (s *Store) Holds(ctx context.Context, instance string) ([]*budget.Hold, error) {
	return page[budget.Hold](ctx, s, "holds.of_instance", instance)
}

// Entries returns a page of the ledger.
func (s *Store) Entries(ctx context.Context, q queue.EntryQuery) ([]*budget.Entry, error) {
	from, to := micros(q.Since), until(q.Until)
	switch {
	case q.Job != "":
		return page[budget.Entry](ctx, s, "entries.page_job", q.Job, q.After, from, to, q.Budget, q.Project, q.Instance, limit(q.Limit))
	case q.Instance != "":
		return page[budget.Entry](ctx, s, "entries.page_instance", q.Instance, q.After, from, to, q.Budget, q.Project, limit(q.Limit))
	}
	return page[budget.Entry](ctx, s, "entries.page", q.After, from, to, q.Budget, q.Project, limit(q.Limit))
}

// Events returns a page of events, in ascending order also with Last.
func (s *Store) Events(ctx context.Context, q queue.EventQuery) ([]*queue.Event, error) {
	query, args := "events.page", []any{q.After, q.Project, limit(q.Limit)}
	if q.Job != "" {
		query, args = "events.page_job", []any{q.Job, q.After, q.Project, limit(q.Limit)}
	}
	if !q.Last {
		return page[queue.Event](ctx, s, query, args...)
	}
	all, err := page[queue.Event](ctx, s, query+"_last", args...)
	slices.Reverse(all)
	return all, err
}
