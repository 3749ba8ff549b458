package backtest

import (
	"cmp"
	"slices"
	"time"

	"gpubroker/scheduler/policy"
)

// named is a policy that can be replayed.
type named struct {
	name string
	rule rule
}

// policies in the order of results. The sources: NSDI'24 is Wu et al., "Can't
// Be Late"; NSDI'27 is "SkyNomad"; ADRS is the single-zone rule that evolution
// found on the traces of NSDI'24.
func policies() []named {
	return []named{
		{"on-demand", onDemand},               // NSDI'24
		{"greedy", greedy(inOrder)},           // NSDI'24
		{"cheapest-greedy", greedy(cheapest)}, // greedy in the cheapest pool that is up
		{"sliced", sliced(8)},                 // NSDI'24
		{"up", uniform(cheapest, keep)},       // NSDI'24, the form that keeps on demand
		{"up-idle", uniform(cheapest, false)}, // NSDI'24, its text
		{"up-s", upS},                         // NSDI'27
		{"up-a", probed(false)},               // NSDI'27
		{"up-ap", probed(true)},               // NSDI'27
		{"skynomad", skynomad(paperV)},        // NSDI'27, as its text says
		{"skynomad-rate", skynomad(rateV)},    // NSDI'27, as run on V100
		{"skynomad-mixed", skynomad(mixedV)},  // NSDI'27, as run on H100
		{"evolved", evolved},                  // ADRS
		{"up-oracle", oracle},                 // NSDI'24
		{"ours", broker(policy.Auto)},
	}
}

// PolicyNames are the policies that can be replayed, in the order of results.
// "ours" is what the broker uses.
func PolicyNames() []string {
	var names []string
	for _, p := range policies() {
		names = append(names, p.name)
	}
	return names
}

func ruleOf(name string) rule {
	for _, p := range policies() {
		if p.name == name {
			return p.rule
		}
	}
	return nil
}

// onDemand takes an on-demand machine at once and keeps it.
func onDemand(s *sight) func() {
	return func() {
		if s.idle() {
			s.buy(s.cheapestOnDemand())
		}
	}
}

// order is the pools in the order in which they are tried.
type order func(*sight) []int

// inOrder is the order of the market.
func inOrder(s *sight) []int {
	all := make([]int, s.pools())
	for i := range all {
		all[i] = i
	}
	return all
}

// cheapest is from the lowest price to the highest, egress aside.
func cheapest(s *sight) []int {
	all := inOrder(s)
	slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(s.price(a), s.price(b)) })
	return all
}

// takeSpot tries the pools in order and says whether one was had.
func takeSpot(s *sight, by order) bool {
	return slices.ContainsFunc(by(s), s.launch)
}

// greedy takes spot when there is some and idles while there is none, until
// the safety net; then it is on demand to the end.
func greedy(by order) rule {
	return func(s *sight) func() {
		return func() {
			switch {
			case !s.idle():
			case s.unsafe():
				s.buy(s.cheapestOnDemand())
			default:
				takeSpot(s, by)
			}
		}
	}
}

// sliced is greedy inside each of n equal slices, with a share of 1/n of the
// work to be done by the end of each; surplus carries over. Once a slice's share
// is done it uses spot if there is some. The safety net of the whole job holds too.
func sliced(n time.Duration) rule {
	return func(s *sight) func() {
		return func() {
			slice := min(n, s.elapsed()*n/s.deadline()+1) // the one we are in, from 1
			end, target := s.deadline()*slice/n, s.length()*slice/n
			work := max(0, target-s.progress())
			switch {
			case s.onSpot():
			case s.unsafe():
				if s.idle() {
					s.buy(s.cheapestOnDemand())
				}
			case work == 0:
				if !takeSpot(s, cheapest) {
					s.leave()
				}
			case s.onDemand(): // to the end of the slice's share
			case s.mustRun(end-s.elapsed(), work):
				s.buy(s.cheapestOnDemand())
			default:
				takeSpot(s, cheapest)
			}
		}
	}
}

// keep says that Uniform Progress keeps its on-demand machine while no spot is
// up. The released code does; by its text the job goes idle once it is ahead.
const keep = true

// uniform is Uniform Progress: spot when there is some; on demand while there is
// none and less is done than the line from nothing at the start to all at the
// deadline asks for. On demand is left only if the work is still on the line in
// two delays: for spot, or without keep for nothing.
func uniform(by order, keep bool) rule {
	return func(s *sight) func() {
		return func() {
			switch {
			case s.onSpot():
			case s.unsafe():
				if s.idle() {
					s.buy(s.cheapestOnDemand())
				}
			case s.onDemand():
				if !s.behind(2*s.delay()) && !takeSpot(s, by) && !keep {
					s.leave()
				}
			case takeSpot(s, by):
			case s.behind(0):
				s.buy(s.cheapestOnDemand())
			}
		}
	}
}

// behind says whether less is done than the line asks for in dt.
func (s *sight) behind(dt time.Duration) bool {
	due := (s.elapsed() + dt).Seconds() / s.deadline().Seconds() * s.length().Seconds()
	return s.progress().Seconds() < due
}
