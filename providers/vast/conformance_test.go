package vast_test

import (
	"net/http"
	"testing"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/dialects/vast"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/internal/simcloud/simtest"
	"gpubroker/providers"
	"gpubroker/providers/providertest"
	adapter "gpubroker/providers/vast"
)

const (
	secret = "s3cret-of-the-test"
	host   = "console.vast.test"
)

func TestConformance(t *testing.T) {
	providertest.Run(t, providertest.Harness{
		Bubble:     true,
		New:        func(t testing.TB) providertest.Account { return open(t, vast.Default(1), nil).account() },
		Deviations: providertest.Deviations(t),
	})
}

// site is a world behind its API, and an adapter that speaks to it.
type site struct {
	t     testing.TB
	world *simcloud.World
	net   *simtest.Net
	a     *adapter.Adapter
	set   adapter.Settings
}

// open starts a world. front may stand before its API, nil does not.
func open(t testing.TB, cfg simcloud.Config, front func(http.Handler) http.Handler) *site {
	cfg.Tokens.API = secret
	w, err := simcloud.New(cfg, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	s := &site{t: t, world: w, net: simtest.NewNet(t), set: adapter.Settings{Endpoint: "https://" + host}}
	api := simcloud.Dialected(w)
	if front != nil {
		api = front(api)
	}
	s.net.ServeTLS(host, api)
	s.a = s.adapter(s.set, secret)
	return s
}

func (s *site) adapter(set adapter.Settings, key string) *adapter.Adapter {
	s.t.Helper()
	a, err := adapter.New("vast-test", set, adapter.Access{Key: key, Owner: "broker", Client: s.net.Client()})
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

func (s *site) account() providertest.Account {
	return providertest.Account{
		Provider: s.a, Owner: "broker", Secrets: []string{secret},
		Reopen: func() providers.Provider { return s.adapter(s.set, secret) },
		Inject: simtest.Inject(s.world),
		Outsider: func() error {
			_, err := s.world.Launch(simapi.Launch{Place: s.world.Offers("", 0)[0].Place, Request: "outsider"})
			return err
		},
		Preempt: simtest.Preempt(s.world, vast.WorldID),
	}
}
