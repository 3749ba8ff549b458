package policy

import (
	"math"
	"time"
)

// steady places work that may not be interrupted: the least expected cost on
// demand (or on spot, if explicitly allowed) that meets the deadline, else the
// one that is done first. Once placed it stays.
func steady(v *View) Decision {
	if v.Current != nil {
		return v.stay(Why{Code: NotInterruptible}, time.Time{})
	}
	allowed := func(c *Candidate) bool { return c.Kind == OnDemand || v.SpotAllowed }
	ready := func(c *Candidate) bool { return allowed(c) && v.ready(c) }
	next := v.nextReady(allowed)
	if v.Deadline.After(v.Now) {
		inTime := func(c *Candidate) bool { return ready(c) && v.slackOf(c) >= 0 }
		if at := v.best(inTime); at >= 0 {
			// It stays right until it is no longer in time.
			until := soonest(next, v.after(v.slackOf(&v.Candidates[at])))
			return v.launch(at, Why{Code: NotInterruptible}, until)
		}
		if at := v.fastest(ready); at >= 0 {
			return v.launch(at, Why{Code: DeadlineAtRisk, Slack: v.slackOf(&v.Candidates[at])}, soonest(next, v.Deadline))
		}
	} else if at := v.best(ready); at >= 0 {
		return v.launch(at, Why{Code: NotInterruptible}, next)
	}
	if !next.IsZero() {
		return wait(Why{Code: CooledDown}, next)
	}
	return wait(Why{Code: NoCandidate}, time.Time{})
}

// slackOf is how much time could still be lost before a launch at c would no
// longer finish by the deadline.
func (v *View) slackOf(c *Candidate) time.Duration {
	return v.Deadline.Sub(v.Now) - total(v.readyIn(c), c.Delay, v.Margin, c.Work)
}

// total is the sum of durations that are not negative; what does not fit is the longest.
func total(list ...time.Duration) time.Duration {
	sum := time.Duration(0)
	for _, d := range list {
		sum += min(d, math.MaxInt64-sum)
	}
	return sum
}

// fastest is the candidate that is done first, or -1; ties by cost and name.
func (v *View) fastest(ok func(*Candidate) bool) int {
	top := time.Duration(-1 << 63)
	for i := range v.Candidates {
		if c := &v.Candidates[i]; ok(c) {
			top = max(top, v.slackOf(c))
		}
	}
	return v.best(func(c *Candidate) bool { return ok(c) && v.slackOf(c) == top })
}
