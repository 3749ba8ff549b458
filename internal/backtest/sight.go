package backtest

import "time"

// probeTime is what a probe bills: a launch that is stopped at once.
const probeTime = time.Minute

// sight is all that a rule may know of its job and its market at a tick, and
// all that it may do. Only the methods marked so look further.
type sight struct{ r *run }

// rule starts a policy for one job; what it returns is called at each tick.
type rule func(*sight) (decide func())

func (s *sight) step() time.Duration      { return s.r.market.step }
func (s *sight) elapsed() time.Duration   { return time.Duration(s.r.tick)*s.r.market.step + s.r.off }
func (s *sight) deadline() time.Duration  { return s.r.opt.Deadline }
func (s *sight) remaining() time.Duration { return s.r.opt.Deadline - s.elapsed() }
func (s *sight) length() time.Duration    { return s.r.opt.Length }
func (s *sight) left() time.Duration      { return s.r.left }
func (s *sight) progress() time.Duration  { return s.r.opt.Length - s.r.left }
func (s *sight) delay() time.Duration     { return s.r.opt.Delay }

func (s *sight) pools() int          { return len(s.r.market.pools) }
func (s *sight) region(i int) string { return s.r.market.pools[i].region }
func (s *sight) idle() bool          { return s.r.held == none }
func (s *sight) onSpot() bool        { return s.r.held != none && s.r.held < s.pools() }
func (s *sight) onDemand() bool      { return s.r.held >= s.pools() }

// look is how long an event may pass unseen.
func (s *sight) look() time.Duration {
	if s.r.opt.Between {
		return 0
	}
	return s.step()
}

// price of a machine in $/h, for the whole gang.
func (s *sight) price(machine int) float64 {
	return dollars(time.Hour, s.r.price(machine), s.r.opt.Gang)
}

// entry is the egress in $ of taking the checkpoint to a machine.
func (s *sight) entry(machine int) float64 {
	return s.r.market.egress[s.r.home][s.r.market.regionOf(machine)]
}

// launch tries spot in a pool and says whether the job is there now. A refusal
// costs nothing and leaves everything as it is.
func (s *sight) launch(pool int) bool {
	if !s.try(pool) {
		return false
	}
	s.r.hold(pool)
	return true
}

// probe launches in a pool and stops at once, and says whether it could. Where
// every pool is seen, looking is enough and free.
func (s *sight) probe(pool int) bool {
	if s.r.opt.Free || s.r.tried[pool] != unknown {
		return s.try(pool)
	}
	if !s.try(pool) {
		return false
	}
	cost := dollars(probeTime, s.r.price(pool), s.r.opt.Gang)
	s.r.out.probes += cost
	s.r.out.cost += cost
	return true
}

func (s *sight) try(pool int) bool {
	s.r.tried[pool] = isDown
	if s.r.up(pool) {
		s.r.tried[pool] = isUp
	}
	return s.r.tried[pool] == isUp
}

// seen says what is known of a pool at this tick.
func (s *sight) seen(pool int) answer {
	if s.r.opt.Free {
		s.try(pool)
	}
	return s.r.tried[pool]
}

// buy holds an on-demand machine, which always starts.
func (s *sight) buy(machine int) { s.r.hold(machine) }

func (s *sight) leave() { s.r.leave() }

// cheapestOnDemand finishes the job on demand at the least cost, egress included.
func (s *sight) cheapestOnDemand() int {
	best, at := 0.0, none
	for k := range s.r.market.onDemandAt {
		m := s.pools() + k
		cost := s.price(m)*(s.left()+s.delay()).Hours() + s.entry(m)
		if at == none || cost < best {
			best, at = cost, m
		}
	}
	return at
}

// unsafe says that no more than the work and two delays are left, in ticks
// rounded against the job as the papers do; equality counts as unsafe.
func (s *sight) unsafe() bool { return s.mustRun(s.remaining(), s.left()) }

// mustRun is unsafe for some work in some time.
func (s *sight) mustRun(within, work time.Duration) bool {
	tick := s.step()
	return within/tick <= (work+2*s.delay()+tick-1)/tick
}

// nextLifetime is how long a pool that is up stays up, 0 if it is down. It looks
// into the future: only the oracle may ask.
func (s *sight) nextLifetime(pool int) time.Duration {
	at := s.r.first + s.r.tick
	end := at
	for end < len(s.r.stretch.up) && s.r.stretch.up[end][pool] {
		end++
	}
	return time.Duration(end-at) * s.step()
}

// before calls f with what each pool was at each tick of the capture before the
// start.
func (s *sight) before(f func(pool int, up bool, at time.Duration)) {
	if s.r.opt.Cold {
		return
	}
	for t := range s.r.first {
		for p, up := range s.r.stretch.up[t] {
			f(p, up, time.Duration(t-s.r.first)*s.step())
		}
	}
}
