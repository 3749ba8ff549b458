package queuetest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/money"
	"gpubroker/internal/reason"
	"gpubroker/queue"
)

// full is a batch with a row of every kind and every field that is stored in an
// unusual form.
func full(epoch int64) *queue.Batch {
	code := 3
	j := job("job1", 3)
	j.Key, j.User, j.Next = "key-1", "ann", 2
	j.Held = reason.New("held", "by", "ann")
	task := running("job1", 0, "a1")
	task.Progress, task.Seconds, task.ExitCode = 0.1+0.2, 1e-9, &code
	a := attempt("a1", "job1", 0, 1)
	a.Stop = &queue.Stop{Why: reason.New("moved"), Outcome: queue.Moved, By: at(9).Add(123456789), Checkpoint: true}
	a.Busy = 1234567891
	a.Usage = &queue.Usage{Samples: 3, Span: 15e9, CPU: &queue.Figure{N: 3, Mean: 1.234, P95: 2.5, Max: 9.771e9}, Waiting: &queue.Waiting{Share: 0.61}}
	key := budget.Key{Budget: "media", Start: at(0)}
	return &queue.Batch{
		Epoch: epoch,
		Jobs:  []*queue.Job{j}, Tasks: []*queue.Task{task}, Attempts: []*queue.Attempt{a},
		Checkpoints: []*queue.Checkpoint{{TaskID: task.TaskID, Number: 7, Version: 1, Attempt: "a1", Digest: "x", Bytes: 6 << 30, At: at(2)}},
		Instances: []*queue.Instance{{
			ID: "i1", Version: 1, State: queue.InstanceReady, Project: "media", Provider: "sim", Type: "g4", Kind: "spot",
			GPUs: 0.125, Slots: 2, Price: 1, Bound: money.Rate(money.MaxAmount), Requested: at(1), Lease: at(1200),
		}},
		Accounts: []*budget.Account{
			{Key: key, Version: 1, End: at(86400), Reserved: 1, Cost: money.MaxAmount - 1},
			{Key: budget.Key{Budget: budget.Ledger}, Version: 1, Reserved: -5},
		},
		Holds:     []*budget.Hold{{Instance: "i1", Key: key, Version: 1, Reserved: 1}},
		Entries:   []*budget.Entry{{Seq: 1, At: at(1), Key: key, Kind: budget.Reserved, Instance: "i1", Project: "media", Amount: 1}},
		Cooldowns: []*queue.Cooldown{{Key: "offer:sim/a", Until: at(60), Last: at(0), Count: 2, Reason: reason.New("no_capacity")}},
		Settings:  []*queue.Setting{{Key: "hazard", Value: []byte(`{"λ":0.25}`)}},
		Tokens:    []*queue.Token{{ID: "t1", Name: "laptop", Hash: "h", Role: "admin", Created: at(0)}},
		Events:    []*queue.Event{event(1, "job1")},
	}
}

// versioned gives every row of a full batch another version.
func versioned(b *queue.Batch, version int64) *queue.Batch {
	b.Jobs[0].Version, b.Tasks[0].Version, b.Attempts[0].Version, b.Checkpoints[0].Version = version, version, version, version
	b.Instances[0].Version, b.Accounts[0].Version, b.Accounts[1].Version, b.Holds[0].Version = version, version, version, version
	b.Entries[0].Seq, b.Events[0].Seq = version, version
	return b
}

func testBatch(t *testing.T, e Engine) {
	t.Run("every kind comes back as it was", func(t *testing.T) {
		place := e.New(t)
		s := place.open(t)
		b := full(lead(t, s, "first"))
		commit(t, s, b)
		want := &queue.Image{
			Jobs: b.Jobs, Tasks: b.Tasks, Attempts: b.Attempts, Checkpoints: b.Checkpoints, Instances: b.Instances,
			Accounts: []*budget.Account{b.Accounts[1], b.Accounts[0]}, Holds: b.Holds, Cooldowns: b.Cooldowns,
			Settings: b.Settings, Tokens: b.Tokens, EventSeq: 1, EntrySeq: 1,
		}
		same(t, "image", load(t, s), want)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = place.open(t)
		defer s.Close()
		same(t, "image after opening again", load(t, s), want)
		same(t, "events", must(s.Events(t.Context(), queue.EventQuery{}))(t), b.Events)
		same(t, "entries", must(s.Entries(t.Context(), queue.EntryQuery{}))(t), b.Entries)
	})

	t.Run("a stale row refuses the whole batch and is named", func(t *testing.T) {
		for want, version := range map[string]func(b *queue.Batch) *int64{
			"job job1":             func(b *queue.Batch) *int64 { return &b.Jobs[0].Version },
			"task job1/0":          func(b *queue.Batch) *int64 { return &b.Tasks[0].Version },
			"attempt a1":           func(b *queue.Batch) *int64 { return &b.Attempts[0].Version },
			"checkpoint job1/0/7":  func(b *queue.Batch) *int64 { return &b.Checkpoints[0].Version },
			"instance i1":          func(b *queue.Batch) *int64 { return &b.Instances[0].Version },
			"account media@2026":   func(b *queue.Batch) *int64 { return &b.Accounts[0].Version },
			"account all":          func(b *queue.Batch) *int64 { return &b.Accounts[1].Version },
			"hold i1 on media@202": func(b *queue.Batch) *int64 { return &b.Holds[0].Version },
			"entry":                func(b *queue.Batch) *int64 { return &b.Entries[0].Seq },
			"event":                func(b *queue.Batch) *int64 { return &b.Events[0].Seq },
		} {
			t.Run(want, func(t *testing.T) {
				s, epoch := opened(t, e)
				commit(t, s, full(epoch))
				commit(t, s, versioned(full(epoch), 2))
				before := load(t, s)
				for _, stale := range []int64{1, 2, 4} {
					if stale == 4 && (want == "entry" || want == "event") {
						continue // numbers may be left out
					}
					b := versioned(full(epoch), 3) // everything one version on, with something new beside it
					b.Tasks = append([]*queue.Task{running("job1", 1, "a2")}, b.Tasks...)
					b.Tasks[0], b.Tasks[1] = b.Tasks[1], b.Tasks[0]
					b.Tokens[0].Name, b.Settings[0].Value, b.Cooldowns[0].Count = "changed", []byte(`1`), 9
					*version(b) = stale
					err := s.Commit(t.Context(), b)
					wantErr(t, err, queue.ErrConflict)
					if !strings.Contains(err.Error(), want) {
						t.Errorf("error %q does not name %s", err, want)
					}
					same(t, "image", load(t, s), before)
				}
				b := versioned(full(epoch), 2) // a row that never was
				b.Jobs[0].ID, b.Jobs[0].Version = "job9", 3
				wantErr(t, s.Commit(t.Context(), b), queue.ErrConflict)
				commit(t, s, versioned(full(epoch), 3))
			})
		}
	})

	t.Run("a row that cannot be written refuses the whole batch", func(t *testing.T) {
		for name, break_ := range map[string]func(b *queue.Batch){
			"not JSON":  func(b *queue.Batch) { b.Settings[0].Value = []byte(`{`) },
			"NUL":       func(b *queue.Batch) { b.Events[0].Project = "a\x00b" },
			"not UTF-8": func(b *queue.Batch) { b.Tokens[0].ID = "a\xff" },
			"twice":     func(b *queue.Batch) { b.Jobs = append(b.Jobs, b.Jobs[0]) },
		} {
			t.Run(name, func(t *testing.T) {
				s, epoch := opened(t, e)
				b := full(epoch)
				break_(b)
				if err := s.Commit(t.Context(), b); err == nil {
					t.Fatal("no error")
				}
				same(t, "image", load(t, s), new(queue.Image))
				commit(t, s, full(epoch)) // and the store goes on
			})
		}
	})

	t.Run("a cancelled context writes nothing", func(t *testing.T) {
		s, epoch := opened(t, e)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		wantErr(t, s.Commit(ctx, full(epoch)), context.Canceled)
		_, err := s.Load(ctx)
		wantErr(t, err, context.Canceled)
		same(t, "image", load(t, s), new(queue.Image))

		// At any moment: all of it or nothing, and the error says which.
		b := &queue.Batch{Epoch: epoch}
		for i := range 300 {
			b.Settings = append(b.Settings, &queue.Setting{Key: fmt.Sprint("s", i), Value: []byte(`1`)})
		}
		for i := range 20 {
			for n, setting := range b.Settings {
				setting.Value = []byte(fmt.Sprint(i*1000 + n))
			}
			before := load(t, s)
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*200*time.Microsecond)
			err := s.Commit(ctx, b)
			cancel()
			after := load(t, s)
			if err == nil {
				before.Settings = after.Settings
				if string(after.Settings[0].Value) != fmt.Sprint(i*1000) {
					t.Fatal("no error, and nothing was written")
				}
			} else {
				wantErr(t, err, context.DeadlineExceeded)
			}
			same(t, "image", after, before)
		}
	})

	t.Run("five thousand tasks are cancelled in one batch", func(t *testing.T) {
		const n = 5000
		s, epoch := opened(t, e)
		j := job("big", n)
		first := &queue.Batch{Epoch: epoch, Jobs: []*queue.Job{j}}
		second := &queue.Batch{Epoch: epoch, Jobs: []*queue.Job{next(j, func(j *queue.Job) {
			j.Version, j.Next, j.Counts.Cancelled, j.Ended = 2, n, n, at(10)
		})}}
		for i := range n {
			task, a := running("big", i, fmt.Sprint("a", i)), attempt(fmt.Sprint("a", i), "big", i, 1)
			first.Tasks, first.Attempts = append(first.Tasks, task), append(first.Attempts, a)
			second.Tasks = append(second.Tasks, next(task, func(t *queue.Task) { t.Version, t.State = 2, queue.TaskCancelled }))
			second.Attempts = append(second.Attempts, next(a, func(a *queue.Attempt) {
				a.Version, a.State, a.Ended = 2, queue.AttemptEnded, at(10)
			}))
			second.Events = append(second.Events, event(int64(i+1), "big"))
		}
		commit(t, s, first)
		if im := load(t, s); len(im.Tasks) != n || len(im.Attempts) != n {
			t.Fatalf("%d tasks and %d attempts live, want %d of each", len(im.Tasks), len(im.Attempts), n)
		}
		commit(t, s, second)
		same(t, "image", load(t, s), &queue.Image{EventSeq: n})
		all := must(s.Tasks(t.Context(), queue.TaskQuery{Job: "big", State: queue.TaskCancelled, Page: queue.Page{Limit: 2 * n}}))(t)
		same(t, "tasks", all, second.Tasks)
	})
}
