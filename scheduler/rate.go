package scheduler

import (
	"cmp"
	"math"
	"time"

	"gpubroker/internal/gpu"
	"gpubroker/internal/rates"
	"gpubroker/providers"
)

// Source says where an estimate of a task's time is from.
type Source string

// The sources, the best first. The first that can tell is taken.
const (
	Measured Source = "measured" // on the same GPU, of jobs alike
	Scaled   Source = "scaled"   // measured on another GPU, times the ratio of their governing figures
	Given    Source = "given"    // by the job, on this GPU
	Modelled Source = "modelled" // given on another GPU, times the ratio of their governing figures
	Assumed  Source = "assumed"  // nobody said anything
)

// What an estimate may be wrong by, as standard deviations of the logarithm of the
// time; a band reaches 1.28 of them either way. docs/scheduling.md says from what.
const (
	givenSpread    = 0.25 // ×/÷ 1.38: what people know of their own work
	assumedSpread  = 1.4  // ×/÷ 6: half an hour may be five minutes or three hours
	machineSpread  = 0.15 // ×/÷ 1.21: the same GPU in another machine, with other CPUs
	archSpread     = 0.15 // ×/÷ 1.21: scaled to a GPU of the same architecture
	vendorSpread   = 0.25 // ×/÷ 1.38: to another architecture of the same vendor
	strangerSpread = 0.5  // ×/÷ 1.9: to another vendor's, or to one that is not known
)

// estimate is how long one task takes somewhere.
type estimate struct {
	task   time.Duration
	spread float64
	source Source
	on     string
}

// times is the estimate of a part of a task.
func (e estimate) times(share float64) estimate {
	e.task = part(e.task, share)
	return e
}

// part is a share of a length, of a millisecond at least.
func part(d time.Duration, share float64) time.Duration {
	return max(time.Millisecond, time.Duration(min(float64(d)*share, float64(farAway))))
}

// pace is how long a whole task takes on the machines with one model of GPU.
type pace struct {
	any   estimate
	types []typed
	least time.Duration
}

// typed is what was measured on machines of just this size.
type typed struct {
	gpus, vcpu float64
	estimate
}

type paceKey struct {
	rates *rates.Class
	gpu   string
}

func anywhere(*rates.Row) bool { return true }

// modelled is the estimate of what nobody has measured, from what the job says.
func (l *load) modelled(figure float64) estimate {
	switch {
	case l.source == Assumed:
		if figure == l.reference {
			return estimate{l.task, assumedSpread, Assumed, ""}
		}
		return estimate{l.task, assumedSpread, Assumed, ""}.times(l.reference / figure)
	case figure == l.reference:
		return estimate{l.task, givenSpread, l.source, ""}
	}
	return estimate{l.task, strangerSpread, Modelled, ""}.times(l.reference / figure)
}

// on is how long what is left of one task takes on a machine whose GPUs have that
// figure each.
func (p *pass) on(c *class, l *load, s *providers.Shape, figure float64) estimate {
	if l.rates == nil {
		return l.modelled(figure)
	}
	w := p.paceOf(c, l, s.GPU, figure)
	if w == nil {
		return l.modelled(figure)
	}
	for i := range w.types {
		if t := &w.types[i]; t.gpus == s.GPUs && t.vcpu == s.VCPU {
			return t.times(l.left)
		}
	}
	return w.any.times(l.left)
}

// paceOf is what the measured rates say of a GPU, or nil when they say nothing.
func (p *pass) paceOf(c *class, l *load, model string, figure float64) *pace {
	key := paceKey{l.rates, model}
	if c.needs.GPUs <= 0 {
		key.gpu = "" // the work does not use it
	}
	w, looked := c.paces[key]
	if !looked {
		w = p.newPace(c, l.rates, key.gpu, figure)
		if c.paces == nil {
			c.paces = map[paceKey]*pace{}
		}
		c.paces[key] = w
	}
	return w
}

func (p *pass) newPace(c *class, measured *rates.Class, model string, figure float64) *pace {
	same := func(r *rates.Row) bool { return c.needs.GPUs <= 0 || r.GPU == model }
	if e, ok := measured.Pool(same); ok {
		w := &pace{any: estimate{e.Time, math.Hypot(e.Spread, machineSpread), Measured, model}, least: e.Time}
		for i := range measured.Rows {
			if r := &measured.Rows[i]; same(r) && !w.has(r) {
				e, ok := measured.Pool(func(o *rates.Row) bool { return same(o) && o.GPUs == r.GPUs && o.VCPU == r.VCPU })
				if ok {
					w.types = append(w.types, typed{r.GPUs, r.VCPU, estimate{e.Time, e.Spread, Measured, ""}})
					w.least = min(w.least, e.Time)
				}
			}
		}
		return w
	}
	near, ok := p.sibling(c, measured, model, figure)
	if !ok {
		return nil
	}
	e, _ := measured.Pool(func(r *rates.Row) bool { return r.GPU == near.gpu })
	scaled := estimate{e.Time, math.Hypot(e.Spread, near.spread), Scaled, near.gpu}.times(near.figure / figure)
	return &pace{any: scaled, least: scaled.task}
}

func (w *pace) has(r *rates.Row) bool {
	for i := range w.types {
		if w.types[i].gpus == r.GPUs && w.types[i].vcpu == r.VCPU {
			return true
		}
	}
	return false
}

// near is a measured GPU that another one is compared with.
type near struct {
	gpu    string
	figure float64
	spread float64
	apart  float64 // logarithm of the ratio of their figures
}

// sibling is the measured GPU that is most like a model: of its architecture, else
// of its vendor, then the one whose figure is nearest.
func (p *pass) sibling(c *class, measured *rates.Class, model string, figure float64) (best near, ok bool) {
	a := c.fits.ask
	mine, _ := p.Facts.Lookup(model)
	for i := range measured.Rows {
		r := &measured.Rows[i]
		one := near{gpu: r.GPU, figure: 1, spread: strangerSpread}
		f, _ := p.Facts.Lookup(r.GPU)
		if a.attribute.Name != "" {
			if one.figure = c.needs.FigureOn(p.Facts, f); one.figure <= 0 {
				continue
			}
		}
		switch {
		case alike(f.Arch, mine.Arch) && alike(f.Vendor, mine.Vendor):
			one.spread = archSpread
		case alike(f.Vendor, mine.Vendor):
			one.spread = vendorSpread
		}
		one.apart = math.Abs(math.Log(one.figure / figure))
		if !ok || cmp.Or(cmp.Compare(one.spread, best.spread), cmp.Compare(one.apart, best.apart), cmp.Compare(one.gpu, best.gpu)) < 0 {
			best, ok = one, true
		}
	}
	return best, ok
}

// alike reports whether two words are known, and the same.
func alike(a, b gpu.Known[string]) bool {
	x, known := a.Get()
	y, also := b.Get()
	return known && also && x == y
}

// ranks are the fits with one model of GPU, by the least that a unit of the figure
// can cost there.
type ranks struct {
	gpu    string
	figure float64
	list   []ranked
}

// walk yields the fits of a kind by the least that a task can cost there.
type walk struct {
	lanes []lane
	rest  int // offers from the next fit on
}

// lane is fits in order; factor makes of their least price for a unit of the figure
// the least that a task costs.
type lane struct {
	list   []ranked
	factor float64
}

// walk begins at the fit where a task can cost least. Without measured rates that
// order is the same for all tasks; with them it is merged from one list for each
// GPU, since each has a pace of its own.
func (p *pass) walk(c *class, l *load, k int) walk {
	w := walk{rest: c.fits.offers[k]}
	if l.rates == nil {
		slow := c.fits.slowest
		w.lanes = []lane{{c.fits.order[k], float64(l.nodes) * (l.modelled(c.fits.fastest).least(c.fits.fastest) + p.rest(l, l.modelled(slow), slow))}}
		return w
	}
	w.lanes = make([]lane, 0, len(c.fits.byGPU[k]))
	for _, r := range c.fits.byGPU[k] {
		e := l.modelled(r.figure)
		if at := p.paceOf(c, l, r.gpu, r.figure); at != nil {
			e = estimate{task: at.least}.times(l.left)
		}
		w.lanes = append(w.lanes, lane{r.list, float64(l.nodes) * (e.least(r.figure) + p.rest(l, e, r.figure))})
	}
	return w
}

// least is what a task costs at the least for each unit of the price of a slot and
// of the figure: a task that long on GPUs of that figure. An expectation is rounded
// to the second, so half a second is forgiven.
func (e estimate) least(figure float64) float64 {
	return figure * max(0, e.task.Seconds()-0.5) / 3600 * (1 - 1e-6)
}

// next returns the next fit and the least that a task costs there.
func (w *walk) next() (fit int32, least float64, ok bool) {
	at := -1
	for i := range w.lanes {
		n := &w.lanes[i]
		if len(n.list) == 0 {
			continue
		}
		if cost := n.list[0].least * n.factor; at < 0 || cost < least || cost == least && n.list[0].fit < fit {
			at, fit, least = i, n.list[0].fit, cost
		}
	}
	if at < 0 {
		return 0, 0, false
	}
	w.lanes[at].list = w.lanes[at].list[1:]
	return fit, least, true
}
