package backtest

import (
	"cmp"
	"slices"
	"time"
)

// probeEvery is how often the rules below probe each pool (NSDI'27).
const probeEvery = 2 * time.Hour

// failover is the order of UP(S), the eager next region of NSDI'27: from
// cheapest to dearest, the pools of the region that was lost last come last.
func failover(s *sight) order {
	region := ""
	return func(s *sight) []int {
		if s.r.lost != none {
			region = s.region(s.r.lost)
		}
		all := cheapest(s)
		slices.SortStableFunc(all, func(a, b int) int {
			return cmp.Compare(b2i(s.region(a) == region), b2i(s.region(b) == region))
		})
		return all
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// upS is UP(S).
func upS(s *sight) func() { return uniform(failover(s), keep)(s) }

// probed is UP(A), or UP(AP) if byPrice: the pools in the order of the share of
// their last five probes that succeeded, divided by the price for UP(AP). A pool
// that was never probed counts as up. Each pool is probed every two hours while
// it is not held; launches count as probes (NSDI'27; how often it probes there
// is not said for these two).
func probed(byPrice bool) rule {
	return func(s *sight) func() {
		last := make([][]bool, s.pools())
		score := func(i int) float64 {
			share := 1.0
			if n := len(last[i]); n > 0 {
				ups := 0
				for _, up := range last[i] {
					ups += b2i(up)
				}
				share = float64(ups) / float64(n)
			}
			if byPrice {
				return share / s.price(i)
			}
			return share
		}
		decide := uniform(func(s *sight) []int {
			all := cheapest(s)
			slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(score(b), score(a)) })
			return all
		}, keep)(s)
		next := probeEvery
		return func() {
			if s.elapsed() >= next {
				next += probeEvery
				for i := range s.pools() {
					if i != s.r.held {
						s.probe(i)
					}
				}
			}
			decide()
			for i, a := range s.r.tried {
				if a != unknown && i != s.r.held {
					last[i] = append(last[i], a == isUp)
					last[i] = last[i][max(0, len(last[i])-5):]
				}
			}
		}
	}
}

// oracle is Uniform Progress that knows how long a pool will stay up, o: from
// idle to spot only if o > kd/(k−1), from on demand to spot only if
// o > 2kd/(k−1), k = on demand ÷ spot; that takes the place of the two delays of
// the line, and on demand is not kept (NSDI'24). It looks ahead, so it is an
// informed bound and no policy.
func oracle(s *sight) func() {
	long := func(times float64) order {
		return func(s *sight) []int {
			return slices.DeleteFunc(cheapest(s), func(i int) bool {
				k := s.price(s.cheapestOnDemand()) / s.price(i)
				return k <= 1 || s.nextLifetime(i).Seconds() <= times*k*s.delay().Seconds()/(k-1)
			})
		}
	}
	return func() {
		switch {
		case s.onSpot():
		case s.unsafe():
			if s.idle() {
				s.buy(s.cheapestOnDemand())
			}
		case s.onDemand():
			if !takeSpot(s, long(2)) && !s.behind(0) {
				s.leave()
			}
		case takeSpot(s, long(1)):
		case s.behind(0):
			s.buy(s.cheapestOnDemand())
		}
	}
}

// evolved is the rule that evolution found for one pool on the captures of
// NSDI'24 (ADRS), rebuilt from its description: it acts by slack ÷ work left in
// steps and gives up on spot after some ticks without; on demand is kept while no
// spot is up, and left only for work worth 1.5 break-evens, a break-even being
// d/(k−1). It skips spot whose longest recent stretch was no longer than that.
func evolved(s *sight) func() {
	const window = 72 // ticks that are remembered
	var recent []bool // was some spot up?
	down := 0         // ticks since it last was
	breakEven := func(i int) time.Duration {
		k := s.price(s.cheapestOnDemand()) / s.price(i)
		if k <= 1 {
			return s.deadline()
		}
		return time.Duration(float64(s.delay()) / (k - 1))
	}
	pays := func(s *sight) []int {
		longest := time.Duration(longestRun(recent)) * s.step()
		return slices.DeleteFunc(cheapest(s), func(i int) bool {
			return len(recent) == window && longest > 0 && longest <= breakEven(i)
		})
	}
	return func() {
		up := s.onSpot()
		for i := range s.pools() {
			up = up || s.seen(i) == isUp
		}
		slack := s.remaining() - s.left() - s.delay()
		ratio := slack.Seconds() / s.left().Seconds()
		switch {
		case s.onSpot():
		case s.unsafe():
			if s.idle() {
				s.buy(s.cheapestOnDemand())
			}
		case s.onDemand():
			if s.left() >= breakEven(cheapest(s)[0])*3/2 {
				up = takeSpot(s, pays)
			}
		case takeSpot(s, pays):
			up = true
		case ratio < 0.1, slack < max(2*time.Hour, 4*s.delay()),
			ratio < 0.2 && down >= 5, ratio < 0.25 && down >= 10, ratio < 0.4 && down >= 20:
			s.buy(s.cheapestOnDemand())
		}
		if down++; up {
			down = 0
		}
		recent = append(recent, up)
		recent = recent[max(0, len(recent)-window):]
	}
}

// longestRun of true.
func longestRun(of []bool) int {
	longest, now := 0, 0
	for _, yes := range of {
		if now++; !yes {
			now = 0
		}
		longest = max(longest, now)
	}
	return longest
}
