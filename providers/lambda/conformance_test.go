package lambda_test

import (
	"net/http"
	"testing"

	"gpubroker/internal/simcloud"
	dialect "gpubroker/internal/simcloud/dialects/lambda"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/internal/simcloud/simtest"
	"gpubroker/providers"
	"gpubroker/providers/lambda"
	"gpubroker/providers/providertest"
)

const key = "secret_broker_0123456789abcdef"

const (
	host     = "cloud.lambda.ai"
	oldHost  = "cloud.lambdalabs.com" // of document 1.6.0
	oldBase  = "https://" + oldHost + "/api/v1"
	anyImage = "lambda-stack-24-04"
)

// lab is an account at a fake Lambda.
type lab struct {
	world  *simcloud.World
	client *http.Client
}

func newLab(t testing.TB, edit func(*simcloud.Config)) *lab {
	cfg := dialect.Default(1)
	cfg.Tokens.API = key
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
	network.ServeTLS(oldHost, simcloud.Dialected(w))
	return &lab{w, network.Client()}
}

func (l *lab) adapter(t testing.TB, edit func(*lambda.Settings), secret string) *lambda.Adapter {
	s := lambda.Settings{SSHKey: dialect.SSHKey}
	if edit != nil {
		edit(&s)
	}
	a, err := lambda.New("lambda", s, lambda.Access{Key: secret, Owner: "broker", Client: l.client})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (l *lab) worldID(id string) string { return dialect.WorldID(1, id) }

func TestConformance(t *testing.T) {
	for name, edit := range map[string]func(*lambda.Settings){
		"tags": nil,
		"name": func(s *lambda.Settings) { s.Labels, s.Endpoint = "name", oldBase },
	} {
		t.Run(name, func(t *testing.T) {
			providertest.Run(t, providertest.Harness{Bubble: true, New: func(t testing.TB) providertest.Account {
				l := newLab(t, nil)
				open := func() providers.Provider { return l.adapter(t, edit, key) }
				return providertest.Account{
					Provider: open(), Owner: "broker", Secrets: []string{key}, Reopen: open,
					Inject: simtest.Inject(l.world), Outsider: l.outsider,
				}
			}})
		})
	}
}

// outsider rents an instance that is not ours.
func (l *lab) outsider() error {
	_, err := l.world.Launch(simapi.Launch{
		Place: simapi.Place{Region: "us-east-1", Type: "cpu_4x_general", Kind: providers.OnDemand}, Request: "outsider",
		Tags: map[string]string{"name": "somebody's own", "gpubroker-owner": "somebody-else"},
	})
	return err
}
