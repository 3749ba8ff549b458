package backtest

import (
	"cmp"
	"slices"
	"time"
)

// commons are what the jobs of one replay share: machines where they were
// counted, and the money of their teams.
type commons struct {
	*ground
	*book
	taken []int // machines of each pool that jobs hold
	last  int   // numbers the entries
}

// share is one job's part in the commons.
type share struct {
	*commons
	job   *entry
	pools []int // in the commons, of the pools that the job sees
	at    int   // the pool of the commons that the job holds machines of, or none
	since int   // the number of that entry
	paid  float64
	shown bool // where the job is gets recorded
	seen  spans
}

// A reservation has some room to spare, so that rounding up never uses up what
// was promised: a cent, and each tick a hundred millionth less.
const (
	spare     = 0.01
	sparePart = 1e-8
)

// grants says whether there are machines and money to enter a pool or to stay
// there for this tick. Money must be left for a probe too.
func (s *share) grants(r *run, pool int) bool {
	p := s.pools[pool]
	if s.counted[s.of[p]] {
		free := s.count[r.first+r.tick][p] - s.taken[p]
		if s.at == p {
			free += r.opt.Gang
		}
		if free < r.opt.Gang {
			return false
		}
	}
	if r.held == pool {
		return s.pays(r, pool)
	}
	probe := dollars(probeTime, r.price(pool), r.opt.Gang)
	return s.can(r, max(s.pledge(r, pool), s.pledge(r, r.held)+probe))
}

// pays says whether there is money to hold a machine, or none.
func (s *share) pays(r *run, machine int) bool { return s.can(r, s.pledge(r, machine)) }

func (s *share) can(r *run, usd float64) bool {
	return s.affords(s.job.Team, s.job.Name, s.owed(r)+usd)
}

// owed is what this tick has cost already: egress and probes.
func (s *share) owed(r *run) float64 { return r.out.cost - s.paid }

// instead is the machine to enter: on demand that the team cannot pay for gives
// way to what was promised, which it can.
func (s *share) instead(r *run, machine int) int {
	n := len(r.market.pools)
	if machine < n || s.pays(r, machine) {
		return machine
	}
	if r.held >= n {
		return r.held
	}
	_, best := r.finish(r.left, r.home)
	return best
}

// pledge is what must be reserved to hold a machine for this tick: the tick, and
// then enough to finish on demand whatever comes. Spot may be left again at once.
func (s *share) pledge(r *run, machine int) float64 {
	if machine == none {
		return s.rest(r, r.tick, none, 0, r.left, r.home)
	}
	cost, home, delay := 0.0, r.home, r.delay
	if machine != r.held {
		home, delay = r.market.regionOf(machine), r.opt.Delay
		cost = r.market.egress[r.home][home]
	}
	used := min(r.market.step, delay+r.left)
	idle := min(used, delay)
	whole := cost + dollars(used, r.price(machine), r.opt.Gang) + s.rest(r, r.tick, machine, delay-idle, r.left-(used-idle), home)
	if machine < len(r.market.pools) {
		whole = max(whole, cost+s.rest(r, r.tick, none, 0, r.left, home))
	}
	return whole
}

// promise is what must be reserved once this tick is over.
func (s *share) promise(r *run) float64 { return s.rest(r, r.tick+1, r.held, r.delay, r.left, r.home) }

// rest is what a job in some state may still need: on demand goes on to the end;
// spot gets through its delay, and is lost then.
func (s *share) rest(r *run, tick, machine int, delay, left time.Duration, home int) float64 {
	room := spare - sparePart*float64(tick)
	switch n := len(r.market.pools); {
	case left == 0:
		return room
	case machine >= n:
		return room + dollars(delay+left, r.price(machine), r.opt.Gang)
	case machine != none && delay > 0:
		room += dollars(delay, r.price(machine), r.opt.Gang)
	}
	cost, _ := r.finish(left, home)
	return room + cost
}

// finish is the least cost of starting on demand and finishing there, and where.
func (r *run) finish(left time.Duration, home int) (cost float64, machine int) {
	machine = none
	for k := range r.market.onDemandAt {
		m := len(r.market.pools) + k
		c := dollars(left+r.opt.Delay, r.price(m), r.opt.Gang) + r.market.egress[home][r.market.regionOf(m)]
		if machine == none || c < cost {
			cost, machine = c, m
		}
	}
	return cost, machine
}

// move keeps the count of what is taken after a decision.
func (s *share) move(r *run) {
	to := none
	if r.held != none && r.held < len(r.market.pools) {
		to = s.pools[r.held]
	}
	if to == s.at {
		return
	}
	if s.at != none {
		s.taken[s.at] -= r.opt.Gang
	}
	if s.at = to; to != none {
		s.taken[to] += r.opt.Gang
		s.last++
		s.since = s.last
	}
}

// repack finds out who loses machines at a tick: where there are fewer than are
// held, those who came first keep theirs as far as they fit.
func (c *commons) repack(tick int, runs []*run) {
	byEntry := slices.SortedStableFunc(slices.Values(runs), func(a, b *run) int { return cmp.Compare(a.share.since, b.share.since) })
	clear(c.taken)
	for _, r := range byEntry {
		s := r.share
		if s.at == none {
			continue
		}
		if c.counted[c.of[s.at]] && c.taken[s.at]+r.opt.Gang > c.count[tick][s.at] {
			s.at = none
			continue
		}
		c.taken[s.at] += r.opt.Gang
	}
}
