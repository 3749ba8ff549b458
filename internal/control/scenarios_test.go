package control_test

import (
	"testing"
	"time"

	"gpubroker/internal/gpu"
	"gpubroker/internal/scenario"
	"gpubroker/queue"
)

// ofOwner is the built-in scenarios and one of the owner's.
func ofOwner(t *testing.T, p scenario.Profile) *scenario.Set {
	t.Helper()
	return scenario.Builtin().With([]scenario.Profile{p}, func(_ int, key, _, format string, _ ...any) {
		t.Errorf("%s: %s", key, format)
	})
}

// why waits until the decision on a job's waiting tasks has a code.
func (s *site) why(j *queue.Job, code string) {
	s.t.Helper()
	s.until("the reason "+code, 5*time.Minute, func([]*queue.Instance, []*queue.Attempt) bool {
		d, _, ok := s.up().Decision(j.ID)
		return ok && string(d.Why.Code) == code
	})
}

// A scenario that is taken out of the configuration, or changed, breaks neither
// the broker nor its jobs: what runs goes on, what waits says why and goes on once
// it can.
func TestAScenarioOfTheOwnersComesAndGoes(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		restart := func(set *scenario.Set) {
			s.stop()
			s.set.Scenarios = set
			s.start()
		}
		nights := ofOwner(t, scenario.Profile{Name: "nights", Extends: "transcode", Slots: 1})
		restart(nights)
		j := s.submit("name: two\nproject: media\nscenario: nights\ntasks: {count: 2, parallelism: 1}\nresources: {gpu: l4}\nwork: {time: 1h, on: l4}\nrun: {command: [work, 1h]}\n")
		first := s.running()
		other := s.submit("name: other\nproject: media\nresources: {gpu: l4}\nwork: {time: 10m, on: l4}\nrun: {command: [work, 10m]}\n")

		restart(nil)
		s.why(j, "scenario_unknown")
		s.succeeded(other) // nobody else waits with it
		time.Sleep(3 * time.Hour)
		as := s.attempts(j.ID)
		if len(as) != 1 || as[0].ID != first.ID || as[0].Outcome != queue.Succeeded {
			t.Errorf("attempts without the scenario: %v", outcomes(as))
		}

		restart(ofOwner(t, scenario.Profile{Name: "nights", Extends: "transcode", Require: scenario.Requirements{"memory": gpu.AtLeast(30)}}))
		s.why(j, "no_offer_fits")

		restart(nights)
		s.want(s.succeeded(j), queue.Succeeded, queue.Succeeded)
	})
}
