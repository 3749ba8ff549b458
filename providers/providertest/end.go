package providertest

import (
	"slices"
	"testing"

	"gpubroker/providers"
)

func endChecks() []Check {
	return []Check{
		{"terminate-twice", "Terminate repeats safely: nil while it is accepted, not_found once the machine is certainly gone", func(t testing.TB, s *subject) {
			req, inst := s.rent(t)
			s.running(t, inst.Ref)
			if err := s.Terminate(t.Context(), inst.Ref); err != nil {
				t.Fatalf("the first terminate: %v", err)
			}
			if err := s.Terminate(t.Context(), inst.Ref); err != nil && !code(err, providers.NotFound) {
				t.Errorf("the second terminate: %v", err)
			}
			s.gone(t, inst.Ref)
			s.nothing(t, req.Request)
			if err := s.Terminate(t.Context(), inst.Ref); !code(err, providers.NotFound) {
				t.Errorf("terminate after the end: %v, want not_found", err)
			}
		}},
		{"terminate-early", "A machine can be ended before it has booted", func(t testing.TB, s *subject) {
			req, inst := s.rent(t)
			s.gone(t, inst.Ref)
			s.nothing(t, req.Request)
		}},
		{"terminate-by-request", "A machine whose id was never learned can be ended by our request id alone", func(t testing.TB, s *subject) {
			req, _ := s.rent(t)
			s.advance(s.caps.ListLag)
			ref := providers.Ref{Request: req.Request}
			if err := s.Terminate(t.Context(), ref); err != nil {
				t.Fatalf("terminate: %v", err)
			}
			s.gone(t, ref)
			s.nothing(t, req.Request)
		}},
		{"terminate-stranger", "Terminate of a machine that never was is not_found and ends no other", func(t testing.TB, s *subject) {
			req, _ := s.rent(t)
			if err := s.Terminate(t.Context(), providers.Ref{Request: "never-launched"}); !code(err, providers.NotFound) {
				t.Errorf("terminate: %v, want not_found", err)
			}
			if live := s.live(t, req.Request); len(live) != 1 {
				t.Errorf("%d machines live after another was ended, want 1", len(live))
			}
		}},
		{"terminate-refused", "A refused terminate is an error, the machine lives on and can be ended later", func(t testing.TB, s *subject) {
			req, inst := s.rent(t)
			s.running(t, inst.Ref)
			s.inject(t, Fault{Op: "terminate", Code: providers.Unavailable})
			if err := s.Terminate(t.Context(), inst.Ref); !code(err, providers.Unavailable) {
				t.Fatalf("terminate: %v, want unavailable", err)
			}
			if live := s.live(t, req.Request); len(live) != 1 || live[0].State != providers.Running {
				t.Errorf("after a refused terminate: %+v, want one running machine", live)
			}
			s.gone(t, inst.Ref)
		}},
		{"terminate-unavailable-after", "A terminate that failed after its effect can be repeated until not_found", func(t testing.TB, s *subject) {
			req, inst := s.rent(t)
			s.inject(t, Fault{Op: "terminate", Code: providers.Unavailable, After: true})
			if err := s.Terminate(t.Context(), inst.Ref); !code(err, providers.Unavailable) {
				t.Fatalf("terminate: %v, want unavailable", err)
			}
			s.gone(t, inst.Ref)
			s.nothing(t, req.Request)
		}},
		{"end-cause-user", "Describe says that a machine which we ended was ended by a call", func(t testing.TB, s *subject) {
			_, inst := s.rent(t)
			s.running(t, inst.Ref)
			s.gone(t, inst.Ref)
			s.endedBy(t, inst.Ref, providers.CauseUser)
		}},
		{"end-cause-preempted", "Describe says that a machine which the provider took was preempted", func(t testing.TB, s *subject) {
			_, inst := s.rentSpot(t)
			s.running(t, inst.Ref)
			s.preempt(t, inst.Ref)
			if !s.until(s.caps.Notice+s.caps.StopTime+s.caps.ListLag+s.slack(), func() bool {
				i, err := s.Describe(t.Context(), inst.Ref)
				return err != nil || !i.Live()
			}) {
				t.Fatal("the machine lives on after its preemption")
			}
			s.endedBy(t, inst.Ref, providers.CausePreempted)
		}},
	}
}

// endedBy expects a machine that is terminated by a cause.
func (s *subject) endedBy(t testing.TB, ref providers.Ref, cause providers.Cause) {
	t.Helper()
	i, err := s.Describe(t.Context(), ref)
	if err != nil {
		t.Fatalf("describe after the end: %v, want why it ended", err)
	}
	if i.State != providers.Terminated || i.Cause != cause {
		t.Errorf("the machine is %s by %q, want terminated by %q", i.State, i.Cause, cause)
	}
	if i.Ended.IsZero() || i.Ended.Before(i.Launched) {
		t.Errorf("launched at %v and ended at %v", i.Launched, i.Ended)
	}
}

// rentSpot launches a machine that can be taken away, where there are some.
func (s *subject) rentSpot(t testing.TB) (providers.LaunchRequest, providers.Instance) {
	t.Helper()
	if !slices.Contains(s.caps.Kinds, providers.Spot) {
		t.Skip("the provider takes no machines away: it has no spot capacity")
	}
	return s.rent(t, providers.Spot)
}

// preempt makes the provider take a machine.
func (s *subject) preempt(t testing.TB, ref providers.Ref) {
	t.Helper()
	if s.account.Preempt == nil {
		t.Fatal("the harness cannot take a machine away; add the knob Preempt or state a deviation")
	}
	if err := s.account.Preempt(ref); err != nil {
		t.Fatalf("preempt: %v", err)
	}
}
