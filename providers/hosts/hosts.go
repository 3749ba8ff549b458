package hosts

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/quantity"
	"gpubroker/providers"
)

// Registry is what the join endpoint asks for a waiting agent. [Provider] is one.
type Registry interface {
	// Knows reports whether the host is in the configuration.
	Knows(host string) bool
	// Waiting says that an agent without work waits on the host, and returns the
	// request id of the instance that it is from now on, if any. Asking again
	// returns the same, so that a lost answer is no loss. The caller has
	// authenticated the agent.
	Waiting(host string) (request string, ok bool)
}

// Patience is how long a host counts as waiting after its agent last asked.
const Patience = 2 * time.Minute

// Provider is one list of owned machines. It is safe for concurrent use.
type Provider struct {
	name  string
	owner string
	path  string
	log   *slog.Logger
	hosts []owned // by the configuration's order; availability and date are filled in

	mu       sync.Mutex
	bindings []binding         // as on disk
	idle     map[string]moment // when the agent on a free host last asked
}

func rate(m quantity.Money) money.Rate { return money.Rate(m.Amount) }

// Name is the account's name.
func (p *Provider) Name() string { return p.name }

// Capabilities are the same for all hosts.
func (p *Provider) Capabilities() providers.Capabilities {
	return providers.Capabilities{
		Kinds: []providers.Kind{providers.OnDemand}, NoticeSource: providers.NoticeNone,
		Billing: money.Billing{Unit: time.Second}, BillsBoot: true, PriceBound: true,
		TagsAtLaunch: true, LaunchToken: true, Shared: true,
		SelfEnd: providers.EndGuest, EndAction: providers.EndStopTasks,
		StopTime: stopTime, BootTime: 10 * time.Second,
	}
}

// Offers returns one offer for each type of host, open when an agent waits on one
// that is free; its capacity is how many do.
func (p *Provider) Offers(ctx context.Context, scope providers.Scope) ([]providers.Offer, error) {
	if err := ctx.Err(); err != nil {
		return nil, p.fail("offers", scope.Region, providers.CodeOf(err), "")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now().UTC()
	out := make([]providers.Offer, 0, len(p.hosts))
	for _, h := range p.hosts {
		o := h.offer
		if scope.Region != "" && scope.Region != o.Region {
			continue
		}
		at := slices.IndexFunc(out, func(x providers.Offer) bool { return x.Market == o.Market })
		if at < 0 {
			at = len(out)
			o.Seen, o.Available = now, providers.Full
			out = append(out, o)
		}
		if p.free(h.name, now) == "" {
			out[at].Available = providers.Open
			out[at].Capacity++
		}
	}
	return out, nil
}

// free returns why a host cannot be bound, or "".
func (p *Provider) free(host string, now moment) string {
	for _, b := range p.bindings {
		if b.on() == host && b.ended(now).IsZero() {
			return "it is in use by " + b.Request
		}
	}
	if asked, ok := p.idle[host]; !ok || now.Sub(asked) > Patience {
		return "no agent waits there; run gpubroker-agent join on it"
	}
	return ""
}

// pick finds a free host of a market, or says why there is none; it says nothing
// where there is no such host at all.
func (p *Provider) pick(m providers.Market, now moment) (host *owned, why string) {
	for i := range p.hosts {
		h := &p.hosts[i]
		if h.offer.Market != m {
			continue
		}
		busy := p.free(h.name, now)
		if busy == "" {
			return h, ""
		}
		why = cmp.Or(why, busy)
	}
	return nil, why
}

// Launch binds a free host of the market's type.
func (p *Provider) Launch(ctx context.Context, req providers.LaunchRequest) (providers.Instance, error) {
	target := req.Market.String()
	refuse := func(code providers.Code, why string) (providers.Instance, error) {
		e := p.fail("launch", target, code, why)
		e.Outcome = providers.NotCreated
		return providers.Instance{}, e
	}
	if err := ctx.Err(); err != nil {
		return refuse(providers.CodeOf(err), "")
	}
	if req.Request == "" || req.Tags.Request != req.Request {
		return refuse(providers.InvalidRequest, "the request id is missing or differs from its tag")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now().UTC()
	if b := p.find(providers.Ref{Request: req.Request}); b != nil {
		if b.Market != req.Market {
			return refuse(providers.Conflict, "the request has host "+b.on())
		}
		return p.show(*b, now), nil
	}
	host, why := p.pick(req.Market, now)
	if host == nil && why == "" {
		return refuse(providers.InvalidRequest, "no such host in the configuration")
	}
	if host == nil {
		return refuse(providers.NoCapacity, why)
	}
	offer := &host.offer
	if req.PriceMax > 0 && req.PriceMax < offer.Price {
		return refuse(providers.PriceTooLow, "the price is "+offer.Price.String()+" per hour")
	}
	tags := req.Tags
	tags.DeleteAt = tags.DeleteAt.UTC()
	b := binding{Request: req.Request, Market: req.Market, Tags: tags, Price: offer.Price, Launched: now}
	if host.name != req.Market.Type {
		b.Host = host.name
	}
	renamed, err := p.commit(append(p.kept(now), b))
	if renamed {
		delete(p.idle, host.name)
	}
	if err != nil {
		e := p.fail("launch", target, providers.Unavailable, "the state file cannot be written")
		e.Outcome, e.Err = providers.NotCreated, err
		if renamed {
			e.Outcome = providers.OutcomeUnknown
		}
		return providers.Instance{}, e
	}
	return p.show(b, now), nil
}

// Terminate frees a host: at once when no agent was told of the binding, else
// when the agent waits again.
func (p *Provider) Terminate(ctx context.Context, ref providers.Ref) error {
	if err := ctx.Err(); err != nil {
		return p.fail("terminate", ref.String(), providers.CodeOf(err), "")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now().UTC()
	b := p.find(ref)
	if b == nil || !b.ended(now).IsZero() {
		return p.fail("terminate", ref.String(), providers.NotFound, "")
	}
	if !b.Asked.IsZero() {
		return nil
	}
	ending := *b
	ending.Asked = now
	if b.Joined.IsZero() {
		ending.Left = now
	}
	if _, err := p.commit(p.with(ending)); err != nil {
		e := p.fail("terminate", ref.String(), providers.Unavailable, "the state file cannot be written")
		e.Err = err
		return e
	}
	return nil
}

// Describe returns a binding as it is now.
func (p *Provider) Describe(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
	if err := ctx.Err(); err != nil {
		return providers.Instance{}, p.fail("describe", ref.String(), providers.CodeOf(err), "")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.find(ref)
	if b == nil {
		return providers.Instance{}, p.fail("describe", ref.String(), providers.NotFound, "")
	}
	return p.show(*b, time.Now()), nil
}

// List returns the bindings of our owner, those that ended within a week too.
func (p *Provider) List(ctx context.Context) ([]providers.Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, p.fail("list", "", providers.CodeOf(err), "")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	out := make([]providers.Instance, 0, len(p.bindings))
	for _, b := range p.bindings {
		if p.owner == "" || b.Tags.Owner == p.owner {
			out = append(out, p.show(b, now))
		}
	}
	return out, nil
}

// Bill returns what a binding counts: its price from the launch to the end.
func (p *Provider) Bill(ctx context.Context, ref providers.Ref) (providers.Bill, error) {
	if err := ctx.Err(); err != nil {
		return providers.Bill{}, p.fail("bill", ref.String(), providers.CodeOf(err), "")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.find(ref)
	if b == nil {
		return providers.Bill{}, p.fail("bill", ref.String(), providers.NotFound, "")
	}
	bill := providers.Bill{
		Start: b.Launched, End: b.ended(time.Now()),
		Prices: []providers.PriceChange{{From: b.Launched, Price: b.Price}},
	}
	if bill.End.IsZero() {
		return bill, nil
	}
	total, err := money.Charge(bill.End.Sub(bill.Start), b.Price, p.Capabilities().Billing)
	if err != nil {
		e := p.fail("bill", ref.String(), providers.InvalidRequest, "the sum does not fit")
		e.Err = err
		return providers.Bill{}, e
	}
	bill.Total = &total
	return bill, nil
}

// Knows implements [Registry].
func (p *Provider) Knows(host string) bool {
	return slices.ContainsFunc(p.hosts, func(h owned) bool { return h.name == host })
}

// Waiting implements [Registry]. What cannot be written down is not said: the
// agent asks again.
func (p *Provider) Waiting(host string) (request string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now().UTC()
	n := slices.IndexFunc(p.bindings, func(b binding) bool { return b.on() == host && b.ended(now).IsZero() })
	if n < 0 {
		if p.Knows(host) {
			p.idle[host] = now
		}
		return "", false
	}
	b := p.bindings[n]
	switch {
	case !b.Asked.IsZero():
		b.Left = now // it waits, so it has stopped its tasks
	case b.Joined.IsZero():
		b.Joined = now
	default:
		return b.Request, true
	}
	if _, err := p.commit(p.with(b)); err != nil {
		p.log.Error("a host's state cannot be written; its agent is told to ask again", "host", host, "error", err)
		return "", false
	}
	if !b.Left.IsZero() {
		p.idle[host] = now
		return "", false
	}
	return b.Request, true
}

// find returns the binding that a reference names in full.
func (p *Provider) find(ref providers.Ref) *binding {
	for n := range p.bindings {
		if b := &p.bindings[n]; b.Request == ref.Request && (ref.ID == "" || ref.ID == b.id()) {
			return b
		}
	}
	return nil
}

// kept returns a copy of the bindings without those that ended long ago.
func (p *Provider) kept(now moment) []binding {
	return slices.DeleteFunc(slices.Clone(p.bindings), func(b binding) bool {
		ended := b.ended(now)
		return !ended.IsZero() && now.Sub(ended) > remembered
	})
}

// with returns a copy of the bindings in which b has replaced its like.
func (p *Provider) with(b binding) []binding {
	out := slices.Clone(p.bindings)
	n := slices.IndexFunc(out, func(o binding) bool { return o.Request == b.Request })
	out[n] = b
	return out
}

// commit writes the bindings down and only then goes by them.
func (p *Provider) commit(bindings []binding) (renamed bool, err error) {
	renamed, err = save(p.path, p.name, bindings)
	if renamed {
		p.bindings = bindings
	}
	return renamed, err
}

func (p *Provider) show(b binding, now moment) providers.Instance {
	i := providers.Instance{
		Ref:    providers.Ref{ID: b.id(), Request: b.Request, Region: b.Market.Region},
		Market: b.Market, State: providers.Pending, Tags: b.Tags, Launched: b.Launched, Price: b.Price,
	}
	switch ended := b.ended(now); {
	case !ended.IsZero():
		i.State, i.Cause, i.Ended = providers.Terminated, providers.CauseUser, ended
	case !b.Asked.IsZero():
		i.State = providers.Stopping
	case !b.Joined.IsZero():
		i.State = providers.Running
	}
	return i
}

func (p *Provider) fail(op, target string, code providers.Code, why string) *providers.Error {
	return &providers.Error{
		Code: code, Scope: providers.ScopeOffer, Provider: p.name, Op: op, Target: target, Message: why,
	}
}
