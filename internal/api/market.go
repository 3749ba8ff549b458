package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gpubroker/examples"
	"gpubroker/internal/control"
	"gpubroker/internal/market"
	"gpubroker/internal/money"
	"gpubroker/internal/scenario"
	"gpubroker/providers"
)

// OfferFilter is what offers are selected by, now and in the past.
type OfferFilter struct {
	GPU      string `query:"gpu" doc:"a GPU's id, family or common name; unknown for those that nobody knows"`
	Kind     string `query:"kind" enum:"spot,on-demand"`
	Provider string `query:"provider"`
	Region   string `query:"region" doc:"one, or several with commas between; * stands for any letters"`
}

type offersInput struct {
	OfferFilter
	Memory      float64 `query:"memory" minimum:"0" doc:"GB of each GPU, at least"`
	MaxPrice    string  `query:"max_price" doc:"of the whole machine per hour"`
	Near        string  `query:"near" doc:"where users are, with commas between: areas such as eu-west, countries, cities, regions; with max_rtt"`
	MaxRTT      string  `query:"max_rtt" doc:"most that a round trip to each of them may take, modelled from the distance, such as 30ms; with near"`
	Link        string  `query:"link" doc:"how the words for the link between its GPUs begin, such as nvlink or pcie; fabric for a full one"`
	RDMA        bool    `query:"rdma" doc:"only machines that reach each other by RDMA"`
	Scenario    string  `query:"scenario" doc:"only what is fit for that kind of work"`
	Sort        string  `query:"sort" doc:"price, per-gpu, memory, age, gpu, provider or region; a minus before it turns it round"`
	Limit       int     `query:"limit" minimum:"0" doc:"at most so many; 0 means all"`
	Quarantined bool    `query:"quarantined" doc:"with the offers that are not used, and why"`
}

// Offers are what can be rented.
type Offers struct {
	Offers      []market.Quote       `json:"offers" doc:"in the order asked for; the cheapest first by default"`
	Total       int                  `json:"total" doc:"that were asked for, without the limit"`
	Quarantined int                  `json:"quarantined" doc:"offers of all accounts that are not used"`
	Quarantine  []market.Quarantined `json:"quarantine,omitempty" doc:"those offers, when they were asked for"`
	// Snapshot is the day of the offers that are built into the program, where they
	// stand in for a broker's.
	Snapshot string `json:"snapshot,omitempty" doc:"day of the newest offer of a dated snapshot; absent when offers are live"`
}

type offersOutput struct{ Body Offers }

type historyInput struct {
	OfferFilter
	Days   int  `query:"days" minimum:"1" maximum:"90" default:"7" doc:"how far back"`
	Points bool `query:"points" doc:"with each change"`
}

// History is what prices were.
type History struct {
	Since  time.Time     `json:"since"`
	Until  time.Time     `json:"until"`
	Series []market.Past `json:"series" doc:"by market"`
}

type historyOutput struct{ Body History }

// Instances are the machines that are not settled.
type Instances struct {
	Instances []control.InstanceView `json:"instances"`
	Currency  money.Currency         `json:"currency" doc:"of all amounts"`
}

type instancesOutput struct{ Body Instances }

// GPUs are facts of GPUs, and where each is cheapest.
type GPUs struct {
	GPUs     []market.Model `json:"gpus"`
	Snapshot string         `json:"snapshot,omitempty" doc:"day of the newest offer of a dated snapshot; absent when prices are live"`
}

type gpusOutput struct{ Body GPUs }

// Scenarios are kinds of work.
type Scenarios struct {
	Scenarios []scenario.Profile `json:"scenarios"`
}

type scenariosOutput struct{ Body Scenarios }

type scenarioInput struct {
	Name string `path:"name" doc:"a scenario's name, or another name of it"`
}

// ScenarioPage is what people ask about a kind of work.
type ScenarioPage struct {
	Scenario scenario.Profile `json:"scenario"`
	GPUs     []market.Worth   `json:"gpus" doc:"those that fit first, by what money buys, then the others"`
	Spec     string           `json:"spec,omitempty" doc:"a job spec as an example"`
	Snapshot string           `json:"snapshot,omitempty" doc:"day of the newest offer of a dated snapshot; absent when prices are live"`
}

// exampleOf is the line of a spec that names its kind of work.
var exampleOf = regexp.MustCompile(`(?m)^scenario: *[^\s#]+`)

// PageOf tells of a kind of work, with the offers of a market.
func PageOf(p scenario.Profile, v *market.View, now time.Time) ScenarioPage {
	page := ScenarioPage{Scenario: p, GPUs: v.Worth(&p, now)}
	if text, err := examples.Spec(p.Example); err == nil { // an owner's scenario may have one elsewhere, or none
		page.Spec = string(text)
		if _, builtin := scenario.Builtin().Find(p.Name); !builtin { // the example is that of what it extends
			page.Spec = exampleOf.ReplaceAllLiteralString(page.Spec, "scenario: "+p.Name)
		}
	}
	return page
}

type scenarioOutput struct{ Body ScenarioPage }

func (s *Server) registerMarket() {
	s.registerProviders()
	huma.Register(s.api, operation("list-offers", http.MethodGet, "/api/v1/offers", "List what can be rented now", View, "market"), s.listOffers)
	huma.Register(s.api, operation("offer-history", http.MethodGet, "/api/v1/offers/history", "Tell what prices were", View, "market"), s.offerHistory)
	huma.Register(s.api, operation("list-instances", http.MethodGet, "/api/v1/instances", "List machines that are not settled", View, "market"), s.listInstances)
	huma.Register(s.api, operation("list-gpus", http.MethodGet, "/api/v1/gpus", "List GPUs, what is known of them, and where they are cheapest", View, "market"),
		func(context.Context, *struct{}) (*gpusOutput, error) {
			out := &gpusOutput{}
			out.Body.GPUs = s.broker.Market().View().Models(s.broker.State().Now())
			return out, nil
		})
	huma.Register(s.api, operation("list-scenarios", http.MethodGet, "/api/v1/scenarios", "List kinds of work", View, "market"),
		func(context.Context, *struct{}) (*scenariosOutput, error) {
			out := &scenariosOutput{}
			out.Body.Scenarios = s.broker.Scenarios().All()
			return out, nil
		})
	huma.Register(s.api, operation("get-scenario", http.MethodGet, "/api/v1/scenarios/{name}", "Tell of a kind of work, and of each GPU whether it is fit for it", View, "market"), s.getScenario)
}

func (s *Server) getScenario(_ context.Context, in *scenarioInput) (*scenarioOutput, error) {
	p, ok := s.broker.Scenarios().Find(in.Name)
	if !ok {
		message, hint := s.broker.Scenarios().Why(in.Name)
		return nil, huma.Error404NotFound(message + "; " + hint)
	}
	return &scenarioOutput{PageOf(p, s.broker.Market().View(), s.broker.State().Now())}, nil
}

func (f OfferFilter) query() market.Query {
	return market.Query{GPU: f.GPU, Kind: providers.Kind(f.Kind), Provider: f.Provider, Region: f.Region}
}

func (s *Server) listOffers(_ context.Context, in *offersInput) (*offersOutput, error) {
	q := in.query()
	q.Memory, q.Link, q.RDMA, q.Scenario, q.Sort, q.Limit = in.Memory, in.Link, in.RDMA, in.Scenario, in.Sort, in.Limit
	if in.MaxPrice != "" {
		var err error
		if q.MaxPrice, err = money.RateOf(in.MaxPrice); err != nil {
			return nil, huma.Error422UnprocessableEntity(fmt.Sprintf("max_price: %v", err))
		}
	}
	if in.Near != "" || in.MaxRTT != "" {
		var err error
		if q.Near, err = market.ParseNear(in.Near, in.MaxRTT); err != nil {
			return nil, queryFault(err)
		}
	}
	out := &offersOutput{}
	v := s.broker.Market().View()
	var err error
	if out.Body.Offers, out.Body.Total, err = v.Find(q, s.broker.State().Now()); err != nil {
		return nil, queryFault(err)
	}
	odd := v.Quarantined()
	if out.Body.Quarantined = len(odd); in.Quarantined {
		out.Body.Quarantine = odd
	}
	return out, nil
}

func queryFault(err error) error {
	if _, ok := errors.AsType[*market.QueryError](err); ok {
		return huma.Error422UnprocessableEntity(err.Error())
	}
	return err
}

func (s *Server) offerHistory(ctx context.Context, in *historyInput) (*historyOutput, error) {
	h := s.broker.Market().History()
	if h == nil {
		return nil, huma.Error404NotFound("this broker keeps no record of prices")
	}
	want, err := in.query().Series()
	if err != nil {
		return nil, queryFault(err)
	}
	until := s.broker.State().Now()
	out := &historyOutput{Body: History{Since: until.AddDate(0, 0, -in.Days), Until: until}}
	out.Body.Series, err = h.Query(ctx, market.HistoryQuery{Since: out.Body.Since, Until: until, Want: want, Points: in.Points})
	if err != nil {
		return nil, err
	}
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
