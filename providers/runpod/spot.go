package runpod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// balanceAdapter has what GraphQL alone can tell.
type balanceAdapter struct{ *Adapter }

// Balance returns what is left of the account's credit.
func (b *balanceAdapter) Balance(ctx context.Context) (providers.Funds, error) {
	return b.funds(ctx, "balance")
}

// spotAdapter has spot pods too.
type spotAdapter struct{ *balanceAdapter }

// query makes a GraphQL call; out is filled from "data".
func (a *Adapter) query(ctx context.Context, op, target, text string, variables map[string]any, out any) error {
	body := struct {
		Query     string         `json:"query"`
		Variables map[string]any `json:"variables,omitempty"`
	}{text, variables}
	var got struct {
		Data json.RawMessage `json:"data"`
	}
	if err := a.graph.Do(ctx, rest.Call{Op: op, Target: target, Method: http.MethodPost, In: body, Out: &got}); err != nil {
		return err
	}
	if err := json.Unmarshal(got.Data, out); err != nil {
		return a.graph.Error(op, target, &providers.Error{Code: providers.Unavailable, Outcome: providers.OutcomeUnknown, Err: fmt.Errorf("decode the answer: %w", err)})
	}
	return nil
}

func (a *Adapter) funds(ctx context.Context, op string) (providers.Funds, error) {
	var got struct {
		Myself *struct {
			Balance json.Number `json:"clientBalance"`
		} `json:"myself"`
	}
	if err := a.query(ctx, op, "", `query { myself { clientBalance } }`, nil, &got); err != nil {
		return providers.Funds{}, err
	}
	if got.Myself == nil {
		return providers.Funds{}, a.graph.Strange(op, "", "the answer holds no account")
	}
	left, err := money.ParseAmount(string(got.Myself.Balance))
	if err != nil { // the nearest float to a decimal
		f, ferr := got.Myself.Balance.Float64()
		if left, err = money.FromFloat(f); err != nil || ferr != nil {
			return providers.Funds{}, a.graph.Strange(op, "", "the balance is %q", got.Myself.Balance)
		}
	}
	return providers.Funds{Left: left, Currency: money.USD, At: time.Now().UTC()}, nil
}

// lowest is what spot capacity costs per GPU; a null price means that there is
// none.
type lowest struct {
	Bid   json.Number `json:"minimumBidPrice"`
	Stock *string     `json:"stockStatus"`
}

// lowestInput is the filter under which a price is asked for.
func lowestInput(count int, cloud, region string) string {
	in := fmt.Sprintf("gpuCount: %d, secureCloud: %t", count, cloud == "secure")
	if region != "" {
		in += ", dataCenterId: " + strconv.Quote(region)
	}
	return "lowestPrice(input: {" + in + "}) { minimumBidPrice stockStatus }"
}

// spot lists the spot prices: one query, in which each cloud, number and region
// has a field of its own.
func (c *catalog) spot(ctx context.Context) error {
	type column struct {
		cloud, region string
		count         int
	}
	var columns []column
	var fields strings.Builder
	regions := c.a.set.Regions
	if len(regions) == 0 {
		regions = []string{""} // anywhere
	}
	for _, cloud := range c.a.set.Clouds {
		for _, region := range regions {
			for _, count := range c.a.set.Counts {
				fmt.Fprintf(&fields, " p%d: %s", len(columns), lowestInput(count, cloud, region))
				columns = append(columns, column{cloud, region, count})
			}
		}
	}
	var got struct {
		Types []map[string]json.RawMessage `json:"gpuTypes"`
	}
	if err := c.a.query(ctx, "offers", c.scope.Region, "query { gpuTypes { id displayName memoryInGb"+fields.String()+" } }", nil, &got); err != nil {
		return err
	}
	if got.Types == nil {
		return c.a.graph.Strange("offers", c.scope.Region, "the answer holds no types")
	}
	for _, t := range got.Types {
		var id, name string
		var memory int64
		if err := errors.Join(json.Unmarshal(t["id"], &id), json.Unmarshal(t["displayName"], &name), json.Unmarshal(t["memoryInGb"], &memory)); err != nil {
			return c.a.graph.Strange("offers", c.scope.Region, "a type without id, name or memory")
		}
		for k, col := range columns {
			var price lowest
			if err := json.Unmarshal(t["p"+strconv.Itoa(k)], &price); err != nil { // null leaves it empty
				return c.a.graph.Strange("offers", c.scope.Region, "the price of %s is not to be read", id)
			}
			unit, priced := rateOf(price.Bid)
			if !priced {
				continue // there is none at present, and nobody says what it would cost
			}
			c.add(providers.Spot, col.region, col.cloud, product{id: id, count: col.count}, c.a.shape(id, name, memory, col.count), unit, spotStock(price.Stock), "RunPod GraphQL lowestPrice")
		}
	}
	return nil
}

func spotStock(s *string) providers.Availability {
	switch {
	case s == nil:
		return providers.Unsaid
	case strings.EqualFold(*s, "None"):
		return providers.Full
	}
	return providers.Open
}

// rentSpot bids the lowest price that is taken now. A pod pays its bid, and is
// taken when another bids more or the machine is wanted on demand: no price of a
// running pod ever rises.
func (a *Adapter) rentSpot(ctx context.Context, req providers.LaunchRequest, p product) (providers.Instance, error) {
	target := req.Market.String()
	fail := func(e *providers.Error) (providers.Instance, error) {
		return providers.Instance{}, a.graph.Error("launch", target, e)
	}
	var market struct {
		Types []struct {
			Price lowest `json:"lowestPrice"`
		} `json:"gpuTypes"`
	}
	ask := "query($id: String!) { gpuTypes(input: {id: $id}) { id " + lowestInput(p.count, req.Market.Zone, req.Market.Region) + " } }"
	err := a.query(ctx, "launch", target, ask, map[string]any{"id": p.id}, &market)
	if e, ok := errors.AsType[*providers.Error](err); ok {
		e.Outcome = providers.NotCreated // only the price was asked for
		return fail(e)
	}
	if len(market.Types) != 1 {
		return fail(&providers.Error{Code: providers.Unsupported, Scope: providers.ScopeFamily, Outcome: providers.NotCreated, Message: "there is no GPU type " + p.id})
	}
	unit, priced := rateOf(market.Types[0].Price.Bid)
	if !priced {
		return fail(&providers.Error{Code: providers.NoCapacity, Scope: providers.ScopeOffer, Outcome: providers.NotCreated, Message: "there is no spot price for it at present"})
	}
	disk := a.diskFor(req.Disk)
	if e := bounded(req, unit, p, disk); e != nil {
		return fail(e)
	}
	type variable struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	}
	var env []variable
	for key, value := range variables(req) {
		env = append(env, variable{key, value})
	}
	slices.SortFunc(env, func(x, y variable) int { return strings.Compare(x.Key, y.Key) })
	input := map[string]any{
		"name": podName(req.Tags), "imageName": a.set.Image, "gpuTypeId": p.id, "gpuCount": p.count, "bidPerGpu": json.Number(unit.String()),
		"cloudType": strings.ToUpper(req.Market.Zone), "containerDiskInGb": disk, "volumeInGb": 0,
		"minVcpuCount": a.set.VCPUPerGPU * p.count, "minMemoryInGb": a.set.MemoryPerGPU.Bytes() / gb * int64(p.count),
		"dockerArgs": startCommand(providers.WithProxy(req.UserData, a.set.Network.Proxy)), "env": env,
	}
	for key, value := range map[string]string{"dataCenterId": req.Market.Region, "containerRegistryAuthId": a.set.Registry} {
		if value != "" {
			input[key] = value
		}
	}
	var got struct {
		Pod *struct {
			ID string `json:"id"`
		} `json:"podRentInterruptable"`
	}
	const rent = `mutation($input: PodRentInterruptableInput!) { podRentInterruptable(input: $input) { id desiredStatus costPerHr } }`
	if err := a.query(ctx, "launch", target, rent, map[string]any{"input": input}, &got); err != nil {
		return providers.Instance{}, err
	}
	if got.Pod == nil || got.Pod.ID == "" {
		// It answers so when it finds no machine; that none was made is not said.
		return fail(&providers.Error{Code: providers.NoCapacity, Scope: providers.ScopeOffer, Outcome: providers.OutcomeUnknown, Message: "the answer holds neither a pod nor an error"})
	}
	return providers.Instance{
		Ref:    providers.Ref{ID: got.Pod.ID, Request: req.Request, Region: req.Market.Region, Zone: req.Market.Zone},
		Market: req.Market, State: providers.Pending, Tags: req.Tags, Launched: time.Now().UTC(),
	}, nil
}

// change is what GraphQL says of a pod's latest change, in words: "Outbid: …",
// "Exited by Runpod: …", "Exited by user: …".
type change struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	Status string `json:"desiredStatus"`
	Text   string `json:"lastStatusChange"`
}

func (a *Adapter) changes(ctx context.Context, op string) ([]change, error) {
	var got struct {
		Myself *struct {
			Pods []change `json:"pods"`
		} `json:"myself"`
	}
	if err := a.query(ctx, op, "", `query { myself { pods { id name desiredStatus lastStatusChange } } }`, nil, &got); err != nil {
		return nil, err
	}
	if got.Myself == nil {
		return nil, a.graph.Strange(op, "", "the answer holds no account")
	}
	return got.Myself.Pods, nil
}

func (c change) outbid() bool {
	return c.Status == "EXITED" && strings.Contains(strings.ToLower(c.Text), "outbid")
}

// cause reads why a pod stopped.
func (c change) cause() providers.Cause {
	words := strings.ToLower(c.Text)
	switch {
	case strings.Contains(words, "outbid"):
		return providers.CausePreempted
	case strings.Contains(words, "by user"):
		return providers.CauseUser
	}
	return providers.CauseUnknown // "by Runpod": no credit, no image, or the host
}

// explain says why spot pods have stopped, where that can be learned: the REST API
// does not tell.
func (a *Adapter) explain(ctx context.Context, list []providers.Instance) {
	stopped := func(i providers.Instance) bool {
		return i.Market.Kind == providers.Spot && i.State == providers.Stopping && i.Cause == providers.CauseUnknown
	}
	if a.set.Spot != viaGraphQL || !slices.ContainsFunc(list, stopped) {
		return
	}
	all, err := a.changes(ctx, "explain")
	if err != nil {
		a.log.WarnContext(ctx, "why spot pods have stopped cannot be learned", "provider", a.name, "error", err)
		return
	}
	for k := range list {
		n := slices.IndexFunc(all, func(c change) bool { return c.ID == list[k].Ref.ID })
		if n >= 0 && stopped(list[k]) {
			list[k].Cause, list[k].Message = all[n].cause(), a.graph.Line(all[n].Text)
		}
	}
}

// watchEvery is how often the pods are looked at for those that were taken.
const watchEvery = 4 * time.Second

// Interruptions says which pods have been taken, soon after: RunPod itself gives
// its warning of five seconds to the container alone. An outbid pod stays,
// stopped, until it is deleted; the notice is what has the broker delete it. The
// stream begins with those that are stopped already, and ends with ctx or a failed
// call.
func (s *spotAdapter) Interruptions(ctx context.Context) (<-chan providers.Notice, error) {
	all, err := s.changes(ctx, "events")
	if err != nil {
		return nil, err
	}
	out := make(chan providers.Notice)
	go func() {
		defer close(out)
		told := map[string]bool{}
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for {
			for _, c := range all {
				request, ours := requestOf(s.owner, c.Name)
				if !c.outbid() || !ours || told[c.ID] {
					continue
				}
				told[c.ID] = true
				select {
				case out <- providers.Notice{Ref: providers.Ref{ID: c.ID, Request: request}, Kind: providers.NoticePreempt, At: time.Now().UTC()}:
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			next, err := s.changes(ctx, "events")
			if err != nil {
				return
			}
			all = next
		}
	}()
	return out, nil
}
