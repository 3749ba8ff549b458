// Package queuetest is the conformance suite of [queue.Store]: what the broker
// relies on, engine by engine.
package queuetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"gpubroker/internal/budget"
	"gpubroker/queue"
)

// Engine is what the suite is run against.
type Engine struct {
	// New makes an empty place for a store and returns how it is opened, which
	// the suite does again after closing it.
	New func(t *testing.T) Open
	// Replicas means that several may have the place open at once; if not, the
	// second is refused with [queue.ErrLocked].
	Replicas bool
	// Runs limits the random runs of an engine that is slow to open; 0 means as
	// many as rapid makes.
	Runs int
}

// Open opens a store in its place.
type Open func(ctx context.Context) (queue.Store, error)

// Run runs the suite.
func Run(t *testing.T, e Engine) {
	for _, area := range []struct {
		name string
		run  func(*testing.T, Engine)
	}{
		{"Batch", testBatch},
		{"Lead", testLead},
		{"Load", testLoad},
		{"Lists", testLists},
		{"Inputs", testInputs},
		{"Prune", testPrune},
		{"Place", testPlace},
		{"Concurrency", testConcurrency},
		{"Model", testModel},
	} {
		t.Run(area.name, func(t *testing.T) { area.run(t, e) })
	}
}

// epoch0 is when the tests' rows happen; the suite never waits.
var epoch0 = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return epoch0.Add(time.Duration(seconds) * time.Second) }

func (o Open) open(t testing.TB) queue.Store {
	t.Helper()
	s, err := o(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// opened opens a new place and leads it.
func opened(t *testing.T, e Engine) (s queue.Store, epoch int64) {
	t.Helper()
	s = e.New(t).open(t)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, lead(t, s, "first")
}

func lead(t testing.TB, s queue.Store, holder string) int64 {
	t.Helper()
	epoch, err := s.Lead(t.Context(), holder, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return epoch
}

func commit(t testing.TB, s queue.Store, b *queue.Batch) {
	t.Helper()
	if err := s.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

func load(t testing.TB, s queue.Store) *queue.Image {
	t.Helper()
	im, err := s.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// must returns a list, and fails the test on an error.
func must[T any](rows T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
}

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error is %v, want %v", err, want)
	}
}

// fataler is a test, or one run of a property.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// same compares rows: those of an image have no order.
func same(t fataler, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Fatalf("%s (-want +got):\n%s", what, diff)
	}
}

var options = cmp.Options{
	cmpopts.EquateEmpty(),
	cmpopts.SortSlices(func(a, b *queue.Attempt) bool { return a.ID < b.ID }),
	cmpopts.SortSlices(func(a, b *queue.Checkpoint) bool {
		return fmt.Sprintf("%s %06d", a.TaskID, a.Number) < fmt.Sprintf("%s %06d", b.TaskID, b.Number)
	}),
	cmpopts.SortSlices(func(a, b *queue.Instance) bool { return a.ID < b.ID }),
	cmpopts.SortSlices(func(a, b *budget.Hold) bool { return a.Instance+a.Key.String() < b.Instance+b.Key.String() }),
}

func ids[T any](rows []*T, id func(*T) string) []string {
	var all []string
	for _, r := range rows {
		all = append(all, id(r))
	}
	return all
}

func job(id string, count int) *queue.Job {
	return &queue.Job{
		ID: id, Version: 1, Name: "name-" + id, Project: "media", Queue: "overnight", Digest: "d" + id,
		Spec: json.RawMessage(`{"command":["ffmpeg","-i","a<b>&c","é\u2028"],"n":1.50}`), Count: count, Accepted: at(0),
	}
}

func running(job string, index int, attempt string) *queue.Task {
	return &queue.Task{TaskID: queue.TaskID{Job: job, Index: index}, Version: 1, State: queue.TaskRunning, Attempt: attempt, Attempts: 1}
}

func attempt(id, job string, index, number int) *queue.Attempt {
	return &queue.Attempt{
		ID: id, TaskID: queue.TaskID{Job: job, Index: index}, Version: 1, Token: "t" + id, Number: number,
		Instance: "i1", State: queue.AttemptAssigned, Created: at(number),
	}
}

func event(seq int64, job string) *queue.Event {
	return &queue.Event{Seq: seq, At: at(int(seq)), Kind: "task.running", Project: "media", Job: job}
}

// next is a copy of a row with the version after it.
func next[T any](row *T, change func(*T)) *T {
	c := *row
	change(&c)
	return &c
}
