package simcloud_test

import (
	"testing"
	"time"

	cloud "gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/internal/simcloud/simtest"
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
		Inject: simtest.Inject(w),
		Outsider: func() error {
			_, err := w.Launch(simapi.Launch{
				Place: w.Offers("", 0)[0].Place, Request: "outsider", Tags: map[string]string{"gpubroker-owner": "somebody-else"},
			})
			return err
		},
		Preempt: simtest.Preempt(w, nil),
	}
}
