package simcloud_test

import (
	"errors"
	"testing"
	"time"

	cloud "gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/providers/providertest"
	"gpubroker/providers/simcloud"
)

func TestConformance(t *testing.T) {
	for name, edit := range map[string]func(*cloud.Config){
		"rolling": func(*cloud.Config) {},
		"fixed":   func(c *cloud.Config) { c.SelfEnd = providers.EndFixed },
		"guest":   func(c *cloud.Config) { c.SelfEnd = providers.EndGuest },
		"hourly":  func(c *cloud.Config) { c.Billing = cloud.Billing{Unit: simapi.Duration(time.Hour)} },
		"paged":   func(c *cloud.Config) { c.PageSize, c.ListLag, c.BillsBoot = 1, simapi.Duration(time.Minute), true },
	} {
		t.Run(name, func(t *testing.T) {
			providertest.Run(t, providertest.Harness{Bubble: true, New: func(t testing.TB) providertest.Account {
				cfg := cloud.Default(1)
				edit(&cfg)
				return account(t, cfg)
			}})
		})
	}
}

func account(t testing.TB, cfg cloud.Config) providertest.Account {
	cfg.Tokens.API = token
	w, err := cloud.New(cfg, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	open := func() providers.Provider {
		s := simcloud.SettingsFor(cloud.InProcessURL, cfg.Capabilities())
		a, err := simcloud.New("sim", s, simcloud.Access{Token: token, Owner: "broker", Client: cloud.InProcess(w)})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	return providertest.Account{
		Provider: open(), Owner: "broker", Secrets: []string{token}, Reopen: open,
		Inject: func(f providertest.Fault) error {
			effect, ok := effectOf(f)
			if !ok {
				return errors.ErrUnsupported
			}
			return w.AddFault(simapi.Fault{Op: f.Op, Effect: effect, Delay: simapi.Duration(24 * time.Hour), RetryAfter: simapi.Duration(7 * time.Second)})
		},
		Outsider: func() error {
			_, err := w.Launch(simapi.Launch{
				Place: w.Offers("", 0)[0].Place, Request: "outsider", Tags: map[string]string{"gpubroker-owner": "somebody-else"},
			})
			return err
		},
		Preempt: func(ref providers.Ref) error {
			_, err := w.Do(simapi.Action{Preempt: &simapi.Preempt{Pick: simapi.Pick{Machine: ref.ID}}})
			return err
		},
	}
}

func effectOf(f providertest.Fault) (string, bool) {
	switch {
	case f.Hang && f.After:
		return simapi.Slow, true
	case f.Hang:
		return simapi.Hang, true
	case f.After && f.Code == providers.Unavailable:
		return simapi.UnavailableAfter, true
	case f.After:
		return "", false
	}
	effect, ok := map[providers.Code]string{
		providers.NoCapacity: simapi.NoCapacity, providers.QuotaExceeded: simapi.Quota, providers.PriceTooLow: simapi.PriceTooLow,
		providers.RateLimited: simapi.Throttle, providers.Unauthorized: simapi.Denied, providers.NoFunds: simapi.NoFunds,
		providers.InvalidRequest: simapi.Invalid, providers.Unavailable: simapi.Unavailable, providers.NotFound: simapi.NotFound,
	}[f.Code]
	return effect, ok
}
