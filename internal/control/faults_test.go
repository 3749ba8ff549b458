package control_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/control"
	cloud "gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/queue"
)

// inBubble runs a site in virtual time, and makes sure at its end that nothing is
// left and the books are closed.
func inBubble(t *testing.T, cfg cloud.Config, run func(s *site)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, cfg)
		s.start()
		defer s.close()
		run(s)
		if !t.Failed() {
			s.quiet(3 * time.Hour)
			s.squared()
		}
	})
}

// task is a job of one task.
func task(length time.Duration, more string) string {
	return fmt.Sprintf("name: one\nproject: media\nresources: {gpu: l4}\nwork: {time: %v, on: l4}\nrun: {command: [work, %v]}\n%s", length, length, more)
}

const saves = "checkpoint: {dir: ckpt, interval: 2m}\n"

func (s *site) fault(f simapi.Fault) {
	s.t.Helper()
	if err := s.world.AddFault(f); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) do(a simapi.Action) {
	s.t.Helper()
	if _, err := s.world.Do(a); err != nil {
		s.t.Fatal(err)
	}
}

// until waits for a condition on the tables.
func (s *site) until(what string, limit time.Duration, cond func(i []*queue.Instance, a []*queue.Attempt) bool) time.Duration {
	s.t.Helper()
	begin := time.Now()
	for time.Since(begin) < limit {
		if b := s.up(); b != nil {
			view := b.State().View()
			var is []*queue.Instance
			for i := range view.Instances.All() {
				is = append(is, i)
			}
			var as []*queue.Attempt
			for a := range view.Attempts.All() {
				as = append(as, a)
			}
			if cond(is, as) {
				return time.Since(begin)
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	s.t.Fatalf("%s: not within %v", what, limit)
	return 0
}

// running waits until an attempt runs, and returns it.
func (s *site) running() (out queue.Attempt) {
	s.t.Helper()
	s.until("a running attempt", 30*time.Minute, func(_ []*queue.Instance, as []*queue.Attempt) bool {
		for _, a := range as {
			if a.State == queue.AttemptRunning {
				out = *a
				return true
			}
		}
		return false
	})
	return out
}

// succeeded waits for a job and returns its attempts, oldest first.
func (s *site) succeeded(j *queue.Job) []*queue.Attempt {
	s.t.Helper()
	if done := s.await(j.ID, 12*time.Hour); done.State() != queue.JobSucceeded {
		s.t.Errorf("the job %s: %+v", done.State(), done.Counts)
	}
	return s.attempts(j.ID)
}

func (s *site) attempts(job string) []*queue.Attempt {
	s.t.Helper()
	all, err := s.st.Attempts(context.Background(), queue.AttemptQuery{Job: job, Page: queue.Page{Limit: 1000}})
	if err != nil {
		s.t.Fatal(err)
	}
	return all
}

func outcomes(as []*queue.Attempt) (out []queue.Outcome) {
	for _, a := range as {
		out = append(out, a.Outcome)
	}
	return out
}

func (s *site) want(as []*queue.Attempt, want ...queue.Outcome) {
	s.t.Helper()
	if got := outcomes(as); fmt.Sprint(got) != fmt.Sprint(want) {
		s.t.Errorf("attempts ended as %v, want %v", got, want)
	}
}

// launches are the calls that asked for a machine.
func (s *site) launches() (n int) { return s.count("instance.launching") }

func TestNoCapacityTriesTheNextOfferAtOnce(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		s.fault(simapi.Fault{Op: "launch", Effect: simapi.NoCapacity, Times: 2})
		j := s.submit(task(10*time.Minute, ""))
		took := s.until("a machine that boots", time.Minute, func(is []*queue.Instance, _ []*queue.Attempt) bool {
			for _, i := range is {
				if i.State == queue.InstanceBooting || i.State == queue.InstanceReady {
					return true
				}
			}
			return false
		})
		if took > 5*time.Second {
			t.Errorf("two full markets took %v", took)
		}
		as := s.succeeded(j)
		s.want(as, queue.LaunchFailed, queue.LaunchFailed, queue.Succeeded)
		at := map[string]bool{}
		for _, a := range as {
			i := s.record(a.Instance)
			if m := i.Zone + i.Type + i.Kind; at[m] {
				t.Errorf("asked for %s again", m)
			} else {
				at[m] = true
			}
		}
		if gap := as[1].Created.Sub(as[0].Ended); gap > time.Second {
			t.Errorf("the next offer was tried after %v", gap)
		}
	})
}

func TestAFullMarketIsNotAskedAgainAndAgain(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		s.fault(simapi.Fault{Op: "launch", Effect: simapi.NoCapacity, For: simapi.Duration(10 * time.Minute)})
		j := s.submit("name: one\nproject: media\nresources: {gpu: l4, zones: [sim-east-a], regions: [sim-east]}\nwork: {time: 5m, on: l4}\nspot: {on_demand: never, policy: always}\nrun: {command: [work, 5m]}\n")
		time.Sleep(10 * time.Minute)
		if n := s.launches(); n < 1 || n > 4 {
			t.Errorf("%d calls in ten minutes without capacity", n)
		}
		s.succeeded(j)
	})
}

// A launch that fails after the machine was made is found by our id, and is used.
func TestALaunchWithAnUnknownOutcomeIsFound(t *testing.T) {
	for _, effect := range []string{simapi.InternalAfter, simapi.UnavailableAfter, simapi.DropAfter, simapi.Truncate} {
		t.Run(effect, func(t *testing.T) {
			cfg := calm()
			cfg.ListLag = simapi.Duration(60 * time.Second)
			inBubble(t, cfg, func(s *site) {
				s.fault(simapi.Fault{Op: "launch", Effect: effect})
				s.want(s.succeeded(s.submit(task(10*time.Minute, ""))), queue.Succeeded)
				if n := len(s.world.Truth()); n != 1 {
					t.Errorf("%d machines were made", n)
				}
			})
		})
	}
}

// A launch of which nothing became is given up only once the list would show it.
func TestALaunchThatMadeNothingIsTriedAgain(t *testing.T) {
	for _, effect := range []string{simapi.Drop, simapi.Internal, simapi.Proxy, simapi.Hang} {
		t.Run(effect, func(t *testing.T) {
			inBubble(t, calm(), func(s *site) {
				s.fault(simapi.Fault{Op: "launch", Effect: effect})
				s.succeeded(s.submit(task(10*time.Minute, "")))
				if n := len(s.world.Truth()); n != 1 {
					t.Errorf("%d machines were made", n)
				}
			})
		})
	}
}

// A launch that takes effect long after its call was given up leaves no machine.
func TestALateLaunchIsEnded(t *testing.T) {
	cfg := calm()
	inBubble(t, cfg, func(s *site) {
		s.rig(func() { s.lag = 15 * time.Minute }) // nobody can know of it before it is there
		s.rig(func() { s.check.Beyond = true })
		s.fault(simapi.Fault{Op: "launch", Effect: simapi.Late, Delay: simapi.Duration(5 * time.Minute)})
		s.succeeded(s.submit(task(20*time.Minute, "")))
	})
}

// A machine that its cloud does not show yet is not given up.
func TestAMachineThatIsNotShownYet(t *testing.T) {
	t.Run("list", func(t *testing.T) {
		cfg := calm()
		cfg.ListLag = simapi.Duration(60 * time.Second)
		inBubble(t, cfg, func(s *site) {
			s.want(s.succeeded(s.submit(task(10*time.Minute, ""))), queue.Succeeded)
		})
	})
	t.Run("describe", func(t *testing.T) {
		inBubble(t, calm(), func(s *site) {
			s.fault(simapi.Fault{Op: "describe", Effect: simapi.NotFound, Delay: simapi.Duration(2 * time.Second), Times: -1})
			s.fault(simapi.Fault{Op: "launch", Effect: simapi.DropAfter})
			s.want(s.succeeded(s.submit(task(10*time.Minute, ""))), queue.Succeeded)
		})
	})
}

func TestAQuotaClosesItsFamilyOnly(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		s.fault(simapi.Fault{Op: "launch", Effect: simapi.Quota})
		as := s.succeeded(s.submit(task(10*time.Minute, "")))
		s.want(as, queue.LaunchFailed, queue.Succeeded)
		first, second := s.record(as[0].Instance), s.record(as[1].Instance)
		if first.Type == second.Type && first.Region == second.Region && first.Kind == second.Kind {
			t.Errorf("%s/%s/%s was asked for again", second.Region, second.Type, second.Kind)
		}
	})
}

func TestThrottlingMakesNoSecondMachine(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		s.fault(simapi.Fault{Effect: simapi.Throttle, RetryAfter: simapi.Duration(2 * time.Second), Chance: 40, For: simapi.Duration(5 * time.Minute)})
		s.succeeded(s.submit(arrayJob))
	})
}

// A machine that is gone without a word is noticed, its task goes on from its
// last save, and what was lost is counted.
func TestASilentLoss(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		j := s.submit(task(time.Hour, saves))
		a := s.running()
		time.Sleep(20 * time.Minute)
		gone := time.Now()
		s.do(simapi.Action{Preempt: &simapi.Preempt{Pick: simapi.Pick{Machine: s.record(a.Instance).CloudID}, Notice: new(simapi.Duration(0))}})
		s.until("the loss is noticed", 30*time.Second, func(_ []*queue.Instance, as []*queue.Attempt) bool {
			return len(as) > 0 && as[0].ID != a.ID
		})
		as := s.succeeded(j)
		s.want(as, queue.Preempted, queue.Succeeded)
		if as[1].Created.Sub(gone) > 30*time.Second || as[1].Resume == 0 {
			t.Errorf("resumed from %d, %v after the loss", as[1].Resume, as[1].Created.Sub(gone))
		}
		lost := as[0].Busy - as[0].Kept
		if lost < 0 || lost > 6*time.Minute+10*time.Second || as[1].Busy > 46*time.Minute+10*time.Second {
			t.Errorf("lost %v of %v, then busy %v", lost, as[0].Busy, as[1].Busy)
		}
		c, err := s.up().Costs(context.Background(), control.CostQuery{})
		if err != nil || c.Lost != lost {
			t.Errorf("costs say %v was lost, the attempt %v; %v", c.Lost, lost, err)
		}
	})
}

// A warning: the task saves and is back in the queue before its machine is gone.
func TestANoticeThenTaken(t *testing.T) {
	cfg := calm()
	cfg.Notice = simapi.Duration(2 * time.Minute)
	inBubble(t, cfg, func(s *site) {
		j := s.submit(task(time.Hour, saves))
		a := s.running()
		time.Sleep(20 * time.Minute)
		at := time.Now()
		s.do(simapi.Action{Preempt: &simapi.Preempt{Pick: simapi.Pick{Machine: s.record(a.Instance).CloudID}}})
		as := s.succeeded(j)
		s.want(as, queue.Preempted, queue.Succeeded)
		if lost := as[0].Busy - as[0].Kept; lost > 5*time.Second {
			t.Errorf("%v was lost though there was a warning", lost)
		}
		if back := as[1].Created.Sub(as[0].Ended); back > 2*time.Second {
			t.Errorf("the next attempt came %v after the end of the first", back)
		}
		if as[0].Ended.Sub(at) > 30*time.Second {
			t.Errorf("the task ended %v after the warning", as[0].Ended.Sub(at))
		}
	})
}

// A warning that comes to nothing: the machine is drained all the same, and let
// go.
func TestANoticeAndTheMachineLivesOn(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		j := s.submit(task(time.Hour, saves))
		a := s.running()
		time.Sleep(20 * time.Minute)
		s.rig(func() {
			s.notice = func(id string) *agentapi.Notice {
				if id == a.Instance {
					return &agentapi.Notice{Kind: "preempt", In: agentapi.Of(time.Minute)}
				}
				return nil
			}
		})
		s.want(s.succeeded(j), queue.Preempted, queue.Succeeded)
		if i := s.record(a.Instance); i.State != queue.InstanceGone || i.Ended.Sub(a.Created) > 25*time.Minute {
			t.Errorf("the machine is %s, ended %v", i.State, i.Ended)
		}
	})
}

// Advice without an end is no reason to move.
func TestAdviceAlone(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		j := s.submit(task(time.Hour, saves))
		a := s.running()
		s.do(simapi.Action{Rebalance: &simapi.Pick{Machine: s.record(a.Instance).CloudID}})
		s.rig(func() { s.notice = func(string) *agentapi.Notice { return &agentapi.Notice{Kind: "rebalance"} } })
		s.want(s.succeeded(j), queue.Succeeded)
	})
}

// An agent that was cut off comes back with a token that is no longer the task's:
// it is told so, and nothing of it is kept.
func TestAnAgentComesBackWithAStaleToken(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		j := s.submit(task(time.Hour, saves))
		a := s.running()
		time.Sleep(20 * time.Minute)
		s.fault(simapi.Fault{Op: "terminate", Effect: simapi.Refuse, For: simapi.Duration(5 * time.Minute), Times: -1})
		s.rig(func() { s.deaf = func(id string) bool { return id == a.Instance } })
		s.until("another attempt", 5*time.Minute, func(_ []*queue.Instance, as []*queue.Attempt) bool {
			return len(as) == 1 && as[0].ID != a.ID && as[0].State == queue.AttemptRunning
		})
		old := s.agentOf(a.Instance)
		s.rig(func() { s.deaf = nil })
		time.Sleep(10 * time.Second)
		if old.works() != 0 {
			t.Error("the old attempt still runs")
		}
		as := s.succeeded(j)
		s.want(as, queue.Lost, queue.Succeeded)
		kept, err := s.st.Checkpoints(context.Background(), a.TaskID)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range kept {
			if k.Attempt == a.ID && k.At.After(as[0].Ended) {
				t.Errorf("checkpoint %d of the old attempt was committed after its end", k.Number)
			}
		}
	})
}

func TestASecondMachineWithTheSameTokenIsRefused(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		j := s.submit(task(10*time.Minute, ""))
		a := s.running()
		agent := s.agentOf(a.Instance)
		join := func(nonce string) error {
			_, err := s.up().Join(context.Background(), agentapi.JoinRequest{Instance: a.Instance, Token: agent.join, Nonce: nonce})
			return err
		}
		status := func(err error) int {
			if p, ok := errors.AsType[*control.Problem](err); ok {
				return p.Status
			}
			return 0
		}
		if got := status(join("another")); got != http.StatusForbidden {
			t.Errorf("another nonce: %d", got)
		}
		if s.count("instance.impostor") != 1 {
			t.Error("no alarm")
		}
		if _, err := s.up().Join(context.Background(), agentapi.JoinRequest{Instance: a.Instance, Token: "wrong", Nonce: agent.guest.ID}); status(err) != http.StatusForbidden {
			t.Errorf("a wrong token: %v", err)
		}
		// The agent itself may ask again, after a lost answer or a restart.
		res, err := s.up().Join(context.Background(), agentapi.JoinRequest{Instance: a.Instance, Token: agent.join, Nonce: agent.guest.ID})
		if err != nil || res.Credential == "" {
			t.Errorf("the same nonce: %v", err)
		}
		agent.setCredential(res.Credential)
		s.want(s.succeeded(j), queue.Succeeded)
	})
}

// A report that was held up on its way says what is no longer so.
func TestALateReportIsDropped(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		j := s.submit(task(10*time.Minute, ""))
		a := s.running()
		agent := s.agentOf(a.Instance)
		old := agentapi.Observed{Instance: a.Instance, BootID: agent.guest.ID, Sent: 1, Attempts: []agentapi.ObservedAttempt{{
			ID: a.ID, Token: a.Token, Phase: agentapi.PhaseEnded, Ended: &agentapi.Ended{ExitCode: new(1), Layer: "task"},
		}}}
		_, err := s.up().Sync(context.Background(), agent.credential(), old)
		if p, ok := errors.AsType[*control.Problem](err); !ok || p.Status != http.StatusServiceUnavailable {
			t.Errorf("it was taken: %v", err)
		}
		s.want(s.succeeded(j), queue.Succeeded)
	})
}

// The broker's own errors never touch a workload.
func TestAStoreThatCannotBeWritten(t *testing.T) {
	for name, failure := range map[string]error{"io error": errors.New("input/output error"), "disk full": queue.ErrFull} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, calm(), func(s *site) {
				j := s.submit(task(time.Hour, saves))
				s.running()
				time.Sleep(5 * time.Minute)
				away := time.Now().Add(6 * time.Minute)
				n := 0
				s.rig(func() {
					s.fail = func() error {
						if time.Now().Before(away) {
							n++
							return failure
						}
						return nil
					}
				})
				s.want(s.succeeded(j), queue.Succeeded)
				var failed int
				s.rig(func() { failed = n })
				if failed < 3 {
					t.Errorf("only %d writes failed", failed)
				}
				if len(s.world.Truth()) != 1 {
					t.Errorf("%d machines", len(s.world.Truth()))
				}
			})
		})
	}
}
