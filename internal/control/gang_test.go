package control_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/agentapi"
	cloud "gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/queue"
)

// gangTask is a job of one task on so many machines at once.
func gangTask(nodes int, length time.Duration, more string) string {
	return fmt.Sprintf("name: gang\nproject: media\nnodes: %d\nresources: {gpu: l4}\nwork: {time: %v, on: l4}\n", nodes, length) + more
}

func works(length time.Duration, word string) string {
	return fmt.Sprintf("run: {command: [work, %v, %q]}\n", length, word)
}

// gang waits until all members of a placing run, and returns them by rank.
func (s *site) gang(number, nodes int) []queue.Attempt {
	s.t.Helper()
	out := make([]queue.Attempt, nodes)
	s.until(fmt.Sprintf("placing %d of a gang", number), time.Hour, func(_ []*queue.Instance, as []*queue.Attempt) bool {
		n := 0
		for _, a := range as {
			if a.Member != nil && a.Number == number && a.State == queue.AttemptRunning {
				out[a.Member.Rank] = *a
				n++
			}
		}
		return n == nodes
	})
	return out
}

// tally counts the ends of attempts by placing.
func tally(as []*queue.Attempt) map[string]int {
	out := map[string]int{}
	for _, a := range as {
		out[fmt.Sprintf("%d %s", a.Number, a.Outcome)]++
	}
	return out
}

func (s *site) wantTally(as []*queue.Attempt, want map[string]int) {
	s.t.Helper()
	if got := tally(as); fmt.Sprint(got) != fmt.Sprint(want) {
		for _, a := range as {
			s.t.Logf("%d rank %d on %s: %s %v", a.Number, a.Member.Rank, a.Instance, a.Outcome, a.Reason)
		}
		s.t.Errorf("attempts ended as %v, want %v", got, want)
	}
}

// machines are those that attempts of a placing were on.
func machines(as []*queue.Attempt, number int) map[string]bool {
	out := map[string]bool{}
	for _, a := range as {
		if a.Number == number {
			out[a.Instance] = true
		}
	}
	return out
}

// again counts the machines of one placing that serve the next.
func again(as []*queue.Attempt, number int) (n int) {
	next := machines(as, number+1)
	for m := range machines(as, number) {
		if next[m] {
			n++
		}
	}
	return n
}

// A gang begins as one, is told of all of its members, and its first member alone
// keeps saves.
func TestAGangBeginsAsOne(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		j := s.submit(gangTask(4, time.Hour, saves+works(time.Hour, "")))
		as := s.succeeded(j)
		s.wantTally(as, map[string]int{"1 succeeded": 4})
		if len(s.mets) != 4 {
			t.Fatalf("%d members began", len(s.mets))
		}
		first, last := as[0].Started, as[0].Started
		for _, a := range as {
			if a.Started.Before(first) {
				first = a.Started
			}
			if a.Started.After(last) {
				last = a.Started
			}
			if a.Kept != a.Busy || a.Busy < 59*time.Minute {
				t.Errorf("rank %d kept %v of %v", a.Member.Rank, a.Kept, a.Busy)
			}
		}
		if last.Sub(first) > 2*time.Second {
			t.Errorf("members began within %v", last.Sub(first))
		}
		seen := map[int]bool{}
		for _, w := range s.mets {
			seen[w.Task.Rank] = true
			if w.Task.Nodes != 4 || len(w.Gang.Hosts) != 4 || w.Gang.Hosts[3].Address != "10.0.0.4" || w.Gang.Key != "" || w.Task.Procs != 1 {
				t.Errorf("a member was told %+v of %+v", w.Gang, w.Task)
			}
			for name := range w.Put {
				if w.Task.Rank > 0 && strings.HasPrefix(name, "save/") {
					t.Errorf("rank %d may save: %s", w.Task.Rank, name)
				}
			}
		}
		if len(seen) != 4 {
			t.Errorf("ranks %v began", seen)
		}
	})
}

// A machine is taken with a warning: all stop, the first member's last save counts, and
// the one machine is rented anew where the others are.
func TestAGangLosesAMachine(t *testing.T) {
	for _, rank := range []int{0, 2} {
		t.Run(fmt.Sprintf("rank %d", rank), func(t *testing.T) {
			cfg := calm()
			cfg.Notice = simapi.Duration(2 * time.Minute)
			inBubble(t, cfg, func(s *site) {
				j := s.submit(gangTask(4, time.Hour, saves+works(time.Hour, "")))
				gang := s.gang(1, 4)
				time.Sleep(20 * time.Minute)
				at := time.Now()
				s.do(simapi.Action{Preempt: &simapi.Preempt{Pick: simapi.Pick{Machine: s.record(gang[rank].Instance).CloudID}}})
				s.gang(2, 4)
				if took := time.Since(at); took > 4*time.Minute {
					t.Errorf("it ran again after %v", took)
				}
				as := s.succeeded(j)
				s.wantTally(as, map[string]int{"1 preempted": 1, "1 stopped": 3, "2 succeeded": 4})
				if n := again(as, 1); n != 3 {
					t.Errorf("%d of the 3 machines that were left are used again", n)
				}
				if n := len(s.world.Truth()); n != 5 {
					t.Errorf("%d machines were made", n)
				}
				for _, a := range as {
					// What the others kept is known as of the last save while they ran.
					if lost := a.Busy - a.Kept; a.Number == 1 && (lost > 6*time.Minute || a.Member.Rank == 0 && lost > 10*time.Second) || a.Number == 2 && a.Resume == 0 {
						t.Errorf("rank %d of %d began from save %d and lost %v", a.Member.Rank, a.Number, a.Resume, lost)
					}
				}
				if n := s.count("attempt.preempted"); n != 1 {
					t.Errorf("%d preemptions were told", n)
				}
			})
		})
	}
}

// A machine falls silent, and the others fail for want of it: that is no failure of
// the task.
func TestAGangFailsForWantOfALostMachine(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		j := s.submit(gangTask(3, time.Hour, saves+works(time.Hour, "fail-1")))
		gang := s.gang(1, 3)
		time.Sleep(30 * time.Second)
		dead := gang[2].Instance
		s.rig(func() {
			s.agentDead = func(id string) bool { return id == dead }
			s.hung = s.agentDead
		})
		s.until("another placing", 30*time.Minute, func(_ []*queue.Instance, as []*queue.Attempt) bool {
			for _, a := range as {
				if a.Number == 2 {
					return true
				}
			}
			return false
		})
		s.wantTally(s.attempts(j.ID)[:3], map[string]int{"1 failed": 1, "1 lost": 1, "1 stopped": 1})
		task, err := s.st.Task(context.Background(), queue.TaskID{Job: j.ID})
		if err != nil || task.Failures != 0 {
			t.Errorf("the task has %d failures, %v", task.Failures, err)
		}
		// Rank 1 fails by itself in each placing: without a loss it is the task's doing.
		if done := s.await(j.ID, 12*time.Hour); done.State() != queue.JobFailed {
			t.Errorf("the job %s", done.State())
		}
	})
}

// A member that fails stops all, and uses up one retry.
func TestAGangFailsOnce(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		j := s.submit(gangTask(3, time.Hour, "retry: {failures: 1}\n"+works(time.Hour, "fail-2")))
		if done := s.await(j.ID, 12*time.Hour); done.State() != queue.JobFailed {
			t.Errorf("the job %s", done.State())
		}
		as := s.attempts(j.ID)
		s.wantTally(as, map[string]int{"1 failed": 1, "1 stopped": 2, "2 failed": 1, "2 stopped": 2})
		if n := again(as, 1); n != 3 {
			t.Errorf("%d of 3 machines are used again", n)
		}
		task, err := s.st.Task(context.Background(), queue.TaskID{Job: j.ID})
		if err != nil || task.Failures != 2 || task.ExitCode == nil || *task.ExitCode != 4 {
			t.Errorf("the task ended as %+v, %v", task, err)
		}
	})
}

// One of the launches is refused: the gang is tried elsewhere as a whole, and what
// was made for it is let go.
func TestAGangWhoseLaunchFails(t *testing.T) {
	for _, effect := range []string{simapi.NoCapacity, simapi.Quota, simapi.Drop, simapi.DropAfter} {
		t.Run(effect, func(t *testing.T) {
			inBubble(t, calm(), func(s *site) {
				s.fault(simapi.Fault{Op: "launch", Effect: effect, Times: 1})
				as := s.succeeded(s.submit(gangTask(4, 10*time.Minute, works(10*time.Minute, ""))))
				n := tally(as)
				if last := as[len(as)-1].Number; n[fmt.Sprintf("%d succeeded", last)] != 4 || n["1 launch_failed"] != 1 && effect != simapi.DropAfter {
					t.Errorf("attempts ended as %v", n)
				}
			})
		})
	}
}

// One of the machines never calls in: it is given up at its deadline, the gang is tried
// elsewhere as a whole, and those that waited for it are let go.
func TestAGangWhoseMachineNeverCallsIn(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		j := s.submit(gangTask(3, 10*time.Minute, works(10*time.Minute, "")))
		var never string
		s.until("machines", time.Minute, func(is []*queue.Instance, _ []*queue.Attempt) bool {
			if len(is) == 3 && never == "" {
				never = is[1].ID
				s.rig(func() { s.hung = func(id string) bool { return id == never }; s.agentDead = s.hung })
			}
			return never != ""
		})
		as := s.succeeded(j)
		s.wantTally(as, map[string]int{"1 lost": 1, "1 stopped": 2, "2 succeeded": 3})
		for _, a := range as {
			if i := s.record(a.Instance); a.Number == 1 && i.Ended.Sub(a.Ended) > 3*time.Minute {
				t.Errorf("machine %s lived on for %v", i.ID, i.Ended.Sub(a.Ended))
			}
		}
	})
}

// Money for three of four machines reserves nothing; once there is enough, it runs.
func TestAGangThatItsBudgetDoesNotPay(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		small := s.submit(gangTask(4, 10*time.Minute, "budget: {max: 0.50 USD}\n"+works(10*time.Minute, "")))
		time.Sleep(10 * time.Minute)
		d, _, ok := s.up().Decision(small.ID)
		if !ok || d.Why.Code != "gang_budget" || d.Why.Args["fits"] == "0" || d.Why.Args["fits"] == "4" {
			t.Errorf("it waits because %v %v", d.Why, d.Why.Args)
		}
		if n := len(s.world.Truth()); n != 0 {
			t.Errorf("%d machines were made", n)
		}
		if _, err := s.up().Cancel(context.Background(), small.ID, "test"); err != nil {
			t.Error(err)
		}
		s.succeeded(s.submit(gangTask(4, 10*time.Minute, "budget: {max: 30 USD}\n"+works(10*time.Minute, ""))))
	})
}

// A job that is cancelled stops all members.
func TestAGangIsCancelled(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		j := s.submit(gangTask(3, time.Hour, saves+works(time.Hour, "")))
		s.gang(1, 3)
		if _, err := s.up().Cancel(context.Background(), j.ID, "maria"); err != nil {
			t.Fatal(err)
		}
		if done := s.await(j.ID, 5*time.Minute); done.State() != queue.JobCancelled {
			t.Errorf("the job %s", done.State())
		}
		s.wantTally(s.attempts(j.ID), map[string]int{"1 cancelled": 1, "1 stopped": 2})
	})
}

// Members of a gang of MPI get one key pair, which is written nowhere; those beside
// the first end with it.
func TestAGangOfMPI(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		as := s.succeeded(s.submit(gangTask(3, 20*time.Minute, "launcher: mpi\n"+works(20*time.Minute, ""))))
		s.wantTally(as, map[string]int{"1 succeeded": 3})
		keys := map[string]bool{}
		for _, w := range s.mets {
			keys[w.Gang.Key+w.Gang.Public] = true
			if w.Task.Launcher != agentapi.MPI || !strings.Contains(w.Gang.Key, "OPENSSH PRIVATE KEY") || !strings.HasPrefix(w.Gang.Public, "ssh-ed25519 ") {
				t.Errorf("a member was told %+v", w.Task)
			}
		}
		if len(keys) != 1 {
			t.Errorf("%d key pairs", len(keys))
		}
		secret := strings.Split(s.mets[0].Gang.Key, "\n")[2]
		for _, suffix := range []string{"", "-wal"} {
			rows, err := os.ReadFile(s.dir + "/" + s.file + suffix)
			if err == nil && (bytes.Contains(rows, []byte(secret)) || bytes.Contains(rows, []byte("PRIVATE KEY"))) {
				t.Errorf("the key is in store.db%s", suffix)
			}
		}
	})
}

// The broker dies at every point of the life of gangs that lose machines, one with a
// warning and one without: each ends as it would have.
func TestKillEverywhereWithGangs(t *testing.T) {
	three := strings.Replace(gangTask(3, 12*time.Minute, "tasks: {count: 3, parallelism: 2}\n"+saves+works(12*time.Minute, "")), "name: gang", "name: three", 1)
	killEverywhere(t, 3, 29, func(t *testing.T, point func(string) bool) map[queue.TaskID]outcome {
		t.Helper()
		cfg := cloud.Default(1)
		cfg.Script = []simapi.Action{
			{OnMachine: 2, After: simapi.Duration(7 * time.Minute), Preempt: &simapi.Preempt{}},
			{OnMachine: 5, After: simapi.Duration(9 * time.Minute), Preempt: &simapi.Preempt{Notice: new(simapi.Duration(0))}},
		}
		return crashSite(t, newSite(t, cfg), []string{three}, point)
	})
}
