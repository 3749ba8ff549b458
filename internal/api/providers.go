package api

import (
	"context"
	"slices"
	"strings"
	"time"

	"gpubroker/providers"
)

// Provider is an account as the API shows it.
type Provider struct {
	Name         string                 `json:"name"`
	Capabilities providers.Capabilities `json:"capabilities"`
	Projects     []string               `json:"projects,omitempty" doc:"that may use it; absent means all"`
	Offers       int                    `json:"offers"`
	Seen         *time.Time             `json:"seen,omitempty" doc:"when its offers were last read whole"`
	Error        string                 `json:"error,omitempty" doc:"of the newest try"`
	Machines     int                    `json:"machines"`
}

// Providers are the accounts.
type Providers struct {
	Providers []Provider `json:"providers"`
}

type providersOutput struct{ Body Providers }

func (s *Server) listProviders(ctx context.Context, _ *struct{}) (*providersOutput, error) {
	out := &providersOutput{}
	out.Body.Providers = []Provider{}
	machines := map[string]int{}
	for i := range s.broker.State().View().Instances.All() {
		machines[i.Provider]++
	}
	lists := s.broker.Market().Lists()
	for name, a := range s.broker.Accounts() {
		if !usable(callerOf(ctx), a.Projects) {
			continue
		}
		l := lists[name]
		p := Provider{
			Name: name, Capabilities: a.Capabilities(), Projects: a.Projects, Offers: len(l.Offers),
			Seen: optional(l.Seen), Machines: machines[name],
		}
		if l.Err != nil {
			p.Error = l.Err.Error()
		}
		out.Body.Providers = append(out.Body.Providers, p)
	}
	slices.SortFunc(out.Body.Providers, func(a, b Provider) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// usable reports whether one of the caller's projects may use an account.
func usable(c caller, projects []string) bool {
	return len(projects) == 0 || slices.ContainsFunc(projects, c.may)
}
