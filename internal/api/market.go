package api

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"gpubroker/internal/control"
	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/internal/scenario"
	"gpubroker/providers"
)

type offersInput struct {
	GPU      string `query:"gpu" doc:"a GPU's id, family or common name"`
	Kind     string `query:"kind" enum:"spot,on-demand"`
	Provider string `query:"provider"`
	Region   string `query:"region"`
}

// Offers are what can be rented.
type Offers struct {
	Offers []providers.Offer `json:"offers" doc:"cheapest first"`
}

type offersOutput struct{ Body Offers }

// Instances are the machines that are not settled.
type Instances struct {
	Instances []control.InstanceView `json:"instances"`
	Currency  money.Currency         `json:"currency" doc:"of all amounts"`
}

type instancesOutput struct{ Body Instances }

// GPUs are facts of GPUs.
type GPUs struct {
	GPUs []gpu.Fact `json:"gpus"`
}

type gpusOutput struct{ Body GPUs }

// Scenarios are kinds of work.
type Scenarios struct {
	Scenarios []scenario.Profile `json:"scenarios"`
}

type scenariosOutput struct{ Body Scenarios }

func (s *Server) registerMarket() {
	s.registerProviders()
	huma.Register(s.api, operation("list-offers", http.MethodGet, "/api/v1/offers", "List what can be rented now", View, "market"), s.listOffers)
	huma.Register(s.api, operation("list-instances", http.MethodGet, "/api/v1/instances", "List machines that are not settled", View, "market"), s.listInstances)
	huma.Register(s.api, operation("list-gpus", http.MethodGet, "/api/v1/gpus", "List GPUs and what is known of them", View, "market"),
		func(context.Context, *struct{}) (*gpusOutput, error) {
			out := &gpusOutput{}
			out.Body.GPUs = gpu.Builtin().All()
			return out, nil
		})
	huma.Register(s.api, operation("list-scenarios", http.MethodGet, "/api/v1/scenarios", "List kinds of work", View, "market"),
		func(context.Context, *struct{}) (*scenariosOutput, error) {
			out := &scenariosOutput{}
			out.Body.Scenarios = scenario.Builtin().All()
			return out, nil
		})
}

func (s *Server) listOffers(_ context.Context, in *offersInput) (*offersOutput, error) {
	var ids []string
	if in.GPU != "" {
		var err error
		if ids, err = gpu.Builtin().Resolve(in.GPU); err != nil {
			return nil, huma.Error422UnprocessableEntity(err.Error())
		}
	}
	out := &offersOutput{}
	out.Body.Offers = []providers.Offer{}
	for _, o := range s.broker.Market().Offers() {
		if (in.GPU == "" || slices.Contains(ids, o.GPU)) && (in.Kind == "" || string(o.Kind) == in.Kind) &&
			(in.Provider == "" || o.Provider == in.Provider) && (in.Region == "" || o.Region == in.Region) {
			out.Body.Offers = append(out.Body.Offers, o)
		}
	}
	slices.SortStableFunc(out.Body.Offers, func(a, b providers.Offer) int {
		return cmp.Or(cmp.Compare(a.Price, b.Price), a.Compare(b.Market))
	})
	return out, nil
}

func (s *Server) listInstances(ctx context.Context, _ *struct{}) (*instancesOutput, error) {
	out := &instancesOutput{}
	out.Body.Instances, out.Body.Currency = []control.InstanceView{}, s.opts.Currency
	for _, i := range s.broker.Instances() {
		if callerOf(ctx).may(i.Project) {
			out.Body.Instances = append(out.Body.Instances, i)
		}
	}
	return out, nil
}
