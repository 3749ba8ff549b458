package providertest

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/internal/money"
	"gpubroker/providers"
)

// Harness is what the suite knows about an adapter.
type Harness struct {
	// New opens a fresh account without machines, once for each check; inside the
	// bubble when Bubble is set. It cleans up with t.Cleanup.
	New func(t testing.TB) Account
	// Bubble runs each check in a testing/synctest bubble, in virtual time.
	Bubble bool
	// Real says that machines cost money. The suite is skipped then unless the
	// variable [SpendVar] holds how much may be spent, for example "5 USD"; each
	// launch counts as one hour.
	Real bool
	// Deviations names the checks that the adapter does not pass, each with the
	// reason.
	Deviations map[string]string
}

// SpendVar is the environment variable with the money that a run against a real
// cloud may spend.
const SpendVar = "GPUBROKER_TEST_SPEND"

// Account is one account at the provider, with what a test can do to its world.
// The functions are knobs: nil where there is none.
type Account struct {
	Provider providers.Provider
	Owner    string   // the owner tag that the adapter was opened with
	Secrets  []string // what no error may show
	// Reopen returns another adapter for the same account, as after a restart.
	Reopen func() providers.Provider
	// Inject makes the next call of Fault.Op fail, once. It returns
	// errors.ErrUnsupported for a fault that cannot be provoked.
	Inject func(Fault) error
	// Outsider rents a machine in the same account that is not ours.
	Outsider func() error
	// Preempt makes the provider take a spot machine, with its usual notice.
	Preempt func(ref providers.Ref) error
	// Advance lets time pass. Nil means time.Sleep.
	Advance func(time.Duration)
}

// Fault is what the next call of an operation meets.
type Fault struct {
	Op    string         // offers, launch, terminate, describe, list
	Code  providers.Code // what the provider answers; "" with Hang
	After bool           // the call has its effect first
	Hang  bool           // no answer comes before the caller leaves
}

// Check is one named check and the sentence of the contract that it tries.
type Check struct {
	Name    string
	Promise string

	run func(t testing.TB, s *subject)
}

// Checks returns the checks in the order in which they run.
func Checks() []Check {
	return slices.Concat(factChecks(), offerChecks(), launchChecks(), endChecks(), lookChecks(), callChecks(), abilityChecks())
}

// Run runs every check as a subtest.
func Run(t *testing.T, h Harness) {
	t.Helper()
	var spend money.Amount
	if h.Real {
		words := os.Getenv(SpendVar)
		if words == "" {
			t.Skipf("rents real machines: set %s to the money that may be spent, for example \"5 USD\"", SpendVar)
		}
		m, err := money.Parse(words, money.USD)
		if err != nil {
			t.Fatalf("%s: %v", SpendVar, err)
		}
		spend = m.Amount
	}
	checks := Checks()
	unknown := maps.Clone(h.Deviations)
	for _, c := range checks {
		delete(unknown, c.Name)
	}
	for name := range unknown {
		t.Errorf("deviation %q names no check", name)
	}
	left := &purse{left: spend, bounded: h.Real}
	for _, c := range checks {
		t.Run(c.Name, func(t *testing.T) {
			if why, ok := h.Deviations[c.Name]; ok {
				if strings.TrimSpace(why) == "" {
					t.Errorf("the deviation has no reason; the contract says: %s", c.Promise)
				}
				t.Skipf("deviates: %s (the contract says: %s)", why, c.Promise)
			}
			if h.Bubble {
				synctest.Test(t, func(t *testing.T) { perform(t, h, c, left) })
				return
			}
			perform(t, h, c, left)
		})
	}
}

// perform runs one check on a fresh account and leaves it empty.
func perform(t testing.TB, h Harness, c Check, p *purse) {
	t.Helper()
	s := newSubject(t, h, c, h.New(t), p)
	before := goroutinesOf(s.pkg)
	defer func() {
		t.Helper()
		s.empty(t)
		if left := newGoroutines(s.pkg, before, s.advance); len(left) > 0 {
			t.Errorf("%d goroutines of the adapter are left behind after its calls, the first:\n%s", len(left), left[0])
		}
		if t.Failed() {
			t.Logf("the contract says: %s", c.Promise)
		}
	}()
	c.run(t, s)
}

// inject provokes a fault, or fails the check when it cannot.
func (s *subject) inject(t testing.TB, f Fault) {
	t.Helper()
	if s.account.Inject == nil {
		t.Fatalf("the harness cannot provoke %+v; add the knob Inject or state a deviation", f)
	}
	if err := s.account.Inject(f); errors.Is(err, errors.ErrUnsupported) {
		t.Fatalf("the harness cannot provoke %+v; add it or state a deviation", f)
	} else if err != nil {
		t.Fatalf("provoke %+v: %v", f, err)
	}
}

// purse is the money that a run against a real cloud may spend.
type purse struct {
	bounded bool
	left    money.Amount
}

// take pays for an hour of a machine.
func (p *purse) take(price money.Rate, b money.Billing) error {
	if !p.bounded {
		return nil
	}
	cost, err := money.Charge(time.Hour, price, b)
	if err != nil {
		return err
	}
	if cost > p.left {
		return fmt.Errorf("an hour costs %s and %s are left of %s", cost, p.left, SpendVar)
	}
	p.left -= cost
	return nil
}
