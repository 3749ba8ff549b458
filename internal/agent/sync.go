package agent

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/reason"
)

// Times of the calls.
const (
	callTime   = 15 * time.Second // beyond what the broker may hold an answer
	callApart  = 50 * time.Millisecond
	firstRetry = 250 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// cutMethod splits "PUT name".
func cutMethod(key, method string) (string, bool) { return strings.CutPrefix(key, method+" ") }

// stamp is the send time of a call, larger than the one before.
func (a *Agent) stamp() agentapi.Ticks {
	a.sent = max(a.sent+1, a.Clock.Now())
	return a.sent
}

// join calls until the broker lets the machine in and gives it work, or refuses
// it.
func (a *Agent) join(ctx context.Context) error {
	for n := 1; ; {
		req := agentapi.JoinRequest{
			Instance: a.set.Instance, Token: a.set.Token, Nonce: a.id.Nonce, Host: a.set.Host, Version: a.Version,
			BootID: a.Clock.Boot(), Machine: a.Machine,
		}
		metaCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
		id, err := a.meta.CloudID(metaCtx)
		cancel()
		if err != nil {
			a.log.Warn("the metadata address does not say which machine this is", "err", err)
		}
		req.CloudID, req.Sent = id, a.stamp()
		callCtx, cancel := context.WithTimeout(ctx, callTime)
		res, err := a.Broker.Join(callCtx, req)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case isRefused(err) || isStale(err):
			return fmt.Errorf("agent: join as %s: %w: %w", a.set.Instance+a.set.Host, ErrRefused, err)
		case err != nil:
			a.log.Warn("cannot join yet", "err", err)
			if pause(ctx, backoff(n, firstRetry, lastRetry)) != nil {
				return nil
			}
			n++
			continue
		case res.Credential == "" || res.Instance == "": // an owned machine without work
			n = 1
			if pause(ctx, max(res.Again.Std(), time.Second)) != nil {
				return nil
			}
			continue
		}
		if err := a.lease.grant(req.Sent, res.Lease); err != nil {
			a.log.Error("cannot keep the lease on disk", "err", err)
		}
		a.id.Instance, a.id.Credential = res.Instance, res.Credential
		if err := writeJSON(a.identityPath(), a.id); err != nil {
			// Without it a restarted agent joins again with the same nonce.
			a.log.Error("cannot keep the credential on disk", "err", err)
		}
		a.log.Info("joined", "instance", res.Instance)
		return nil
	}
}

// leave forgets the credential.
func (a *Agent) leave() {
	a.id.Instance, a.id.Credential = "", ""
	a.mu.Lock()
	a.revision = ""
	a.mu.Unlock()
	if err := writeJSON(a.identityPath(), a.id); err != nil {
		a.log.Error("cannot remove the credential from disk", "err", err)
	}
}

// answer is what one call brought.
type answer struct {
	desired agentapi.Desired
	err     error
}

// follow keeps observed and desired state in step until the machine is no longer
// the broker's, or the context ends.
//
// A change of ours gives up the held call, and what follows is a call that the
// broker answers at once and that nothing gives up: however fast changes come,
// every second call gets its answer.
func (a *Agent) follow(ctx context.Context) {
	dirty := true
	var last time.Time
	for fails, unmet := 0, 0; ctx.Err() == nil; {
		apart := callApart - time.Since(last)
		if unmet > 1 {
			// The broker answers at once while URLs are asked for; those that it does
			// not give are asked for ever more seldom.
			apart = backoff(unmet, callApart, 5*time.Second)
		}
		if pause(ctx, apart) != nil {
			return
		}
		last = time.Now()
		select {
		case <-a.changed:
			dirty = true
		default:
		}
		o := a.observe()
		if !dirty {
			o.Wait = agentapi.Of(agentapi.MaxWait)
		}
		got, gaveUp := a.call(ctx, o, !dirty)
		switch {
		case got.err == nil:
			fails = 0
			dirty = gaveUp
			if !a.apply(o.Sent, got.desired) {
				a.leave()
				return
			}
			if unmet++; !a.unmet(o) {
				unmet = 0
			}
		case ctx.Err() != nil:
			return
		case gaveUp:
			dirty = true
		case isStale(got.err):
			a.log.Error("the broker no longer knows this agent; everything it runs is killed", "err", got.err)
			a.killAll()
			a.leave()
			return
		case isRefused(got.err):
			// Joining again gives another credential, or says that the machine is not
			// wanted.
			a.log.Error("the broker refuses the credential; joining again", "err", got.err)
			a.leave()
			return
		default:
			fails++
			dirty = true
			if fails&(fails-1) == 0 { // ever more seldom
				a.log.Warn("sync failed", "tries", fails, "err", got.err)
			}
			if pause(ctx, backoff(fails, firstRetry, lastRetry)) != nil {
				return
			}
		}
	}
}

// unmet reports whether the broker did not give a URL that was asked for.
func (a *Agent) unmet(o agentapi.Observed) bool {
	for _, was := range o.Attempts {
		if t := a.get(was.ID); t != nil && t.wants(was.Want) {
			return true
		}
	}
	return false
}

// call makes one call and waits for its end, whatever happens: the next one must
// not overtake it on this side. It may be given up when our state changes.
func (a *Agent) call(ctx context.Context, o agentapi.Observed, mayGiveUp bool) (got answer, gaveUp bool) {
	ctx, cancel := context.WithTimeout(ctx, o.Wait.Std()+callTime)
	defer cancel()
	answers := make(chan answer, 1)
	go func() {
		d, err := a.Broker.Sync(ctx, a.id.Credential, o)
		answers <- answer{d, err}
	}()
	if mayGiveUp {
		select {
		case got = <-answers:
			return got, false
		case <-a.changed:
			cancel()
			gaveUp = true
		}
	}
	return <-answers, gaveUp
}

// observe is the whole observed state.
func (a *Agent) observe() agentapi.Observed {
	o := agentapi.Observed{
		Instance: a.id.Instance, BootID: a.Clock.Boot(), DiskFree: diskFree(a.set.Dir),
		Attempts: []agentapi.ObservedAttempt{},
	}
	room := agentapi.MaxOutput
	for _, t := range a.list() {
		seen, output := t.observe()
		// What does not fit beside the others has its turn when they are published.
		if room -= output; room < 0 {
			room += output
			seen.Output = nil
		}
		o.Attempts = append(o.Attempts, seen)
	}
	a.mu.Lock()
	o.Revision = a.revision
	notice := a.notice
	a.mu.Unlock()
	o.Sent = a.stamp()
	if notice != nil {
		o.Notice = notice.wire()
	}
	return o
}

// apply makes the desired state so. It reports whether the machine is still the
// broker's.
func (a *Agent) apply(sent agentapi.Ticks, d agentapi.Desired) bool {
	if err := a.lease.grant(sent, d.Lease); err != nil {
		a.log.Error("cannot keep the lease on disk", "err", err)
	}
	if d.Leave {
		a.log.Info("the broker lets the machine go")
		a.killAll()
		return false
	}
	a.mu.Lock()
	a.revision = d.Revision
	a.mu.Unlock()
	wanted := make(map[string]agentapi.DesiredAttempt, len(d.Attempts))
	for _, w := range d.Attempts {
		wanted[w.ID] = w
	}
	have := map[string]bool{}
	for _, t := range a.list() {
		have[t.id] = true
		w, ok := wanted[t.id]
		if !ok || w.Token != t.rec.Token {
			t.log.Info("no longer wanted")
			t.drop()
			continue
		}
		t.update(w)
	}
	for _, w := range d.Attempts {
		if have[w.ID] || w.Recorded {
			continue
		}
		a.log.Info("a new attempt", "attempt", w.ID, "job", w.Task.Job, "index", w.Task.Index)
		a.start(record{ID: w.ID, Token: w.Token, Task: w.Task, Phase: agentapi.Staging}, w)
		if t := a.get(w.ID); t != nil {
			t.update(w)
		}
	}
	return true
}

func (a *Agent) get(id string) *attempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.attempts[id]
}

// leaseStop is the stop order for a lease that ends.
func leaseStop(left time.Duration) stopOrder {
	return stopOrder{
		why:   reason.New("lease_ended", "why", "it was not extended"),
		layer: layerMachine, by: time.Now().Add(left), save: true,
	}
}

// backoff is the pause before try n+1: doubled from first to most, and spread so
// that a thousand agents do not come at once.
func backoff(n int, first, most time.Duration) time.Duration {
	d := most
	if n < 20 {
		d = min(first<<(n-1), most)
	}
	return d/2 + rand.N(d)
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
