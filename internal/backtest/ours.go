package backtest

import (
	"math"
	"time"

	"gpubroker/internal/money"
	"gpubroker/scheduler/policy"
)

// broker is the decision code of serve, [policy.Decide], asked until an answer
// can be carried out: each refused launch cools its pool down, so there are at
// most as many refusals as pools.
func broker(name policy.Name) rule {
	return func(s *sight) func() {
		b := &decider{sight: s, name: name, was: none}
		b.cooled = make([]policy.Cooled, s.pools())
		b.history = make([]policy.History, s.pools())
		return b.decide
	}
}

// decider keeps what the broker keeps about its markets.
type decider struct {
	*sight
	name    policy.Name
	was     int // the machine held since it was asked last
	asked   time.Time
	cooled  []policy.Cooled
	history []policy.History
}

func (b *decider) decide() {
	if b.was != none && b.was < b.pools() {
		b.history[b.was].Held += b.r.now().Sub(b.asked)
	}
	if p := b.r.lost; p != none {
		b.history[p].Preemptions++
		b.cooled[p] = policy.DefaultCooldown.Fail(b.cooled[p], b.r.now())
	}
	for !b.carryOut(policy.Decide(b.view())) {
	}
	b.was, b.asked = b.r.held, b.r.now()
}

func (b *decider) carryOut(d policy.Decision) bool {
	b.r.until = d.Until
	switch d.Action {
	case policy.Stay:
	case policy.Wait:
		b.leave()
	case policy.StartSpot, policy.StartOnDemand, policy.Move:
		if d.Market >= b.pools() {
			b.buy(d.Market)
		} else if !b.launch(d.Market) {
			b.cooled[d.Market] = policy.DefaultCooldown.Fail(b.cooled[d.Market], b.r.now())
			return false
		}
	}
	return true
}

// view shows the candidates in the order of the machines: spot in each pool,
// then on demand.
func (b *decider) view() policy.View {
	now := b.r.now()
	start := now.Add(-b.elapsed())
	v := policy.View{
		Policy: b.name, Now: now, Start: start, Deadline: start.Add(b.deadline()),
		Total: b.length(), Left: b.left(), Look: b.look(), Interruptible: true,
	}
	// Losses are counted by whole gangs here, so Machines stays one.
	for m := range b.pools() + len(b.r.market.onDemandAt) {
		c := policy.Candidate{
			Market: b.r.market.machine(m), Price: money.Rate(b.r.opt.Gang) * b.r.price(m),
			Work: b.left(), Delay: b.delay(), Entry: money.Amount(math.Round(b.entry(m) * 1e9)),
		}
		if m >= b.pools() {
			c.Kind, c.Hint.Up = policy.OnDemand, true
		} else {
			c.Kind, c.History = policy.Spot, b.history[m]
			switch {
			case !b.r.opt.Free:
				c.Hint.CooledUntil = b.cooled[m].Until
			case b.seen(m) == isUp:
				c.Hint.Up = true
			default:
				c.Hint.CooledUntil = now.Add(b.step())
			}
		}
		v.Candidates = append(v.Candidates, c)
	}
	if !b.idle() {
		v.Current = &policy.Placement{Candidate: v.Candidates[b.r.held], Since: b.r.since, Running: b.r.delay == 0}
	}
	return v
}
