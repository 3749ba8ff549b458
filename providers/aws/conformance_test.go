package aws_test

import (
	"net/http"
	"testing"

	"gpubroker/internal/simcloud"
	cloud "gpubroker/internal/simcloud/dialects/aws"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/internal/simcloud/simtest"
	"gpubroker/providers"
	"gpubroker/providers/aws"
	"gpubroker/providers/providertest"
)

const (
	accessKey = "AKIAIOSFODNN7EXAMPLE"
	secretKey = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
	endRole   = "arn:aws:iam::123456789012:role/gpubroker-end"
)

func TestConformance(t *testing.T) {
	for name, edit := range map[string]func(*simcloud.Config, *aws.Settings){
		"rolling": func(c *simcloud.Config, _ *aws.Settings) { c.PageSize = 2 },
		"guest":   func(_ *simcloud.Config, s *aws.Settings) { s.EndRole, s.Queue = "", "" },
	} {
		t.Run(name, func(t *testing.T) {
			providertest.Run(t, providertest.Harness{Bubble: true, New: func(t testing.TB) providertest.Account {
				cfg := cloud.Default(1)
				set := settings()
				edit(&cfg, &set)
				w := world(t, cfg, cloud.Dialect())
				net := simtest.NewNet(t)
				net.Serve("aws.test", simcloud.Dialected(w))
				again := func() providers.Provider { return open(t, set, net.Client()) }
				return providertest.Account{
					Provider: again(), Owner: "broker", Secrets: []string{accessKey, secretKey}, Reopen: again,
					Inject: simtest.Inject(w),
					Outsider: func() error {
						_, err := w.Launch(simapi.Launch{
							Place: w.Offers("us-east-1", 0)[0].Place, Request: "outsider", Tags: map[string]string{"gpubroker-owner": "somebody-else"},
						})
						return err
					},
					Preempt: simtest.Preempt(w, cloud.WorldID),
				}
			}})
		})
	}
}

func settings() aws.Settings {
	return aws.Settings{
		Regions: []string{"us-east-1", "us-west-2"}, Types: []string{"c6i.xlarge"}, Endpoint: "http://aws.test",
		EndRole: endRole, Queue: "gpubroker", AccessKey: "env:A", SecretKey: "env:S",
	}
}

func world(t testing.TB, cfg simcloud.Config, d *simcloud.Dialect) *simcloud.World {
	t.Helper()
	cfg.Tokens.API, cfg.Dialect = accessKey, d
	w, err := simcloud.New(cfg, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func open(t testing.TB, s aws.Settings, client *http.Client) providers.Provider {
	t.Helper()
	p, err := aws.New(t.Context(), "aws", s, aws.Access{AccessKey: accessKey, SecretKey: secretKey, Owner: "broker", Client: client})
	if err != nil {
		t.Fatal(err)
	}
	return p
}
