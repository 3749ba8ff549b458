package scheduler

import (
	"slices"
	"time"

	"gpubroker/providers"
	"gpubroker/scheduler/policy"
)

// The words of a job about on-demand machines; "" is OnDemandAuto.
const (
	// OnDemandAuto is where they pay, or where the deadline needs them.
	OnDemandAuto = "auto"
	// OnDemandLastResort is once the deadline needs them or MaxWait is over.
	OnDemandLastResort = "last-resort"
	// OnDemandNever is not at all.
	OnDemandNever = "never"
)

// refill is when a spot market that is full is tried again, if its offers say nothing
// before that.
const refill = 10 * time.Minute

// ask asks the policy, within what the job says of on-demand machines: they are shown
// once they may be taken, and spot no more once they must be. Whatever the policy is,
//
//   - with last-resort they may be taken when no other try on spot is left before the
//     deadline, or when the wait is over;
//   - without a deadline ahead, and with a longest wait, they may be taken when that is
//     over, or before it if spot costs no less;
//   - once the longest wait is over, a task that has tried takes one that can be had.
//
// Where no spot market would do, nothing of this holds.
func (p *pass) ask(g *Group, v *policy.View) policy.Decision {
	var by time.Time // the wait is over
	if g.MaxWait > 0 && v.Current == nil {
		by = g.Waits.Add(g.MaxWait)
	}
	from, plain := p.onDemandFrom(g, v, by)
	switch {
	case plain:
		return p.answer(v)
	case from.After(p.Now):
		d := p.decideAmong(*v, func(c *policy.Candidate) bool { return c.Kind == policy.Spot })
		d.Until = earlier(d.Until, from)
		d.Why.At, d.Why.Latest = d.Until, from
		if d.Action == policy.Wait && d.Why.Code != policy.TableSoon || d.Why.Code == policy.SpotOnly {
			d.Why.Code = policy.SpotFirst
		}
		return d
	case !by.IsZero() && !by.After(p.Now) && g.Tried && slices.ContainsFunc(v.Candidates, p.startsOnDemand):
		d := p.decideAmong(*v, func(c *policy.Candidate) bool { return c.Kind == policy.OnDemand })
		if d.Action == policy.StartOnDemand {
			d.Why.Code = policy.WaitOver
		}
		return d
	}
	d := p.answer(v)
	if by.After(p.Now) {
		d.Until = earlier(d.Until, by)
	}
	return d
}

// inHandOnly is the class by which machines in hand are looked at: without those on demand
// while the group's last resort is not due.
func (p *pass) inHandOnly(g *Group, c *class, l *load) *class {
	if g.OnDemand != OnDemandLastResort || c.kinds[0] != usable || p.pools[c.pool] == nil {
		return c
	}
	left := p.inStock(g.Job, c, p.choose(c, *l).candidates)
	if len(left) > 0 && p.decide(g, l, left, nil).Action == policy.StartOnDemand {
		return c
	}
	spot := *g
	spot.Needs.Kinds = []providers.Kind{providers.Spot}
	return p.classOf(&spot)
}

func (p *pass) startsOnDemand(c policy.Candidate) bool {
	return c.Kind == policy.OnDemand && !c.Hint.CooledUntil.After(p.Now)
}

// onDemandFrom is when on-demand machines may be taken; plain means that the job says
// nothing that matters now.
func (p *pass) onDemandFrom(g *Group, v *policy.View, by time.Time) (from time.Time, plain bool) {
	last := g.OnDemand == OnDemandLastResort
	held := v.Current
	switch {
	case !last && by.IsZero(), held != nil && held.Kind == policy.OnDemand:
		return from, true
	case !slices.ContainsFunc(v.Candidates, isSpot) && (held == nil || held.Kind != policy.Spot),
		!slices.ContainsFunc(v.Candidates, isOnDemand):
		return from, true
	case v.Deadline.After(p.Now):
		if last {
			from = p.Now.Add(v.Spare())
			if from = later(from, p.Now); !by.IsZero() {
				from = earlier(from, by)
			}
		}
	case !last:
		if !p.cheaperOnDemand(v) {
			from = by
		}
	case held != nil:
		from = p.Now.Add(farAway) // spot is in hand
	case !by.IsZero():
		from = by
	}
	return from, false
}

// cheaperOnDemand reports whether on demand is expected to cost no more than any spot.
func (p *pass) cheaperOnDemand(v *policy.View) bool {
	best := [2]int64{1<<63 - 1, 1<<63 - 1}
	for i := range v.Candidates {
		c := &v.Candidates[i]
		best[c.Kind] = min(best[c.Kind], int64(policy.Expect(c, v.AtRisk, v.Prior).Score))
	}
	return best[policy.OnDemand] <= best[policy.Spot]
}

// decideAmong asks the policy about the candidates that ok accepts.
func (p *pass) decideAmong(v policy.View, ok func(*policy.Candidate) bool) policy.Decision {
	all := v.Candidates
	at := make([]int, 0, len(all))
	v.Candidates = make([]policy.Candidate, 0, len(all))
	for i := range all {
		if ok(&all[i]) {
			v.Candidates, at = append(v.Candidates, all[i]), append(at, i)
		}
	}
	d := p.answer(&v)
	if d.Market >= 0 {
		d.Market = at[d.Market]
	}
	return d
}

func isSpot(c policy.Candidate) bool     { return c.Kind == policy.Spot }
func isOnDemand(c policy.Candidate) bool { return c.Kind == policy.OnDemand }

// earlier is the first of two moments; zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
