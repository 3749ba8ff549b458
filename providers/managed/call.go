package managed

import (
	"context"
	"errors"
	"time"

	"gpubroker/providers"
)

// invocation is one call: what is done, to what, and the user data sent, which
// its errors must not show.
type invocation struct {
	op       string
	target   string
	userData string
}

// launches reports whether the call may make machines.
func (i invocation) launches() bool { return i.op == OpLaunch || i.op == OpLaunchMany }

const (
	firstBackoff   = 500 * time.Millisecond
	longestBackoff = 10 * time.Second
)

// call makes one call of the adapter: paced, each try with a deadline, repeated
// where the table of reactions allows it.
func call[T any](ctx context.Context, p *Provider, inv invocation, f func(context.Context) (T, error)) (T, error) {
	var none T
	pace := p.calls
	if inv.op == OpTerminate || inv.op == OpMoveEnd {
		pace = p.ends
	}
	backoff := firstBackoff
	for try := 1; ; try++ {
		if err := pace.wait(ctx); err != nil {
			return none, p.unsent(inv, err)
		}
		sent := time.Now()
		v, err := attempt(ctx, p.timeout(inv.op), f)
		took := time.Since(sent)
		if err == nil {
			pace.succeeded(sent)
			p.opts.Metrics.call(p.name, inv.op, "", took)
			return v, nil
		}
		e := p.normal(ctx, inv, err)
		p.opts.Metrics.call(p.name, inv.op, e.Code, took)
		if e.Code == providers.Unknown {
			p.log.WarnContext(ctx, "adapter does not know the provider's answer", "op", inv.op, "target", inv.target, "error", e)
		}
		told := min(e.RetryAfter, p.opts.RetryAfterMax)
		if e.Code == providers.RateLimited {
			pace.throttled(sent, told)
		}
		if try >= p.opts.Tries || !mayRepeat(e) {
			return none, e
		}
		wait := max(backoff, told)
		wait += time.Duration(p.opts.Jitter() * float64(wait) / 2)
		p.log.DebugContext(ctx, "call is repeated", "op", inv.op, "target", inv.target, "code", string(e.Code), "try", try, "wait", wait)
		if sleep(ctx, wait) != nil {
			return none, e
		}
		backoff = min(2*backoff, longestBackoff)
	}
}

// attempt is one try. A timeout of zero is none.
func attempt[T any](ctx context.Context, timeout time.Duration, f func(context.Context) (T, error)) (T, error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	return f(ctx)
}

func (p *Provider) timeout(op string) time.Duration {
	if p.opts.Timeout > 0 && op != OpInterruptions {
		return p.opts.Timeout
	}
	return p.timeouts[op]
}

// mayRepeat reports whether the call may be made again. A launch may be only
// when certainly no machine exists.
func mayRepeat(e *providers.Error) bool {
	return providers.Reactions()[e.Code].Retry && e.Outcome != providers.OutcomeUnknown
}

// normal turns what an adapter failed with into an error that the broker can
// trust: complete, with a known code, on one line, without secrets. The
// adapter's own value is left alone.
func (p *Provider) normal(ctx context.Context, inv invocation, err error) *providers.Error {
	e := providers.Error{Code: providers.CodeOf(err)}
	if own, ok := errors.AsType[*providers.Error](err); ok {
		e = *own
	} else {
		e.Err = err
	}
	reaction, known := providers.Reactions()[e.Code]
	if !known {
		e.Code = providers.Unknown
		reaction = providers.Reactions()[e.Code]
	}
	// An adapter may not tell the end of its context from a failure. The
	// caller's word on its own context is better.
	if e.Code == providers.Unknown || e.Code == providers.Canceled || e.Code == providers.DeadlineExceed {
		switch {
		case ctx.Err() != nil:
			e.Code = providers.CodeOf(ctx.Err())
		case e.Code == providers.Canceled:
			e.Code = providers.DeadlineExceed // ours: the deadline of this try
		}
		reaction = providers.Reactions()[e.Code]
	}
	if e.Scope == "" {
		e.Scope = reaction.Scope
	}
	switch {
	case !inv.launches():
		e.Outcome = ""
	case e.Outcome != providers.NotCreated:
		e.Outcome = providers.OutcomeUnknown
	}
	e.RetryAfter = max(e.RetryAfter, 0)
	e.Provider, e.Op = p.name, inv.op
	secrets := p.secrets.with(inv.userData)
	if e.Target == "" {
		e.Target = inv.target
	}
	e.Target = p.secrets.line(e.Target)
	e.Message = secrets.line(e.Message)
	e.Err = secrets.wrap(e.Err)
	return &e
}

// unsent is the error of a call that ended before it was sent: no try before it
// left an outcome open.
func (p *Provider) unsent(inv invocation, err error) *providers.Error {
	e := p.errorf(inv, providers.CodeOf(err), "not sent: the caller stopped waiting for its turn")
	e.Err = err
	if inv.launches() {
		e.Outcome = providers.NotCreated
	}
	p.opts.Metrics.call(p.name, inv.op, e.Code, 0)
	return e
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
