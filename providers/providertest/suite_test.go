package providertest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/internal/money"
)

func TestASoundAdapterPasses(t *testing.T) {
	Run(t, Harness{New: open(""), Bubble: true})
}

// TestEveryDefectIsFound breaks the cloud in one way at a time and expects the
// checks that are about it to fail: a check that cannot fail is none.
func TestEveryDefectIsFound(t *testing.T) {
	defects := map[string][]string{
		"no cause":                {"end-cause-user", "end-cause-preempted", "self-end", "move-end"},
		"local time":              {"launch-tags", "describe"},
		"strange code":            {"describe-stranger", "list-error"},
		"secret in error":         {"secrets", "list-error"},
		"echoes the script":       {"launch-invalid", "secrets"},
		"two lines":               {"offers-error"},
		"outcome everywhere":      {"list-error"},
		"capacity is unavailable": {"launch-no-capacity", "offers-unavailable"},
		"context is ignored":      {"context-before"},
		"waits for ever":          {"context-during"},
		"goroutine":               {"offers", "list-empty"},
		"retries":                 {"offers-error", "list-error", "describe-error", "launch-unavailable-before", "terminate-refused"},
		"sure of nothing":         {"launch-after-timeout", "launch-unavailable-after"},
		"notice from nowhere":     {"capabilities"},
		"scope":                   {"offers-scope"},
		"free offer":              {"offers"},
		"twice":                   {"offers"},
		"part of a list":          {"offers-error"},
		"needs the id":            {"terminate-by-request", "describe", "launch-idempotent"},
		"waits for boot":          {"launch-returns-early"},
		"races":                   {"launch-idempotent-concurrent"},
		"twice the machine":       {"launch-idempotent", "launch-after-timeout", "launch-unavailable-after", "launch-other-market"},
		"leaves a machine":        {"launch-invalid"},
		"no bound":                {"launch-price-bound"},
		"no end":                  {"self-end"},
		"loses tags":              {"launch-tags", "list-forgotten"},
		"ends another":            {"terminate-stranger"},
		"never gone":              {"terminate-twice", "terminate-early", "terminate-unavailable-after"},
		"terminate once":          {"terminate-twice"},
		"forgets at once":         {"end-cause-user"},
		"long lag":                {"list-lag"},
		"lists others":            {"list-ours"},
		"forgets its machines":    {"list-forgotten"},
		"end stays":               {"move-end"},
		"wrong sum":               {"bill"},
		"negative quota":          {"quotas"},
		"preflight":               {"preflight"},
		"no notice":               {"interruptions"},
		"stream stays":            {"interruptions"},
		"no faults":               {"launch-quota", "launch-unauthorized", "launch-throttled"},
	}
	found := map[string]bool{}
	for defect, names := range defects {
		t.Run(strings.ReplaceAll(defect, " ", "-"), func(t *testing.T) {
			for _, name := range names {
				if failures := failuresOf(t, defect, name); len(failures) == 0 {
					t.Errorf("check %s passes", name)
				}
			}
		})
		for _, name := range names {
			found[name] = true
		}
	}
	for _, c := range Checks() {
		if failures := failuresOf(t, "", c.Name); len(failures) > 0 {
			t.Errorf("check %s fails without a defect: %s", c.Name, failures[0])
		}
		// A fresh list, a bill of nothing and a crowd: seen by the race detector
		// and by all others.
		if !found[c.Name] && !slices.Contains([]string{"name", "offers-fresh", "concurrent", "console"}, c.Name) {
			t.Errorf("no defect makes the check %s fail", c.Name)
		}
	}
}

// failuresOf runs one check against a broken cloud and returns what it says.
func failuresOf(t *testing.T, defect, name string) []string {
	t.Helper()
	n := slices.IndexFunc(Checks(), func(c Check) bool { return c.Name == name })
	if n < 0 {
		t.Fatalf("no check %q", name)
	}
	c := Checks()[n]
	var failures []string
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r := &recorder{TB: t, ctx: ctx}
		done := make(chan struct{})
		go func() {
			defer close(done)
			perform(r, Harness{New: open(defect)}, c, &purse{})
		}()
		<-done
		cancel()
		time.Sleep(2 * time.Hour) // what a defect left behind ends
		failures = r.failures
	})
	return failures
}

// recorder is a test that only takes notes.
type recorder struct {
	testing.TB
	ctx context.Context

	mu       sync.Mutex
	failures []string
}

func (r *recorder) Helper()                  {}
func (r *recorder) Log(...any)               {}
func (r *recorder) Logf(string, ...any)      {}
func (r *recorder) Context() context.Context { return r.ctx }
func (r *recorder) Failed() bool             { return len(r.failures) > 0 }

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}
func (r *recorder) Error(args ...any) { r.Errorf("%s", fmt.Sprint(args...)) }
func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}
func (r *recorder) Fatal(args ...any)        { r.Fatalf("%s", fmt.Sprint(args...)) }
func (r *recorder) Skip(...any)              { runtime.Goexit() }
func (r *recorder) Skipf(_ string, _ ...any) { runtime.Goexit() }

func TestThePurseIsKept(t *testing.T) {
	p := &purse{bounded: true, left: 5 * money.Unit}
	billing := money.Billing{Unit: time.Hour}
	for range 2 {
		if err := p.take(money.Rate(2*money.Unit), billing); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.take(money.Rate(2*money.Unit), billing); err == nil {
		t.Error("more than the purse was spent")
	}
	if err := p.take(money.Rate(money.Unit), billing); err != nil {
		t.Errorf("the last dollar: %v", err)
	}
}

func TestChecksAreNamedOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Checks() {
		if seen[c.Name] || c.Promise == "" {
			t.Errorf("check %q is named twice or promises nothing", c.Name)
		}
		seen[c.Name] = true
	}
}
