package policy

import (
	"math/bits"
	"time"

	"gpubroker/internal/money"
)

// uniform is Uniform Progress: spot whenever there is some, and on demand only
// while the work is behind the straight line from start to deadline. An
// on-demand machine is kept while no spot is up, and left for spot only when
// the work will still be on the line after two delays. The safety net goes on
// demand for good once time for nothing else is left.
//
// Beside the published rule it looks at money: spot that is not expected to be
// cheaper than on demand is not taken, and of several the least expected cost is.
func uniform(v *View) Decision {
	net := v.fastest(isOnDemand)
	if net < 0 {
		return spotOnly(v)
	}
	u := line{View: v, net: net, slack: v.slackOf(&v.Candidates[net])}
	u.instead = v.stayOrBest(isOnDemand)
	switch {
	case v.Current == nil:
		return u.idle()
	case v.Current.Kind == Spot:
		return u.onSpot()
	default:
		return u.onDemand()
	}
}

// stayOrBest is the score of the current placement if ok accepts it, else of the
// best candidate that it accepts.
func (v *View) stayOrBest(ok func(*Candidate) bool) money.Amount {
	if v.Current != nil && ok(&v.Current.Candidate) {
		return v.stayed().Score
	}
	return v.score(&v.Candidates[v.best(ok)])
}

// line is a view with what the rules of Uniform Progress need.
type line struct {
	*View
	// net is the on-demand candidate that is done first; slack is the time that
	// may still pass without progress before it, launched then, could be late.
	net   int
	slack time.Duration
	// instead is the score of the on-demand machine used otherwise.
	instead money.Amount
}

// entry is the slack that a try on spot may use up: the delay, the work that a
// preemption undoes, and the time until it is noticed. Having just that much is
// too little, as in the papers: spot is left at once when nothing is to spare.
func (v *View) entry(c *Candidate) time.Duration {
	return total(c.Delay, min(c.atRisk(v.AtRisk), c.Work), v.Look)
}

// pending is what is left of the delay of the machine in hand: slack that it still
// uses up.
func (v *View) pending() time.Duration {
	if v.Current.Running {
		return 0
	}
	return max(0, v.Current.Delay-v.Now.Sub(v.Current.Since))
}

// Spare is how long it may still be until on demand must be taken for the deadline: until
// no slack is left for another try on spot, or for the machine in hand. There must be
// an on-demand candidate.
func (v *View) Spare() time.Duration {
	need := never
	if v.Current != nil {
		need = v.pending()
	} else {
		for i := range v.Candidates {
			if c := &v.Candidates[i]; c.Kind == Spot {
				need = min(need, v.entry(c))
			}
		}
	}
	return v.slackOf(&v.Candidates[v.fastest(isOnDemand)]) - total(need, v.Look)
}

func (u *line) worthwhile(c *Candidate) bool {
	return c.Kind == Spot && (u.instead == money.MaxAmount || u.score(c) < u.instead)
}

// startable: spot that pays, may be tried now, and leaves time for on demand.
func (u *line) startable(c *Candidate) bool {
	return u.worthwhile(c) && u.ready(c) && u.slack > u.entry(c)
}

// hopeful: spot that will still be startable when it can next be tried, if we wait.
func (u *line) hopeful(c *Candidate) bool {
	return u.worthwhile(c) && u.slack > total(max(u.readyIn(c), u.Look), u.entry(c))
}

func (u *line) idle() Decision {
	if at := u.best(u.startable); at >= 0 {
		c := &u.Candidates[at]
		until := soonest(u.nextReady(u.worthwhile), u.Now.Add(u.slack-u.entry(c)))
		return u.launch(at, Why{Code: SpotCheapest, Slack: u.slack}, until)
	}
	hope := u.best(u.hopeful)
	if hope < 0 {
		code := SafetyNet
		if u.best(isSpot) < 0 {
			code = NoSpot
		} else if u.best(u.worthwhile) < 0 {
			code = OnDemandCheaper
		}
		return u.mustRun(code)
	}
	if behind, by := u.behind(0); behind {
		if at := u.netNow(); at >= 0 {
			return u.launchNet(at, Why{Code: Behind, Behind: by})
		}
		return wait(Why{Code: CooledDown, Slack: u.slack}, u.nextReady(anyKind))
	}
	// Wait until the line is crossed, a cool-down ends, or no hope is left.
	d := wait(Why{Code: OnSchedule, Slack: u.slack}, soonest(u.nextReady(anyKind), u.crossing(), u.hopeEnds()))
	d.Why.Latest = u.Now.Add(max(0, u.slack) + u.readyIn(&u.Candidates[u.net]))
	return d
}

// hopeEnds is when no spot is hopeful any more.
func (u *line) hopeEnds() time.Time {
	var last time.Duration
	for i := range u.Candidates {
		if c := &u.Candidates[i]; u.hopeful(c) {
			last = max(last, u.slack-u.Look-u.entry(c))
		}
	}
	return u.Now.Add(last)
}

// mustRun: waiting is of no use any more, or never was.
func (u *line) mustRun(code Code) Decision {
	if at := u.netNow(); at >= 0 {
		return u.launchNet(at, Why{Code: code})
	}
	// On demand is cooled down everywhere: progress on spot is better than none.
	next := u.nextReady(anyKind)
	if at := u.fastest(func(c *Candidate) bool { return isSpot(c) && u.ready(c) }); at >= 0 {
		return u.launch(at, Why{Code: OnDemandAway, Slack: u.slack}, next)
	}
	return wait(Why{Code: CooledDown, Slack: u.slack}, next)
}

// netNow is the on-demand candidate to launch now: the least cost among those
// that finish in time, else the one that is done first. It is -1 if all are
// cooled down, or if only one of those that are is still in time.
func (u *line) netNow() int {
	ready := func(c *Candidate) bool { return isOnDemand(c) && u.ready(c) }
	if at := u.best(func(c *Candidate) bool { return ready(c) && u.slackOf(c) >= 0 }); at >= 0 {
		return at
	}
	if u.slack >= 0 {
		return -1
	}
	return u.fastest(ready)
}

func (u *line) launchNet(at int, why Why) Decision {
	// Another one is right once this one is late, by the margin or for certain.
	spare := u.slackOf(&u.Candidates[at])
	if spare < 0 {
		spare += u.Margin
	}
	until := u.nextReady(anyKind)
	if spare >= 0 {
		until = soonest(until, u.after(spare))
	}
	why.Slack = u.slack
	return u.launch(at, why, until)
}

func (u *line) onSpot() Decision {
	cur := u.Current
	pending := u.pending()
	if u.slack > total(u.Look, pending) {
		until := u.Now.Add(u.slack - u.Look)
		if pending > 0 {
			until = soonest(u.Now.Add(pending), until)
		}
		return u.stay(Why{Code: OnSpot, Slack: u.slack}, until)
	}
	next := u.nextReady(anyKind)
	at := u.netNow()
	if at < 0 {
		return u.stay(Why{Code: OnDemandAway, Slack: u.slack}, next)
	}
	// Where on demand would be late even without a margin, the machine in hand
	// is the better hope if it can make it.
	own := u.Deadline.Sub(u.Now) - total(pending, cur.Work)
	if u.slackOf(&u.Candidates[at])+u.Margin < 0 && own >= 0 {
		return u.stay(Why{Code: DeadlineAtRisk, Slack: u.slack}, soonest(next, u.after(pending+own)))
	}
	return u.launchNet(at, Why{Code: SafetyNet})
}

func (u *line) onDemand() Decision {
	if !u.Current.Running {
		return u.stay(Why{Code: Launching, Slack: u.slack}, time.Time{})
	}
	at := u.best(u.startable)
	if at < 0 {
		return u.stay(Why{Code: KeepOnDemand, Slack: u.slack}, u.nextReady(u.worthwhile))
	}
	c := &u.Candidates[at]
	behind, by := u.behind(total(c.Delay, c.Delay))
	if !behind {
		until := soonest(u.Now.Add(u.slack-u.entry(c)), u.crossing().Add(-2*c.Delay), u.nextReady(u.worthwhile))
		return u.launch(at, Why{Code: Ahead, Slack: u.slack}, until)
	}
	// The line rises by Total/span per hour, the work by one.
	var until time.Time
	if span := u.Deadline.Sub(u.Start); span > u.Total {
		until = u.after(mulDiv(by, span, span-u.Total))
	}
	return u.stay(Why{Code: CatchUp, Behind: by, Slack: u.slack}, soonest(until, u.nextReady(u.worthwhile)))
}

// behind says whether the work done is less than the line asks for dt from now,
// and by how much. Exact.
func (u *line) behind(dt time.Duration) (bool, time.Duration) {
	done, span := max(0, u.Total-u.Left), u.Deadline.Sub(u.Start)
	if span <= 0 {
		return true, u.Left
	}
	due := max(0, u.Now.Sub(u.Start)+dt)
	ah, al := bits.Mul64(uint64(done), uint64(span))
	bh, bl := bits.Mul64(uint64(due), uint64(u.Total))
	if ah > bh || ah == bh && al >= bl {
		return false, 0
	}
	return true, mulDiv(due, u.Total, span) - done
}

// crossing is when the line passes the work done, if nothing is done until then.
func (u *line) crossing() time.Time {
	done := max(0, u.Total-u.Left)
	return soonest(u.Start.Add(mulDiv(done, u.Deadline.Sub(u.Start), max(1, u.Total))+1), u.Deadline)
}

// after is the first moment at which more than d has passed.
func (v *View) after(d time.Duration) time.Time { return v.Now.Add(total(max(0, d), 1)) }

func anyKind(*Candidate) bool { return true }

// mulDiv is a·b/c for non-negative a and b and positive c; it saturates.
func mulDiv(a, b, c time.Duration) time.Duration {
	hi, lo := bits.Mul64(uint64(max(0, a)), uint64(max(0, b)))
	if hi >= uint64(c) {
		return never
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	return time.Duration(min(q, uint64(never)))
}

// spotOnly is for work that may not go on demand: the deadline is only a hope.
func spotOnly(v *View) Decision {
	if v.Current != nil {
		return v.stay(Why{Code: SpotOnly}, time.Time{})
	}
	next := v.nextReady(anyKind)
	if at := v.best(v.ready); at >= 0 {
		return v.launch(at, Why{Code: SpotOnly}, next)
	}
	if next.IsZero() {
		return wait(Why{Code: NoCandidate}, next)
	}
	return wait(Why{Code: CooledDown}, next)
}
