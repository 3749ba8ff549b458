package policy

import (
	"cmp"
	"math"
	"slices"
	"time"

	"gpubroker/internal/money"
)

// learned takes what is expected to cost least to the deadline, by a [Table] of
// the markets as they are believed to be: spot, in the best market or none yet;
// on demand; a move; or to wait. What Uniform Progress does for safety it does too.
// While the table is not built yet work stays where it is, and work that holds
// nothing follows Uniform Progress.
func learned(v *View) Decision {
	net := v.fastest(isOnDemand)
	if net < 0 {
		return spotOnly(v)
	}
	if !v.some(func(c *Candidate) bool { return c.Kind == Spot && c.Outlook != nil }) {
		return uniform(v) // a table says nothing
	}
	u := line{View: v, net: net, slack: v.slackOf(&v.Candidates[net]), instead: money.MaxAmount}
	l := value{line: &u, hours: (u.slack - v.Look).Hours(), work: v.Candidates[net].Work.Hours()}
	s := l.sketch()
	if l.table = v.Library.of(&s); l.table == nil {
		d := l.meanwhile()
		d.Want = new(s) // a copy: s itself stays on the stack where there is a table
		return d
	}
	switch {
	case v.Current == nil:
		return l.idle()
	case v.Current.Kind == Spot:
		return l.onSpot()
	default:
		return l.onDemand()
	}
}

// value is a view with its table.
type value struct {
	*line
	table *Table
	// hours of slack, beyond what passes until the next look; and of work at the
	// rate of the on-demand machine that is done first.
	hours, work float64
	// spot and region are where a candidate is in the table, by index; -1 = not.
	spot, region []int
	// ageing of a lag, aged.
	aged   time.Duration
	ageing ageing
}

// meanwhile is what is done without a table.
func (l *value) meanwhile() Decision {
	switch {
	case l.Current == nil:
		l.instead = l.stayOrBest(isOnDemand)
		return l.line.idle()
	case l.Current.Kind == Spot:
		return l.line.onSpot()
	default:
		return l.stay(Why{Code: KeepOnDemand, Slack: l.slack}, l.again())
	}
}

// again is when to look again at what time alone may change.
func (l *value) again() time.Time { return l.Now.Add(max(l.Look, time.Minute)) }

// sketch draws what the table depends on, and where the candidates are in it.
func (l *value) sketch() Sketch {
	n := len(l.Candidates)
	room := make([]int, 3*n)
	order := room[2*n:]
	l.spot, l.region = room[:n:n], room[n:2*n:2*n]
	for i := range n {
		l.spot[i], l.region[i], order[i] = -1, -1, i
	}
	// The order of candidates must not matter, nor the names of markets alike.
	slices.SortFunc(order, func(a, b int) int {
		x, y := &l.Candidates[a], &l.Candidates[b]
		if x.Price != y.Price {
			return cmp.Compare(x.Price, y.Price)
		}
		return cmp.Or(cmp.Compare(x.Region, y.Region), cmp.Compare(x.Market, y.Market))
	})
	s := Sketch{egress: steps(l.Egress.Float(), 8), spots: make([]spotSketch, 0, n), nets: make([]netSketch, 0, 4)}
	regions := make([]string, 0, 8)
	regionOf := func(c *Candidate) int {
		g := slices.Index(regions, c.Region)
		if g < 0 {
			g = len(regions)
			regions = append(regions, c.Region)
		}
		return g
	}
	hours, delay := time.Duration(-1), 0.0
	for _, i := range order {
		c := &l.Candidates[i]
		if lag := l.lag(c); lag != hours { // most are the same
			hours, delay = lag, steps(lag.Hours(), 8)
		}
		switch {
		case c.Kind == OnDemand:
			if len(s.nets) < MaxCandidates && l.cheapest(i) {
				l.region[i] = regionOf(c)
				price, speed := l.pace(c)
				s.nets = append(s.nets, netSketch{price, delay, speed, l.region[i]})
			}
		case c.Outlook != nil && len(s.spots) < MaxCandidates:
			l.spot[i], l.region[i] = len(s.spots), regionOf(c)
			price, speed := l.pace(c)
			s.spots = append(s.spots, spotSketch{&c.Outlook.Facts, c.Outlook.facts, price, delay, speed, l.region[i]})
		}
	}
	s.regions = len(regions)
	slack, work := octave(max(1, l.hours)), octave(max(2, l.work))
	most := cells(len(s.spots))
	s.step = max(math.Sqrt(slack*work/most), 2*max(slack, work)/most, l.Look.Hours(), 1.0/60)
	s.slack, s.work = int(math.Ceil(slack/s.step))+1, int(math.Ceil(work/s.step))+1
	return s
}

// lag is what each launch costs in time: the delay and, on spot, what a preemption undoes
// on average.
func (v *View) lag(c *Candidate) time.Duration {
	if c.Kind == OnDemand || c.Warned {
		return c.Delay
	}
	return total(c.Delay, min(c.atRisk(v.AtRisk), c.Work)/2)
}

// cheapest reports whether a candidate finishes at the least cost on demand in its region.
func (l *value) cheapest(i int) bool {
	c := &l.Candidates[i]
	cost := l.costs(c)
	for k := range l.Candidates {
		o := &l.Candidates[k]
		if k == i || o.Kind != OnDemand || o.Region != c.Region {
			continue
		}
		x := l.costs(o)
		if x < cost || x == cost && cmp.Or(cmp.Compare(o.Price, c.Price), cmp.Compare(o.Region, c.Region), cmp.Compare(o.Market, c.Market)) < 0 {
			return false
		}
	}
	return true
}

func (l *value) costs(c *Candidate) float64 {
	return c.Price.Float() * (c.Delay.Hours() + c.Work.Hours())
}

// slowest and fastest are the speeds that a table tells apart.
const slowest, fastest = 1.0 / 8, 8

// pace is a candidate's price, and its speed as a multiple of the on-demand machine
// that is done first. What is slower than a table knows costs as much for the work.
func (l *value) pace(c *Candidate) (price, speed float64) {
	price, speed = c.Price.Float(), 1.0
	if c.Work > 0 && l.work > 0 && c.Work != l.Candidates[l.net].Work {
		speed = l.work / c.Work.Hours()
		price *= max(1, slowest/speed)
		speed = min(fastest, max(slowest, steps(speed, 16)))
	}
	return steps(price, 32), speed
}

// steps rounds to n steps in each octave.
func steps(x, n float64) float64 {
	if x <= 0 {
		return 0
	}
	return math.Exp2(math.Round(n*math.Log2(x)) / n)
}

// octave rounds up to half an octave.
func octave(x float64) float64 { return math.Exp2(math.Ceil(2*math.Log2(x)) / 2) }

// start is the cost to go of a launch on spot that succeeds now.
func (l *value) start(i int) float64 {
	c, t := &l.Candidates[i], l.table
	p := &t.spots[l.spot[i]]
	lag := l.lag(c)
	d := lag.Hours()
	if lag != l.aged || lag == 0 { // most are the same
		l.aged, l.ageing = lag, ageingOf(d)
	}
	later := c.Outlook.up.afterBy(&l.ageing)
	class := classOf(&later, &p.NextUp)
	held := t.between(func(a int) []float64 { return t.heldAt(l.spot[i], a) }, class, l.hours-d, l.work)
	lost := t.at(t.lostAt(l.spot[i], 0), l.hours-d/2, l.work)
	lives := c.Outlook.up.livesBy(&l.ageing)
	return c.Entry.Float() + lives*(p.price*d+held) + (1-lives)*(p.price*d/2+lost)
}

// bestSpot is where to launch now, and the cost to go; -1 for nowhere.
func (l *value) bestSpot() (int, float64) {
	best, cost := -1, math.Inf(1)
	for i := range l.Candidates {
		c := &l.Candidates[i]
		if l.spot[i] < 0 || !l.startable(c) || l.Current != nil && c.Market == l.Current.Market {
			continue
		}
		if x := l.start(i); x < cost || x == cost && best >= 0 && l.before(c, &l.Candidates[best]) {
			best, cost = i, x
		}
	}
	return best, cost
}

// bestNet is what to buy on demand now, and the cost to go; -1 for nothing.
func (l *value) bestNet(class float64) (int, float64) {
	best, cost := -1, math.Inf(1)
	t := l.table
	for i := range l.Candidates {
		c := &l.Candidates[i]
		if c.Kind != OnDemand || l.region[i] < 0 || !l.ready(c) || l.slackOf(c) < 0 {
			continue
		}
		d := c.Delay.Hours()
		x := c.Entry.Float() + c.Price.Float()*d
		if l.hours > d {
			x += t.between(func(a int) []float64 { return t.netAt(a, l.region[i]) }, class, l.hours-d, l.work)
		} else {
			x += c.Price.Float() * c.Work.Hours()
		}
		if x < cost {
			best, cost = i, x
		}
	}
	return best, cost
}

// downClass is the age class of down runs at which as many markets come back as now.
func (l *value) downClass() float64 {
	now := 0.0
	var at [classes]float64
	for i := range l.Candidates {
		c := &l.Candidates[i]
		if l.spot[i] < 0 || c.Outlook.Up > 0.999 {
			continue
		}
		now += c.Outlook.back
		for a, h := range c.Outlook.Facts.NextDown {
			at[a] += h
		}
	}
	return classAt(now, &at)
}

// home is the region of the data in the table: where entry is cheapest, and what is
// paid to enter even there.
func (l *value) home() (int, money.Amount) {
	home, least := -1, money.MaxAmount
	for i := range l.Candidates {
		c, g := &l.Candidates[i], l.region[i]
		if g >= 0 && (home < 0 || c.Entry < least || c.Entry == least && g < home) {
			home, least = g, c.Entry
		}
	}
	return max(0, home), least
}

func (l *value) idle() Decision {
	hope := l.some(l.hopeful)
	spot, cost := l.bestSpot()
	if !hope && spot < 0 {
		code := SafetyNet
		if l.best(isSpot) < 0 {
			code = NoSpot
		}
		return l.mustRun(code)
	}
	class := l.downClass()
	net, buy := l.bestNet(class)
	later := math.Inf(1)
	if hope {
		home, entry := l.home()
		later = entry.Float() + l.table.between(func(a int) []float64 { return l.table.waitAt(a, home) }, class, l.hours, l.work)
	}
	switch {
	case spot >= 0 && cost < min(later, buy):
		return l.take(spot, Why{Code: SpotCheapest, Slack: l.slack}, cost)
	case net >= 0 && buy <= later:
		d := l.launchNet(net, Why{Code: WaitCosts})
		d.Why.Cost, d.Why.Instead = amount(buy), 0
		d.Until = soonest(d.Until, l.again())
		return d
	}
	d := wait(Why{Code: SpotSoon, Slack: l.slack, Cost: amount(later)}, soonest(l.nextReady(anyKind), l.again(), l.hopeEnds()))
	d.Why.Latest = l.Now.Add(max(0, l.slack) + l.readyIn(&l.Candidates[l.net]))
	l.expect(&d.Why)
	return d
}

// expect says when spot is expected, and where.
func (l *value) expect(w *Why) {
	best, cost := -1, math.Inf(1)
	rate := 0.0
	for i := range l.Candidates {
		if l.spot[i] < 0 {
			continue
		}
		o := l.Candidates[i].Outlook
		rate += o.soon
		if x := l.start(i); x < cost {
			best, cost = i, x
		}
	}
	if best >= 0 && rate > 0 {
		w.Market, w.Price = l.Candidates[best].Market, l.Candidates[best].Price
		w.Soon = time.Duration(min(1e4, 1/rate) * float64(time.Hour)).Round(time.Minute)
	}
}

// take launches on spot, until no slack is left for it at the latest.
func (l *value) take(i int, why Why, cost float64) Decision {
	leave := l.Now.Add(l.slack - l.entry(&l.Candidates[i]))
	d := l.launch(i, why, soonest(l.nextReady(anyKind), l.again(), leave))
	d.Why.Cost = amount(cost)
	return d
}

// worthMoving is the hours of the price in hand that a move must save at least: what
// tables and prices are rounded by.
const worthMoving = 0.1

func (l *value) onSpot() Decision {
	d := l.line.onSpot()
	cur := l.Current
	if d.Action != Stay || !cur.Running {
		return d
	}
	at := slices.IndexFunc(l.Candidates, func(c Candidate) bool { return c.Market == cur.Market })
	if at < 0 || l.spot[at] < 0 {
		return d
	}
	o := l.Candidates[at].Outlook
	class := classOf(&o.up, &o.Facts.NextUp)
	stay := l.table.between(func(a int) []float64 { return l.table.heldAt(l.spot[at], a) }, class, l.hours, l.work)
	d.Until = soonest(d.Until, l.again())
	d.Why.Cost = amount(stay)
	if spot, cost := l.bestSpot(); spot >= 0 && cost < stay-worthMoving*cur.Price.Float() {
		return l.take(spot, Why{Code: MovePays, Instead: amount(stay)}, cost)
	}
	return d
}

func (l *value) onDemand() Decision {
	cur := l.Current
	if !cur.Running {
		return l.stay(Why{Code: Launching, Slack: l.slack}, time.Time{})
	}
	region, _ := l.home()
	if at := slices.IndexFunc(l.Candidates, func(c Candidate) bool { return c.Market == cur.Market }); at >= 0 && l.region[at] >= 0 {
		region = l.region[at]
	}
	t := l.table
	stay := t.between(func(a int) []float64 { return t.netAt(a, region) }, l.downClass(), l.hours, l.work)
	if spot, cost := l.bestSpot(); spot >= 0 && cost < stay {
		// It may pay to see first that it stays up.
		c := &l.Candidates[spot]
		i := l.spot[spot]
		class := classOf(&c.Outlook.up, &c.Outlook.Facts.NextUp)
		now := t.between(func(a int) []float64 { return t.enterAt(i, a) }, class, l.hours, l.work)
		look := t.between(func(a int) []float64 { return t.seenAt(i, a) }, class, l.hours, l.work)
		if now <= look+0.02*c.Price.Float() {
			return l.take(spot, Why{Code: MovePays, Instead: amount(stay)}, cost)
		}
	}
	d := l.stay(Why{Code: KeepOnDemand, Slack: l.slack}, soonest(l.nextReady(isSpot), l.again()))
	d.Why.Cost = amount(stay)
	return d
}

// amount is dollars as money; what does not fit is money.MaxAmount.
func amount(dollars float64) money.Amount {
	a, err := money.FromFloat(dollars)
	if err != nil {
		return money.MaxAmount
	}
	return a
}
