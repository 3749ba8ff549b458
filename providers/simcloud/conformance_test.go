package simcloud_test

import (
	"errors"
	"testing"
	"time"

	cloud "gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/providers/providertest"
)

// TestConformance runs the suite over the API in virtual time, against a cloud
// that keeps the end of machines in each way, and one that is slow and lists
// late.
func TestConformance(t *testing.T) {
	for name, change := range map[string]func(*cloud.Config){
		"rolling": func(*cloud.Config) {},
		"fixed":   func(c *cloud.Config) { c.SelfEnd = providers.EndFixed },
		"slow": func(c *cloud.Config) {
			c.SelfEnd = providers.EndGuest
			c.ListLag, c.Boot, c.StopTime = simapi.Duration(time.Minute), simapi.Duration(90*time.Second), simapi.Duration(time.Minute)
			c.Notice, c.BillsBoot = simapi.Duration(2*time.Minute), true
			c.Billing = cloud.Billing{Unit: simapi.Duration(time.Hour)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			providertest.Run(t, providertest.Harness{
				Bubble: true,
				New: func(t testing.TB) providertest.Account {
					cfg := cloud.Default(1)
					change(&cfg)
					return account(t, cfg)
				},
			})
		})
	}
}

// effects says how a fault of the suite is provoked, before and after the
// call's effect.
var effects = map[providers.Code][2]string{
	providers.NoCapacity:    {simapi.NoCapacity},
	providers.QuotaExceeded: {simapi.Quota},
	providers.Unauthorized:  {simapi.Denied},
	providers.RateLimited:   {simapi.Throttle},
	providers.Unavailable:   {simapi.Unavailable, simapi.UnavailableAfter},
}

func account(t testing.TB, cfg cloud.Config) providertest.Account {
	t.Helper()
	cfg.Tokens.API = token
	w, err := cloud.New(cfg, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	a := adapter(t, w, token)
	return providertest.Account{
		Provider: a, Owner: "broker", Secrets: []string{token},
		Reopen: func() providers.Provider { return adapter(t, w, token) },
		Inject: func(f providertest.Fault) error {
			fault := simapi.Fault{Op: f.Op}
			switch pair, ok := effects[f.Code]; {
			case f.Hang: // done at once or not at all: the answer comes in an hour
				fault.Effect, fault.Delay = simapi.Slow, simapi.Duration(time.Hour)
			case !ok:
				return errors.ErrUnsupported
			case f.After:
				fault.Effect = pair[1]
			default:
				fault.Effect = pair[0]
			}
			if fault.Effect == "" {
				return errors.ErrUnsupported
			}
			return w.AddFault(fault)
		},
		Outsider: func() error {
			_, err := w.Launch(simapi.Launch{
				Place:   simapi.Place{Region: "sim-east", Zone: "sim-east-a", Type: "l4x1", Kind: providers.Spot},
				Request: "theirs", Tags: map[string]string{"owner": "somebody"},
			})
			return err
		},
		Preempt: func(ref providers.Ref) error {
			_, err := w.Do(simapi.Action{Preempt: &simapi.Preempt{Pick: simapi.Pick{Machine: ref.ID}}})
			return err
		},
	}
}
