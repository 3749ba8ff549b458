package queuetest

import (
	"fmt"
	"testing"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/queue"
)

func testPrune(t *testing.T, e Engine) {
	// ended makes a job with three tasks that ended at a moment.
	ended := func(b *queue.Batch, id string, when time.Time) {
		j := job(id, 3)
		j.Next, j.Counts.Succeeded, j.Ended = 3, 3, when
		b.Jobs = append(b.Jobs, j)
		for i := range 3 {
			task, a := running(id, i, ""), attempt(fmt.Sprint("a-", id, i), id, i, 1)
			task.State, task.Ended = queue.TaskSucceeded, when
			a.State, a.Ended = queue.AttemptEnded, when
			b.Tasks, b.Attempts = append(b.Tasks, task), append(b.Attempts, a)
			b.Checkpoints = append(b.Checkpoints, &queue.Checkpoint{TaskID: task.TaskID, Number: 1, Version: 1})
		}
	}
	// rows are how many the store holds of everything that can go.
	rows := func(s queue.Store, id string) int {
		t.Helper()
		ctx := t.Context()
		n := len(must(s.Jobs(ctx, queue.JobQuery{Name: "name-" + id}))(t)) +
			len(must(s.Tasks(ctx, queue.TaskQuery{Job: id}))(t)) +
			len(must(s.Attempts(ctx, queue.AttemptQuery{Job: id}))(t))
		for i := range 3 {
			n += len(must(s.Checkpoints(ctx, queue.TaskID{Job: id, Index: i}))(t))
		}
		if _, err := s.Inputs(ctx, id, 0); err == nil {
			n++
		}
		return n
	}
	const perJob = 1 + 3 + 3 + 3 + 1

	s, epoch := opened(t, e)
	b := &queue.Batch{Epoch: epoch}
	ended(b, "old", at(10))
	ended(b, "young", at(1000))
	ended(b, "draining", at(10)) // one of its attempts is not over
	b.Attempts[len(b.Attempts)-1].State = queue.AttemptDraining
	live := job("live", 3)
	b.Jobs = append(b.Jobs, live)
	b.Events = []*queue.Event{event(1, "old"), event(2, ""), event(500, "")}
	b.Entries = []*budget.Entry{{Seq: 1, At: at(1), Key: budget.Key{Budget: "all"}, Job: "old"}}
	b.Cooldowns = []*queue.Cooldown{{Key: "past", Until: at(99)}, {Key: "now", Until: at(100)}}
	for _, i := range []*queue.Instance{
		{ID: "settled", State: queue.InstanceGone, Ended: at(20), Settled: at(30)},
		{ID: "unsettled", State: queue.InstanceGone, Ended: at(20)},
		{ID: "recent", State: queue.InstanceGone, Ended: at(200), Settled: at(300)},
		{ID: "held", State: queue.InstanceGone, Ended: at(20), Settled: at(30)},
		{ID: "ready", State: queue.InstanceReady},
	} {
		i.Version = 1
		b.Instances = append(b.Instances, i)
		b.Holds = append(b.Holds, &budget.Hold{Instance: i.ID, Key: budget.Key{Budget: "all"}, Version: 1, Settled: i.ID != "held" && !i.Settled.IsZero()})
	}
	commit(t, s, b)
	for _, id := range []string{"old", "young", "draining", "live"} {
		if err := s.PutInputs(t.Context(), []*queue.Inputs{{Job: id, Values: []string{"x"}}}); err != nil {
			t.Fatal(err)
		}
	}

	// In steps of three: never more, and nothing but what is old goes.
	want := 2 + 1 + perJob + 2 // events, cool-down, the job, the machine and its hold
	total := 0
	for {
		n := must(s.Prune(t.Context(), at(100), 3))(t)
		if n > 3 {
			t.Fatalf("removed %d rows, asked for at most 3", n)
		}
		total += n
		if left := rows(s, "old"); n == 3 && left > 0 && left < perJob {
			if _, err := s.Job(t.Context(), "old"); err != nil {
				t.Fatalf("the job went before the %d rows that are its own: %v", left, err)
			}
		}
		if n < 3 {
			break
		}
	}
	if total != want {
		t.Errorf("removed %d rows, want %d", total, want)
	}
	for id, want := range map[string]int{"old": 0, "young": perJob, "draining": perJob, "live": 2} {
		if n := rows(s, id); n != want {
			t.Errorf("job %s has %d rows left, want %d", id, n, want)
		}
	}
	got := ids(must(s.Instances(t.Context(), queue.InstanceQuery{}))(t), func(i *queue.Instance) string { return i.ID })
	same(t, "instances left", got, []string{"unsettled", "recent", "ready", "held"})
	same(t, "holds of the settled one", must(s.Holds(t.Context(), "settled"))(t), []*budget.Hold(nil))
	if n := len(must(s.Holds(t.Context(), "held"))(t)); n != 1 {
		t.Errorf("%d holds of the instance that is still held, want 1", n)
	}
	same(t, "ledger", must(s.Entries(t.Context(), queue.EntryQuery{}))(t), b.Entries)
	same(t, "events", must(s.Events(t.Context(), queue.EventQuery{}))(t), b.Events[2:])
	same(t, "cool-downs", load(t, s).Cooldowns, b.Cooldowns[1:])

	// The last event stays however old, so that its number is not used again.
	must(s.Prune(t.Context(), at(501), 1000))(t)
	must(s.Prune(t.Context(), at(9999), 1000))(t)
	if seq := load(t, s).EventSeq; seq != 500 {
		t.Errorf("event numbers continue from %d, want 500", seq)
	}

	// Inputs of a job that never came go once they are old.
	if err := s.PutInputs(t.Context(), []*queue.Inputs{{Job: "never", Values: []string{"x"}}}); err != nil {
		t.Fatal(err)
	}
	must(s.Prune(t.Context(), time.Now().Add(-time.Hour), 1000))(t)
	if rows(s, "never") != 1 {
		t.Error("inputs put a moment ago are gone")
	}
	must(s.Prune(t.Context(), time.Now().Add(time.Hour), 1000))(t)
	if rows(s, "never") != 0 {
		t.Error("inputs of a job that never came are still there")
	}
	if rows(s, "live") != 2 {
		t.Error("inputs of a live job are gone")
	}
}
