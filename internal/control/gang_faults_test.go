package control_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	cloud "gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/queue"
)

// taken ends a machine without a word.
func (s *site) taken(instance string) {
	s.t.Helper()
	s.do(simapi.Action{Preempt: &simapi.Preempt{Pick: simapi.Pick{Machine: s.record(instance).CloudID}, Notice: new(simapi.Duration(0))}})
}

// A machine is lost before the gang has begun: the others wait for it no longer.
func TestAGangLosesAMachineBeforeItBegins(t *testing.T) {
	for _, rank := range []int{0, 1} {
		for _, state := range []queue.AttemptState{queue.AttemptAssigned, queue.AttemptStarting} {
			t.Run(fmt.Sprintf("rank %d %s", rank, state), func(t *testing.T) {
				inBubble(t, calm(), func(s *site) {
					j := s.submit(gangTask(3, 20*time.Minute, saves+works(20*time.Minute, "")))
					var at string
					s.until("a member that stages", 30*time.Minute, func(is []*queue.Instance, as []*queue.Attempt) bool {
						for _, a := range as {
							if i := s.record(a.Instance); a.Member.Rank == rank && a.State == state && i != nil && i.CloudID != "" && i.State != queue.InstanceLaunching {
								at = a.Instance
								return true
							}
						}
						return false
					})
					s.taken(at)
					as := s.succeeded(j)
					if n := tally(as); n["2 succeeded"] != 3 || len(as) != 6 {
						t.Errorf("attempts ended as %v", n)
					}
				})
			})
		}
	}
}

// The broker is started anew while gangs stage, run and stop.
func TestTheBrokerStartsAnewAmidAGang(t *testing.T) {
	for _, after := range []time.Duration{5 * time.Second, 40 * time.Second, 100 * time.Second, 20 * time.Minute, time.Hour} {
		t.Run(after.String(), func(t *testing.T) {
			inBubble(t, calm(), func(s *site) {
				j := s.submit(gangTask(3, time.Hour, saves+works(time.Hour, "")))
				time.Sleep(after)
				s.stop()
				time.Sleep(2 * time.Second)
				s.start()
				s.wantTally(s.succeeded(j), map[string]int{"1 succeeded": 3})
			})
		})
	}
}

// A held job's gang stops as one, and goes on as one from its save.
func TestAGangIsHeldAndReleased(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		j := s.submit(gangTask(3, time.Hour, "tasks: {count: 2, parallelism: 1}\n"+saves+works(time.Hour, "")))
		s.gang(1, 3)
		if _, err := s.up().Hold(context.Background(), j.ID, "ann"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Hour)
		if n := len(s.up().Instances()); n != 0 {
			t.Errorf("%d machines are kept", n)
		}
		if _, err := s.up().Release(context.Background(), j.ID, "ann"); err != nil {
			t.Fatal(err)
		}
		s.wantTally(s.succeeded(j), map[string]int{"1 succeeded": 6})
	})
}

// When the window closes a gang saves and stops as one.
func TestAWindowClosesOnAGang(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		j := s.submit(gangTask(3, 90*time.Minute, saves+"window: {start: \"00:00\", end: \"01:00\", timezone: UTC}\n"+works(90*time.Minute, "")))
		s.gang(1, 3)
		time.Sleep(2 * time.Hour)
		now, err := s.up().Job(context.Background(), j.ID)
		if err != nil || now.Counts.Running != 0 || now.Counts.Queued != 1 {
			t.Fatalf("after the window: %+v, %v", now.Counts, err)
		}
		if n := len(s.up().Instances()); n != 0 {
			t.Errorf("%d machines are kept", n)
		}
		if done := s.await(j.ID, 72*time.Hour); done.State() != queue.JobSucceeded {
			t.Errorf("the job %s", done.State())
		}
		s.wantTally(s.attempts(j.ID), map[string]int{"1 stopped": 3, "2 succeeded": 3})
	})
}

// A gang is stopped at the deadline of its job, as one.
func TestAGangIsStoppedAtItsDeadline(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		j := s.submit(gangTask(3, 3*time.Hour, "after_deadline: stop\ndeadline: \"2000-01-01T00:45:00Z\"\n"+saves+works(3*time.Hour, "")))
		done := s.await(j.ID, 4*time.Hour)
		if done.State() != queue.JobFailed || done.Ended.Sub(done.Deadline) > 2*time.Minute {
			t.Errorf("the job %s %v after its deadline", done.State(), done.Ended.Sub(done.Deadline))
		}
		for _, a := range s.attempts(j.ID) {
			if a.State != queue.AttemptEnded {
				t.Errorf("rank %d is %s", a.Member.Rank, a.State)
			}
		}
	})
}

// Two gangs, and one market with room for one: they run one after the other, and
// neither holds what the other needs.
func TestTwoGangsAndRoomForOne(t *testing.T) {
	cfg := calm()
	cfg.Quotas = nil
	var only []cloud.Offer
	for _, o := range cfg.Offers {
		if o.Shape.GPU == "l4" && o.Shape.GPUs == 1 && len(only) == 0 {
			o.Capacity = new(4)
			only = append(only, o)
		}
	}
	if cfg.Offers = only; len(only) != 1 {
		t.Fatal("there is no offer of one l4")
	}
	inBubble(t, cfg, func(s *site) {
		one := s.submit(gangTask(3, 20*time.Minute, works(20*time.Minute, "")))
		two := s.submit(gangTask(4, 20*time.Minute, works(20*time.Minute, "")))
		s.succeeded(one)
		s.succeeded(two)
	})
}

// An exclusive gang waits for the word that the machine is gone which was lost.
func TestAnExclusiveGang(t *testing.T) {
	for _, launcher := range []string{"", "launcher: mpi\n"} {
		for _, rank := range []int{0, 2} {
			t.Run(fmt.Sprintf("%srank %d", launcher, rank), func(t *testing.T) {
				inBubble(t, calm(), func(s *site) {
					j := s.submit(gangTask(3, time.Hour, "exclusive: true\n"+launcher+saves+works(time.Hour, "")))
					gang := s.gang(1, 3)
					time.Sleep(5 * time.Minute)
					s.fault(simapi.Fault{Op: "terminate", Effect: simapi.Refuse, For: simapi.Duration(10 * time.Minute), Times: -1})
					s.rig(func() { s.hung = func(id string) bool { return id == gang[rank].Instance } })
					cut := time.Now()
					s.gang(2, 3)
					if took := time.Since(cut); took < 9*time.Minute || took > 30*time.Minute {
						t.Errorf("the next placing came after %v", took)
					}
					s.succeeded(j)
				})
			})
		}
	}
}

// A machine that was taken for lost comes back: what it says is not heard.
func TestAMemberComesBack(t *testing.T) {
	for _, rank := range []int{0, 1} {
		t.Run(fmt.Sprintf("rank %d", rank), func(t *testing.T) {
			inBubble(t, calm(), func(s *site) {
				j := s.submit(gangTask(3, time.Hour, saves+works(time.Hour, "")))
				gang := s.gang(1, 3)
				time.Sleep(5 * time.Minute)
				s.fault(simapi.Fault{Op: "terminate", Effect: simapi.Refuse, For: simapi.Duration(20 * time.Minute), Times: -1})
				s.rig(func() { s.deaf = func(id string) bool { return id == gang[rank].Instance } })
				s.gang(2, 3)
				s.rig(func() { s.deaf = nil })
				as := s.succeeded(j)
				if n := tally(as); n["2 succeeded"] != 3 || n["1 lost"] != 1 {
					t.Errorf("attempts ended as %v", n)
				}
			})
		})
	}
}

// What failed with its gang is retried as a gang.
func TestAGangIsRetried(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		j := s.submit(gangTask(3, time.Hour, saves+"max_duration: 30m\n"+works(time.Hour, "")))
		if done := s.await(j.ID, 3*time.Hour); done.Counts.Failed != 1 {
			t.Fatalf("%+v", done.Counts)
		}
		if n, err := s.up().Retry(context.Background(), j.ID, queue.TaskFailed); n != 1 || err != nil {
			t.Fatalf("retried %d, %v", n, err)
		}
		s.wantTally(s.succeeded(j), map[string]int{"1 failed": 1, "1 stopped": 2, "2 succeeded": 3})
	})
}

// A gang is cancelled at any time from the wish for its machines on.
func TestAGangIsCancelledWhileItIsMade(t *testing.T) {
	for _, after := range []time.Duration{time.Millisecond, time.Second, 3 * time.Second, 15 * time.Second, 45 * time.Second, 70 * time.Second, 95 * time.Second} {
		t.Run(after.String(), func(t *testing.T) {
			cfg := calm()
			cfg.Boot = simapi.Duration(40 * time.Second)
			inBubble(t, cfg, func(s *site) {
				s.fault(simapi.Fault{Op: "launch", Effect: simapi.Slow, Delay: simapi.Duration(10 * time.Second)})
				j := s.submit(gangTask(3, time.Hour, works(time.Hour, "")))
				time.Sleep(after)
				if _, err := s.up().Cancel(context.Background(), j.ID, "test"); err != nil {
					t.Fatal(err)
				}
				if done := s.await(j.ID, 5*time.Minute); done.State() != queue.JobCancelled {
					t.Errorf("the job %s", done.State())
				}
				s.quiet(10 * time.Minute)
				s.succeeded(s.submit(gangTask(2, time.Minute, works(time.Minute, ""))))
			})
		})
	}
}
