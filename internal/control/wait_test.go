package control_test

import (
	"context"
	"testing"
	"time"

	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/queue"
)

// noSpot has every launch on spot refused for so long.
func (s *site) noSpot(length time.Duration) {
	s.fault(simapi.Fault{Op: "launch", Effect: simapi.NoCapacity, Match: simapi.Place{Kind: providers.Spot}, For: simapi.Duration(length)})
}

// began is when the first machine of a kind on which a task has worked was chosen; zero
// if it has worked on none.
func (s *site) began(job string, kind providers.Kind) (at time.Time) {
	for _, a := range s.attempts(job) {
		if s.record(a.Instance).Kind == string(kind) && !a.Started.IsZero() && (at.IsZero() || a.Created.Before(at)) {
			at = a.Created
		}
	}
	return at
}

// Without a deadline a task waits for spot as long as it says, though spot refuses again
// and again, and no longer; a loss lets it wait anew.
func TestLongestWaitForSpot(t *testing.T) {
	const wait = 2 * time.Hour
	inBubble(t, calm(), func(s *site) {
		s.slow()
		s.noSpot(10 * time.Hour)
		start := time.Now()
		j := s.submit(task(time.Hour, saves+"spot: {max_wait: 2h}\n"))
		s.succeeded(j)
		at := s.began(j.ID, providers.OnDemand)
		if took := at.Sub(start); took < wait || took > wait+2*time.Minute {
			t.Errorf("on demand after %v of a wait of %v", took, wait)
		}
		refused := 0
		for _, a := range s.attempts(j.ID) {
			if a.Outcome == queue.LaunchFailed {
				refused++
			}
		}
		if refused < 8 {
			t.Errorf("spot was tried %d times in %v", refused, wait)
		}
	})
	inBubble(t, calm(), func(s *site) {
		s.slow()
		s.noSpot(time.Hour)
		j := s.submit(task(5*time.Hour, saves+"spot: {max_wait: 2h}\n"))
		time.Sleep(4 * time.Hour)
		if at := s.began(j.ID, providers.Spot); at.IsZero() {
			t.Fatal("it does not run on spot, which is there again")
		}
		s.noSpot(time.Hour)
		for _, i := range s.up().Instances() {
			s.taken(i.ID)
		}
		s.succeeded(j)
		if at := s.began(j.ID, providers.OnDemand); !at.IsZero() {
			t.Errorf("on demand at %v, within the longest wait after the loss", at)
		}
	})
}

// Without that word on demand is taken at once where spot is refused.
func TestNoWaitForSpot(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		s.noSpot(10 * time.Hour)
		start := time.Now()
		j := s.submit(task(time.Hour, saves))
		s.succeeded(j)
		if took := s.began(j.ID, providers.OnDemand).Sub(start); took < 0 || took > time.Minute {
			t.Errorf("on demand after %v", took)
		}
	})
}

// As a last resort, on demand is taken when the deadline needs it, and not before it:
// by itself the broker would have taken it sooner, when waiting no longer paid.
func TestOnDemandAsALastResort(t *testing.T) {
	took := map[string]time.Duration{}
	for _, word := range []string{"auto", "last-resort"} {
		inBubble(t, calm(), func(s *site) {
			s.slow()
			s.noSpot(20 * time.Hour)
			start := time.Now()
			deadline := start.Add(6 * time.Hour)
			j := s.submit(task(3*time.Hour, saves+"deadline: "+deadline.Format(time.RFC3339)+"\nspot: {on_demand: "+word+"}\n"))
			s.succeeded(j)
			took[word] = s.began(j.ID, providers.OnDemand).Sub(start)
			if done, err := s.up().Job(context.Background(), j.ID); err != nil || done.Ended.After(deadline) {
				t.Errorf("%s: ended at %v, due at %v (%v)", word, done.Ended, deadline, err)
			}
		})
	}
	if auto, last := took["auto"], took["last-resort"]; auto >= last || last < 2*time.Hour || last > 3*time.Hour {
		t.Errorf("on demand after %v, as a last resort after %v", auto, last)
	}
}

// Never is never, though the deadline goes by.
func TestOnDemandNever(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		s.slow()
		s.noSpot(8 * time.Hour)
		j := s.submit(task(time.Hour, saves+"deadline: "+time.Now().Add(6*time.Hour).Format(time.RFC3339)+"\nspot: {on_demand: never}\n"))
		s.succeeded(j)
		if at := s.began(j.ID, providers.OnDemand); !at.IsZero() {
			t.Errorf("on demand at %v", at)
		}
	})
}

// The safety net leaves on-demand machines as much longer than usual as they were measured
// to take, also after a restart.
func TestTheSafetyNetLeavesAMargin(t *testing.T) {
	taken := func(slow time.Duration) (at time.Duration) {
		inBubble(t, zone(map[time.Duration]int{0: 0}), func(s *site) {
			s.slow()
			first := s.submit("name: first\nproject: media\nresources: {gpu: l4}\nspot: {policy: never}\nwork: {time: 10m, on: l4}\nrun: {command: [work, 10m]}\n")
			time.Sleep(time.Minute)
			s.stop() // nobody answers the machine that boots for two minutes
			time.Sleep(time.Minute + slow)
			s.start()
			s.succeeded(first)
			s.quiet(time.Hour)
			start := time.Now()
			j := s.submit(dueTask(1, 2*time.Hour, 6*time.Hour, "spot: {on_demand: last-resort}\n"))
			s.succeeded(j)
			s.inTime(j.ID)
			at = s.began(j.ID, providers.OnDemand).Sub(start)
		})
		return at
	}
	const slow = 4 * time.Minute
	if early := taken(0) - taken(slow); (early - slow).Abs() > 30*time.Second {
		t.Errorf("with machines that are %v late the net is held %v earlier", slow, early)
	}
}
