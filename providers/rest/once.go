package rest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"gpubroker/providers"
)

// Once keeps an account from renting two machines for one request at a cloud
// that has no idempotency key. The creates of one request go one after another,
// each looks for the request's machine first, and none is sent while what an
// earlier one did may not be listed yet.
//
// It remembers only what this process did within the lag: what was done before is
// found by looking.
type Once struct {
	lag time.Duration

	mu    sync.Mutex
	tries map[string]*try
}

// NewOnce returns a guard for a cloud whose lists lag behind by up to lag.
func NewOnce(lag time.Duration) *Once { return &Once{lag: lag, tries: map[string]*try{}} }

// try is what is known of one request's creates.
type try struct {
	turn  chan struct{} // held by the call whose turn it is
	calls int           // that hold it or wait for it
	at    time.Time     // when the last create was over that may have made a machine
	id    string        // of the machine that it made, when it was learned
}

// Launch returns the request's machine. find looks for it, by its id if one is
// given, and returns false when there is none; create makes it. The error of a
// create that is not sent has the outcome that is known of those before.
func (o *Once) Launch(
	ctx context.Context, request string,
	find func(ctx context.Context, id string) (providers.Instance, bool, error),
	create func(ctx context.Context) (providers.Instance, error),
) (providers.Instance, error) {
	t := o.enter(request)
	defer o.leave(t)
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		e := judgeTransport(context.Cause(ctx), false)
		e.Outcome = providers.OutcomeUnknown // whoever has the turn may be making one
		return providers.Instance{}, e
	}
	i, ok, err := find(ctx, t.id)
	switch {
	case err != nil:
		if e, known := errors.AsType[*providers.Error](err); known && !t.at.IsZero() {
			e.Outcome = providers.OutcomeUnknown // of the create before
		}
		return i, err
	case ok:
		return i, nil
	case !t.at.IsZero() && time.Since(t.at) <= o.lag:
		return i, &providers.Error{
			Code: providers.Conflict, Scope: providers.ScopeOffer, Outcome: providers.OutcomeUnknown,
			Message: fmt.Sprintf("a create of this request was sent %s ago, and its machine may be listed only after %s", time.Since(t.at).Round(time.Millisecond), o.lag),
		}
	}
	i, err = create(ctx)
	t.at, t.id = time.Now(), ""
	if err == nil {
		t.id = i.Ref.ID
	} else if providers.OutcomeOf(err) == providers.NotCreated {
		t.at = time.Time{}
	}
	return i, err
}

func (o *Once) enter(request string) *try {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.tries[request]
	if t == nil {
		t = &try{turn: make(chan struct{}, 1)}
		o.tries[request] = t
	}
	t.calls++
	return t
}

// leave forgets the requests of which nothing needs to be known any more.
func (o *Once) leave(t *try) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t.calls--
	for r, t := range o.tries {
		if t.calls == 0 && time.Since(t.at) > o.lag {
			delete(o.tries, r)
		}
	}
}
