package rest_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/providers"
	"gpubroker/providers/rest"
)

const lag = 10 * time.Second

// ledger is a cloud without idempotency keys whose list lags.
type ledger struct {
	takes   time.Duration // a create; 0 is a second
	mu      sync.Mutex
	created []time.Time
	fail    *providers.Error // of the next create
	after   bool             // it has its effect all the same
}

func (l *ledger) find(_ context.Context, id string) (providers.Instance, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	listed := len(l.created) > 0 && time.Since(l.created[0]) >= lag
	return providers.Instance{Ref: providers.Ref{ID: "i-1"}}, id != "" || listed, nil
}

func (l *ledger) create(context.Context) (providers.Instance, error) {
	time.Sleep(max(l.takes, time.Second))
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.fail; e != nil {
		l.fail = nil
		if l.after {
			l.created = append(l.created, time.Now())
		}
		return providers.Instance{}, e
	}
	l.created = append(l.created, time.Now())
	return providers.Instance{Ref: providers.Ref{ID: "i-1"}}, nil
}

func TestOneMachineForARequestWithoutAKey(t *testing.T) {
	unknown := &providers.Error{Code: providers.Unavailable, Outcome: providers.OutcomeUnknown}
	refused := &providers.Error{Code: providers.NoCapacity, Outcome: providers.NotCreated}
	for name, c := range map[string]struct {
		first *providers.Error
		after bool
		soon  providers.Code // of a second launch at once
		late  providers.Code // of a third after the lag
	}{
		"made":               {nil, false, "", ""},
		"refused":            {refused, false, "", ""},
		"lost, and made":     {unknown, true, providers.Conflict, ""},
		"lost, and not made": {unknown, false, providers.Conflict, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &ledger{fail: c.first, after: c.after}
				o := rest.NewOnce(lag)
				launch := func() error {
					_, err := o.Launch(t.Context(), "r1", l.find, l.create)
					return err
				}
				if err := launch(); c.first == nil && err != nil || c.first != nil && !errors.Is(err, c.first) {
					t.Errorf("first: %v", err)
				}
				if err := launch(); providers.CodeOf(err) != c.soon || err != nil && providers.OutcomeOf(err) != providers.OutcomeUnknown {
					t.Errorf("at once: %v", err)
				}
				time.Sleep(lag + time.Second)
				if err := launch(); providers.CodeOf(err) != c.late {
					t.Errorf("after the lag: %v", err)
				}
				if len(l.created) != 1 {
					t.Errorf("%d machines", len(l.created))
				}
			})
		})
	}
}

// TestTheLagBeginsWithTheAnswer: a create that hangs may have its effect at the very
// end.
func TestTheLagBeginsWithTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{takes: time.Minute, fail: &providers.Error{Code: providers.DeadlineExceed, Outcome: providers.OutcomeUnknown}, after: true}
		o := rest.NewOnce(lag)
		for n, want := range []providers.Code{providers.DeadlineExceed, providers.Conflict, ""} {
			if _, err := o.Launch(t.Context(), "r1", l.find, l.create); providers.CodeOf(err) != want {
				t.Errorf("launch %d: %v", n+1, err)
			}
			time.Sleep(time.Duration(n) * (lag + time.Second))
		}
		if len(l.created) != 1 {
			t.Errorf("%d machines", len(l.created))
		}
	})
}

func TestLaunchesOfOneRequestTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{}
		o := rest.NewOnce(lag)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if i, err := o.Launch(t.Context(), "r1", l.find, l.create); err != nil || i.Ref.ID != "i-1" {
					t.Errorf("%+v, %v", i, err)
				}
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := o.Launch(ctx, "r1", l.find, l.create)
		if providers.CodeOf(err) != providers.DeadlineExceed || providers.OutcomeOf(err) != providers.OutcomeUnknown {
			t.Errorf("a caller that would not wait: %v", err)
		}
		begun := time.Now()
		if _, err := o.Launch(t.Context(), "r2", l.find, l.create); err != nil || time.Since(begun) > time.Second {
			t.Errorf("another request waited %s, %v", time.Since(begun), err)
		}
		wg.Wait()
		if len(l.created) != 2 {
			t.Errorf("%d machines for two requests", len(l.created))
		}
	})
}
