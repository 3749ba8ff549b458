package runpod_test

import (
	"net/http"
	"testing"

	"gpubroker/internal/simcloud"
	dialect "gpubroker/internal/simcloud/dialects/runpod"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/internal/simcloud/simtest"
	"gpubroker/providers"
	"gpubroker/providers/providertest"
	"gpubroker/providers/runpod"
)

const key = "rpa_BROKER0123456789ABCDEF"

const host = "api.runpod.io"

// lab is an account at a fake RunPod.
type lab struct {
	world  *simcloud.World
	client *http.Client
}

func newLab(t testing.TB, edit func(*simcloud.Config)) *lab {
	cfg := dialect.Default(1)
	cfg.Tokens.API, cfg.PageSize = key, 1
	if edit != nil {
		edit(&cfg)
	}
	w, err := simcloud.New(cfg, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	network := simtest.NewNet(t)
	network.ServeTLS(host, simcloud.Dialected(w))
	return &lab{w, network.Client()}
}

func (l *lab) adapter(t testing.TB, edit func(*runpod.Settings), secret string) providers.Provider {
	s := runpod.Settings{VCPUs: []int{8}}
	if edit != nil {
		edit(&s)
	}
	a, err := runpod.New("runpod", s, runpod.Access{Key: secret, Owner: "broker", Client: l.client})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func worldID(id string) string { return dialect.WorldID(1, id) }

// outsider rents a pod that is not ours.
func (l *lab) outsider() error {
	_, err := l.world.Launch(simapi.Launch{
		Place:   simapi.Place{Region: "US-KS-2", Zone: "secure", Type: "1x NVIDIA L4", Kind: providers.OnDemand},
		Request: "outsider", Tags: map[string]string{"GPUBROKER_TAG_OWNER": "somebody-else"},
	})
	return err
}

func spot(s *runpod.Settings) { s.Spot = "graphql" }

func TestConformance(t *testing.T) {
	for name, test := range map[string]struct {
		edit     func(*runpod.Settings)
		deviates map[string]string
	}{
		"rest": {nil, nil},
		"spot": {spot, providertest.Deviations(t)},
		"regions": {func(s *runpod.Settings) {
			s.Spot, s.Regions, s.Clouds, s.Counts = "graphql", []string{"US-KS-2", "US-TX-3"}, []string{"secure", "community"}, []int{1, 2}
		}, providertest.Deviations(t)},
	} {
		t.Run(name, func(t *testing.T) {
			providertest.Run(t, providertest.Harness{Bubble: true, Deviations: test.deviates, New: func(t testing.TB) providertest.Account {
				l := newLab(t, nil)
				open := func() providers.Provider { return l.adapter(t, test.edit, key) }
				return providertest.Account{
					Provider: open(), Owner: "broker", Secrets: []string{key}, Reopen: open,
					Inject: simtest.Inject(l.world), Outsider: l.outsider, Preempt: simtest.Preempt(l.world, worldID),
				}
			}})
		})
	}
}
