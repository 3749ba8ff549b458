package control_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/control"
	cloud "gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/internal/spec"
	"gpubroker/providers"
	"gpubroker/queue"
)

// One offer of the test's own cloud, on demand and without limit.
func plain(name string, shape providers.Shape, price int64) cloud.Offer {
	shape.Arch = "amd64"
	return cloud.Offer{
		Place: simapi.Place{Region: "sim-east", Zone: "sim-east-a", Type: name, Kind: providers.OnDemand},
		Shape: shape, Price: rate(price),
	}
}

// wide is a cloud of machines with very many CPUs.
func wide() cloud.Config {
	cfg := calm()
	cfg.Quotas = nil
	cfg.Offers = []cloud.Offer{plain("wide", providers.Shape{VCPU: 8192, Memory: 1 << 45, Disk: 1 << 45}, 10)}
	return cfg
}

func TestCancelDuringLaunch(t *testing.T) {
	cfg := calm()
	cfg.Boot = simapi.Duration(20 * time.Second)
	inBubble(t, cfg, func(s *site) {
		s.fault(simapi.Fault{Op: "launch", Effect: simapi.Slow, Delay: simapi.Duration(10 * time.Second)})
		j := s.submit(task(time.Hour, ""))
		s.until("a launch under way", time.Minute, func(is []*queue.Instance, _ []*queue.Attempt) bool {
			return len(is) == 1 && is[0].State == queue.InstanceLaunching
		})
		time.Sleep(2 * time.Second)
		if _, err := s.up().Cancel(context.Background(), j.ID, "test"); err != nil {
			t.Fatal(err)
		}
		if done := s.await(j.ID, time.Second*2); done.State() != queue.JobCancelled {
			t.Errorf("the job is %s", done.State())
		}
		s.quiet(time.Minute)
		m := s.world.Truth()
		if len(m) != 1 || m[0].Cause != providers.CauseUser || m[0].Ended.Sub(m[0].Launched) > 25*time.Second {
			t.Errorf("%d machines, the first ended for %s after %v", len(m), m[0].Cause, m[0].Ended.Sub(m[0].Launched))
		}
		s.succeeded(s.submit(task(time.Minute, ""))) // so that there is a bill
	})
}

func TestCancelOfFiveThousandIsOneTransaction(t *testing.T) {
	tasks := 5000
	if testing.Short() {
		tasks = 500
	}
	inBubble(t, wide(), func(s *site) {
		j := s.submit(fmt.Sprintf("name: many\nproject: media\ntasks: {count: %d}\nresources: {gpu: none, vcpu: 1}\nspot: {policy: never}\nmax_duration: 2h\nwork: {time: 1h}\nrun: {command: [work, 1h]}\n", tasks))
		s.until("all running", 10*time.Minute, func(_ []*queue.Instance, as []*queue.Attempt) bool {
			n := 0
			for _, a := range as {
				if a.State == queue.AttemptRunning {
					n++
				}
			}
			return n == tasks
		})
		before := s.commits()
		out, err := s.up().Cancel(context.Background(), j.ID, "test")
		if err != nil || out.CancelledBy == "" {
			t.Fatal(err)
		}
		if n := s.commits() - before; n != 1 {
			t.Errorf("it took %d transactions", n)
		}
		if done := s.await(j.ID, 5*time.Minute); done.Counts.Cancelled != tasks {
			t.Errorf("%+v", done.Counts)
		}
	})
}

func TestWhatHasEndedStays(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		j := s.submit(task(time.Minute, ""))
		s.succeeded(j)
		if out, err := s.up().Cancel(context.Background(), j.ID, "test"); err != nil || out.State() != queue.JobSucceeded {
			t.Errorf("cancelled after its end: %v, %v", out, err)
		}
		if _, err := s.up().Hold(context.Background(), j.ID, "test"); !errors.Is(err, control.ErrConflict) {
			t.Errorf("held after its end: %v", err)
		}
		if n, err := s.up().Retry(context.Background(), j.ID, queue.TaskFailed); n != 0 || err != nil {
			t.Errorf("retried %d, %v", n, err)
		}
	})
}

func TestRetryOfWhatFailed(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		j := s.submit("name: broken\nproject: media\ntasks: {count: 3}\nresources: {gpu: none}\nspot: {policy: always}\nwork: {time: 1m}\nrun: {command: [work, 1m, fail]}\nretry: {failures: 1}\n")
		if done := s.await(j.ID, time.Hour); done.Counts.Failed != 3 {
			t.Fatalf("%+v", done.Counts)
		}
		if n := len(s.attempts(j.ID)); n != 6 {
			t.Errorf("%d attempts for three tasks with one retry each", n)
		}
		n, err := s.up().Retry(context.Background(), j.ID, queue.TaskFailed)
		if n != 3 || err != nil {
			t.Fatalf("retried %d, %v", n, err)
		}
		if now, err := s.up().Job(context.Background(), j.ID); err != nil || now.Done() {
			t.Errorf("after the retry: %+v, %v", now, err)
		}
		s.await(j.ID, time.Hour)
		if n := len(s.attempts(j.ID)); n != 12 {
			t.Errorf("%d attempts after the retry", n)
		}
	})
}

// A task that is retried goes on from the saves it had.
func TestRetryGoesOnFromItsSaves(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		j := s.submit(task(time.Hour, saves+"max_duration: 30m\n"))
		if done := s.await(j.ID, 2*time.Hour); done.Counts.Failed != 1 {
			t.Fatalf("%+v", done.Counts)
		}
		if n, err := s.up().Retry(context.Background(), j.ID, queue.TaskFailed); n != 1 || err != nil {
			t.Fatalf("retried %d, %v", n, err)
		}
		s.await(j.ID, 2*time.Hour)
		as := s.attempts(j.ID)
		if len(as) != 2 || as[1].Resume == 0 || as[1].Outcome != queue.Succeeded {
			t.Errorf("attempts %v, resumed from %d", outcomes(as), as[len(as)-1].Resume)
		}
	})
}

func TestHoldAndRelease(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		j := s.submit(task(10*time.Minute, "tasks: {count: 4, parallelism: 1}\n"))
		s.running()
		if _, err := s.up().Hold(context.Background(), j.ID, "ann"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		now, err := s.up().Job(context.Background(), j.ID)
		if err != nil || now.Counts.Succeeded != 1 || now.Counts.Running != 0 {
			t.Errorf("while it is held: %+v, %v", now.Counts, err)
		}
		if d, _, ok := s.up().Decision(j.ID); !ok || d.Why.Code != "held" {
			t.Errorf("the wait is explained by %v", d.Why)
		}
		if _, err := s.up().Release(context.Background(), j.ID, "ann"); err != nil {
			t.Fatal(err)
		}
		s.succeeded(j)
	})
}

func TestAfterTheDeadline(t *testing.T) {
	job := func(after string) string {
		return task(10*time.Minute, "tasks: {count: 6, parallelism: 1}\nspot: {policy: never}\nmax_duration: 1h\nafter_deadline: "+after+"\ndeadline: \"2000-01-01T00:25:00Z\"\n")
	}
	t.Run("stop", func(t *testing.T) {
		inBubble(t, calm(), func(s *site) {
			j := s.submit(job("stop"))
			done := s.await(j.ID, 2*time.Hour)
			if done.State() != queue.JobFailed || done.Counts.Succeeded == 0 || done.Counts.Failed == 0 {
				t.Errorf("%s: %+v", done.State(), done.Counts)
			}
			if late := done.Ended.Sub(done.Deadline); late > 2*time.Minute {
				t.Errorf("it ended %v after its deadline", late)
			}
		})
	})
	t.Run("continue", func(t *testing.T) {
		inBubble(t, calm(), func(s *site) { s.succeeded(s.submit(job("continue"))) })
	})
}

// When the window closes, tasks save and go back to the queue; they go on when it
// opens again, and their failures are as they were.
func TestAWindowCloses(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		j := s.submit(task(2*time.Hour, saves+"window: {start: \"00:00\", end: \"01:00\", timezone: UTC}\n"))
		s.running()
		time.Sleep(2 * time.Hour)
		now, err := s.up().Job(context.Background(), j.ID)
		if err != nil || now.Counts.Running != 0 || now.Counts.Queued != 1 {
			t.Fatalf("after the window: %+v, %v", now.Counts, err)
		}
		if len(s.up().Instances()) != 0 {
			t.Error("a machine is kept though the window is closed")
		}
		if done := s.await(j.ID, 72*time.Hour); done.State() != queue.JobSucceeded {
			t.Errorf("%s", done.State())
		}
		as := s.attempts(j.ID)
		for _, a := range as[:len(as)-1] {
			if a.Outcome != queue.Stopped || a.Ended.Hour() != 1 || a.Ended.Minute() > 2 {
				t.Errorf("attempt %d ended as %s at %v", a.Number, a.Outcome, a.Ended)
			}
		}
		if rows, err := s.st.Tasks(context.Background(), queue.TaskQuery{Job: j.ID}); err != nil || rows[0].Failures != 0 {
			t.Errorf("failures %d, %v", rows[0].Failures, err)
		}
	})
}

func TestStallAndLongestDuration(t *testing.T) {
	for name, row := range map[string]struct{ more, event, code string }{
		"stall":        {"stall: 5m\n", "task.stalled", "stalled"},
		"max_duration": {"max_duration: 5m\n", "task.stalled", "max_duration"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, calm(), func(s *site) {
				text := task(time.Hour, row.more+"retry: {failures: 1}\n")
				if name == "stall" {
					text = strings.Replace(text, "1h0m0s]", "1h0m0s, stall]", 1)
				}
				j := s.submit(text)
				if done := s.await(j.ID, 2*time.Hour); done.State() != queue.JobFailed {
					t.Errorf("the job %s", done.State())
				}
				as := s.attempts(j.ID)
				s.want(as, queue.Failed, queue.Failed)
				if string(as[0].Reason.Code) != row.code || s.count(row.event) != 2 || as[0].Busy > 7*time.Minute {
					t.Errorf("ended for %v after %v, %d events", as[0].Reason, as[0].Busy, s.count(row.event))
				}
			})
		})
	}
}

func TestOnlySomeExitCodesAreTriedAgain(t *testing.T) {
	for codes, want := range map[string]int{"[3]": 3, "[4]": 1} {
		inBubble(t, calm(), func(s *site) {
			j := s.submit("name: broken\nproject: media\nresources: {gpu: none}\nspot: {policy: always}\nwork: {time: 1m}\nrun: {command: [work, 1m, fail]}\nretry: {failures: 2, only_exit_codes: " + codes + "}\n")
			s.await(j.ID, time.Hour)
			if n := len(s.attempts(j.ID)); n != want {
				t.Errorf("codes %s: %d attempts, want %d", codes, n, want)
			}
		})
	}
}

// A checkpoint that proves unreadable is given up aloud, the one before it is
// taken, and its number is never used again.
func TestABrokenCheckpoint(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		j := s.submit(task(time.Hour, saves))
		a := s.running()
		time.Sleep(20 * time.Minute)
		task := s.up().State().View().Task(a.TaskID)
		s.rig(func() { s.broken = map[int64]string{task.Committed: "part 1 is short by one byte"} })
		s.do(simapi.Action{Preempt: &simapi.Preempt{Pick: simapi.Pick{Machine: s.record(a.Instance).CloudID}, Notice: new(simapi.Duration(0))}})
		as := s.succeeded(j)
		if as[1].Resume != task.Committed-1 {
			t.Errorf("resumed from %d, broken was %d", as[1].Resume, task.Committed)
		}
		if s.count("checkpoint.broken") != 1 {
			t.Errorf("%d events", s.count("checkpoint.broken"))
		}
	})
}

// A save that was whole when the broker died is committed by the next one.
func TestASaveWithoutItsCommitIsAdopted(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		j := s.submit(task(time.Hour, saves))
		a := s.running()
		time.Sleep(11 * time.Minute)
		before := s.up().State().View().Task(a.TaskID).Committed
		s.stop()
		time.Sleep(8 * time.Minute) // it saves on, and nobody commits
		s.do(simapi.Action{Preempt: &simapi.Preempt{Pick: simapi.Pick{Machine: s.record(a.Instance).CloudID}, Notice: new(simapi.Duration(0))}})
		time.Sleep(time.Minute)
		s.start()
		as := s.succeeded(j)
		s.want(as, queue.Preempted, queue.Succeeded)
		if as[1].Resume <= before {
			t.Errorf("resumed from %d, committed before the death were %d", as[1].Resume, before)
		}
	})
}

// An exclusive task waits for the word that its last machine is gone.
func TestExclusive(t *testing.T) {
	for name, text := range map[string]string{"plain": "", "exclusive": "exclusive: true\n"} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, calm(), func(s *site) {
				j := s.submit(task(time.Hour, saves+text))
				a := s.running()
				time.Sleep(5 * time.Minute)
				s.fault(simapi.Fault{Op: "terminate", Effect: simapi.Refuse, For: simapi.Duration(10 * time.Minute), Times: -1})
				s.rig(func() { s.hung = func(id string) bool { return id == a.Instance } })
				cut := time.Now()
				waited := false
				s.until("another attempt", 30*time.Minute, func(_ []*queue.Instance, as []*queue.Attempt) bool {
					if d, _, ok := s.up().Decision(j.ID); ok && d.Why.Code == "exclusive" {
						waited = true
					}
					return len(as) == 1 && as[0].ID != a.ID
				})
				if long := time.Since(cut) > 9*time.Minute; long != (text != "") || waited != long {
					t.Errorf("the next attempt came after %v, said to wait %t", time.Since(cut), waited)
				}
				s.want(s.succeeded(j), queue.Lost, queue.Succeeded)
			})
		})
	}
}

func TestTheSameKeyIsTheSameJob(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		submit := func(text, key string) (*queue.Job, error) {
			j, err := spec.Parse("job.yaml", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			return s.up().Submit(context.Background(), control.Submission{Spec: j, Key: key, Anywhere: true}, nil)
		}
		first, err := submit(task(time.Minute, ""), "k")
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			again, err := submit(task(time.Minute, ""), "k")
			if err != nil || again.ID != first.ID {
				t.Errorf("the same call again: %v, %v", again, err)
			}
			s.succeeded(first) // and once more when it is done
		}
		if _, err := submit(task(2*time.Minute, ""), "k"); !errors.Is(err, control.ErrConflict) {
			t.Errorf("another content under the key: %v", err)
		}
		if other, err := submit(task(time.Minute, ""), "l"); err != nil || other.ID == first.ID {
			t.Errorf("another key: %v, %v", other, err)
		} else {
			s.succeeded(other)
		}
	})
}

// Saves that nobody will need are removed: of tasks that run, those that newer
// ones replace; of tasks that ended, all, after the grace.
func TestSavesAreSwept(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		s.slow()
		left := func(job string) (n int) {
			for _, k := range s.keys() {
				if strings.HasPrefix(k, job+"/") && strings.HasSuffix(k, "/manifest") {
					n++
				}
			}
			return n
		}
		j := s.submit(strings.Replace(task(60*time.Hour, "checkpoint: {dir: ckpt, interval: 1h}\n"), "project", "project", 1))
		s.running()
		time.Sleep(58 * time.Hour)
		if n := left(j.ID); n < 3 || n > 8 {
			t.Errorf("%d saves after 58 h, one every 6 h", n)
		}
		rows := 0
		for range s.up().State().View().Checkpoints.All() {
			rows++
		}
		if rows > 8 {
			t.Errorf("%d rows of saves are in memory", rows)
		}
		s.succeeded(j)
		if left(j.ID) == 0 {
			t.Error("the saves are gone at once")
		}
		time.Sleep(25 * time.Hour)
		if n := left(j.ID); n != 0 {
			t.Errorf("%d saves a day after the end", n)
		}
	})
}

func TestManyTasks(t *testing.T) {
	n := 1_000_000
	if testing.Short() {
		n = 20_000
	}
	inBubble(t, calm(), func(s *site) {
		j := s.submit(fmt.Sprintf("name: many\nproject: media\ntasks: {count: %d}\nresources: {gpu: none}\nspot: {policy: never}\nmax_duration: 1h\nrun: {command: [work, 1h]}\nwindow: {start: \"12:00\", end: \"13:00\", timezone: UTC}\n", n))
		if j.Count != n {
			t.Errorf("%d tasks", j.Count)
		}
		lines := make([]string, n)
		for i := range lines {
			lines[i] = fmt.Sprintf("s3://footage/incoming/clip-%07d.mov", i)
		}
		sp, err := spec.Parse("job.yaml", []byte("name: lines\nproject: media\ntasks: {file: list.txt}\nresources: {gpu: none}\nspot: {policy: never}\nmax_duration: 1h\nrun: {command: [work, 1h]}\nwindow: {start: \"12:00\", end: \"13:00\", timezone: UTC}\n"))
		if err != nil {
			t.Fatal(err)
		}
		l, err := s.up().Submit(context.Background(), control.Submission{Spec: sp, Inputs: lines, Anywhere: true}, nil)
		if err != nil || l.Count != n {
			t.Fatalf("%v, %v", l, err)
		}
		time.Sleep(time.Hour)
		if rows := s.up().State().View().Tasks.Len(); rows != 0 {
			t.Errorf("%d tasks have rows though none has begun", rows)
		}
		for _, id := range []string{j.ID, l.ID} {
			if out, err := s.up().Cancel(context.Background(), id, "test"); err != nil || out.Counts.Cancelled != n {
				t.Errorf("cancelled %+v, %v", out, err)
			}
		}
		s.succeeded(s.submit(task(time.Minute, ""))) // the books want a machine
	})
}

// Seats for users are planned, one task each; handing them in is refused in words.
func TestSeatsAreOnlyPlanned(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		seats, err := spec.Parse("vdi.yaml", []byte("name: desks\nproject: media\nscenario: vdi\nusers: {count: 3, memory: 8GiB}\n"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.up().Submit(t.Context(), control.Submission{Spec: seats}, nil)
		if !errors.Is(err, control.ErrInvalid) || !strings.Contains(err.Error(), "planned and not run") {
			t.Errorf("handed in: %v", err)
		}
		e, _, err := s.up().ExplainPlan(t.Context(), control.Submission{Spec: seats}, nil)
		if err != nil || e.Decision.Waiting != 3 || len(e.Notes) != 1 {
			t.Errorf("planned: %d tasks, %v, %v", e.Decision.Waiting, e.Notes, err)
		}
		s.succeeded(s.submit(task(time.Minute, ""))) // so that there is a bill
	})
}
