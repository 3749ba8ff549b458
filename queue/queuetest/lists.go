package queuetest

import (
	"fmt"
	"slices"
	"testing"

	"gpubroker/internal/budget"
	"gpubroker/queue"
)

// testLists asks every query over one set of rows; the model asks them again
// over random ones.
func testLists(t *testing.T, e Engine) {
	s, epoch := opened(t, e)
	ctx := t.Context()
	b := &queue.Batch{Epoch: epoch}

	// Ten jobs, two accepted at each second; the even ones ended at 100+i.
	for i := range 10 {
		j := job(fmt.Sprint("j", i), 1)
		j.Accepted, j.Project, j.Name = at(i/2), fmt.Sprint("p", i%3), fmt.Sprint("n", i%5)
		if i%2 == 0 {
			j.Next, j.Counts.Succeeded, j.Ended = 1, 1, at(100+i)
		}
		if i >= 8 {
			j.Key = "key"
		}
		b.Jobs = append(b.Jobs, j)
		b.Events = append(b.Events, event(int64(i+1), j.ID), event(int64(i+11), ""))
		b.Entries = append(b.Entries, &budget.Entry{
			Seq: int64(i + 1), At: at(i), Key: budget.Key{Budget: fmt.Sprint("b", i%2)}, Kind: budget.Accrued,
			Project: j.Project, Job: j.ID, Instance: fmt.Sprint("i", i%4), Amount: 1,
		})
	}
	for i := range 6 {
		task, a := running("j1", i, fmt.Sprint("a", i)), attempt(fmt.Sprint("a", i), "j1", i/2, i%2+1)
		a.Created, a.Instance = at(10-i/2), fmt.Sprint("i", i%3)
		if i%2 == 0 {
			task.State = queue.TaskFailed
			a.State, a.Ended = queue.AttemptEnded, at(20+i)
		}
		inst := &queue.Instance{ID: fmt.Sprint("i", i), Version: 1, State: queue.InstanceReady, Project: fmt.Sprint("p", i%2), Provider: "sim", Requested: at(i / 2)}
		if i < 2 {
			inst.State, inst.Ended, inst.Provider = queue.InstanceGone, at(30+i), "other"
		}
		b.Tasks, b.Attempts, b.Instances = append(b.Tasks, task), append(b.Attempts, a), append(b.Instances, inst)
		b.Checkpoints = append(b.Checkpoints, &queue.Checkpoint{TaskID: queue.TaskID{Job: "j1", Index: i % 2}, Number: int64(10 - i), Version: 1})
		b.Accounts = append(b.Accounts, &budget.Account{Key: budget.Key{Budget: fmt.Sprint("b", i%2), Start: at(-i)}, Version: 1})
		b.Holds = append(b.Holds, &budget.Hold{Instance: fmt.Sprint("i", i%2), Key: budget.Key{Budget: "b", Start: at(-i)}, Version: 1, Settled: i == 0})
	}
	commit(t, s, b)

	check := func(name string, got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
	page := func(after string, limit int) queue.Page { return queue.Page{After: after, Limit: limit} }

	jobs := func(q queue.JobQuery) []string {
		t.Helper()
		return ids(must(s.Jobs(ctx, q))(t), func(j *queue.Job) string { return j.ID })
	}
	check("jobs", jobs(queue.JobQuery{}), "j9", "j8", "j7", "j6", "j5", "j4", "j3", "j2", "j1", "j0")
	check("jobs, first page", jobs(queue.JobQuery{Page: page("", 3)}), "j9", "j8", "j7")
	check("jobs, second page", jobs(queue.JobQuery{Page: page("j7", 3)}), "j6", "j5", "j4")
	check("jobs, last page", jobs(queue.JobQuery{Page: page("j1", 3)}), "j0")
	check("jobs, past the end", jobs(queue.JobQuery{Page: page("j0", 3)}))
	check("jobs of a project", jobs(queue.JobQuery{Project: "p1"}), "j7", "j4", "j1")
	check("jobs by name", jobs(queue.JobQuery{Name: "n2"}), "j7", "j2")
	check("jobs of another queue", jobs(queue.JobQuery{Queue: "day"}))
	check("open jobs", jobs(queue.JobQuery{Open: true, Page: page("j7", 2)}), "j5", "j3")
	check("open jobs of a project", jobs(queue.JobQuery{Open: true, Project: "p0", Queue: "overnight"}), "j9", "j3")
	check("jobs that ended since", jobs(queue.JobQuery{Since: at(106)}), "j9", "j8", "j7", "j6", "j5", "j3", "j1")
	check("jobs by key", jobs(queue.JobQuery{Key: "key"}), "j9", "j8")
	check("open jobs by key", jobs(queue.JobQuery{Key: "key", Open: true}), "j9")
	check("jobs by key, second page", jobs(queue.JobQuery{Key: "key", Page: page("j9", 1)}), "j8")
	check("jobs by an unknown key", jobs(queue.JobQuery{Key: "no"}))
	_, err := s.Jobs(ctx, queue.JobQuery{Page: page("no", 1)})
	wantErr(t, err, queue.ErrNotFound)

	tasks := func(q queue.TaskQuery) []string {
		t.Helper()
		return ids(must(s.Tasks(ctx, q))(t), func(x *queue.Task) string { return x.TaskID.String() })
	}
	check("tasks", tasks(queue.TaskQuery{Job: "j1", Page: page("", 4)}), "j1/0", "j1/1", "j1/2", "j1/3")
	check("tasks, second page", tasks(queue.TaskQuery{Job: "j1", Page: page("3", 4)}), "j1/4", "j1/5")
	check("failed tasks", tasks(queue.TaskQuery{Job: "j1", State: queue.TaskFailed, Page: page("0", 4)}), "j1/2", "j1/4")
	check("tasks of another job", tasks(queue.TaskQuery{Job: "j2"}))
	if _, err := s.Tasks(ctx, queue.TaskQuery{Job: "j1", Page: page("x", 1)}); err == nil {
		t.Error("tasks after x: no error")
	}

	attempts := func(q queue.AttemptQuery) []string {
		t.Helper()
		return ids(must(s.Attempts(ctx, q))(t), func(a *queue.Attempt) string { return a.ID })
	}
	check("attempts", attempts(queue.AttemptQuery{}), "a4", "a5", "a2", "a3", "a0", "a1")
	check("attempts, second page", attempts(queue.AttemptQuery{Page: page("a5", 2)}), "a2", "a3")
	check("attempts of a job", attempts(queue.AttemptQuery{Job: "j1", Page: page("a2", 9)}), "a3", "a0", "a1")
	check("attempts of a task", attempts(queue.AttemptQuery{Job: "j1", Index: new(1)}), "a2", "a3")
	check("attempts of a task on an instance", attempts(queue.AttemptQuery{Job: "j1", Index: new(1), Instance: "i2"}), "a2")
	check("attempts of an instance", attempts(queue.AttemptQuery{Instance: "i1"}), "a4", "a1")
	check("attempts of an instance, second page", attempts(queue.AttemptQuery{Instance: "i1", Page: page("a4", 9)}), "a1")
	check("attempts that ended since", attempts(queue.AttemptQuery{Since: at(23)}), "a4", "a5", "a3", "a1")
	check("attempts of a job that ended since", attempts(queue.AttemptQuery{Job: "j1", Since: at(25)}), "a5", "a3", "a1")
	check("attempts of an instance that ended since", attempts(queue.AttemptQuery{Instance: "i1", Since: at(25)}), "a1")

	instances := func(q queue.InstanceQuery) []string {
		t.Helper()
		return ids(must(s.Instances(ctx, q))(t), func(i *queue.Instance) string { return i.ID })
	}
	check("instances", instances(queue.InstanceQuery{}), "i5", "i4", "i3", "i2", "i1", "i0")
	check("instances, second page", instances(queue.InstanceQuery{Page: page("i4", 2)}), "i3", "i2")
	check("open instances", instances(queue.InstanceQuery{Open: true}), "i5", "i4", "i3", "i2")
	check("instances of a project", instances(queue.InstanceQuery{Project: "p1", Open: true}), "i5", "i3")
	check("instances of a provider", instances(queue.InstanceQuery{Provider: "other"}), "i1", "i0")
	check("instances gone since", instances(queue.InstanceQuery{Since: at(31), Page: page("i2", 9)}), "i1")

	check("checkpoints", ids(must(s.Checkpoints(ctx, queue.TaskID{Job: "j1", Index: 1}))(t),
		func(c *queue.Checkpoint) string { return fmt.Sprint(c.Number) }), "5", "7", "9")
	check("accounts", ids(must(s.Accounts(ctx, "b1"))(t),
		func(a *budget.Account) string { return fmt.Sprint(a.Start.Sub(epoch0)) }), "-5s", "-3s", "-1s")
	check("holds", ids(must(s.Holds(ctx, "i0"))(t),
		func(h *budget.Hold) string { return fmt.Sprint(h.Start.Sub(epoch0), h.Settled) }), "-4s false", "-2s false", "0s true")

	entries := func(q budgetQuery) []string {
		t.Helper()
		return ids(must(s.Entries(ctx, q))(t), func(e *budget.Entry) string { return fmt.Sprint(e.Seq) })
	}
	check("entries", entries(budgetQuery{Limit: 2}), "1", "2")
	check("entries, second page", entries(budgetQuery{After: 8, Limit: 3}), "9", "10")
	check("entries of a budget", entries(budgetQuery{Budget: "b1", After: 5}), "6", "8", "10")
	check("entries of a project", entries(budgetQuery{Project: "p2"}), "3", "6", "9")
	check("entries of a job", entries(budgetQuery{Job: "j3"}), "4")
	check("entries of a job on another instance", entries(budgetQuery{Job: "j3", Instance: "i0"}))
	check("entries of an instance", entries(budgetQuery{Instance: "i1"}), "2", "6", "10")
	check("entries of an instance in a budget", entries(budgetQuery{Instance: "i1", Budget: "b0"}))
	check("entries in a time", entries(budgetQuery{Since: at(2), Until: at(4)}), "3", "4")
	check("entries of an instance in a time", entries(budgetQuery{Instance: "i1", Since: at(2), Until: at(9)}), "6")

	events := func(q queue.EventQuery) []string {
		t.Helper()
		return ids(must(s.Events(ctx, q))(t), func(e *queue.Event) string { return fmt.Sprint(e.Seq) })
	}
	check("events", events(queue.EventQuery{Limit: 2}), "1", "2")
	check("events after", events(queue.EventQuery{After: 18}), "19", "20")
	check("last events", events(queue.EventQuery{Last: true, Limit: 3}), "18", "19", "20")
	check("last events after", events(queue.EventQuery{Last: true, Limit: 3, After: 19}), "20")
	check("events of a job", events(queue.EventQuery{Job: "j4"}), "5")
	check("last events of a job", events(queue.EventQuery{Job: "j4", Last: true}), "5")
	check("events of another project", events(queue.EventQuery{Project: "no"}))
	check("last events of a project", events(queue.EventQuery{Project: "media", Last: true, Limit: 1}), "20")

	one := func(what string, row any, err error, want any) {
		t.Helper()
		if err != nil {
			t.Fatal(what, err)
		}
		same(t, what, row, want)
	}
	j, err := s.Job(ctx, "j3")
	one("job", j, err, b.Jobs[3])
	task, err := s.Task(ctx, queue.TaskID{Job: "j1", Index: 3})
	one("task", task, err, b.Tasks[3])
	a, err := s.Attempt(ctx, "a3")
	one("attempt", a, err, b.Attempts[3])
	i, err := s.Instance(ctx, "i3")
	one("instance", i, err, b.Instances[3])
	_, err = s.Job(ctx, "no")
	wantErr(t, err, queue.ErrNotFound)
	_, err = s.Task(ctx, queue.TaskID{Job: "j1", Index: 9})
	wantErr(t, err, queue.ErrNotFound)
	_, err = s.Attempt(ctx, "no")
	wantErr(t, err, queue.ErrNotFound)
	_, err = s.Instance(ctx, "no")
	wantErr(t, err, queue.ErrNotFound)
}

type budgetQuery = queue.EntryQuery
