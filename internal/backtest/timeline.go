package backtest

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Timeline shows where the job was in one window, under each policy.
type Timeline struct {
	Start    time.Time
	Deadline time.Duration
	Length   time.Duration
	Tracks   []TimeTrack
	// Pools are what the market offered.
	Pools []PoolTrack
}

// TimeTrack is one policy's way through the window.
type TimeTrack struct {
	Policy string
	Cost   float64
	Ratio  float64 // to the optimum of this window
	Finish time.Duration
	Missed bool
	Spans  []Span
}

// Kind says how a job holds a machine.
type Kind string

// The kinds.
const (
	Waiting  Kind = "waiting"
	OnSpot   Kind = "spot"
	OnDemand Kind = "on demand"
)

// Span is a time on one machine, or on none.
type Span struct {
	From, To time.Duration
	Kind     Kind
	Pool     string // "" while waiting
	// Lost: the machine was taken away at the end.
	Lost bool
}

// PoolTrack is when the gang could be had in a pool.
type PoolTrack struct {
	Pool string
	Up   []Span
}

// spans records where a run is.
type spans struct{ all []Span }

// see adds a tick, after its decision.
func (s *spans) see(r *run) {
	from := time.Duration(r.tick)*r.market.step + r.off
	rest := r.market.step - r.off
	now := Span{From: from, To: from + min(rest, r.delay+r.left), Kind: Waiting}
	n := len(r.market.pools)
	switch {
	case r.held == none:
		now.To = from + rest
	case r.held >= n:
		now.Kind, now.Pool = OnDemand, r.market.pools[r.market.onDemandAt[r.held-n]].name
	default:
		now.Kind, now.Pool = OnSpot, r.market.pools[r.held].name
	}
	if len(s.all) > 0 {
		last := &s.all[len(s.all)-1]
		last.To = min(last.To, from)
		last.Lost = last.Lost || r.lost != none && last.Kind == OnSpot && last.To == from
		if last.Kind == now.Kind && last.Pool == now.Pool {
			last.To = now.To
			return
		}
	}
	s.all = append(s.all, now)
}

// timeline replays the window that is the most typical: that with the median ratio
// of ours, or else of the first policy.
func timeline(rows []row, names []string) *Timeline {
	p := max(0, slices.Index(names, "ours"))
	byRatio := slices.Clone(rows)
	slices.SortStableFunc(byRatio, func(a, b row) int {
		return cmp.Compare(a.outcomes[p].cost/a.optimum, b.outcomes[p].cost/b.optimum)
	})
	typical := byRatio[len(byRatio)/2]
	w := typical.window
	t := &Timeline{
		Start: w.stretch.start.Add(time.Duration(w.first) * w.market.step), Deadline: w.opt.Deadline, Length: w.opt.Length,
	}
	for i, name := range names {
		var s spans
		o := w.follow(ruleOf(name), s.see)
		t.Tracks = append(t.Tracks, TimeTrack{
			Policy: name, Cost: o.cost, Ratio: typical.outcomes[i].cost / typical.optimum, Finish: o.finish, Missed: o.missed, Spans: s.all,
		})
	}
	for p, pool := range w.market.pools {
		track := PoolTrack{Pool: pool.name}
		for tick := range w.ticks {
			if !w.stretch.up[w.first+tick][p] {
				continue
			}
			from := time.Duration(tick) * w.market.step
			if n := len(track.Up); n > 0 && track.Up[n-1].To == from {
				track.Up[n-1].To += w.market.step
			} else {
				track.Up = append(track.Up, Span{From: from, To: from + w.market.step, Kind: OnSpot, Pool: pool.name})
			}
		}
		t.Pools = append(t.Pools, track)
	}
	slices.SortFunc(t.Pools, func(a, b PoolTrack) int { return strings.Compare(a.Pool, b.Pool) })
	return t
}
