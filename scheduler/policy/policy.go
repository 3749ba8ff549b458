// Package policy decides, for one piece of work at one moment, whether to run
// on spot, on demand, somewhere else, or not now.
//
// [Decide] is a pure function: no clock, no I/O, no randomness; the same view
// gives the same decision whatever the order of its candidates. The view holds
// only what may be known at that moment. The broker and the backtest call the
// same function, so what the backtest scores is what the broker does.
//
// What it promises: work whose deadline can still be met with an on-demand
// machine that runs within Delay + Margin of its launch finishes in time, as
// long as Decide is asked again at Until and within Look of every event. Work
// that may not be interrupted is never put on spot unless SpotAllowed says so.
//
// What it does not promise: it knows nothing of budgets, quotas or fit. The
// caller passes only candidates that are allowed, and the best
// [MaxCandidates] of them.
package policy

import (
	"cmp"
	"time"

	"gpubroker/internal/money"
)

// MaxCandidates is how many candidates a caller should pass at most. The rules
// in this package take any number; a policy with tables is sized for this many.
const MaxCandidates = 16

// Name selects a policy. A new policy is a new name and a case in [Decide];
// its callers stay as they are.
type Name string

const (
	// Auto is Learned with a deadline ahead and CheapestExpected without one, or
	// once it has passed.
	Auto Name = ""
	// Learned takes what is expected to cost least to the deadline, by what was
	// learned of the markets; without a library of tables it is UniformProgress.
	Learned Name = "learned"
	// UniformProgress keeps work with a deadline on a straight line from its
	// start to its deadline (Wu et al., "Can't Be Late", NSDI'24).
	UniformProgress Name = "uniform-progress"
	// CheapestExpected finishes at the least expected cost, however long it takes.
	CheapestExpected Name = "cheapest-expected"
)

// Kind says how a candidate is bought.
type Kind uint8

// The kinds.
const (
	OnDemand Kind = iota
	Spot
)

func (k Kind) String() string {
	if k == Spot {
		return "spot"
	}
	return "on-demand"
}

// MarshalText writes "spot" or "on-demand".
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// Hint says what is believed about a launch in a market. The zero Hint is
// "unknown": a launch is worth trying.
type Hint struct {
	// Up says that a launch is believed to succeed.
	Up bool
	// CooledUntil, if later than now, says not to try before. It wins over Up.
	CooledUntil time.Time
}

// History is what was seen in a market: preemptions, and the time that spot
// machines were held in it.
type History struct {
	Preemptions int
	Held        time.Duration
}

// Candidate is a market where the work could run.
type Candidate struct {
	// Market = provider/region/zone/type/kind; unique in a view.
	Market string
	Kind   Kind
	// Price per hour of everything the work needs there (all machines of a gang).
	Price money.Rate
	// Billing is the provider's rounding; zero = per second.
	Billing money.Billing
	// Work is the running time left there from the last save, without interruption.
	Work time.Duration
	// Delay is the time from launch to useful work: provisioning, set-up, loading.
	Delay time.Duration
	// Entry is paid once on entering, such as moving the data there.
	Entry money.Amount
	// Tail is how long the machine is paid on when the work is done.
	Tail time.Duration
	// AtRisk, where it is not 0, counts there instead of the view's.
	AtRisk time.Duration
	// Warned says that a preemption is announced long enough before for a save: work
	// is then lost only with the notice, which safety does not count on.
	Warned bool
	// Value is what an hour until the work is done is worth. It counts where
	// candidates are compared, and is no cost.
	Value money.Rate
	// Machines that the work needs at once, and loses with the first that is taken;
	// 0 is one.
	Machines int
	Hint     Hint
	// History feeds the hazard estimate of spot.
	History History
	// Region is where data is at hand: within one nothing is paid to move. It is one
	// failure domain too: its markets tend to lose machines together.
	Region string
	// Outlook is what was learned of a spot market; without it Learned leaves it out.
	Outlook *Outlook
}

// Placement is where the work is now.
type Placement struct {
	// Candidate with Work counted from now, unsaved progress included, and
	// Price as it is paid.
	Candidate
	// Since is the launch.
	Since time.Time
	// Running is false until the machine does useful work.
	Running bool
}

// View is all that a decision may depend on.
type View struct {
	Policy Name
	Now    time.Time
	// Start and Deadline span the progress line. A zero Deadline is none; one
	// that is not after Now can no longer be met and counts as none.
	Start, Deadline time.Time
	// Total is the whole work and Left what is not yet safe, both as running
	// time at one reference rate.
	Total, Left time.Duration
	// AtRisk is the most running time that one preemption can undo: checkpoint
	// interval plus save time; a very large value for work that never saves; 0
	// if nothing can be lost.
	AtRisk time.Duration
	// Margin is how much longer than Delay an on-demand launch takes at the
	// 99th percentile, as measured.
	Margin time.Duration
	// Look is the longest time that may pass unnoticed before Decide is asked again.
	Look time.Duration
	// Current is nil while no machine is held.
	Current       *Placement
	Candidates    []Candidate
	Interruptible bool
	// SpotAllowed lets work that is not interruptible use spot all the same.
	SpotAllowed bool
	// Patience is how long, from WaitingSince (zero = now), work without a
	// deadline may wait for a cheaper market that is cooled down.
	Patience     time.Duration
	WaitingSince time.Time
	// Prior is what is believed of a market without history; zero = [DefaultPrior].
	Prior History
	// Library is the tables that Learned may use; nil makes it UniformProgress.
	Library *Library
	// Egress is what it costs to take the work's data to another region.
	Egress money.Amount
}

// Action is what to do.
type Action uint8

// The actions.
const (
	// Wait holds no machine; a held one is let go.
	Wait Action = iota
	// StartSpot launches a spot machine at the candidate; none is held.
	StartSpot
	// StartOnDemand launches an on-demand machine at the candidate; none is held.
	StartOnDemand
	// Stay keeps the current placement.
	Stay
	// Move launches at the candidate and lets the current placement go.
	Move
)

var actionNames = [...]string{"wait", "spot", "on-demand", "stay", "move"}

func (a Action) String() string { return actionNames[a] }

// Decision is the answer to a view.
type Decision struct {
	Action Action
	// Market is the index in View.Candidates to launch at; -1 for Wait and Stay.
	Market int
	// Until is the next moment at which the same view could be answered
	// otherwise; zero = only new facts can change it.
	Until time.Time
	Why   Why
	// Want is the table that would have been asked: to be built by [Build] and put
	// into the library. Nil if there was one, or none is of use.
	Want *Sketch
}

// Decide answers the view by its policy.
func Decide(v View) Decision {
	if v.Left <= 0 {
		return Decision{Action: Wait, Market: -1, Why: Why{Code: Done}}
	}
	rule := cheapest
	timed := v.Deadline.After(v.Now)
	switch {
	case !v.Interruptible:
		rule = steady
	case !timed || v.Policy == CheapestExpected:
	case v.Library == nil || v.Policy == UniformProgress:
		rule = uniform
	default:
		rule = learned
	}
	d := rule(&v)
	if timed { // once it has passed, it counts as none
		d.Until = soonest(d.Until, v.Deadline)
	}
	return d
}

// readyIn is the time until a launch may be tried, 0 = now.
func (v *View) readyIn(c *Candidate) time.Duration {
	return max(0, c.Hint.CooledUntil.Sub(v.Now))
}

func (v *View) ready(c *Candidate) bool { return v.readyIn(c) == 0 }

// best returns the index of the first in order among the candidates that ok
// accepts, or -1.
func (v *View) best(ok func(*Candidate) bool) int {
	at := -1
	for i := range v.Candidates {
		if c := &v.Candidates[i]; ok(c) && (at < 0 || v.before(c, &v.Candidates[at])) {
			at = i
		}
	}
	return at
}

// some reports whether ok accepts a candidate.
func (v *View) some(ok func(*Candidate) bool) bool {
	for i := range v.Candidates {
		if ok(&v.Candidates[i]) {
			return true
		}
	}
	return false
}

// before orders candidates by score, then delay, then name.
func (v *View) before(a, b *Candidate) bool {
	return cmp.Or(
		cmp.Compare(v.score(a), v.score(b)),
		cmp.Compare(a.Delay, b.Delay),
		cmp.Compare(a.Market, b.Market),
	) < 0
}

// cost is the expected cost to finish from a fresh launch.
func (v *View) cost(c *Candidate) money.Amount { return Expect(c, v.AtRisk, v.Prior).Cost }

// score is cost with the worth of the time: what is compared.
func (v *View) score(c *Candidate) money.Amount { return Expect(c, v.AtRisk, v.Prior).Score }

// stayed is the expectation of finishing where the work is now.
func (v *View) stayed() Expectation {
	c := v.Current.Candidate
	c.Entry = 0
	return expectFrom(&c, v.AtRisk, v.Prior, !v.Current.Running)
}

// nextReady is the earliest end of a cool-down among the candidates that ok
// accepts; zero if none is cooled down.
func (v *View) nextReady(ok func(*Candidate) bool) time.Time {
	var at time.Time
	for i := range v.Candidates {
		c := &v.Candidates[i]
		if !v.ready(c) && ok(c) {
			at = soonest(at, c.Hint.CooledUntil)
		}
	}
	return at
}

// soonest is the earliest of the times that are not zero.
func soonest(times ...time.Time) time.Time {
	var at time.Time
	for _, t := range times {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	return at
}

func isSpot(c *Candidate) bool     { return c.Kind == Spot }
func isOnDemand(c *Candidate) bool { return c.Kind == OnDemand }

// launch is the decision to start at a candidate, or to move there.
func (v *View) launch(at int, why Why, until time.Time) Decision {
	c := &v.Candidates[at]
	d := Decision{Action: StartOnDemand, Market: at, Why: why, Until: until}
	switch {
	case v.Current != nil:
		d.Action = Move
	case c.Kind == Spot:
		d.Action = StartSpot
	}
	d.Why.Market, d.Why.Price, d.Why.Cost = c.Market, c.Price, v.cost(c)
	return d
}

func (v *View) stay(why Why, until time.Time) Decision {
	c := &v.Current.Candidate
	why.Market, why.Price, why.Cost = c.Market, c.Price, v.stayed().Cost
	return Decision{Action: Stay, Market: -1, Why: why, Until: until}
}

func wait(why Why, until time.Time) Decision {
	why.At = until
	return Decision{Action: Wait, Market: -1, Why: why, Until: until}
}
