package invariant

import (
	"strings"
	"testing"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/money"
	"gpubroker/internal/reason"
	"gpubroker/queue"
)

// story is a small run that breaks no promise; tests change one thing of it.
func story() []*queue.Batch {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	id := queue.TaskID{Job: "j", Index: 0}
	ledger := budget.Key{Budget: budget.Ledger}
	spec := []byte(`{"name":"one","project":"media","run":{"command":["x"]},"checkpoint":{"dir":"c"},"resources":{"gpu":["none"]}}`)
	job := func(v int64, state queue.TaskState, next int) *queue.Job {
		j := &queue.Job{ID: "j", Version: v, Project: "media", Spec: spec, Count: 1, Next: next}
		if state != "" {
			*j.Counts.Of(state) = 1
		}
		if j.Done() {
			j.Ended = now
		}
		return j
	}
	instance := func(v int64, s queue.InstanceState) *queue.Instance {
		return &queue.Instance{ID: "i", Version: v, State: s, Project: "media", Kind: "spot", Slots: 1, Lease: now.Add(time.Hour), Gone: reason.New("idle")}
	}
	attempt := func(v int64, s queue.AttemptState) *queue.Attempt {
		return &queue.Attempt{ID: "a", TaskID: id, Version: v, Token: "t", Number: 1, Instance: "i", State: s}
	}
	over := attempt(3, queue.AttemptEnded)
	over.Outcome, over.Reason, over.Busy, over.Kept = queue.Succeeded, reason.New("succeeded"), time.Minute, time.Minute
	settled := instance(3, queue.InstanceGone)
	settled.Settled = now
	return []*queue.Batch{
		{Jobs: []*queue.Job{job(1, "", 0)}, Events: []*queue.Event{{Seq: 1, Kind: "job.accepted"}}},
		{
			Jobs: []*queue.Job{job(2, queue.TaskRunning, 1)}, Instances: []*queue.Instance{instance(1, queue.InstanceRequested)},
			Tasks:    []*queue.Task{{TaskID: id, Version: 1, State: queue.TaskRunning, Attempt: "a", Attempts: 1}},
			Attempts: []*queue.Attempt{attempt(1, queue.AttemptAssigned)},
			Entries:  []*budget.Entry{{Seq: 1, Key: ledger, Kind: budget.Reserved, Amount: 100, Instance: "i"}},
			Holds:    []*budget.Hold{{Instance: "i", Key: ledger, Version: 1, Reserved: 100}},
			Accounts: []*budget.Account{{Key: ledger, Version: 1, Reserved: 100}},
		},
		{
			Attempts: []*queue.Attempt{attempt(2, queue.AttemptStarting)}, Instances: []*queue.Instance{instance(2, queue.InstanceReady)},
			Tasks:       []*queue.Task{{TaskID: id, Version: 2, State: queue.TaskRunning, Attempt: "a", Attempts: 1, Saves: 1, Committed: 1}},
			Checkpoints: []*queue.Checkpoint{{TaskID: id, Number: 1, Version: 1, Attempt: "a", Digest: "d"}},
		},
		{
			Attempts: []*queue.Attempt{over}, Jobs: []*queue.Job{job(3, queue.TaskSucceeded, 1)},
			Tasks: []*queue.Task{{TaskID: id, Version: 3, State: queue.TaskSucceeded, Attempt: "a", Attempts: 1, Saves: 1, Committed: 1, Ended: now}},
		},
		{
			Instances: []*queue.Instance{settled},
			Entries: []*budget.Entry{
				{Seq: 2, Key: ledger, Kind: budget.Settled, Amount: 60, Instance: "i"}, {Seq: 3, Key: ledger, Kind: budget.Released, Amount: -40, Instance: "i"},
			},
			Holds:    []*budget.Hold{{Instance: "i", Key: ledger, Version: 2, Accrued: 60, Settled: true}},
			Accounts: []*budget.Account{{Key: ledger, Version: 2, Cost: 60}},
		},
	}
}

func tell(c *Checker, all []*queue.Batch) error {
	for _, b := range all {
		if err := c.Commit(b); err != nil {
			return err
		}
	}
	return c.Settled(60)
}

func TestAGoodStory(t *testing.T) {
	if err := tell(New(nil), story()); err != nil {
		t.Error(err)
	}
}

// Each lie breaks the promise that it is meant to break.
func TestEveryPromiseCanBeBroken(t *testing.T) {
	for what, row := range map[string]struct {
		promise string
		lie     func(all []*queue.Batch)
	}{
		"a version is left out": {rows, func(all []*queue.Batch) { all[2].Tasks[0].Version = 3 }},
		"a move that is not there": {rows, func(all []*queue.Batch) {
			all[2].Instances[0].State = queue.InstanceRequested
			all[2].Attempts[0].State = ""
		}},
		"counts are wrong":          {rows, func(all []*queue.Batch) { all[1].Jobs[0].Counts = queue.Counts{Queued: 1} }},
		"an end without a cause":    {rows, func(all []*queue.Batch) { all[3].Attempts[0].Reason = reason.Reason{} }},
		"two results":               {oneResult, func(all []*queue.Batch) { all[3].Attempts[0].Outcome = queue.Failed; all[3].Attempts[0].Kept = 0 }},
		"a save of a stranger":      {oneResult, func(all []*queue.Batch) { all[2].Checkpoints[0].Attempt = "other" }},
		"progress falls in silence": {noLostWork, func(all []*queue.Batch) { all[3].Tasks[0].Committed = 0 }},
		"resuming from what is not": {noLostWork, func(all []*queue.Batch) { all[2].Checkpoints = nil }},
		"success without all kept":  {noLostWork, func(all []*queue.Batch) { all[3].Attempts[0].Kept = 0 }},
		"a failure that was none":   {notAFailure, func(all []*queue.Batch) { all[3].Tasks[0].Failures = 1 }},
		"a lease made shorter":      {noBrokenCap, func(all []*queue.Batch) { all[2].Instances[0].Lease = time.Time{} }},
		"a hold released early":     {noBrokenCap, func(all []*queue.Batch) { all[4].Instances[0].State = queue.InstanceDraining }},
		"a cap passed": {noBrokenCap, func(all []*queue.Batch) {
			all[1].Accounts[0].Reserved, all[1].Entries[0].Amount, all[1].Holds[0].Reserved = 1000, 1000, 1000
		}},
		"an overrun":                   {noBrokenCap, func(all []*queue.Batch) { all[4].Entries[0].Kind = budget.Overspent }},
		"entries that do not sum up":   {ledger, func(all []*queue.Batch) { all[4].Accounts[0].Cost = 61 }},
		"an entry without its account": {ledger, func(all []*queue.Batch) { all[4].Accounts = nil }},
		"a bill that is not booked": {ledger, func(all []*queue.Batch) {
			all[4].Entries[0].Amount, all[4].Entries[1].Amount, all[4].Accounts[0].Cost = 50, -50, 50
		}},
		"a machine that is never closed": {noLeak, func(all []*queue.Batch) { all[4].Instances[0].Settled = time.Time{} }},
		"another project's machine":      {places, func(all []*queue.Batch) { all[1].Instances[0].Project = "lab" }},
		"a slot that is not there":       {places, func(all []*queue.Batch) { all[1].Attempts[0].Slot = 1 }},
		"spot for what cannot be interrupted": {places, func(all []*queue.Batch) {
			for _, b := range all {
				for _, j := range b.Jobs {
					j.Spec = []byte(`{"name":"one","project":"media","run":{"command":["x"]},"spot":{"policy":"never"},"max_duration":"1h","resources":{"gpu":["none"]}}`)
				}
			}
		}},
	} {
		all := story()
		row.lie(all)
		err := tell(New([]budget.Budget{{Name: budget.Ledger, Scope: budget.Org, Capped: true, Cap: 500}}), all)
		if err == nil || !strings.Contains(err.Error(), row.promise) {
			t.Errorf("%s: %v, want %q", what, err, row.promise)
		}
	}
}

func TestTheWorld(t *testing.T) {
	now := time.Now()
	at := func(n int, machines ...Machine) error {
		c := New(nil)
		for _, b := range story()[:n] {
			if err := c.Commit(b); err != nil {
				t.Fatal(err)
			}
		}
		return c.World(now, time.Minute, func(yield func(Machine) bool) {
			for _, m := range machines {
				if !yield(m) {
					return
				}
			}
		})
	}
	live := func(request string, cost money.Amount, age time.Duration) Machine {
		return Machine{ID: "m", Request: request, Live: true, Launched: now.Add(-age), Cost: cost}
	}
	for what, row := range map[string]struct {
		err     error
		promise string
	}{
		"all is well":               {at(3, live("i", 100, time.Hour)), ""},
		"a machine without record":  {at(3, live("x", 0, time.Hour)), noLeak},
		"a record closed too early": {at(5, live("i", 60, time.Hour)), noLeak},
		"one that is very young":    {at(5, live("i", 60, time.Second)), ""},
		"dearer than reserved":      {at(3, live("i", 101, time.Hour)), noBrokenCap},
	} {
		if (row.err == nil) != (row.promise == "") || row.err != nil && !strings.Contains(row.err.Error(), row.promise) {
			t.Errorf("%s: %v, want %q", what, row.err, row.promise)
		}
	}
}
