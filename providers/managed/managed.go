package managed

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"golang.org/x/time/rate"

	"gpubroker/providers"
)

// Options are the settings of a [Provider]. The zero value works.
type Options struct {
	// Owner is the broker's name. Machines with another owner tag are kept from
	// the broker; empty means that it is not checked.
	Owner string
	// Secrets are strings that no error, log or message may show.
	Secrets []string
	// Discounts are what the account pays less than the provider says; the first
	// that fits counts.
	Discounts []Discount
	// Rate is the pace in calls per second, and Burst how many may go at once.
	// Zero means 10 and 20.
	Rate  rate.Limit
	Burst int
	// Timeout is the deadline of one try. Zero means the table in [Timeouts].
	Timeout time.Duration
	// Tries is how often a call is made at most. Zero means 4.
	Tries int
	// RetryAfterMax caps what a provider may make us wait. Zero means 30 s.
	RetryAfterMax time.Duration
	// Jitter returns a number in [0, 1). Nil means a random one.
	Jitter func() float64

	Log     *slog.Logger // nil means none
	Metrics *Metrics     // nil means none
}

// The operations, as they stand in errors, logs and metrics.
const (
	OpOffers        = "offers"
	OpLaunch        = "launch"
	OpLaunchMany    = "launch-many"
	OpTerminate     = "terminate"
	OpDescribe      = "describe"
	OpList          = "list"
	OpMoveEnd       = "move-end"
	OpBill          = "bill"
	OpQuotas        = "quotas"
	OpPreflight     = "preflight"
	OpBalance       = "balance"
	OpScores        = "scores"
	OpConsole       = "console"
	OpInterruptions = "interruptions"
)

// Timeouts returns the deadline of one try for each operation. Interruptions
// has none: its stream lives as long as its context.
func Timeouts() map[string]time.Duration {
	return map[string]time.Duration{
		OpOffers:     2 * time.Minute, // whole catalogs come in pages
		OpList:       time.Minute,
		OpLaunch:     time.Minute,
		OpLaunchMany: 2 * time.Minute,
		OpTerminate:  30 * time.Second,
		OpDescribe:   15 * time.Second,
		OpMoveEnd:    15 * time.Second,
		OpBill:       30 * time.Second,
		OpQuotas:     30 * time.Second,
		OpPreflight:  30 * time.Second,
		OpBalance:    30 * time.Second,
		OpScores:     30 * time.Second,
		OpConsole:    30 * time.Second,
	}
}

// Provider is an adapter with everything that adapters have in common. It is
// itself a [providers.Provider] and safe for concurrent use.
//
// The fields are the optional abilities, resolved once: nil where the adapter
// has none. MoveEnd is nil also where the account's ends are not rolling.
type Provider struct {
	Interruptions func(ctx context.Context) (<-chan providers.Notice, error)
	MoveEnd       func(ctx context.Context, ref providers.Ref, end time.Time) error
	Bill          func(ctx context.Context, ref providers.Ref) (providers.Bill, error)
	Quotas        func(ctx context.Context) ([]providers.Quota, error)
	Preflight     func(ctx context.Context) error
	Balance       func(ctx context.Context) (providers.Funds, error)
	Unmatched     func() []string // what the last list of offers leaves out
	Scores        func(ctx context.Context, instanceType string, regions []string, machines int) ([]providers.Score, error)
	LaunchMany    func(ctx context.Context, reqs []providers.LaunchRequest) []providers.LaunchAnswer
	Console       func(ctx context.Context, ref providers.Ref) ([]byte, error)

	inner    providers.Provider
	name     string
	opts     Options
	timeouts map[string]time.Duration
	calls    *pacer // everything but ends
	ends     *pacer // terminate and move-end
	secrets  *redactor
	log      *slog.Logger
}

// New wraps p. It makes no call.
func New(p providers.Provider, opts Options) *Provider {
	if opts.Rate == 0 {
		opts.Rate = 10
	}
	if opts.Burst <= 0 {
		opts.Burst = 20
	}
	if opts.Tries <= 0 {
		opts.Tries = 4
	}
	if opts.RetryAfterMax <= 0 {
		opts.RetryAfterMax = 30 * time.Second
	}
	if opts.Jitter == nil {
		opts.Jitter = rand.Float64
	}
	log := opts.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	m := &Provider{
		inner: p, name: p.Name(), opts: opts, timeouts: Timeouts(),
		calls:   newPacer(opts.Rate, opts.Burst, opts.Jitter),
		ends:    newPacer(opts.Rate, opts.Burst, opts.Jitter),
		secrets: newRedactor(opts.Secrets),
		log:     log.With("provider", p.Name()),
	}
	m.resolve()
	return m
}

// resolve finds the optional abilities.
func (p *Provider) resolve() {
	if a, ok := Find[providers.Interrupter](p.inner); ok {
		p.Interruptions = func(ctx context.Context) (<-chan providers.Notice, error) {
			return call(ctx, p, invocation{op: OpInterruptions}, a.Interruptions)
		}
	}
	if a, ok := Find[providers.EndMover](p.inner); ok && p.Capabilities().SelfEnd == providers.EndRolling {
		p.MoveEnd = func(ctx context.Context, ref providers.Ref, end time.Time) error {
			_, err := call(ctx, p, invocation{op: OpMoveEnd, target: ref.String()}, func(ctx context.Context) (struct{}, error) {
				return struct{}{}, a.MoveEnd(ctx, ref, end)
			})
			return err
		}
	}
	if a, ok := Find[providers.Biller](p.inner); ok {
		p.Bill = func(ctx context.Context, ref providers.Ref) (providers.Bill, error) {
			return call(ctx, p, invocation{op: OpBill, target: ref.String()}, func(ctx context.Context) (providers.Bill, error) {
				return a.Bill(ctx, ref)
			})
		}
	}
	if a, ok := Find[providers.Quotas](p.inner); ok {
		p.Quotas = func(ctx context.Context) ([]providers.Quota, error) {
			return call(ctx, p, invocation{op: OpQuotas}, a.Quotas)
		}
	}
	if a, ok := Find[providers.Preflight](p.inner); ok {
		p.Preflight = func(ctx context.Context) error {
			_, err := call(ctx, p, invocation{op: OpPreflight}, func(ctx context.Context) (struct{}, error) {
				return struct{}{}, a.Preflight(ctx)
			})
			return err
		}
	}
	if a, ok := Find[providers.Balance](p.inner); ok {
		p.Balance = func(ctx context.Context) (providers.Funds, error) { return p.balance(ctx, a) }
	}
	if a, ok := Find[providers.Scores](p.inner); ok {
		p.Scores = func(ctx context.Context, instanceType string, regions []string, machines int) ([]providers.Score, error) {
			return p.scores(ctx, a, instanceType, regions, machines)
		}
	}
	if a, ok := Find[providers.BulkLauncher](p.inner); ok {
		p.LaunchMany = func(ctx context.Context, reqs []providers.LaunchRequest) []providers.LaunchAnswer {
			return p.launchMany(ctx, a, reqs)
		}
	}
	if a, ok := Find[providers.Gaps](p.inner); ok {
		p.Unmatched = func() []string {
			var lines []string
			for _, l := range a.Unmatched() {
				lines = append(lines, p.secrets.line(l))
			}
			return lines
		}
	}
	if a, ok := Find[providers.Console](p.inner); ok {
		p.Console = func(ctx context.Context, ref providers.Ref) ([]byte, error) {
			out, err := call(ctx, p, invocation{op: OpConsole, target: ref.String()}, func(ctx context.Context) ([]byte, error) {
				return a.Console(ctx, ref)
			})
			return []byte(p.secrets.clean(string(out))), err
		}
	}
}

// Find looks for an ability of type A in p and in what p wraps: everything that
// has a method Unwrap() [providers.Provider]. What it finds is the adapter's own
// method, without deadlines, pacing and retries.
func Find[A any](p providers.Provider) (A, bool) {
	for p != nil {
		if a, ok := p.(A); ok {
			return a, true
		}
		u, ok := p.(interface{ Unwrap() providers.Provider })
		if !ok {
			break
		}
		p = u.Unwrap()
	}
	var none A
	return none, false
}

// Unwrap returns the adapter.
func (p *Provider) Unwrap() providers.Provider { return p.inner }

// Name returns the account's name.
func (p *Provider) Name() string { return p.name }

// Capabilities returns the adapter's static facts.
func (p *Provider) Capabilities() providers.Capabilities { return p.inner.Capabilities() }

// Offers returns the offers that keep the contract. [Provider.Catalog] returns
// those that break it too.
func (p *Provider) Offers(ctx context.Context, scope providers.Scope) ([]providers.Offer, error) {
	c, err := p.Catalog(ctx, scope)
	return c.Offers, err
}

// Catalog returns a whole list of offers, split into those that keep the
// contract and those that are quarantined.
func (p *Provider) Catalog(ctx context.Context, scope providers.Scope) (Catalog, error) {
	offers, err := call(ctx, p, invocation{op: OpOffers, target: scope.Region}, func(ctx context.Context) ([]providers.Offer, error) {
		return p.inner.Offers(ctx, scope)
	})
	if err != nil {
		return Catalog{}, err
	}
	c := SortOut(p.name, offers, time.Now())
	told := map[Reason]int{}
	for _, q := range c.Quarantined {
		p.opts.Metrics.breach(p.name, OpOffers, q.Reason)
		told[q.Reason]++
	}
	for _, q := range c.Quarantined { // a line for each reason: there may be a whole catalog of offers
		if n := told[q.Reason]; n > 0 {
			p.log.WarnContext(ctx, "provider broke its contract", "op", OpOffers, "reason", string(q.Reason), "target", q.Offer.Market.String(), "offers", n)
			delete(told, q.Reason)
		}
	}
	for i := range c.Offers {
		p.lower(&c.Offers[i])
	}
	return c, nil
}

// Launch rents at most one machine per request id. It is repeated only when the
// failed try has certainly created nothing. An answer that is not the machine
// asked for is an error with an unknown outcome.
func (p *Provider) Launch(ctx context.Context, req providers.LaunchRequest) (providers.Instance, error) {
	inv := invocation{op: OpLaunch, target: req.Market.String(), userData: req.UserData}
	if err := checkRequest(p.name, p.Capabilities(), req); err != nil {
		e := p.errorf(inv, providers.InvalidRequest, "%v", err)
		e.Outcome = providers.NotCreated
		p.opts.Metrics.call(p.name, OpLaunch, e.Code, 0)
		return providers.Instance{}, e
	}
	sent := req
	sent.PriceMax = p.gross(&req.Market, req.PriceMax)
	inst, err := call(ctx, p, inv, func(ctx context.Context) (providers.Instance, error) {
		return p.inner.Launch(ctx, sent)
	})
	if err != nil {
		return providers.Instance{}, err
	}
	return p.launched(ctx, inv, req, inst)
}

// launched holds the answer to a launch to what was asked for.
func (p *Provider) launched(ctx context.Context, inv invocation, req providers.LaunchRequest, inst providers.Instance) (providers.Instance, error) {
	inst = p.tidy(inst)
	if why := checkLaunched(p.opts.Owner, req, inst); why != "" {
		return providers.Instance{}, p.notAsked(ctx, inv, why, inst)
	}
	return inst, nil
}

// notAsked is the error of a launch whose answer cannot be trusted.
func (p *Provider) notAsked(ctx context.Context, inv invocation, why Reason, inst providers.Instance) error {
	p.breach(ctx, OpLaunch, why, inst.Ref.String())
	e := p.errorf(inv, providers.Unknown, "the answer is not the machine asked for (%s); list by request id before another try", why)
	e.Outcome = providers.OutcomeUnknown
	return e
}

// Terminate asks for the machine's end. nil means accepted. NotFound means gone:
// it is returned only when a look by our request id, whatever the recorded cloud
// id says, finds nothing that lives. A machine found by that look is ended.
func (p *Provider) Terminate(ctx context.Context, ref providers.Ref) error {
	err := p.terminate(ctx, ref)
	if providers.CodeOf(err) != providers.NotFound || ref.ID == "" {
		return err
	}
	found, lookErr := p.Describe(ctx, providers.Ref{Request: ref.Request})
	switch {
	case providers.CodeOf(lookErr) == providers.NotFound, lookErr == nil && !found.Live():
		return err
	case lookErr != nil:
		return lookErr
	}
	p.breach(ctx, OpTerminate, WrongID, ref.String())
	if err := p.terminate(ctx, found.Ref); providers.CodeOf(err) != providers.NotFound {
		return err
	}
	return p.errorf(invocation{op: OpTerminate, target: found.Ref.String()}, providers.Unavailable,
		"terminate says that the machine is gone, describe that it lives; ask again")
}

func (p *Provider) terminate(ctx context.Context, ref providers.Ref) error {
	_, err := call(ctx, p, invocation{op: OpTerminate, target: ref.String()}, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, p.inner.Terminate(ctx, ref)
	})
	return err
}

// Describe returns the machine as it is now. An answer about another machine is
// an error; one whose tags somebody has taken away is still known by its id.
func (p *Provider) Describe(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
	inv := invocation{op: OpDescribe, target: ref.String()}
	inst, err := call(ctx, p, inv, func(ctx context.Context) (providers.Instance, error) {
		return p.inner.Describe(ctx, ref)
	})
	if err != nil {
		return providers.Instance{}, err
	}
	inst = p.tidy(inst)
	if inst.Ref.Request == "" && inst.Ref.ID == ref.ID {
		inst.Ref.Request = ref.Request
	}
	if why := checkIdentity(p.opts.Owner, ref, inst); why != "" {
		p.breach(ctx, OpDescribe, why, inst.Ref.String())
		return providers.Instance{}, p.errorf(inv, providers.Unknown, "another machine answered (%s): %s", why, inst.Ref.String())
	}
	return inst, nil
}

// List returns every machine that bears our owner tag. Others that the adapter
// lists are left out and counted.
func (p *Provider) List(ctx context.Context) ([]providers.Instance, error) {
	all, err := call(ctx, p, invocation{op: OpList}, p.inner.List)
	if err != nil {
		return nil, err
	}
	ours := make([]providers.Instance, 0, len(all))
	for _, inst := range all {
		inst = p.tidy(inst)
		why := checkListed(p.opts.Owner, inst)
		if why != "" {
			p.breach(ctx, OpList, why, inst.Ref.String())
		}
		if why == ForeignOwner {
			continue
		}
		if why == WrongRequest { // the tag on the machine is the truth
			inst.Ref.Request = inst.Tags.Request
		}
		ours = append(ours, inst)
	}
	return ours, nil
}

// tidy brings times to UTC, impossible ones to none, strange states to one word and the cloud's words to
// one clean line.
func (p *Provider) tidy(i providers.Instance) providers.Instance {
	switch i.State {
	case providers.Pending, providers.Running, providers.Stopping, providers.Terminated:
	default:
		i.State = providers.StateStrange
	}
	if i.Ref.Request == "" {
		i.Ref.Request = i.Tags.Request
	}
	i.Price = p.net(&i.Market, i.Price)
	i.Message = p.secrets.line(i.Message)
	i.Launched, i.Ended, i.End = providers.Sane(i.Launched), providers.Sane(i.Ended), providers.Sane(i.End)
	i.Tags.DeleteAt = providers.Sane(i.Tags.DeleteAt)
	return i
}

func (p *Provider) breach(ctx context.Context, op string, why Reason, target string) {
	p.opts.Metrics.breach(p.name, op, why)
	p.log.WarnContext(ctx, "provider broke its contract", "op", op, "reason", string(why), "target", target)
}

func (p *Provider) errorf(inv invocation, code providers.Code, format string, args ...any) *providers.Error {
	return &providers.Error{
		Code: code, Scope: providers.Reactions()[code].Scope, Provider: p.name, Op: inv.op, Target: inv.target,
		Message: p.secrets.line(fmt.Sprintf(format, args...)),
	}
}
