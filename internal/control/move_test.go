package control_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/internal/money"
	cloud "gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/queue"
)

// zone is a cloud of one zone with L4s: on demand without limit, and spot, at a quarter
// of the price, of which there are as many machines from each moment on as steps say.
func zone(steps map[time.Duration]int) cloud.Config {
	cfg := calm()
	cfg.Quotas = nil
	cfg.Boot, cfg.BootSpan, cfg.BillsBoot = simapi.Duration(2*time.Minute), 0, true
	cfg.Notice = simapi.Duration(2 * time.Minute)
	one := plain("l4x1", providers.Shape{GPU: "l4", GPUName: "NVIDIA L4", GPUs: 1, GPUMemory: 24 << 30, VCPU: 4, Memory: 16 << 30, Disk: 250 << 30}, 8)
	spot := one
	spot.Kind, spot.Price = providers.Spot, one.Price/4
	for at := time.Duration(0); at < 100*time.Hour; at += time.Minute {
		if n, ok := steps[at]; ok {
			spot.Steps = append(spot.Steps, cloud.Step{At: simapi.Duration(at), Capacity: new(n)})
		}
	}
	cfg.Offers = []cloud.Offer{one, spot}
	return cfg
}

// dueTask is a job of one task on so many machines, with a deadline from now.
func dueTask(nodes int, length, deadline time.Duration, more string) string {
	return gangTask(nodes, length, works(length, "")+saves+"deadline: "+time.Now().Add(deadline).UTC().Format(time.RFC3339)+"\n"+more)
}

// path is the kinds of machines that a task worked on, in order, each with how its
// attempt ended.
func (s *site) path(job string) (out []string) {
	s.t.Helper()
	for _, a := range s.attempts(job) {
		if !a.Started.IsZero() && a.Leads() {
			out = append(out, s.record(a.Instance).Kind+" "+string(a.Outcome))
		}
	}
	return out
}

func (s *site) wantPath(job string, want ...string) {
	s.t.Helper()
	if got := s.path(job); fmt.Sprint(got) != fmt.Sprint(want) {
		for _, a := range s.attempts(job) {
			s.t.Logf("%s %d on %s: %s to %s, %s %v", a.Created.Format(time.TimeOnly), a.Number, s.record(a.Instance).Kind, a.Started.Format(time.TimeOnly), a.Ended.Format(time.TimeOnly), a.Outcome, a.Reason)
		}
		s.t.Errorf("it went %q, want %q", got, want)
	}
}

// inTime makes sure that a job was done by its deadline.
func (s *site) inTime(id string) {
	s.t.Helper()
	j, err := s.st.Job(context.Background(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	if j.Ended.IsZero() || j.Ended.After(j.Deadline) {
		s.t.Errorf("done at %v, due at %v", j.Ended, j.Deadline)
	}
}

func eachWidth(t *testing.T, run func(t *testing.T, nodes int)) {
	t.Helper()
	for _, nodes := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d machines", nodes), func(t *testing.T) { run(t, nodes) })
	}
}

// Work on demand goes back to spot once that is there again and time is left: first it is
// rented, then the task stops, and it goes on where it was.
func TestADeadlineTaskGoesBackToSpot(t *testing.T) {
	eachWidth(t, func(t *testing.T, nodes int) {
		inBubble(t, zone(map[time.Duration]int{0: 0, 2 * time.Hour: 4}), func(s *site) {
			s.saves = 5 * time.Minute
			s.slow()
			j := s.submit(dueTask(nodes, 8*time.Hour, 10*time.Hour, ""))
			s.succeeded(j)
			s.wantPath(j.ID, "on-demand moved", "spot succeeded")
			s.inTime(j.ID)
			as := s.attempts(j.ID)
			last := as[len(as)-1]
			if i := s.record(last.Instance); !i.Launched.Before(as[0].Ended) {
				t.Errorf("rented at %v, after the stop at %v", i.Launched, as[0].Ended)
			}
			for _, a := range as[:nodes] {
				if a.Busy-a.Kept > time.Second && a.Leads() {
					t.Errorf("the move lost %v", a.Busy-a.Kept)
				}
			}
		})
	})
}

// Spot that refuses disturbs nothing: a task on demand works on until it accepts.
func TestAMoveThatIsRefusedCostsNothing(t *testing.T) {
	eachWidth(t, func(t *testing.T, nodes int) {
		inBubble(t, zone(map[time.Duration]int{0: 0, time.Hour: 4}), func(s *site) {
			s.saves = 5 * time.Minute
			s.slow()
			s.noSpot(4 * time.Hour)
			j := s.submit(dueTask(nodes, 8*time.Hour, 10*time.Hour, ""))
			s.succeeded(j)
			s.wantPath(j.ID, "on-demand moved", "spot succeeded")
			s.inTime(j.ID)
			if n := s.count("attempt.moving"); n < 3 {
				t.Errorf("it tried to move %d times in three hours", n)
			}
			if n := len(s.attempts(j.ID)); n != 2*nodes {
				t.Errorf("%d attempts", n)
			}
		})
	})
}

// A gang of which only some machines are to be had stays where it is, and pays for those
// no longer than it takes to let them go.
func TestAMoveOfAGangIsWhole(t *testing.T) {
	inBubble(t, zone(map[time.Duration]int{0: 0, time.Hour: 4}), func(s *site) {
		s.saves = 5 * time.Minute
		s.slow()
		s.fault(simapi.Fault{Op: "launch", Effect: simapi.NoCapacity, Match: simapi.Place{Kind: providers.Spot}, Nth: 2})
		j := s.submit(dueTask(2, 8*time.Hour, 10*time.Hour, ""))
		s.succeeded(j)
		s.wantPath(j.ID, "on-demand moved", "spot succeeded")
		s.inTime(j.ID)
		var lost time.Duration
		for _, m := range s.world.Truth() {
			if m.Kind == providers.Spot && m.Running.IsZero() {
				lost += m.Ended.Sub(m.Launched)
			}
		}
		if lost <= 0 || lost > 3*time.Minute {
			t.Errorf("the half of a gang was held for %v", lost)
		}
	})
}

// Work on spot that falls behind goes on demand when no time is left to spare: here
// machines on spot work at half their pace.
func TestSpotRunsOutOfSlack(t *testing.T) {
	eachWidth(t, func(t *testing.T, nodes int) {
		inBubble(t, zone(map[time.Duration]int{0: 4}), func(s *site) {
			s.slow()
			s.rig(func() {
				s.pace = func(instance string) float64 {
					if s.check.Instances()[instance].Kind == string(providers.Spot) {
						return 2
					}
					return 1
				}
			})
			j := s.submit(dueTask(nodes, 4*time.Hour, 6*time.Hour, ""))
			s.succeeded(j)
			if path := s.path(j.ID); len(path) == 0 || path[0] != "spot moved" {
				t.Errorf("it went %q", path)
			}
			if s.began(j.ID, providers.OnDemand).IsZero() {
				t.Error("it was never on demand")
			}
			s.inTime(j.ID)
		})
	})
}

// A broker that starts anew in mid-job decides as one that went on: the task is on the
// same kinds of machines at the same times, and in time.
func TestTheSameDecisionsAfterARestart(t *testing.T) {
	h := time.Hour
	steps := map[time.Duration]int{0: 4, 2 * h: 0, 6 * h: 4}
	type stay struct {
		kind       string
		start, end time.Duration
	}
	run := func(t *testing.T, nodes int, restarts ...time.Duration) (out []stay, cost money.Amount) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t, zone(steps))
			s.start()
			defer s.close()
			s.slow()
			start := time.Now()
			j := s.submit(dueTask(nodes, 7*h, 11*h, ""))
			for _, at := range restarts {
				time.Sleep(time.Until(start.Add(at)))
				s.stop()
				time.Sleep(20 * time.Second)
				s.start()
			}
			s.succeeded(j)
			s.inTime(j.ID)
			for _, a := range s.attempts(j.ID) {
				if !a.Started.IsZero() && a.Leads() {
					out = append(out, stay{s.record(a.Instance).Kind, a.Created.Sub(start), a.Ended.Sub(start)})
				}
			}
			s.quiet(3 * h)
			s.squared()
			cost = s.ledger()
		})
		return out, cost
	}
	eachWidth(t, func(t *testing.T, nodes int) {
		want, cost := run(t, nodes)
		if len(want) < 2 {
			t.Fatalf("too little happens: %v", want)
		}
		got, paid := run(t, nodes, 30*time.Minute, 2*h+time.Minute, 4*h+7*time.Minute, 5*h+30*time.Minute, 8*h)
		if len(got) != len(want) {
			t.Fatalf("with restarts %v, without %v", got, want)
		}
		for k := range got {
			const near = 12 * time.Minute // offers are read each ten, and anew at a start
			if got[k].kind != want[k].kind || (got[k].start-want[k].start).Abs() > near || (got[k].end-want[k].end).Abs() > near {
				t.Errorf("stay %d with restarts %v, without %v", k, got[k], want[k])
			}
		}
		t.Logf("%v, %v with restarts; %v", cost, paid, want)
	})
}

// The broker dies at each write and each call of a move.
func TestKillEverywhereInAMove(t *testing.T) {
	killEverywhere(t, 2, 23, func(t *testing.T, point func(string) bool) map[queue.TaskID]outcome {
		t.Helper()
		s := newSite(t, zone(map[time.Duration]int{0: 0, 20 * time.Minute: 8}))
		s.set.Every.Offers = time.Minute
		one := strings.Replace(dueTask(1, 40*time.Minute, 100*time.Minute, ""), "name: gang", "name: one", 1)
		return crashSite(t, s, []string{one, dueTask(2, 40*time.Minute, 100*time.Minute, "")}, point)
	})
}

// Work without a deadline that went on demand, for want of spot, goes back when there is
// much left of it; what would start over stays.
func TestLongWorkGoesBackToSpot(t *testing.T) {
	for more, want := range map[string][]string{
		saves:                      {"on-demand moved", "spot succeeded"},
		"spot: {policy: always}\n": {"on-demand succeeded"},
	} {
		inBubble(t, zone(map[time.Duration]int{0: 0, time.Hour: 4}), func(s *site) {
			s.slow()
			j := s.submit(gangTask(1, 6*time.Hour, works(6*time.Hour, "")+more))
			s.succeeded(j)
			s.wantPath(j.ID, want...)
		})
	}
}

// Until a deadline only the hours count in which the window is open: twelve of the first
// two days, of which the work takes nine.
func TestADeadlineCountsOpenHours(t *testing.T) {
	for _, word := range []string{"auto", "last-resort"} {
		inBubble(t, zone(map[time.Duration]int{0: 0, 40 * time.Hour: 4}), func(s *site) {
			s.slow()
			j := s.submit(dueTask(1, 9*time.Hour, 48*time.Hour, "window: {start: \"22:00\", end: \"04:00\", timezone: UTC}\nspot: {on_demand: "+word+"}\n"))
			s.await(j.ID, 80*time.Hour)
			s.inTime(j.ID)
			if first := s.began(j.ID, providers.OnDemand); time.Since(first) < 40*time.Hour {
				t.Errorf("%s: on demand only %v before its end", word, time.Since(first))
			}
		})
	}
}
