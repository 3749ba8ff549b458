package providertest

import (
	"slices"
	"testing"

	"gpubroker/providers"
)

func lookChecks() []Check {
	return []Check{
		{"describe", "Describe finds a machine by the cloud's id and by our request id", func(t testing.TB, s *subject) {
			req, inst := s.rent(t)
			s.advance(s.caps.ListLag)
			for _, ref := range []providers.Ref{inst.Ref, {ID: inst.Ref.ID, Request: req.Request}, {Request: req.Request}} {
				if i, err := s.Describe(t.Context(), ref); err != nil || i.Ref.ID != inst.Ref.ID || !i.Live() {
					t.Errorf("describe %+v: %s %s, %v", ref, i.Ref.ID, i.State, err)
				}
			}
			if i := s.running(t, inst.Ref); i.Launched.IsZero() {
				t.Error("a running machine has no launch time")
			}
		}},
		{"describe-stranger", "Describe of a machine that never was is not_found", func(t testing.TB, s *subject) {
			for _, ref := range []providers.Ref{{Request: "never-launched"}} {
				if i, err := s.Describe(t.Context(), ref); !code(err, providers.NotFound) {
					t.Errorf("describe %+v: %+v, %v; want not_found", ref, i, err)
				}
			}
		}},
		{"list-empty", "List of an account without machines of ours is empty", func(t testing.TB, s *subject) {
			if all, err := s.List(t.Context()); err != nil || slices.ContainsFunc(all, providers.Instance.Live) {
				t.Errorf("list: %d machines, %v", len(all), err)
			}
		}},
		{"list-lag", "A new machine is in the list once the list lag has passed, and an ended one no longer lives in it", func(t testing.TB, s *subject) {
			req, inst := s.rent(t)
			if live := s.live(t, req.Request); len(live) != 1 {
				t.Errorf("list shows %d machines after the lag of %v, want 1", len(live), s.caps.ListLag)
			}
			s.gone(t, inst.Ref)
			if live := s.live(t, req.Request); len(live) != 0 {
				t.Errorf("list shows a machine alive that terminate calls gone")
			}
		}},
		{"list-ours", "List shows only machines that bear our owner tag", func(t testing.TB, s *subject) {
			if s.account.Outsider == nil {
				t.Fatal("the harness cannot rent a machine that is not ours; add the knob Outsider or state a deviation")
			}
			req, _ := s.rent(t)
			if err := s.account.Outsider(); err != nil {
				t.Fatalf("outsider: %v", err)
			}
			s.advance(s.caps.ListLag)
			all, err := s.List(t.Context())
			if err != nil || len(all) != 1 || all[0].Ref.Request != req.Request {
				t.Errorf("list shows %d machines, %v; want ours alone", len(all), err)
			}
		}},
		{"list-forgotten", "List shows machines of ours that the broker has forgotten", func(t testing.TB, s *subject) {
			if s.account.Reopen == nil {
				t.Fatal("the harness cannot open the account again; add the knob Reopen or state a deviation")
			}
			req, inst := s.rent(t)
			again := s.with(s.account.Reopen())
			live := again.live(t, req.Request)
			if len(live) != 1 || live[0].Ref.ID != inst.Ref.ID || live[0].Tags != req.Tags {
				t.Fatalf("after opening the account again, list shows %+v", live)
			}
			again.gone(t, live[0].Ref)
		}},
		{"list-error", "List is the whole list or an error, and is not retried by the adapter", func(t testing.TB, s *subject) {
			s.rent(t)
			s.inject(t, Fault{Op: "list", Code: providers.Unavailable})
			if all, err := s.List(t.Context()); !code(err, providers.Unavailable) {
				t.Errorf("list: %d machines and %v, want unavailable", len(all), err)
			}
		}},
		{"describe-error", "Describe fails when the provider does, never with not_found, and is not retried by the adapter", func(t testing.TB, s *subject) {
			_, inst := s.rent(t)
			s.inject(t, Fault{Op: "describe", Code: providers.Unavailable})
			if _, err := s.Describe(t.Context(), inst.Ref); !code(err, providers.Unavailable) {
				t.Errorf("describe: %v, want unavailable", err)
			}
		}},
	}
}
