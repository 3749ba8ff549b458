package backtest

import (
	"math"
	"time"

	"gpubroker/internal/money"
)

// optimizer finds the least cost of a window with the whole future known, by
// backward induction over (tick, machine, delay left, work left). Time is
// counted in units of gcd(step, delay), in which all delays and all progress
// are whole, so nothing is rounded. A machine's region is where the checkpoint
// lies; while none is held the region is a state of its own. It never probes.
// Its buffers are reused from window to window.
type optimizer struct {
	buf  []float64
	rows [2][][]float64
	free [2][][]float64
}

func (o *optimizer) solve(w *window) float64 {
	unit := gcd(w.market.step, w.opt.Delay)
	perTick := int(w.market.step / unit)
	n := len(w.market.pools)
	machines, homes := n+len(w.market.onDemandAt), len(w.market.egress)

	// Work left is rest + j·unit. Delays left at a tick are delay, delay − step, … and 0.
	rest := w.opt.Length % unit
	size := int(w.opt.Length/unit) + 1
	delays := []int{int(w.opt.Delay / unit)}
	for d := delays[0]; d > 0; {
		d = max(0, d-perTick)
		delays = append(delays, d)
	}
	nd := len(delays)
	o.reserve(size, machines*nd, homes)

	// next[m*nd+k][j]: cost to go at the coming tick on machine m with delays[k]
	// left. A row that is nil may not be held then and equals nextFree, the cost to
	// go with no machine and the checkpoint in a region.
	next, now := o.rows[0], o.rows[1]
	nextFree, free := o.free[0], o.free[1]
	for _, f := range nextFree {
		for j := range f {
			f[j] = math.Inf(1)
		}
	}
	own := make([][]float64, 2*machines*nd)
	for i := range own {
		own[i] = o.buf[i*size : (i+1)*size]
	}
	for i := range next {
		next[i] = nil
	}

	for tick := w.ticks - 1; tick >= 0; tick-- {
		flip := (tick & 1) * machines * nd
		up, price := w.stretch.up[w.first+tick], w.stretch.price[w.first+tick]
		// Less work left than low cannot be reached yet, more than high cannot be
		// done any more; the tick before reads up to top.
		low := max(0, size-1-tick*perTick)
		remaining := w.opt.Deadline - time.Duration(tick)*w.market.step
		high := min(size-1, int((remaining-rest)/unit))
		length := min(w.market.step, remaining) // the last tick may be cut short
		top := min(size-1, high+perTick)
		for h := range homes {
			copy(free[h][low:high+1], nextFree[h][low:high+1]) // idle
			for j := high + 1; j <= top; j++ {
				free[h][j] = math.Inf(1)
			}
		}
		for m := range machines {
			var rate money.Rate
			if m < n {
				rate = price[m]
			} else {
				rate = w.market.pools[w.market.onDemandAt[m-n]].onDemand
			}
			home := w.market.regionOf(m)
			for k, d := range delays {
				at := m*nd + k
				if m < n && !up[m] {
					now[at] = nil
					continue
				}
				to := own[flip+at]
				now[at] = to
				follow := next[m*nd+min(k+1, nd-1)]
				if follow == nil {
					follow = nextFree[home]
				}
				perHour := dollars(time.Hour, rate, w.opt.Gang)
				full := length.Hours() * perHour
				pause := time.Duration(d) * unit
				done := max(0, perTick-d) // units of work in a full tick
				for j := low; j <= high; j++ {
					left := rest + time.Duration(j)*unit
					switch {
					case pause+left <= length:
						to[j] = (pause + left).Hours() * perHour
					case length < w.market.step:
						to[j] = math.Inf(1)
					default:
						to[j] = full + follow[j-done]
					}
				}
				for j := high + 1; j <= top; j++ {
					to[j] = math.Inf(1)
				}
				if k == 0 {
					for h := range homes {
						entry, f := w.market.egress[h][home], free[h]
						for j := low; j <= high; j++ {
							f[j] = min(f[j], to[j]+entry)
						}
					}
				}
			}
		}
		for at := range now { // leaving is always possible
			if to := now[at]; to != nil {
				f := free[w.market.regionOf(at/nd)]
				for j := low; j <= high; j++ {
					to[j] = min(to[j], f[j])
				}
			}
		}
		next, now = now, next
		nextFree, free = free, nextFree
	}
	return nextFree[w.market.nowhere()][size-1]
}

func (o *optimizer) reserve(size, rows, homes int) {
	if need := 2 * rows * size; len(o.buf) < need {
		o.buf = make([]float64, need)
	}
	for i := range o.rows {
		o.rows[i] = make([][]float64, rows)
		o.free[i] = make([][]float64, homes)
		for h := range homes {
			o.free[i][h] = make([]float64, size)
		}
	}
}

func gcd(a, b time.Duration) time.Duration {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
