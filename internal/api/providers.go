package api

import (
	"context"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"gpubroker/internal/control"
)

// Providers are the accounts.
type Providers struct {
	Providers []control.Standing `json:"providers"`
}

type providersOutput struct{ Body Providers }

type providerInput struct {
	Name string `path:"name"`
}

type checkOutput struct{ Body control.Checkup }

func (s *Server) registerProviders() {
	huma.Register(s.api, operation("list-providers", http.MethodGet, "/api/v1/providers", "List accounts and how they are", View, "market"), s.listProviders)
	check := operation("check-provider", http.MethodPost, "/api/v1/providers/{name}/check", "Ask a provider whether its account can be used", Admin, "market")
	check.Description = "Credentials, permissions, quotas and funds are asked for anew; nothing is rented. It takes up to 45 seconds when the provider does not answer."
	huma.Register(s.api, check, s.checkProvider)
}

func (s *Server) listProviders(ctx context.Context, _ *struct{}) (*providersOutput, error) {
	out := &providersOutput{}
	out.Body.Providers = []control.Standing{}
	for _, p := range s.broker.Standings() {
		if usable(callerOf(ctx), p.Projects) {
			out.Body.Providers = append(out.Body.Providers, p)
		}
	}
	return out, nil
}

func (s *Server) checkProvider(ctx context.Context, in *providerInput) (*checkOutput, error) {
	a := s.broker.Accounts()[in.Name]
	if a == nil || !usable(callerOf(ctx), a.Projects) {
		return nil, huma.Error404NotFound("there is no provider " + in.Name)
	}
	c, err := s.broker.Check(ctx, in.Name)
	if err != nil {
		return nil, s.failure(ctx, err)
	}
	return &checkOutput{c}, nil
}

// usable reports whether one of the caller's projects may use an account.
func usable(c caller, projects []string) bool {
	return len(projects) == 0 || slices.ContainsFunc(projects, c.may)
}
