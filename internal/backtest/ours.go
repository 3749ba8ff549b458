package backtest

import (
	"math"
	"strconv"
	"time"

	"gpubroker/internal/money"
	"gpubroker/scheduler/policy"
)

// broker is the decision code of serve, [policy.Decide], asked until an answer
// can be carried out: each refused launch cools its pool down, so there are at
// most as many refusals as pools.
func broker(name policy.Name) rule {
	return func(s *sight) func() {
		b := &decider{sight: s, name: name, was: none, school: s.r.opt.school}
		if b.school == nil {
			b.school = newSchool(policy.Shipped())
		}
		b.cooled = make([]policy.Cooled, s.pools())
		b.history = make([]policy.History, s.pools())
		b.memory = b.school.memories(s)
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
	memory  []*policy.Memory
	school  *school
}

func (b *decider) decide() {
	now := b.r.now()
	if b.was != none && b.was < b.pools() {
		b.history[b.was].Held += now.Sub(b.asked)
		if b.r.lost == none {
			b.memory[b.was].Hold(now)
		} else {
			b.memory[b.was].Hold(now.Add(-1))
		}
	}
	if p := b.r.lost; p != none {
		b.history[p].Preemptions++
		b.refused(p)
	}
	if b.r.opt.Free && b.r.off == 0 {
		for p, m := range b.memory {
			m.See(now, b.seen(p) == isUp)
		}
	}
	for !b.carryOut(policy.Decide(b.view())) {
	}
	b.was, b.asked = b.r.held, now
}

func (b *decider) refused(p int) {
	b.cooled[p] = policy.DefaultCooldown.Fail(b.cooled[p], b.r.now())
	b.memory[p].See(b.r.now(), false)
}

// carryOut does what was decided; false if it must be decided anew.
func (b *decider) carryOut(d policy.Decision) bool {
	if d.Want != nil {
		b.school.learn(*d.Want)
		return false
	}
	b.r.until = d.Until
	switch d.Action {
	case policy.Stay:
	case policy.Wait:
		b.leave()
	case policy.StartSpot, policy.StartOnDemand, policy.Move:
		switch {
		case d.Market >= b.pools():
			b.buy(d.Market)
		case b.launch(d.Market):
			b.memory[d.Market].See(b.r.now(), true)
		default:
			b.refused(d.Market)
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
		Library: b.school.tables(), Egress: dollarsToMoney(b.r.market.dearestMove()),
	}
	// Losses are counted by whole gangs here, so Machines stays one.
	for m := range b.pools() + len(b.r.market.onDemandAt) {
		c := policy.Candidate{
			Market: b.r.market.machine(m), Price: money.Rate(b.r.opt.Gang) * b.r.price(m),
			Work: b.left(), Delay: b.delay(), Entry: dollarsToMoney(b.entry(m)),
			Region: strconv.Itoa(b.r.market.regionOf(m)),
		}
		if m >= b.pools() {
			c.Kind, c.Hint.Up = policy.OnDemand, true
		} else {
			c.Kind, c.History, c.Outlook = policy.Spot, b.history[m], b.memory[m].Outlook(now)
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

func dollarsToMoney(x float64) money.Amount { return money.Amount(math.Round(x * 1e9)) }

// dearestMove is the most that the checkpoint costs to go to another region.
func (m *market) dearestMove() float64 {
	most := 0.0
	for _, row := range m.egress {
		for _, x := range row {
			most = max(most, x)
		}
	}
	return most
}
