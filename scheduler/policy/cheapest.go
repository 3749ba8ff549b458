package policy

import (
	"time"

	"gpubroker/internal/money"
)

// MoveGain is the share of the cost to finish that a move must be expected to
// save, beyond what the move itself costs, before running work is moved.
const MoveGain = 0.10

// cheapest is for work without a deadline: the least expected cost to finish
// among spot and on demand. It waits only if everything is cooled down, or if
// something cheaper comes out of its cool-down within the user's patience.
func cheapest(v *View) Decision {
	if v.Current != nil {
		return cheapestMove(v)
	}
	now := v.best(v.ready)
	if now < 0 {
		next := v.nextReady(anyKind)
		if next.IsZero() {
			return wait(Why{Code: NoCandidate}, next)
		}
		return wait(Why{Code: CooledDown}, next)
	}
	c := &v.Candidates[now]
	since := v.WaitingSince
	if since.IsZero() {
		since = v.Now
	}
	patient := since.Add(max(0, v.Patience))
	// A wait is worth what its time is.
	dear := v.score(c)
	inTime := func(o *Candidate) bool {
		return !o.Hint.CooledUntil.After(patient) && sum(v.score(o), worth(o.Value, v.readyIn(o))) < dear
	}
	if until := v.nextReady(inTime); !until.IsZero() {
		d := wait(Why{Code: Patience, Cost: v.cost(c)}, until)
		d.Why.Latest = patient
		return d
	}
	better := func(o *Candidate) bool { return v.before(o, c) }
	return v.launch(now, Why{Code: CheapestNow}, v.nextReady(better))
}

// cheapestMove leaves a running machine only for a saving that pays for the old
// machine while the new one starts, plus [MoveGain].
func cheapestMove(v *View) Decision {
	cur := v.Current
	if !cur.Running {
		return v.stay(Why{Code: Launching}, time.Time{})
	}
	stay := v.stayed().Score
	limit := stay - money.Amount(float64(stay)*MoveGain)
	pays := func(c *Candidate) bool {
		overlap, err := money.Charge(c.Delay, cur.Price, money.Billing{})
		if err != nil {
			return false
		}
		return c.Market != cur.Market && sum(v.score(c), overlap) < limit
	}
	if at := v.best(func(c *Candidate) bool { return v.ready(c) && pays(c) }); at >= 0 {
		d := v.launch(at, Why{Code: MovePays}, v.nextReady(pays))
		d.Why.Instead = v.stayed().Cost
		return d
	}
	return v.stay(Why{Code: CheapestHeld}, v.nextReady(pays))
}
