package control_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/control"
	"gpubroker/internal/money"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/scheduler"
)

func found(c control.Checkup, what string) control.Finding {
	for _, f := range c.Findings {
		if f.What == what {
			return f
		}
	}
	return control.Finding{}
}

func reasons(counts []scheduler.Count) (out []string) {
	for _, c := range counts {
		out = append(out, string(c.Code))
	}
	return out
}

// prepaid is an account that is paid in advance, at a provider that sells more
// than it has prices for.
type prepaid struct {
	providers.Provider
	left money.Amount
}

func (p *prepaid) Unmatched() []string { return []string{"2 types without a price"} }

func (p *prepaid) Unwrap() providers.Provider { return p.Provider }

func (p *prepaid) Balance(context.Context) (providers.Funds, error) {
	return providers.Funds{Left: p.left, Currency: money.USD, At: time.Now()}, nil
}

func TestACheckSaysWhatIsWrong(t *testing.T) {
	for _, tc := range []struct {
		name   string
		fault  simapi.Fault
		left   money.Amount
		failed bool
		want   map[string]string // finding → result and a part of its text
	}{
		{name: "all is well", left: 12 * money.Unit, want: map[string]string{
			"reachable": "ok it answers", "credentials": "ok they are valid", "public_url": "note no machine there has called in yet",
			"offers": "ok left out: 2 types without a price", "quotas": "ok 3 known", "balance": "ok 12.00 USD are left", "cool_downs": "ok none",
		}},
		{name: "credentials", left: money.Unit, failed: true, fault: simapi.Fault{Effect: simapi.Denied, For: simapi.Duration(time.Hour)}, want: map[string]string{
			"reachable": "ok it answers", "credentials": "failed ", "quotas": "unknown ",
		}},
		{name: "away", left: money.Unit, failed: true, fault: simapi.Fault{Effect: simapi.Unavailable, For: simapi.Duration(time.Hour)}, want: map[string]string{
			"reachable": "failed ", "credentials": "unknown could not be asked",
		}},
		{name: "hangs", left: money.Unit, failed: true, fault: simapi.Fault{Effect: simapi.Hang, For: simapi.Duration(time.Hour)}, want: map[string]string{
			"reachable": "failed ", "credentials": "unknown could not be asked",
		}},
		{name: "no money", failed: true, want: map[string]string{"credentials": "ok ", "balance": "failed pay in"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, calm(), func(s *site) {
				s.stop()
				s.wrap = func(p providers.Provider) providers.Provider { return &prepaid{p, tc.left} }
				s.start()
				time.Sleep(time.Second)
				if tc.fault.Effect != "" {
					s.fault(tc.fault)
				}
				begun := time.Now()
				c, err := s.up().Check(s.t.Context(), "sim")
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(begun); took > time.Minute {
					t.Errorf("the check took %v", took)
				}
				for what, want := range tc.want {
					result, part, _ := strings.Cut(want, " ")
					if f := found(c, what); string(f.Result) != result || !strings.Contains(f.Text, part) || f.Text == "" {
						t.Errorf("%s: %+v, want %s", what, f, want)
					}
				}
				if c.Failed != tc.failed {
					t.Errorf("failed is %v: %+v", c.Failed, c.Findings)
				}
				s.world.ClearFaults()
				s.succeeded(s.submit(task(time.Minute, "")))
			})
		})
	}
}

func TestACheckKnowsWhatHasHappenedThere(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		s.fault(simapi.Fault{Op: "launch", Effect: simapi.NoCapacity, Times: 1})
		s.succeeded(s.submit(task(time.Minute, "")))
		c, err := s.up().Check(s.t.Context(), "sim")
		if err != nil {
			t.Fatal(err)
		}
		if f := found(c, "public_url"); f.Result != control.CheckOK || !strings.Contains(f.Text, "last called in at") {
			t.Errorf("%+v", f)
		}
		if f := found(c, "cool_downs"); f.Result != control.CheckNote || !strings.Contains(f.Text, "offer:sim/") {
			t.Errorf("%+v", f)
		}
		if _, err := s.up().Check(s.t.Context(), "other"); !errors.Is(err, control.ErrNotFound) {
			t.Errorf("a provider that is not there: %v", err)
		}
	})
}
