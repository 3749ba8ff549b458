// Package simcloud is the adapter for simcloud, the built-in adversarial cloud
// that `gpubroker simcloud` serves.
//
// It implements [providers.Provider] and every optional ability: Interrupter,
// EndMover, Biller, Quotas, Preflight and Console. A machine whose id was never
// learned is found by its request id in the cloud itself, not in a list, so
// that NotFound is certain.
package simcloud

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// Adapter is one account. It is safe for concurrent use.
type Adapter struct {
	name  string
	owner string
	caps  providers.Capabilities
	api   *rest.Client
}

// Name is the account's name.
func (a *Adapter) Name() string { return a.name }

// Capabilities are the rules that the settings state.
func (a *Adapter) Capabilities() providers.Capabilities {
	c := a.caps
	c.Kinds = append([]providers.Kind(nil), a.caps.Kinds...)
	return c
}

// Offers returns every market in the scope.
func (a *Adapter) Offers(ctx context.Context, scope providers.Scope) ([]providers.Offer, error) {
	path := "/v1/offers"
	if scope.Region != "" {
		path += "?region=" + url.QueryEscape(scope.Region)
	}
	var got simapi.Offers
	if err := a.call(ctx, "offers", scope.Region, http.MethodGet, path, nil, &got); err != nil {
		return nil, err
	}
	if got.Offers == nil {
		return nil, a.api.Strange("offers", scope.Region, "the answer holds no list")
	}
	out := make([]providers.Offer, 0, len(got.Offers))
	for _, o := range got.Offers {
		offer := providers.Offer{
			Market: a.market(o.Place), Shape: o.Shape, Price: o.Price, Currency: o.Currency,
			Available: o.Available, Seen: o.Seen.UTC(), Source: "simcloud /v1/offers",
		}
		if o.Free != nil {
			offer.Capacity = *o.Free
		}
		out = append(out, offer)
	}
	return out, nil
}

// Launch rents the machine of a request id.
func (a *Adapter) Launch(ctx context.Context, req providers.LaunchRequest) (providers.Instance, error) {
	target := req.Market.String()
	body := simapi.Launch{
		Place:    simapi.Place{Region: req.Market.Region, Zone: req.Market.Zone, Type: req.Market.Type, Kind: req.Market.Kind},
		Request:  req.Request,
		PriceMax: req.PriceMax,
		UserData: req.UserData,
		Disk:     req.Disk,
		Tags:     req.Tags.Map(),
	}
	switch a.caps.SelfEnd {
	case providers.EndRolling:
		body.EndAt = req.End
	case providers.EndFixed:
		body.EndAt = req.End
		if body.EndAt.IsZero() && req.Life > 0 {
			body.EndAt = time.Now().UTC().Add(req.Life)
		}
	case providers.EndGuest, providers.EndNone: // the cloud would ignore it
	}
	var m simapi.Machine
	if err := a.call(ctx, "launch", target, http.MethodPost, "/v1/machines", body, &m); err != nil {
		return providers.Instance{}, err
	}
	if m.ID == "" || m.Request != req.Request {
		return providers.Instance{}, a.api.Strange("launch", target, "the answer is about machine %q of request %q", m.ID, m.Request)
	}
	return a.instance(m), nil
}

// Terminate ends a machine.
func (a *Adapter) Terminate(ctx context.Context, ref providers.Ref) error {
	return a.call(ctx, "terminate", ref.String(), http.MethodDelete, machinePath(ref), nil, nil)
}

// Describe returns a machine as it is now.
func (a *Adapter) Describe(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
	var m simapi.Machine
	if err := a.call(ctx, "describe", ref.String(), http.MethodGet, machinePath(ref), nil, &m); err != nil {
		return providers.Instance{}, err
	}
	if m.ID == "" || ref.ID != "" && m.ID != ref.ID {
		return providers.Instance{}, a.api.Strange("describe", ref.String(), "the answer is about machine %q", m.ID)
	}
	return a.instance(m), nil
}

// List returns every machine that bears an owner tag, of our owner
// alone where one is named.
func (a *Adapter) List(ctx context.Context) ([]providers.Instance, error) {
	tag := providers.TagOwner
	if a.owner != "" {
		tag += "=" + a.owner
	}
	out := []providers.Instance{}
	after := ""
	for {
		var page simapi.Machines
		path := "/v1/machines?tag=" + url.QueryEscape(tag) + "&after=" + url.QueryEscape(after)
		if err := a.call(ctx, "list", "", http.MethodGet, path, nil, &page); err != nil {
			return nil, err
		}
		if page.Machines == nil {
			return nil, a.api.Strange("list", "", "the answer holds no list")
		}
		for _, m := range page.Machines {
			out = append(out, a.instance(m))
		}
		if page.Next == "" {
			return out, nil
		}
		if page.Next == after {
			return nil, a.api.Strange("list", "", "page after %q names itself as the next", after)
		}
		after = page.Next
	}
}

// eventWait is how long a call for notices is held.
const eventWait = 20 * time.Second

// Interruptions streams the warnings of every machine that is not gone,
// beginning with those already given. The channel is closed when ctx ends or a
// call fails; whoever opens it again misses nothing.
func (a *Adapter) Interruptions(ctx context.Context) (<-chan providers.Notice, error) {
	poll := func(after int64, wait time.Duration) (simapi.Notices, error) {
		var got simapi.Notices
		path := "/v1/events?after=" + strconv.FormatInt(after, 10) + "&wait=" + wait.String()
		err := a.call(ctx, "events", "", http.MethodGet, path, nil, &got)
		return got, err
	}
	got, err := poll(0, 0)
	if err != nil {
		return nil, err
	}
	out := make(chan providers.Notice, len(got.Notices))
	go func() {
		defer close(out)
		for {
			for _, n := range got.Notices {
				notice := providers.Notice{
					Ref:  providers.Ref{ID: n.Machine, Request: n.Request, Region: n.Region, Zone: n.Zone},
					Kind: n.Kind, At: n.Time.UTC(),
				}
				select {
				case out <- notice:
				case <-ctx.Done():
					return
				}
			}
			next, err := poll(got.Next, eventWait)
			if err != nil {
				return
			}
			got = next
		}
	}()
	return out, nil
}

// MoveEnd moves the end that the cloud keeps for a machine.
func (a *Adapter) MoveEnd(ctx context.Context, ref providers.Ref, end time.Time) error {
	return a.call(ctx, "move_end", ref.String(), http.MethodPut, machinePath(ref)+"/end", simapi.MoveEnd{EndAt: end.UTC()}, nil)
}

// Bill returns what the cloud has recorded for a machine.
func (a *Adapter) Bill(ctx context.Context, ref providers.Ref) (providers.Bill, error) {
	var b providers.Bill
	err := a.call(ctx, "bill", ref.String(), http.MethodGet, machinePath(ref)+"/bill", nil, &b)
	return b, err
}

// Quotas returns the account's limits.
func (a *Adapter) Quotas(ctx context.Context) ([]providers.Quota, error) {
	var got simapi.Quotas
	if err := a.call(ctx, "quotas", "", http.MethodGet, "/v1/quotas", nil, &got); err != nil {
		return nil, err
	}
	return got.Quotas, nil
}

// Preflight checks the token, and that the rules in the settings are those of
// the cloud.
func (a *Adapter) Preflight(ctx context.Context) error {
	var about simapi.About
	if err := a.call(ctx, "preflight", "", http.MethodGet, "/v1/about", nil, &about); err != nil {
		return err
	}
	if have, want := a.stated(), statedBy(about.Capabilities); have != want {
		return &providers.Error{
			Code: providers.InvalidRequest, Scope: providers.ScopeProvider, Provider: a.name, Op: "preflight",
			Message: "the settings state other rules than the cloud: " + have.difference(want) + "; correct the settings",
		}
	}
	return nil
}

// Console returns the last bytes of a machine's console.
func (a *Adapter) Console(ctx context.Context, ref providers.Ref) ([]byte, error) {
	var got struct {
		Console []byte `json:"console"`
	}
	err := a.call(ctx, "console", ref.String(), http.MethodGet, machinePath(ref)+"/console", nil, &got)
	return got.Console, err
}

func (a *Adapter) market(p simapi.Place) providers.Market {
	return providers.Market{Provider: a.name, Region: p.Region, Zone: p.Zone, Type: p.Type, Kind: p.Kind}
}

func (a *Adapter) instance(m simapi.Machine) providers.Instance {
	i := providers.Instance{
		Ref:    providers.Ref{ID: m.ID, Request: m.Request, Region: m.Region, Zone: m.Zone},
		Market: a.market(m.Place), State: m.State, Cause: m.Cause, Message: a.api.Line(m.Message), Tags: providers.TagsOf(m.Tags),
		Launched: m.Launched.UTC(), Ended: m.Ended.UTC(), End: m.EndAt.UTC(), Price: m.Price, Address: m.Address,
	}
	switch i.State {
	case providers.Pending, providers.Running, providers.Stopping, providers.Terminated:
	default:
		i.State = providers.StateStrange
	}
	return i
}

func machinePath(ref providers.Ref) string {
	id := ref.ID
	if id == "" {
		id = "request:" + ref.Request
	}
	return "/v1/machines/" + url.PathEscape(id)
}
