package policy

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"
)

// cells is about how many pairs of slack and work a table has: fewer the more
// markets there are, so that its size and the time to build it stay bounded.
func cells(spots int) float64 { return max(2000, min(8000, 24000/float64(spots+1))) }

// Sketch is what a table depends on, in rounded numbers: markets alike have one
// sketch, whatever their names. Prices are dollars per hour for all machines of the
// work, times hours.
type Sketch struct {
	step        float64 // of slack, work and time
	slack, work int     // cells beyond 0
	spots       []spotSketch
	nets        []netSketch // on demand: one in each region that has any
	regions     int
	egress      float64 // of going to another region
}

type spotSketch struct {
	*Facts
	facts        uint64 // its digest
	price, delay float64
	speed        float64 // work done in an hour, as the reference does it
	region       int
}

type netSketch struct {
	price, delay, speed float64
	region              int
}

// Key tells sketches apart.
type Key string

// Key is equal for sketches of one table.
func (s *Sketch) Key() Key {
	var room [512]byte
	return Key(s.appendKey(room[:0]))
}

func (s *Sketch) appendKey(b []byte) []byte {
	put := func(b []byte, price, delay, speed float64, region int) []byte {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(price)))
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(delay)))
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(speed)))
		return append(b, byte(region))
	}
	b = put(b, s.step, float64(s.slack), float64(s.work), len(s.spots))
	b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(s.egress)))
	for i := range s.spots {
		p := &s.spots[i]
		b = binary.LittleEndian.AppendUint64(put(b, p.price, p.delay, p.speed, p.region), p.facts)
	}
	for i := range s.nets {
		n := &s.nets[i]
		b = put(b, n.price, n.delay, n.speed, n.region)
	}
	return b
}

// Table holds the least expected cost to finish, in dollars, by slack and work
// left, for each thing that may be in hand. Slack is the time that may still be lost
// before on demand must be bought; work is running time at the reference rate.
//
// It is a value iteration over a semi-Markov model of the markets. When a machine is
// lost, the markets that are better were down at its launch and had the time since to come
// back, and the others are as they are met at some far moment; while nothing can be had
// all have been down for one time.
type Table struct {
	Sketch
	row  int // cells of one amount of work
	size int // cells of one state
	// By spot and age class of its run.
	held  []float64 // there is a machine
	enter []float64 // one is launched
	seen  []float64 // on demand, while it can be had
	lost  []float64 // the machine was just taken away
	// By age class of the time without spot, and region of the data.
	off  []float64 // no machine
	wait []float64 // no machine, and none is bought before the next step
	net  []float64 // on demand
}

func (t *Table) part(v []float64, i int) []float64  { return v[i*t.size : (i+1)*t.size] }
func (t *Table) heldAt(spot, class int) []float64   { return t.part(t.held, spot*classes+class) }
func (t *Table) enterAt(spot, class int) []float64  { return t.part(t.enter, spot*classes+class) }
func (t *Table) seenAt(spot, class int) []float64   { return t.part(t.seen, spot*classes+class) }
func (t *Table) lostAt(spot, class int) []float64   { return t.part(t.lost, spot*classes+class) }
func (t *Table) offAt(class, region int) []float64  { return t.part(t.off, class*t.regions+region) }
func (t *Table) waitAt(class, region int) []float64 { return t.part(t.wait, class*t.regions+region) }
func (t *Table) netAt(class, region int) []float64  { return t.part(t.net, class*t.regions+region) }
func (s *Sketch) move(from, to int) float64 {
	if from == to {
		return 0
	}
	return s.egress
}

// spotChances are those of one step.
type spotChances struct {
	stays [classes]float64 // up, by age class
	comes [classes]float64 // back, by age class
	back  float64          // back, at some far moment
	again [classes]float64 // up after the time of an age class, if it was down
	// Through the delay, and the class after it; and those of a run met at some
	// far moment.
	starts, class       [classes]float64
	startsMet, classMet float64
}

// chanceOf is a cost that may be had instead.
type chanceOf struct{ cost, chance float64 }

// builder is a table that is being built.
type builder struct {
	*Table
	chance []spotChances
	ages   [classes]float64 // the chance to stay in an age class for a step
	// order is the spots for data in each region, the best to launch in first.
	order [][]int
	net   []*netSketch // by region of the data: what is bought
	moves []chanceOf   // room for hold and onDemand
	// Of the present cell.
	fresh, met []float64          // launches
	buy        [][classes]float64 // on demand from idle, by region and class
}

// Build works out the table of a sketch.
func Build(s Sketch) *Table {
	t := &Table{Sketch: s, row: s.slack + 1}
	t.size = t.row * (s.work + 1)
	m := len(s.spots)
	t.held, t.enter, t.seen = make([]float64, m*classes*t.size), make([]float64, m*classes*t.size), make([]float64, m*classes*t.size)
	t.lost = make([]float64, m*classes*t.size)
	n := classes * s.regions * t.size
	t.off, t.wait, t.net = make([]float64, n), make([]float64, n), make([]float64, n)
	b := &builder{Table: t, chance: make([]spotChances, m), fresh: make([]float64, m), met: make([]float64, m), moves: make([]chanceOf, 0, m)}
	b.buy = make([][classes]float64, s.regions)
	for i := range s.spots {
		p, c := &s.spots[i], &b.chance[i]
		for a := range classes {
			c.stays[a] = math.Exp(-p.Up[a] * s.step)
			c.comes[a] = -math.Expm1(-p.Down[a] * s.step)
			c.starts[a] = p.lives(float64(a), p.delay)
			c.class[a] = classOfAge(ages[a] + p.delay)
		}
		c.back = -math.Expm1(-p.Back * s.step)
		for a := range classes {
			held := 1.5 * ages[a] // about the middle of the class
			if a < classes-1 {
				held = (ages[a] + ages[a+1]) / 2
			}
			c.again[a] = -p.Often * math.Expm1(-held*p.Back/max(p.Often, 0.01))
		}
		c.startsMet, c.classMet = p.lives(p.Met, p.delay), p.Met
	}
	for a := range classes {
		b.ages[a] = 1
		if a < classes-1 {
			b.ages[a] = max(0, 1-s.step/(ages[a+1]-ages[a]))
		}
	}
	for g := range s.regions {
		b.order = append(b.order, make([]int, m))
		for i := range m {
			b.order[g][i] = i
		}
		b.net = append(b.net, s.netOf(g))
	}
	for j := 1; j <= s.work; j++ { // no work costs nothing
		for k := 0; k <= s.slack; k++ {
			b.cell(j, k)
		}
	}
	// From here on it is next to no work: what has no machine pays the delay of one yet.
	for k := 0; k <= s.slack; k++ {
		b.cell(0, k)
	}
	return t
}

// netOf is on demand for data in a region: there, or where it costs least if
// there is none or nothing is paid to move.
func (s *Sketch) netOf(region int) *netSketch {
	var best *netSketch
	for i := range s.nets {
		n := &s.nets[i]
		if n.region == region && s.egress > 0 {
			return n
		}
		if best == nil || n.price/n.speed < best.price/best.speed {
			best = n
		}
	}
	return best
}

// cell works out one pair of work and slack from those with less of either.
func (b *builder) cell(j, k int) {
	if j > 0 {
		b.onDemand(j, k)
	}
	b.purchase(j, k)
	for i := range b.spots {
		if j > 0 {
			b.hold(i, j, k)
		}
	}
	for i := range b.spots {
		b.launch(i, j, k)
	}
	for g := range b.regions {
		b.sort(g)
		b.idle(g, j, k)
	}
	for i := range b.spots {
		b.lose(i, j, k)
	}
}

// older is a value a step later, of an age class that may become the next.
func (b *builder) older(class int, v func(class int) float64) float64 {
	x := b.ages[class] * v(class)
	if class < classes-1 {
		x += (1 - b.ages[class]) * v(class+1)
	}
	return x
}

// onDemand: go on, or leave for spot that comes back.
func (b *builder) onDemand(j, k int) {
	at := j*b.row + k
	for g := range b.regions {
		n := b.net[g]
		moves := b.moves[:0]
		for _, i := range b.order[g] {
			moves = append(moves, chanceOf{cost: n.price*b.step + b.done(b.seenAt(i, 0), j, k, n.speed) + b.move(g, b.spots[i].region)})
		}
		for class := classes - 1; class >= 0; class-- {
			to := b.netAt(class, g)
			if k == 0 {
				to[at] = n.price * float64(j) * b.step / n.speed
				continue
			}
			stay := n.price*b.step + b.older(class, func(a int) float64 { return b.done(b.netAt(a, g), j, k, n.speed) })
			v, none := 0.0, 1.0
			for x, i := range b.order[g] {
				leave := moves[x].cost
				if leave >= stay {
					break
				}
				c := b.chance[i].comes[class]
				v, none = v+none*c*leave, none*(1-c)
			}
			to[at] = v + none*stay
		}
	}
}

// purchase is on demand from idle.
func (b *builder) purchase(j, k int) {
	for g := range b.regions {
		n := b.net[g]
		least := n.price * float64(j) * b.step / n.speed
		for class := range classes {
			v := least
			if x := float64(k) - n.delay/b.step; x >= 0 {
				v = b.along(b.netAt(class, n.region), j, x)
			}
			b.buy[g][class] = b.move(g, n.region) + n.price*n.delay + v
		}
	}
}

// hold: work on in the spot machine in hand, or leave it for a better one that
// comes back.
func (b *builder) hold(i, j, k int) {
	p, c := &b.spots[i], &b.chance[i]
	leave := b.buy[p.region][classes-1]
	if float64(k)+p.speed < 1 { // no slack is left to go on so slowly
		for class := range classes {
			b.heldAt(i, class)[j*b.row+k] = leave
		}
		return
	}
	moves := b.moves[:0]
	for _, o := range b.order[p.region] {
		if o != i {
			moves = append(moves, chanceOf{b.done(b.enterAt(o, 0), j, k, p.speed) + b.move(p.region, b.spots[o].region), b.chance[o].back})
		}
	}
	for class := classes - 1; class >= 0; class-- {
		on := b.older(class, func(a int) float64 { return b.done(b.heldAt(i, a), j, k, p.speed) })
		for _, m := range moves {
			if m.cost < on {
				on -= m.chance * (on - m.cost)
			}
		}
		stay := p.price*b.step + c.stays[class]*on + (1-c.stays[class])*b.done(b.lostAt(i, class), j, k, p.speed)
		b.heldAt(i, class)[j*b.row+k] = min(stay, leave)
	}
}

// launch on spot; and, on demand, either that or looking on while it is up.
func (b *builder) launch(i, j, k int) {
	p, c := &b.spots[i], &b.chance[i]
	at := j*b.row + k
	lost := b.guess(b.lostAt(i, 0), j, k)
	b.met[i] = b.entry(i, j, k, c.startsMet, c.classMet, lost)
	n := b.net[p.region]
	for class := classes - 1; class >= 0; class-- {
		v := min(b.entry(i, j, k, c.starts[class], c.class[class], lost), b.buy[p.region][0]+1e-9)
		b.enterAt(i, class)[at] = v
		look := n.price * float64(j) * b.step / n.speed
		if j > 0 && k > 0 {
			up := b.older(class, func(a int) float64 { return b.done(b.seenAt(i, a), j, k, n.speed) })
			look = n.price*b.step + c.stays[class]*up + (1-c.stays[class])*b.done(b.netAt(0, p.region), j, k, n.speed)
		}
		b.seenAt(i, class)[at] = min(v, look)
	}
	b.fresh[i] = b.enterAt(i, 0)[at]
}

// entry is the cost of a launch that lives through its delay with chance starts, to
// be of a class after it. A loss comes halfway through, and is seen a step later.
func (b *builder) entry(i, j, k int, starts, class, lost float64) float64 {
	p := &b.spots[i]
	x := float64(k) - p.delay/b.step
	if x < 0 {
		return math.Inf(1)
	}
	a := int(class)
	w := class - float64(a)
	v := (1 - w) * b.along(b.heldAt(i, a), j, x)
	if w > 0 {
		v += w * b.along(b.heldAt(i, a+1), j, x)
	}
	d := max(p.delay/2, min(p.delay, b.step))
	y := max(0, float64(k)-d/b.step)
	at := int(y)
	row := b.lostAt(i, 0)[j*b.row:]
	gone := row[at]
	if w := y - float64(at); w > 0 {
		next := lost
		if at+1 < k {
			next = row[at+1]
		}
		gone += w * (next - gone)
	}
	return starts*(p.price*p.delay+v) + (1-starts)*(p.price*d+gone)
}

func (b *builder) sort(g int) {
	o := b.order[g]
	cost := func(i int) float64 { return b.fresh[i] + b.move(g, b.spots[i].region) }
	for x := 1; x < len(o); x++ { // nearly sorted from the cell before
		for y := x; y > 0 && cost(o[y]) < cost(o[y-1]); y-- {
			o[y], o[y-1] = o[y-1], o[y]
		}
	}
}

// idle: wait for a market to come back, or buy on demand.
func (b *builder) idle(g, j, k int) {
	at := j*b.row + k
	moves := b.moves[:0]
	for _, i := range b.order[g] {
		if k > 0 {
			moves = append(moves, chanceOf{cost: b.enterAt(i, 0)[at-1] + b.move(g, b.spots[i].region)})
		}
	}
	for class := classes - 1; class >= 0; class-- {
		to := b.offAt(class, g)
		if k == 0 {
			to[at] = b.buy[g][class]
			b.waitAt(class, g)[at] = to[at]
			continue
		}
		later := b.older(class, func(a int) float64 { return b.offAt(a, g)[at-1] })
		v, none := 0.0, 1.0
		for n, i := range b.order[g] {
			x := moves[n].cost
			if x >= later {
				break
			}
			c := b.chance[i].comes[class]
			v, none = v+none*c*x, none*(1-c)
		}
		v += none * later
		b.waitAt(class, g)[at], to[at] = v, min(v, b.buy[g][class])
	}
}

// sameRegion is how much less likely a market is up when one of its region was
// just lost: within a region availability correlates by 0.43, across by 0.14
// (V100 capture of SkyNomad, NSDI'27).
const sameRegion = 0.3

// lose: the others are tried, then all are down. Those that are better were down
// when the machine was launched, and had the time of its run to come back; the
// others may be up as at any moment.
func (b *builder) lose(i, j, k int) {
	g := b.spots[i].region
	at := j*b.row + k
	rest := b.offAt(0, g)[at]
	for class := range classes {
		v, none := 0.0, 1.0
		better := true
		for _, o := range b.order[g] {
			if o == i {
				better = false
				continue
			}
			x := b.met[o] + b.move(g, b.spots[o].region)
			if x >= rest {
				continue
			}
			c := b.spots[o].Often
			if better {
				c = b.chance[o].again[class]
			}
			if b.spots[o].region == g {
				c *= 1 - sameRegion
			}
			v, none = v+none*c*x, none*(1-c)
		}
		b.lostAt(i, class)[at] = v + none*rest
	}
}

// guess extends a state to a cell that is not known yet.
func (b *builder) guess(v []float64, j, k int) float64 {
	at := j*b.row + k
	switch {
	case j == 0:
		return v[max(0, at-1)]
	case k == 0:
		return v[at-b.row]
	}
	return v[at-b.row] + v[at-1] - v[at-1-b.row]
}

// done is a value after a step of work at a speed, from cell j, k: at the speed
// of the reference no slack is lost. There must be as much as is.
func (b *builder) done(v []float64, j, k int, speed float64) float64 {
	at := j*b.row + k
	if speed == 1 {
		return v[at-b.row]
	}
	y, x := max(0, float64(j)-speed), float64(k)+speed-1
	j0, k0 := int(y), min(int(x), b.slack)
	wj, wk := y-float64(j0), min(1, x-float64(k0))
	value := func(jj, kk int) float64 {
		kk = min(kk, b.slack)
		if jj == j && kk >= k {
			return b.guess(v, j, k)
		}
		return v[jj*b.row+kk]
	}
	low := value(j0, k0)
	if wk > 0 {
		low += wk * (value(j0, k0+1) - low)
	}
	if wj == 0 {
		return low
	}
	high := value(j0+1, k0)
	if wk > 0 {
		high += wk * (value(j0+1, k0+1) - high)
	}
	return low + wj*(high-low)
}

// along interpolates by slack, in cells.
func (t *Table) along(v []float64, j int, x float64) float64 {
	k := min(int(x), t.slack)
	a := v[j*t.row+k]
	if w := x - float64(k); w > 0 && k < t.slack {
		a += w * (v[j*t.row+k+1] - a)
	}
	return a
}

// at interpolates by slack and work, in hours.
func (t *Table) at(v []float64, slack, work float64) float64 {
	y := min(max(0, work/t.step), float64(t.work))
	x := min(max(0, slack/t.step), float64(t.slack))
	j := min(int(y), t.work-1)
	a := t.along(v, j, x)
	return a + (y-float64(j))*(t.along(v, j+1, x)-a)
}

// between interpolates by age class, slack and work.
func (t *Table) between(v func(class int) []float64, class, slack, work float64) float64 {
	a := int(class)
	x := t.at(v(a), slack, work)
	if w := class - float64(a); w > 0 {
		x += w * (t.at(v(a+1), slack, work) - x)
	}
	return x
}

// Library is the tables that were built. It does not change: With makes a new one.
type Library struct {
	tables map[Key]*Table
	order  []Key // the oldest first
}

// With is the library with a table added, and without the oldest beyond so many.
func (l *Library) With(t *Table, most int) *Library {
	out := &Library{tables: map[Key]*Table{}}
	if l != nil {
		maps.Copy(out.tables, l.tables)
		out.order = slices.Clone(l.order)
	}
	k := t.Key()
	if _, ok := out.tables[k]; !ok {
		out.tables[k], out.order = t, append(out.order, k)
	}
	for len(out.order) > most {
		delete(out.tables, out.order[0])
		out.order = out.order[1:]
	}
	return out
}

// Has reports whether there is a table.
func (l *Library) Has(k Key) bool { return l != nil && l.tables[k] != nil }

// of is the table of a sketch; nil if there is none.
func (l *Library) of(s *Sketch) *Table {
	if l == nil {
		return nil
	}
	var room [512]byte
	return l.tables[Key(s.appendKey(room[:0]))]
}

// Bytes is about what a table takes in memory.
func (t *Table) Bytes() int {
	return 8 * (len(t.held) + len(t.enter) + len(t.seen) + len(t.lost) + len(t.off) + len(t.wait) + len(t.net))
}
