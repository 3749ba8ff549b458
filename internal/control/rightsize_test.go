package control_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/internal/rightsize"
	cloud "gpubroker/internal/simcloud"
	"gpubroker/providers"
	"gpubroker/queue"
)

// sizes is a cloud with one machine of each size.
func sizes() cloud.Config {
	cfg := calm()
	cfg.Quotas = nil
	cfg.Offers = []cloud.Offer{
		plain("big", providers.Shape{VCPU: 32, Memory: 128 << 30, Disk: 1 << 40}, 16),
		plain("middle", providers.Shape{VCPU: 8, Memory: 32 << 30, Disk: 1 << 40}, 4),
		plain("small", providers.Shape{VCPU: 4, Memory: 16 << 30, Disk: 1 << 40}, 2),
		plain("tiny", providers.Shape{VCPU: 2, Memory: 8 << 30, Disk: 1 << 40}, 1),
	}
	return cfg
}

// little is the usage of a task that keeps 2.5 threads busy in 9 GiB.
func little(busy time.Duration) *queue.Usage {
	n := int(busy / (5 * time.Second))
	f := func(v float64) *queue.Figure { return &queue.Figure{N: n, Mean: v, P95: v, Max: v} }
	return &queue.Usage{Samples: n, Span: time.Duration(n) * 5 * time.Second, Alone: n, CPUs: 32, CPU: f(2.5), Memory: f(9 << 30), Network: f(1e5)}
}

const sized = "name: sized\nproject: media\nresources: {gpu: none, vcpu: 30}\nspot: {policy: never}\nmax_duration: 3h\nwork: {time: 1h}\nrun: {command: [work, 1h]}\n"

func notesOf(a *rightsize.Advice) string {
	var b strings.Builder
	for _, n := range a.Notes {
		b.WriteString(n.String() + "\n")
	}
	return b.String()
}

// A job that is done says what would have been enough, from what its agents told.
func TestRightSize(t *testing.T) {
	inBubble(t, sizes(), func(s *site) {
		s.rig(func() { s.usage = little })
		j := s.submit(sized)
		if a, err := s.up().RightSize(context.Background(), j); a != nil || err != nil {
			t.Errorf("before its end: %+v, %v", a, err)
		}
		done := s.await(j.ID, 12*time.Hour)
		a, err := s.up().RightSize(context.Background(), done)
		if err != nil {
			t.Fatal(err)
		}
		want := `CPU: 2.5 of 32 vCPUs in 95 of 100 looks; 4 would have been enough
memory: 9.0 GiB of 128 GiB at the peak; 12 GiB would have been enough
sim/sim-east-a small on-demand at 2.00/h instead of 16.00/h would have saved about 14.00 of 16.00, if the job asked for vcpu: 4 (estimate)
seen in 720 looks at 1 attempt, over 1h of work
`
		if diff := cmp.Diff(want, notesOf(a)); diff != "" || !a.Clear {
			t.Errorf("clear %t, %v\n%s", a.Clear, a.Why, diff)
		}
		// A broker that starts anew says the same: it is in the books.
		s.stop()
		s.start()
		s.until("offers", time.Minute, func([]*queue.Instance, []*queue.Attempt) bool { return s.up().Market().Catalog().Offers > 0 })
		again, err := s.up().RightSize(context.Background(), done)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(notesOf(a), notesOf(again)); diff != "" {
			t.Error(diff)
		}
	})
}

// What the job itself asks of a place holds for what is suggested.
func TestRightSizeKeepsToTheJob(t *testing.T) {
	cfg := sizes()
	cfg.Offers[2].Place.Region, cfg.Offers[2].Place.Zone = "sim-west", "sim-west-a"
	inBubble(t, cfg, func(s *site) {
		s.rig(func() { s.usage = little })
		done := s.await(s.submit(strings.Replace(sized, "vcpu: 30", "vcpu: 30, regions: [sim-east]", 1)).ID, 12*time.Hour)
		a, err := s.up().RightSize(context.Background(), done)
		if err != nil {
			t.Fatal(err)
		}
		if a.Instead == nil || a.Instead.Market.Type != "middle" {
			t.Errorf("suggested %+v", a.Instead)
		}
	})
}

// What was told before a machine fell silent is kept with its attempt, and what
// cannot be so is not.
func TestUsageOfALostAttempt(t *testing.T) {
	inBubble(t, sizes(), func(s *site) {
		s.rig(func() { s.usage = little })
		j := s.submit(sized)
		s.until("ten minutes of work", time.Hour, func(_ []*queue.Instance, as []*queue.Attempt) bool {
			return slices.ContainsFunc(as, func(a *queue.Attempt) bool { return !a.Started.IsZero() && time.Since(a.Started) > 10*time.Minute })
		})
		s.rig(func() {
			s.agentDead = func(string) bool { return true }
			s.usage = nil
		})
		var lost *queue.Attempt
		s.until("its end", time.Hour, func([]*queue.Instance, []*queue.Attempt) bool {
			all := s.attempts(j.ID)
			i := slices.IndexFunc(all, func(a *queue.Attempt) bool { return a.State == queue.AttemptEnded })
			if i >= 0 {
				lost = all[i]
			}
			return i >= 0
		})
		if u := lost.Usage; u == nil || u.Samples < 100 || u.CPU.P95 != 2.5 {
			t.Errorf("usage of the attempt that was %s: %+v", lost.Outcome, lost.Usage)
		}
		s.rig(func() {
			s.agentDead = nil
			s.usage = func(busy time.Duration) *queue.Usage {
				u := little(busy)
				u.CPU.Max = -1
				return u
			}
		})
		done := s.await(j.ID, 12*time.Hour)
		all := s.attempts(j.ID)
		if last := all[len(all)-1]; last.Outcome != queue.Succeeded || last.Usage != nil {
			t.Errorf("%s with usage %+v", last.Outcome, last.Usage)
		}
		a, err := s.up().RightSize(context.Background(), done)
		if err != nil {
			t.Fatal(err)
		}
		if a.Clear || a.Why.Code != "size_unmeasured" || a.Notes != nil {
			t.Errorf("%+v", a)
		}
	})
}
