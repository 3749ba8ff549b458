package backtest

import (
	"time"

	"gpubroker/scheduler/policy"
)

// PolicyNames are the policies that can be replayed, in the order of results.
// "up" is Uniform Progress, "ours" what the broker uses.
func PolicyNames() []string { return []string{"on-demand", "greedy", "up", "ours"} }

func decider(name string) func(policy.View) policy.Decision {
	switch name {
	case "on-demand":
		return onDemand
	case "greedy":
		return greedy
	case "up":
		return with(policy.UniformProgress)
	case "ours":
		return with(policy.Auto)
	}
	return nil
}

func with(name policy.Name) func(policy.View) policy.Decision {
	return func(v policy.View) policy.Decision {
		v.Policy = name
		return policy.Decide(v)
	}
}

// onDemand takes an on-demand machine at once and keeps it.
func onDemand(v policy.View) policy.Decision {
	if v.Current != nil {
		return policy.Decision{Action: policy.Stay, Market: -1}
	}
	return policy.Decision{Action: policy.StartOnDemand, Market: cheapest(v, policy.OnDemand)}
}

// greedy takes the cheapest spot there is and idles while there is none, until
// fewer ticks are left than work and two delays need (rounded against itself,
// as in the papers); then it is on demand to the end.
func greedy(v policy.View) policy.Decision {
	if v.Current != nil {
		return policy.Decision{Action: policy.Stay, Market: -1}
	}
	od := cheapest(v, policy.OnDemand)
	need := v.Left + 2*v.Candidates[od].Delay
	if ticks(v.Deadline.Sub(v.Now), v.Look, false) <= ticks(need, v.Look, true) {
		return policy.Decision{Action: policy.StartOnDemand, Market: od}
	}
	if at := cheapest(v, policy.Spot); at >= 0 {
		return policy.Decision{Action: policy.StartSpot, Market: at}
	}
	return policy.Decision{Action: policy.Wait, Market: -1}
}

func ticks(d, tick time.Duration, roundUp bool) time.Duration {
	if roundUp {
		d += tick - 1
	}
	return d / tick
}

// cheapest is the ready candidate of a kind with the lowest price, or -1.
func cheapest(v policy.View, k policy.Kind) int {
	at := -1
	for i, c := range v.Candidates {
		if c.Kind == k && !c.Hint.CooledUntil.After(v.Now) && (at < 0 || c.Price < v.Candidates[at].Price) {
			at = i
		}
	}
	return at
}
