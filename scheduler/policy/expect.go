package policy

import (
	"math"
	"time"

	"gpubroker/internal/money"
)

// DefaultPrior stands for a market without history: two preemptions in six
// hours. Three hours is the mean life of a V100 spot machine over nine AWS
// zones (the traces of SkyNomad, NSDI'27); the weight of two lets a few hours
// of own experience count.
var DefaultPrior = History{Preemptions: 2, Held: 6 * time.Hour}

// never bounds an expected time, so that it still converts to money.
const never = 10 * 365 * 24 * time.Hour

// Expectation is what finishing at a candidate takes on average.
type Expectation struct {
	// Time that the machine is held, to the second: delays, redone work and work.
	Time        time.Duration
	Preemptions float64
	// Cost = entry + Time and tail at the price, money.MaxAmount if it does not fit.
	Cost money.Amount
	// Score = Cost + Time at its value: what candidates are compared by.
	Score money.Amount
}

// Expect returns what finishing at c takes from a fresh launch, for work that
// loses at most atRisk to a preemption. A zero prior is [DefaultPrior].
//
// On spot, machines are lost at the constant rate λ = 1/[Life] and replaced at
// once; work W in stretches s = min(atRisk, W), each redone if it is cut, behind
// a delay d takes d + (W/s)·(e^(λs) − 1)/λ · e^(λd) on average (J. Daly, "A
// higher order estimate of the optimum checkpoint interval", 2006, section 3).
// Work on n machines at once is cut by the first of them that goes: at n times λ.
func Expect(c *Candidate, atRisk time.Duration, prior History) Expectation {
	return expectFrom(c, atRisk, prior, true)
}

func expectFrom(c *Candidate, atRisk time.Duration, prior History, fresh bool) Expectation {
	work, delay := c.Work.Seconds(), c.Delay.Seconds()
	var hold, lost float64
	if c.Kind == Spot && work > 0 {
		lambda := float64(max(1, c.Machines)) / Life(c.History, prior).Seconds()
		s := min(c.atRisk(atRisk), c.Work).Seconds()
		redo := 1.0
		if x := lambda * s; x > 0 {
			redo = math.Expm1(min(x, 40)) / x
		}
		hold = work * redo * math.Exp(min(lambda*delay, 40))
		lost = lambda
	} else {
		hold = work
	}
	if fresh {
		hold += delay
	}
	hold = math.Round(min(hold, never.Seconds()))
	e := Expectation{Time: time.Duration(hold) * time.Second, Preemptions: lost * hold}
	cost, err := money.Charge(e.Time+c.Tail, c.Price, c.Billing)
	if err == nil {
		cost, err = money.Add(cost, c.Entry)
	}
	if err != nil { // only an overflow or a negative price, which no market has
		cost = money.MaxAmount
	}
	e.Cost = cost
	e.Score = sum(e.Cost, worth(c.Value, e.Time))
	return e
}

// atRisk is what one preemption undoes there at most.
func (c *Candidate) atRisk(otherwise time.Duration) time.Duration {
	if c.AtRisk > 0 {
		return c.AtRisk
	}
	return otherwise
}

// worth is what a length of time is worth.
func worth(value money.Rate, d time.Duration) money.Amount {
	if value <= 0 || d <= 0 {
		return 0
	}
	a, err := money.Charge(d, value, money.Billing{Unit: time.Nanosecond})
	if err != nil {
		return money.MaxAmount
	}
	return a
}

// sum adds amounts; what does not fit is [money.MaxAmount].
func sum(a, b money.Amount) money.Amount {
	s, err := money.Add(a, b)
	if err != nil {
		return money.MaxAmount
	}
	return s
}

// Life is the mean time to a preemption in a market with that history, drawn
// towards the prior (zero = [DefaultPrior]). It is the M of [CheckpointInterval].
func Life(h, prior History) time.Duration {
	if prior == (History{}) {
		prior = DefaultPrior
	}
	n := h.Preemptions + prior.Preemptions
	held := h.Held + prior.Held
	if n <= 0 {
		return never
	}
	return max(time.Second, min(never, held/time.Duration(n)))
}
