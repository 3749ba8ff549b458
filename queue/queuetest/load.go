package queuetest

import (
	"fmt"
	"testing"

	"gpubroker/internal/budget"
	"gpubroker/queue"
)

func testLoad(t *testing.T, e Engine) {
	t.Run("only what lives", func(t *testing.T) {
		s, epoch := opened(t, e)
		over := job("over", 1)
		over.Next, over.Counts.Succeeded, over.Ended = 1, 1, at(5)
		b := &queue.Batch{Epoch: epoch, Jobs: []*queue.Job{job("live", 9), over}}
		want := &queue.Image{Jobs: b.Jobs[:1]}
		for i, state := range []queue.TaskState{
			queue.TaskQueued, queue.TaskHeld, queue.TaskRunning,
			queue.TaskSucceeded, queue.TaskFailed, queue.TaskCancelled,
		} {
			task := running("live", i, "")
			task.State = state
			b.Tasks = append(b.Tasks, task)
			// Two ended attempts and two checkpoints each; the second is the last.
			for n := 1; n <= 2; n++ {
				a := attempt(fmt.Sprintf("a%d%d", i, n), "live", i, n)
				a.State, a.Outcome, a.Ended = queue.AttemptEnded, queue.Preempted, at(4)
				c := &queue.Checkpoint{TaskID: task.TaskID, Number: int64(n), Version: 1, Attempt: a.ID, At: at(n), Swept: n == 1}
				b.Attempts, b.Checkpoints = append(b.Attempts, a), append(b.Checkpoints, c)
				if n == 2 && !state.Terminal() {
					want.Tasks, want.Attempts, want.Checkpoints = append(want.Tasks, task), append(want.Attempts, a), append(want.Checkpoints, c)
				}
			}
		}
		// An attempt that still drains lives, although its task has ended.
		draining := attempt("a53", "live", 5, 3)
		draining.State = queue.AttemptDraining
		b.Attempts, want.Attempts = append(b.Attempts, draining), append(want.Attempts, draining)

		for _, state := range []queue.InstanceState{
			queue.InstanceRequested, queue.InstanceLaunching, queue.InstanceBooting, queue.InstanceReady,
			queue.InstanceDraining, queue.InstanceTerminating, queue.InstanceGone,
		} {
			b.Instances = append(b.Instances, &queue.Instance{ID: "i-" + string(state), Version: 1, State: state, Requested: at(1)})
		}
		want.Instances = append(want.Instances, b.Instances...) // one that is gone lives until it is settled
		b.Instances = append(b.Instances, &queue.Instance{ID: "i-settled", Version: 1, State: queue.InstanceGone, Ended: at(3), Settled: at(4)})

		b.Holds = []*budget.Hold{
			{Instance: "i-ready", Key: budget.Key{Budget: "all"}, Version: 1, Reserved: 5},
			{Instance: "i-settled", Key: budget.Key{Budget: "all"}, Version: 1, Settled: true},
		}
		want.Holds = b.Holds[:1]
		commit(t, s, b)
		same(t, "image", load(t, s), want)
	})

	t.Run("all members of the last gang", func(t *testing.T) {
		s, epoch := opened(t, e)
		b := &queue.Batch{Epoch: epoch, Jobs: []*queue.Job{job("live", 9)}, Tasks: []*queue.Task{running("live", 0, "g20")}}
		want := &queue.Image{Jobs: b.Jobs, Tasks: b.Tasks}
		for number := 1; number <= 2; number++ {
			for rank := range 3 {
				a := attempt(fmt.Sprintf("g%d%d", number, rank), "live", 0, number)
				a.Member = &queue.Member{Lead: fmt.Sprintf("g%d0", number), Rank: rank, Nodes: 3, At: &queue.Endpoint{Address: "10.0.0.1", Port: 29500}}
				if rank == 0 {
					a.Member.All = []string{"g0", "g1", "g2"}
					a.Member.Hosts = []queue.Endpoint{{Address: "10.0.0.1", Port: 29500}}
					a.Member.End, a.Member.Unsealed = &queue.End{Rank: 2, Outcome: queue.Lost}, []string{"i1"}
				}
				if number == 1 || rank == 1 {
					a.State, a.Outcome, a.Ended = queue.AttemptEnded, queue.Stopped, at(4)
				}
				if b.Attempts = append(b.Attempts, a); number == 2 {
					want.Attempts = append(want.Attempts, a)
				}
			}
		}
		commit(t, s, b)
		same(t, "image", load(t, s), want)
	})

	t.Run("a row leaves and comes back with its state", func(t *testing.T) {
		s, epoch := opened(t, e)
		j, task, a := job("j", 1), running("j", 0, "a"), attempt("a", "j", 0, 1)
		j.Next, j.Counts.Running = 1, 1
		commit(t, s, &queue.Batch{Epoch: epoch, Jobs: []*queue.Job{j}, Tasks: []*queue.Task{task}, Attempts: []*queue.Attempt{a}})
		j = next(j, func(j *queue.Job) { j.Version, j.Counts, j.Ended = 2, queue.Counts{Failed: 1}, at(9) })
		task = next(task, func(t *queue.Task) { t.Version, t.State = 2, queue.TaskFailed })
		a = next(a, func(a *queue.Attempt) { a.Version, a.State, a.Ended = 2, queue.AttemptEnded, at(9) })
		commit(t, s, &queue.Batch{Epoch: epoch, Jobs: []*queue.Job{j}, Tasks: []*queue.Task{task}, Attempts: []*queue.Attempt{a}})
		same(t, "image", load(t, s), new(queue.Image))
		j = next(j, func(j *queue.Job) { j.Version, j.Counts = 3, queue.Counts{Queued: 1} })
		task = next(task, func(t *queue.Task) { t.Version, t.State = 3, queue.TaskQueued })
		commit(t, s, &queue.Batch{Epoch: epoch, Jobs: []*queue.Job{j}, Tasks: []*queue.Task{task}})
		same(t, "image", load(t, s), &queue.Image{Jobs: []*queue.Job{j}, Tasks: []*queue.Task{task}, Attempts: []*queue.Attempt{a}})
	})
}
