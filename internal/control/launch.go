package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/reason"
	"gpubroker/internal/state"
	"gpubroker/providers"
	"gpubroker/queue"
)

// launch asks providers for the machines that are planned. The intent is stored
// as launching before the call: a machine that it makes is never unknown to us.
func (b *Broker) launch(ctx context.Context) (time.Duration, error) {
	if b.meta.Copied {
		return 0, nil
	}
	var errs []error
	groups := map[launchKey][]string{}
	var order []launchKey
	for i := range b.state.View().Instances.All() {
		switch {
		case i.State == queue.InstanceRequested && !b.busy(i.ID):
			key := launchKey{marketOf(i), i.Bound, i.Group}
			if groups[key] == nil {
				order = append(order, key)
			}
			groups[key] = append(groups[key], i.ID)
		case i.State == queue.InstanceLaunching && i.Unknown.IsZero() && !b.busy(i.ID):
			// A call that nobody waits for any more: its broker died.
			if err := b.unknown(ctx, i.ID); err != nil {
				errs = append(errs, err)
			}
		}
	}
	for _, key := range order {
		a := b.accounts[key.market.Provider]
		most := 1
		if a != nil && a.LaunchMany != nil {
			most = launchTogether
		}
		for ids := range slices.Chunk(groups[key], most) {
			b.actAll(ids, func(ids []string) {
				if err := b.launchAll(ctx, a, ids); err != nil && ctx.Err() == nil {
					b.complain("launch", err)
				}
			})
		}
	}
	return 0, errors.Join(errs...)
}

// launchKey is what machines have in common that one call may launch.
type launchKey struct {
	market providers.Market
	bound  money.Rate
	group  string
}

// launchTogether is how many machines are asked for in one call at most.
const launchTogether = 20

// unknown notes that a launch may or may not have made a machine: the list of
// the provider decides.
func (b *Broker) unknown(ctx context.Context, id string) error {
	return b.state.Do(ctx, func(tx *state.Tx) error {
		if i := tx.EditInstance(id); i != nil && i.State == queue.InstanceLaunching {
			i.Unknown = tx.Now
		}
		return nil
	})
}

// launchAll asks an account for machines that differ only in what is each one's
// own: in one call where it can. Each has its own record, answer and outcome.
func (b *Broker) launchAll(ctx context.Context, account *Account, ids []string) error {
	var reqs []providers.LaunchRequest
	err := b.state.Do(ctx, func(tx *state.Tx) error {
		reqs = nil
		for _, id := range ids {
			req, wanted, err := b.launching(tx, account, id)
			if err != nil {
				return err
			}
			if wanted {
				reqs = append(reqs, req)
			}
		}
		return nil
	})
	if err != nil || len(reqs) == 0 {
		return err
	}
	var answers []providers.LaunchAnswer
	if len(reqs) > 1 {
		answers = account.LaunchMany(ctx, reqs)
	} else {
		got, err := account.Launch(ctx, reqs[0])
		answers = []providers.LaunchAnswer{{Instance: got, Err: err}}
	}
	// The answers are recorded even when we are stopping: the context of the call
	// is not that of the record.
	record, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return b.state.Do(record, func(tx *state.Tx) error {
		for i, req := range reqs {
			if err := b.launched(tx, req.Request, answers[i].Instance, answers[i].Err); err != nil {
				return err
			}
		}
		return nil
	})
}

// launching stores the intent to launch a machine, if it is still wanted.
func (b *Broker) launching(tx *state.Tx, account *Account, id string) (req providers.LaunchRequest, wanted bool, err error) {
	i := tx.EditInstance(id)
	if i == nil || i.State != queue.InstanceRequested {
		return req, false, nil
	}
	if account == nil {
		return req, false, b.gone(tx, id, reason.New("launch_failed", "code", "provider not configured"), queue.LaunchFailed, tx.Now)
	}
	if !busied(tx, i) {
		return req, false, b.gone(tx, id, reason.New("job_done"), queue.LaunchFailed, tx.Now)
	}
	if err := queue.SetInstance(i, queue.InstanceLaunching); err != nil {
		return req, false, err
	}
	token := tx.NewToken()
	i.JoinHash = digest(token)
	b.event(tx, "instance.launching", i, reason.New("launching", "market", marketOf(i)))
	return b.request(i, account, token), true, nil
}

func (b *Broker) request(i *queue.Instance, a *Account, token string) providers.LaunchRequest {
	caps := a.Capabilities()
	req := providers.LaunchRequest{
		Request: i.ID, Market: marketOf(i), Group: i.Group, PriceMax: i.Bound, UserData: b.userData(i, caps, token),
		Tags: providers.Tags{
			Owner: b.set.Owner, Generation: b.meta.Generation, Request: i.ID, Project: i.Project,
			DeleteAt: b.deleteAt(i).Add(caps.StopTime),
		},
	}
	switch caps.SelfEnd {
	case providers.EndRolling:
		req.End = i.Lease
	case providers.EndFixed:
		req.End, req.Life = fixedEnd(i, caps), caps.LongestLife
	case providers.EndGuest, providers.EndNone:
	}
	return req
}

// fixedLife is how long a machine may live at most whose provider keeps an end
// for good and names no longest life.
const fixedLife = 24 * time.Hour

// fixedEnd is the end that is asked for where it cannot be moved: as late as may
// be, since leases are extended long before.
func fixedEnd(i *queue.Instance, caps providers.Capabilities) time.Time {
	life := caps.LongestLife
	if life <= 0 {
		life = fixedLife
	}
	return maxTime(i.Lease, i.Requested.Add(life))
}

// launched records a provider's answer to a launch.
func (b *Broker) launched(tx *state.Tx, id string, got providers.Instance, err error) error {
	i := tx.EditInstance(id)
	if i == nil || i.State == queue.InstanceGone {
		return nil
	}
	if err == nil {
		return b.accepted(tx, i, got)
	}
	if i.State != queue.InstanceLaunching {
		return nil // the agent called in already, or it is being ended: the list tells the rest
	}
	b.coolCode(tx, marketOf(i), err)
	if providers.CodeOf(err) == providers.QuotaExceeded {
		b.rereadQuotas(i.Provider)
	}
	why := reason.New("launch_failed", "code", providers.CodeOf(err), "market", marketOf(i))
	if providers.CodeOf(err) == providers.Conflict || providers.OutcomeOf(err) == providers.OutcomeUnknown {
		i.Unknown = tx.Now
		b.event(tx, "instance.unknown", i, why)
		return nil
	}
	if providers.CodeOf(err) == providers.NoCapacity {
		b.see(tx, i, tx.Now, gotNone)
	}
	b.log.Info("launch refused", "instance", id, "error", err)
	return b.gone(tx, id, why, queue.LaunchFailed, tx.Now)
}

// accepted takes over what the provider says of a machine of ours.
func (b *Broker) accepted(tx *state.Tx, i *queue.Instance, got providers.Instance) error {
	if got.Ref.ID != "" {
		i.CloudID = got.Ref.ID
	}
	if got.Address != "" {
		i.Address = got.Address
	}
	if i.Launched.IsZero() {
		i.Launched = got.Launched
		if i.Launched.IsZero() {
			i.Launched = tx.Now
		}
		b.see(tx, i, tx.Now, gotOne)
	}
	if got.End.After(i.End) {
		i.End = got.End
	}
	i.Unknown = time.Time{}
	if i.State != queue.InstanceLaunching {
		return nil
	}
	if err := queue.SetInstance(i, queue.InstanceBooting); err != nil {
		return err
	}
	b.event(tx, "instance.booting", i, reason.New("accepted", "cloud_id", i.CloudID))
	if !busied(tx, i) {
		return b.end(tx, i.ID, reason.New("job_done"), queue.Lost) // cancelled while it was asked for
	}
	return b.takeOver(tx, i)
}

// observe reads a provider's list, first, and then the records, so that a slow
// list cannot make a fresh machine look lost.
func (b *Broker) observe(ctx context.Context, a *Account) error {
	asked := b.now()
	list, err := a.List(ctx)
	if err != nil {
		return fmt.Errorf("listing %s: %w", a.Name(), err)
	}
	view := b.state.View()
	found := map[string]*providers.Instance{}
	var twins []*providers.Instance
	for k := range list {
		m := &list[k]
		other := found[m.Tags.Request]
		if other == nil {
			found[m.Tags.Request] = m
			continue
		}
		// One request made two machines: ours is the one whose id we know, else the
		// one that lives.
		i := view.Instance(m.Tags.Request)
		if i != nil && i.CloudID == m.Ref.ID || other.Ref.ID == "" || !other.Live() && (i == nil || i.CloudID != other.Ref.ID) {
			found[m.Tags.Request], m = m, other
		}
		twins = append(twins, m)
	}
	for i := range view.Instances.All() {
		if i.Provider != a.Name() || !lives(i) || i.State == queue.InstanceRequested {
			continue
		}
		if err := b.compare(ctx, a, i, found[i.ID], asked); err != nil {
			return err
		}
	}
	for _, m := range twins {
		if m.Live() && !a.Capabilities().Shared {
			if err := b.twin(ctx, a, m); err != nil {
				return err
			}
		}
	}
	for id, m := range found {
		if view.Instance(id) != nil || a.Capabilities().Shared {
			continue
		}
		stray := b.settleStray
		if m.Live() {
			stray = b.orphan
		}
		if err := stray(ctx, a, m, asked); err != nil {
			return err
		}
	}
	b.mu.Lock()
	first := b.listed[a.Name()].IsZero()
	b.listed[a.Name()] = asked
	b.mu.Unlock()
	if first {
		b.state.Poke()
	}
	return nil
}

// compare brings one record in line with what the provider's list says.
func (b *Broker) compare(ctx context.Context, a *Account, i *queue.Instance, m *providers.Instance, asked time.Time) error {
	if m == nil {
		return b.missing(ctx, a, i, asked)
	}
	changed := i.CloudID == "" && m.Ref.ID != "" || i.Launched.IsZero() || !i.Missing.IsZero() || goes(i, m) ||
		m.End.After(i.End) || m.State == providers.Terminated || i.State == queue.InstanceLaunching && !i.Unknown.IsZero() ||
		overBound(i, m)
	if !changed || m.State == providers.Terminated && i.State == queue.InstanceTerminating && !i.Ended.IsZero() {
		return nil
	}
	return b.state.Do(ctx, func(tx *state.Tx) error {
		i := tx.EditInstance(i.ID)
		if i == nil || !lives(i) {
			return nil
		}
		i.Missing = time.Time{}
		if m.State == providers.Terminated {
			if err := b.accepted(tx, i, *m); err != nil {
				return err
			}
			why, outcome := causeOf(i, m)
			if outcome == queue.Preempted {
				b.coolLost(tx, i, why, cmp.Or(m.Ended, tx.Now))
			}
			if !a.Capabilities().Beside {
				return b.gone(tx, i.ID, why, outcome, m.Ended)
			}
			// What stood beside it is still there: it is gone when Terminate says so.
			i.Ended = m.Ended
			if i.Ended.IsZero() {
				i.Ended = tx.Now
			}
			return b.end(tx, i.ID, why, outcome)
		}
		if err := b.accepted(tx, i, *m); err != nil {
			return err
		}
		if goes(i, m) {
			why, outcome := causeOf(i, m)
			b.coolLost(tx, i, why, tx.Now)
			return b.end(tx, i.ID, why, outcome)
		}
		if overBound(i, m) {
			return b.drain(tx, i.ID, reason.New("price_over_bound", "bound", i.Bound, "price", m.Price), queue.Moved, time.Time{})
		}
		return nil
	})
}

// goes reports whether the provider has taken a machine that it does not show as
// ended yet, or never will until it is deleted: nothing runs on it any more.
func goes(i *queue.Instance, m *providers.Instance) bool {
	return m.State == providers.Stopping && (m.Cause == providers.CausePreempted || m.Cause == providers.CausePrice) &&
		i.State != queue.InstanceTerminating
}

// overBound reports whether a machine that works has become dearer than its
// reservations assume.
func overBound(i *queue.Instance, m *providers.Instance) bool {
	return m.Price > i.Bound && i.Bound > 0 && (i.State == queue.InstanceBooting || i.State == queue.InstanceReady)
}

// causeOf tells why a machine that the provider ended is gone.
func causeOf(i *queue.Instance, m *providers.Instance) (reason.Reason, queue.Outcome) {
	switch m.Cause {
	case providers.CausePreempted, providers.CausePrice:
		if i.State == queue.InstanceDraining && !i.DrainBy.IsZero() {
			return reason.New("preempted_notice", "by", i.DrainBy.UTC().Format(time.TimeOnly+"Z")), queue.Preempted
		}
		return reason.New("preempted"), queue.Preempted
	case providers.CauseExpired:
		return reason.New("lease_ended", "why", "the provider's own end came"), queue.Lost
	case providers.CauseUser, providers.CauseGuest:
		if i.State == queue.InstanceTerminating {
			return i.Gone, queue.Lost
		}
		return reason.New("gone_outside", "cause", m.Cause), queue.Lost
	case providers.CauseError, providers.CauseUnknown:
	}
	return reason.New("gone_outside", "cause", "not said by the provider"), queue.Lost
}

// missing handles a record that the list lacks. Only the provider's word on this
// very machine closes it.
func (b *Broker) missing(ctx context.Context, a *Account, i *queue.Instance, asked time.Time) error {
	lag := a.Capabilities().ListLag
	born := i.Launched
	if !i.Unknown.IsZero() {
		born = i.Unknown
	}
	if i.State == queue.InstanceLaunching && i.Unknown.IsZero() {
		return nil // the call is under way
	}
	if asked.Before(born.Add(lag)) {
		return nil
	}
	m, err := a.Describe(ctx, ref(i))
	switch {
	case err == nil && m.State == providers.Terminated:
		return b.compare(ctx, a, i, &m, asked)
	case err == nil:
		return nil // it is there: the list lags
	case providers.CodeOf(err) != providers.NotFound:
		return fmt.Errorf("describing %s: %w", i.ID, err)
	}
	return b.state.Do(ctx, func(tx *state.Tx) error {
		i := tx.EditInstance(i.ID)
		if i == nil || !lives(i) {
			return nil
		}
		if i.State == queue.InstanceLaunching {
			return b.gone(tx, i.ID, reason.New("launch_failed", "code", "no machine was made"), queue.LaunchFailed, tx.Now)
		}
		why := i.Gone
		outcome := queue.Lost
		if i.State != queue.InstanceTerminating || why.IsZero() {
			why = reason.New("gone_outside", "cause", "the provider no longer knows it")
		}
		return b.gone(tx, i.ID, why, outcome, tx.Now)
	})
}

// terminate asks for the end of machines until the provider says that they are
// gone.
func (b *Broker) terminate(ctx context.Context) (time.Duration, error) {
	if b.meta.Copied {
		return 0, nil
	}
	for i := range b.state.View().Instances.All() {
		if i.State != queue.InstanceTerminating {
			continue
		}
		if a := b.accounts[i.Provider]; a != nil {
			b.act(i.ID, func() {
				if err := b.terminateOne(ctx, a, i); err != nil && ctx.Err() == nil {
					b.complain("terminate", err)
				}
			})
		}
	}
	return 0, nil
}

func (b *Broker) terminateOne(ctx context.Context, a *Account, i *queue.Instance) error {
	if b.asked("terminate/" + i.ID) {
		return nil
	}
	err := a.Terminate(ctx, ref(i))
	if providers.CodeOf(err) == providers.NotFound {
		if born := maxTime(i.Requested, i.Unknown); i.CloudID == "" && b.now().Sub(born) < a.Capabilities().ListLag {
			return nil // it may only not be listed yet
		}
		return b.state.Do(ctx, func(tx *state.Tx) error {
			return b.gone(tx, i.ID, i.Gone, queue.Lost, time.Time{})
		})
	}
	said := ""
	if err != nil {
		said = string(providers.CodeOf(err))
	}
	if said == i.DeleteErr {
		return err
	}
	doErr := b.state.Do(ctx, func(tx *state.Tx) error {
		i := tx.EditInstance(i.ID)
		if i == nil || !lives(i) {
			return nil
		}
		i.DeleteErr = said
		if said != "" {
			b.event(tx, "instance.undeleted", i, reason.New("still_billing", "code", said, "price", perHour(i.Price)))
		}
		return nil
	})
	if err == nil {
		err = doErr
	}
	return err
}

// asked limits how often a provider is asked for the end of one machine.
func (b *Broker) asked(key string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if last, ok := b.pressed[key]; ok && time.Since(last) < b.set.Every.Terminate {
		return true
	}
	b.pressed[key] = time.Now()
	return false
}
