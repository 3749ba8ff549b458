package control

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/money"
	"gpubroker/internal/reason"
	"gpubroker/internal/state"
	"gpubroker/providers"
	"gpubroker/queue"
	"gpubroker/scheduler"
	"gpubroker/scheduler/policy"
)

// ref names a machine for its provider.
func ref(i *queue.Instance) providers.Ref {
	return providers.Ref{ID: i.CloudID, Request: i.ID, Region: i.Region, Zone: i.Zone}
}

func marketOf(i *queue.Instance) providers.Market {
	return providers.Market{Provider: i.Provider, Region: i.Region, Zone: i.Zone, Type: i.Type, Kind: providers.Kind(i.Kind)}
}

// lives reports whether the record may stand for a machine that costs money.
func lives(i *queue.Instance) bool { return i.State != queue.InstanceGone }

func (b *Broker) event(tx *state.Tx, kind string, i *queue.Instance, why reason.Reason) {
	tx.Emit(queue.Event{Kind: kind, Project: i.Project, Job: i.Payer, Instance: i.ID, Reason: why})
}

// gone closes a record on the provider's word, and ends what ran on it. The
// outcome says how its attempts ended.
func (b *Broker) gone(tx *state.Tx, id string, why reason.Reason, outcome queue.Outcome, ended time.Time) error {
	i := tx.EditInstance(id)
	if i == nil || i.State == queue.InstanceGone {
		return nil
	}
	if err := queue.SetInstance(i, queue.InstanceGone); err != nil {
		return err
	}
	if why.IsZero() {
		why = reason.New("gone_outside", "cause", "not said by the provider")
	}
	was := i.Gone
	i.Gone = why
	if err := b.offMove(tx, i); err != nil {
		return err
	}
	switch {
	case !ended.IsZero():
		i.Ended = ended
	case i.Ended.IsZero():
		i.Ended = tx.Now
	}
	for _, a := range tx.AttemptsOn(id) {
		out := outcome
		if a.Stop != nil && a.Stop.Outcome != "" && !forOthers(a.Stop) {
			out = a.Stop.Outcome // what it was asked to stop for
		}
		if err := b.endAttempt(tx, a.ID, out, nil, why); err != nil {
			return err
		}
	}
	b.remember(tx, i, outcome == queue.Preempted || taken(why))
	if !i.Launched.IsZero() && !taken(was) && !taken(why) {
		b.see(tx, i, i.Ended, heldOne)
	}
	b.event(tx, "instance.gone", i, why)
	return nil
}

// taken reports whether a machine went because its provider took it, or said that
// it would.
func taken(why reason.Reason) bool { return why.Code == "preempted" || why.Code == "preempted_notice" }

// end asks for a machine's end: the terminate loop carries it out.
func (b *Broker) end(tx *state.Tx, id string, why reason.Reason, outcome queue.Outcome) error {
	i := tx.EditInstance(id)
	if i == nil {
		return nil
	}
	if err := b.offMove(tx, i); err != nil {
		return err
	}
	for _, a := range tx.AttemptsOn(id) {
		if err := b.endAttempt(tx, a.ID, outcome, nil, why); err != nil {
			return err
		}
	}
	switch i.State {
	case queue.InstanceRequested:
		return b.gone(tx, id, why, outcome, tx.Now)
	case queue.InstanceGone, queue.InstanceTerminating:
		return nil
	case queue.InstanceLaunching, queue.InstanceBooting, queue.InstanceReady, queue.InstanceDraining:
	}
	if err := queue.SetInstance(i, queue.InstanceTerminating); err != nil {
		return err
	}
	i.Gone = why
	b.event(tx, "instance.ending", i, why)
	return nil
}

// drain stops a machine's work: no more is placed on it, and what runs is asked
// to save and stop by the given moment; zero means in its usual grace.
func (b *Broker) drain(tx *state.Tx, id string, why reason.Reason, outcome queue.Outcome, by time.Time) error {
	i := tx.EditInstance(id)
	if i == nil || (i.State != queue.InstanceReady && i.State != queue.InstanceBooting) {
		return nil
	}
	if err := queue.SetInstance(i, queue.InstanceDraining); err != nil {
		return err
	}
	i.Gone, i.DrainBy = why, by
	for _, a := range tx.AttemptsOn(id) {
		if err := b.stopAttempt(tx, a.ID, queue.Stop{Why: why, Outcome: outcome, By: by, Checkpoint: true}); err != nil {
			return err
		}
	}
	b.event(tx, "instance.draining", i, why)
	if i.State == queue.InstanceDraining && len(tx.AttemptsOn(id)) == 0 {
		return b.end(tx, id, why, outcome) // nothing is left to save on it
	}
	return nil
}

// hurry brings forward the moment by which a draining machine is empty.
func (b *Broker) hurry(tx *state.Tx, id string, why reason.Reason, outcome queue.Outcome, by time.Time) error {
	i := tx.Instance(id)
	if i == nil || i.State != queue.InstanceDraining || !i.DrainBy.IsZero() && !by.Before(i.DrainBy) {
		return nil
	}
	i = tx.EditInstance(id)
	i.DrainBy = by
	for _, a := range tx.AttemptsOn(id) {
		if err := b.stopAttempt(tx, a.ID, queue.Stop{Why: why, Outcome: outcome, By: by, Checkpoint: true}); err != nil {
			return err
		}
	}
	return nil
}

// cool leaves a part of the market alone after a failure there.
func (b *Broker) cool(tx *state.Tx, key string, rule policy.Cooldown, why reason.Reason) {
	was := policy.Cooled{}
	if c := tx.Cooldown(key); c != nil {
		was = policy.Cooled{Failures: c.Count, Until: c.Until}
	}
	now := rule.Fail(was, tx.Now)
	tx.PutCooldown(&queue.Cooldown{Key: key, Until: now.Until, Last: tx.Now, Count: now.Failures, Reason: why})
}

// coolCode applies the table of reactions to a provider's answer.
func (b *Broker) coolCode(tx *state.Tx, m providers.Market, err error) {
	code := providers.CodeOf(err)
	reaction := providers.Reactions()[code]
	if reaction.CoolDown <= 0 {
		return
	}
	scope := reaction.Scope
	var retry time.Duration
	if e, ok := errors.AsType[*providers.Error](err); ok {
		if e.Scope != "" {
			scope = e.Scope
		}
		retry = e.RetryAfter
	}
	rule := policy.Cooldown{Base: max(reaction.CoolDown, retry), Max: max(reaction.Longest, retry), Decay: policy.DefaultCooldown.Decay}
	b.cool(tx, scheduler.CooldownKey(scope, m), rule, reason.New(reason.Code("provider_"+string(code)), "provider", m.Provider))
}

// coolLost leaves a market alone after a machine was lost there, at a moment.
func (b *Broker) coolLost(tx *state.Tx, i *queue.Instance, why reason.Reason, at time.Time) {
	if taken(why) && !taken(i.Gone) {
		b.see(tx, i, at, lostOne)
	}
	b.cool(tx, scheduler.CooldownKey(providers.ScopeOffer, marketOf(i)), policy.DefaultCooldown, why)
}

// txBook reads accounts and holds for package budget.
type txBook struct{ tx *state.Tx }

func (k txBook) Account(key budget.Key) *budget.Account { return k.tx.Account(key) }

func (k txBook) Hold(instance string, key budget.Key) *budget.Hold { return k.tx.Hold(instance, key) }

func put(tx *state.Tx, c budget.Change) {
	for _, a := range c.Accounts {
		tx.PutAccount(a)
	}
	for _, h := range c.Holds {
		tx.PutHold(h)
	}
	for _, e := range c.Entries {
		tx.Append(e)
	}
}

func (b *Broker) leaseOf(i *queue.Instance, until time.Time) budget.Lease {
	stop := b.stopTime(i)
	l := budget.Lease{
		Instance: i.ID, Payer: b.payer(i), Market: marketOf(i).String(),
		From: i.Requested, Until: until.Add(stop), Bound: i.Bound, Billing: i.Billing,
	}
	if a := b.accounts[i.Provider]; a != nil && providers.SelfEnd(i.SelfEnd) == providers.EndFixed {
		// Its provider's end is for good: until then it may live if all else fails.
		end := i.End
		if end.IsZero() {
			end = fixedEnd(i, a.Capabilities())
		}
		l.Last = end.Add(stop)
	}
	return l
}

// reserve raises a new machine's holds so that it may live until the given
// moment. over are the machines that live beyond their leases.
func (b *Broker) reserve(tx *state.Tx, i *queue.Instance, until time.Time, over []*queue.Instance) error {
	c, err := b.reservation(tx, i, until, over, txBook{tx})
	if err != nil {
		return err
	}
	put(tx, c)
	i.Lease = until
	return nil
}

// reservation is what a new machine's holds would be raised by.
func (b *Broker) reservation(tx *state.Tx, i *queue.Instance, until time.Time, over []*queue.Instance, book budget.Book) (budget.Change, error) {
	return budget.Extend(b.closed(b.budgetsFor(tx, i), over, book, tx.Now), b.leaseOf(i, until), book)
}

// overdue returns the machines that live beyond their leases.
func overdue(machines iter.Seq[*queue.Instance]) []*queue.Instance {
	var out []*queue.Instance
	for i := range machines {
		if !i.Overdue.IsZero() && lives(i) {
			out = append(out, i)
		}
	}
	return out
}

// closed gives no new machine any room in budgets that pay for one which lives
// beyond its lease: nobody knows what that will cost.
func (b *Broker) closed(budgets []budget.Budget, over []*queue.Instance, book budget.Book, now time.Time) []budget.Budget {
	out := budgets
	for _, i := range over {
		for k := range out {
			x := &out[k]
			start, _, err := x.Period.At(now)
			if !x.Capped || !x.Matches(b.payer(i)) || err != nil {
				continue
			}
			committed := money.Amount(0)
			if a := book.Account(budget.Key{Budget: x.Name, Start: start}); a != nil {
				committed = a.Committed()
			}
			if committed < x.Cap {
				if &out[0] == &budgets[0] {
					out = slices.Clone(budgets)
				}
				out[k].Cap = committed
			}
		}
	}
	return out
}

func (b *Broker) budgetsFor(tx *state.Tx, i *queue.Instance) []budget.Budget {
	if i.Payer == "" {
		return b.budgets()
	}
	return append(b.budgets(), b.specs.budgetOf(tx, i.Payer)...)
}

// settle closes the books of machines that are gone, at what their provider
// charged for them.
func (b *Broker) settle(ctx context.Context) (time.Duration, error) {
	var errs []error
	for i := range b.state.View().Instances.All() {
		if i.State != queue.InstanceGone || !i.Settled.IsZero() {
			continue
		}
		if err := b.settleOne(ctx, i); err != nil {
			errs = append(errs, fmt.Errorf("settling %s: %w", i.ID, err))
		}
	}
	return 0, errors.Join(errs...)
}

func (b *Broker) settleOne(ctx context.Context, i *queue.Instance) error {
	start, end, prices, err := b.bill(ctx, i)
	if err != nil {
		return err
	}
	var settled *queue.Instance
	err = b.state.Do(ctx, func(tx *state.Tx) error {
		settled = nil
		i := tx.EditInstance(i.ID)
		if i == nil || !i.Settled.IsZero() {
			return nil
		}
		var open []budget.Hold
		for h := range tx.HoldsOf(i.ID) {
			open = append(open, *h)
		}
		c, total, err := budget.Settle(b.budgetsFor(tx, i), b.leaseOf(i, i.Lease), start, end, prices, open, txBook{tx})
		if err != nil {
			return err
		}
		put(tx, c)
		i.Settled, i.Cost = tx.Now, total
		settled = i
		for _, e := range c.Entries {
			if e.Kind == budget.Overspent {
				b.event(tx, "budget.overrun", i, reason.New("overrun", "budget", e.Key, "amount", e.Amount))
			}
		}
		return nil
	})
	if err == nil && settled != nil {
		b.shares.add(settled)
	}
	return err
}

// bill returns what a machine is charged for: the provider's own record where
// there is one, else what we saw. A zero start means that it never cost anything.
func (b *Broker) bill(ctx context.Context, i *queue.Instance) (start, end time.Time, prices []budget.Stretch, err error) {
	a := b.accounts[i.Provider]
	if i.Launched.IsZero() && i.CloudID == "" {
		return start, end, nil, nil
	}
	if a != nil && a.Bill != nil {
		bill, err := a.Bill(ctx, ref(i))
		switch {
		case err == nil && bill.End.IsZero():
			return start, end, nil, fmt.Errorf("provider %s still bills it", i.Provider)
		case err == nil:
			for _, p := range bill.Prices {
				prices = append(prices, budget.Stretch{From: p.From, Price: p.Price})
			}
			if len(prices) == 0 {
				prices = []budget.Stretch{{From: bill.Start, Price: i.Price}}
			}
			return bill.Start, bill.End, prices, nil
		case providers.CodeOf(err) != providers.NotFound:
			return start, end, nil, err
		}
	}
	return i.Launched, i.Ended, []budget.Stretch{{From: i.Launched, Price: i.Price}}, nil
}

// perHour is what a machine costs while nobody ends it, for alarms.
func perHour(r money.Rate) string { return money.Amount(r).Round(4).String() + "/h" }
