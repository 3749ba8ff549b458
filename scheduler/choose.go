package scheduler

import (
	"cmp"
	"slices"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/reason"
	"gpubroker/providers"
	"gpubroker/scheduler/policy"
)

// How many candidates the policy sees: the best that may be used now, and the
// best that are cooled down, which it may wait for.
const (
	readySpot      = 7
	readyOnDemand  = 5
	cooledSpot     = 2
	cooledOnDemand = policy.MaxCandidates - readySpot - readyOnDemand - cooledSpot
)

// ruling is why an offer of a shape that fits is not used.
type ruling uint8

const (
	usable ruling = iota
	noPrice
	otherCurrency
	noAccount
	refused // by provider, with a reason of its own
	kindNotAllowed
	notInterruptible
	providerNotAsked
	regionNotAsked
	zoneNotAsked
	ruleKind
	ruleGPU
	ruleProvider
	ruleRegion
	rulePrice
	tooFar
	rttUnknown
	full
	tooFew
	noQuota
	atTaskLimit
	atMachineLimit
	atGPULimit
	atHourlyLimit
	keptForOther
	stale
	windowCloses
	overMax
	cooledDown
	dearer
	rulings
)

var rulingCodes = [rulings]reason.Code{
	noPrice: "no_price", otherCurrency: "other_currency", noAccount: "no_account",
	kindNotAllowed: "kind_not_allowed", notInterruptible: "not_interruptible",
	providerNotAsked: "provider_not_asked", regionNotAsked: "region_not_asked", zoneNotAsked: "zone_not_asked",
	ruleKind: "rule_kind", ruleGPU: "rule_gpu", ruleProvider: "rule_provider", ruleRegion: "rule_region", rulePrice: "rule_price",
	full: "full", tooFew: "gang_capacity", noQuota: "quota", atTaskLimit: "task_limit", atMachineLimit: "machine_limit", atGPULimit: "gpu_limit", atHourlyLimit: "hourly_limit", keptForOther: "kept_for", stale: "stale_price", windowCloses: "window_closes", overMax: "price_over_max",
	tooFar: "too_far", rttUnknown: "rtt_unknown",
	cooledDown: "cooled_down", dearer: "dearer",
}

// class is groups that may use the same offers and machines. It lives for a pass.
type class struct {
	needs   *Needs
	fits    *fitSet
	slotKey string
	pool    poolKey
	hand    map[providers.Market][]*host // see inHand
	handAt  int                          // for so many assigns
	kinds   [len(kinds)]ruling
	rules   []Rules
	patient bool          // its tasks wait for spot
	limit   money.Rate    // most that a machine may cost per hour; 0 means none
	meters  [3]*meter     // that count its machines, beside the account's
	metered bool          // one of them depends on the offer
	against reason.Reason // the rule that these groups can never meet
	// refused says for each provider of the catalog why it may not be used.
	refused []reason.Reason
	known   []bool
	away    []away // by region of the catalog; nil where distance does not matter
	suits   map[*bucket]fitted
	choices map[load]*choice
	wanted  map[load]*choice // were nothing in use
	paces   map[paceKey]*pace
	// flows is what each task moves, transfers what that costs by place.
	flows     []Flow
	transfers map[region]*transfer
}

// choice is what the market offers a load.
type choice struct {
	candidates []candidate // usable and cooled down, in order
	shown      []candidate // the best machines to be had, each in its best place; only of a whole look
	usable     int
	considered int
	reasons    []Count
	closest    reason.Reason // what most stands against offers of machines that would do
	best       []Option
}

// ready is the first candidate that may be used now.
func (ch *choice) ready() *candidate {
	for i := range ch.candidates {
		if ch.candidates[i].cooled.IsZero() {
			return &ch.candidates[i]
		}
	}
	return nil
}

// classOf finds or makes the class of a group.
func (p *pass) classOf(g *Group) *class {
	var room [384]byte
	n := &g.Needs
	b := n.appendKey(room[:0])
	for _, words := range [...][]string{n.Providers, n.Regions, n.Zones} {
		b = appendWords(b, words)
	}
	for _, k := range n.Kinds {
		b = append(append(b, k...), 0)
	}
	for _, w := range [...]string{g.Payer.Team, g.Payer.Project, g.Payer.Job, g.Project, g.OnDemand} {
		b = append(append(b, w...), 1)
	}
	b = appendRate(n.Near.appendKey(b), n.MaxPrice)
	b = appendBools(b, g.Interruptible, g.SpotAllowed, g.MaxWait > 0)
	if g.longest() > 0 {
		b = appendRate(b, money.Rate(g.longest()))
	}
	for i := range g.Rules {
		b = g.Rules[i].appendKey(b)
	}
	if q := p.queue(g.Queue); q.onMachines() {
		b = append(append(b, g.Queue...), 1)
	}
	for i := range g.Work.Flows {
		b = g.Work.Flows[i].appendKey(b)
	}
	if c, ok := p.classes[string(b)]; ok {
		return c
	}
	c := &class{
		needs: n, fits: p.memo.fitsFor(p.Snapshot, n), slotKey: n.SlotKey(), pool: g.pool(), kinds: g.kindRulings(),
		rules: g.Rules, patient: g.MaxWait > 0, limit: g.ceiling(), meters: p.limitsOf(g), against: g.Against(p.Facts),
		choices: map[load]*choice{}, suits: map[*bucket]fitted{}, flows: g.Work.Flows, transfers: map[region]*transfer{},
	}
	for _, m := range c.meters {
		c.metered = c.metered || m.GPUs > 0 || m.PerHour > 0
	}
	c.refused, c.known = p.refusals(g)
	c.away = p.awayFrom(&n.Near)
	p.classes[string(b)] = c
	return c
}

func appendRate(b []byte, r money.Rate) []byte {
	for r > 0 {
		b = append(b, byte(r))
		r >>= 8
	}
	return append(b, 1)
}

func appendBools(b []byte, flags ...bool) []byte {
	for _, f := range flags {
		if f {
			b = append(b, '+')
		} else {
			b = append(b, '-')
		}
	}
	return b
}

// longest is how long a machine must be able to live for work that cannot stop.
func (g *Group) longest() time.Duration {
	if g.Interruptible {
		return 0
	}
	return g.MaxDuration
}

// kindRulings says which kinds of capacity the group may not use.
func (g *Group) kindRulings() [len(kinds)]ruling {
	var out [len(kinds)]ruling
	for k, kind := range kinds {
		if len(g.Needs.Kinds) > 0 && !slices.Contains(g.Needs.Kinds, kind) {
			out[k] = kindNotAllowed
		}
	}
	if out[0] == usable && !g.Interruptible && !g.SpotAllowed {
		out[0] = notInterruptible
	}
	if g.OnDemand == OnDemandNever {
		out[1] = kindNotAllowed
	}
	return out
}

// refusals says which providers the group may not use at all, and which have an
// account.
func (s *Snapshot) refusals(g *Group) (refused []reason.Reason, known []bool) {
	strict := ""
	for i := range s.Budgets {
		if b := &s.Budgets[i]; b.Guard == "strict" && b.Matches(g.Payer) && (strict == "" || b.Name < strict) {
			strict = b.Name
		}
	}
	refused = make([]reason.Reason, len(s.Catalog.providers))
	known = make([]bool, len(refused))
	for i, name := range s.Catalog.providers {
		p, ok := s.Providers[name]
		known[i] = ok
		caps := &p.Capabilities
		itself := (caps.SelfEnd == providers.EndGuest || caps.SelfEnd == providers.EndNone) && !caps.Shared
		switch {
		case !ok:
		case len(p.Projects) > 0 && !slices.Contains(p.Projects, g.Project):
			refused[i] = reason.New("provider_not_for_project", "provider", name, "project", g.Project)
		case !p.Ready.IsZero():
			refused[i] = p.Ready
		case strict != "" && itself:
			refused[i] = reason.New("no_guest_end", "provider", name, "budget", strict)
		case caps.SelfEnd == providers.EndNone && itself && !p.GuestEnd:
			refused[i] = reason.New("nothing_ends_it", "provider", name)
		case caps.LongestLife > 0 && g.longest()+caps.BootTime+g.Work.Stage > caps.LongestLife:
			refused[i] = reason.New("longest_life", "provider", name, "life", caps.LongestLife, "want", g.longest())
		}
	}
	return refused, known
}

// rule says why an offer may not be used now.
func (p *pass) rule(l *load, c *class, o *Offer) ruling {
	n := c.needs
	_, broken := c.ruled(p.Facts, &o.Market, &p.Catalog.Shapes[o.shape].Shape, o.Price)
	switch {
	case o.Price <= 0:
		return noPrice
	case o.Currency != "" && o.Currency != money.USD:
		return otherCurrency
	case !c.known[o.provider]:
		return noAccount
	case !c.refused[o.provider].IsZero():
		return refused
	case broken != usable:
		return broken
	case len(n.Providers) > 0 && !slices.Contains(n.Providers, o.Market.Provider):
		return providerNotAsked
	case len(n.Regions) > 0 && !slices.Contains(n.Regions, o.Market.Region):
		return regionNotAsked
	case len(n.Zones) > 0 && !slices.Contains(n.Zones, o.Market.Zone):
		return zoneNotAsked
	case c.away != nil && n.Near.rule(c.away[o.region]) != usable:
		return n.Near.rule(c.away[o.region])
	case p.wanting && p.impossible(c, o) != usable:
		return p.impossible(c, o)
	case p.wanting:
	case o.Full:
		return full
	case n.gang() && o.Capacity > 0 && p.taken(o)+p.missing(c, o.Market) > o.Capacity:
		return tooFew
	case p.short(o, p.missing(c, o.Market)) >= 0:
		return noQuota
	}
	switch {
	case p.Settings.Stale.Is(o.Market.Kind, o.Seen, p.Now):
		return stale
	case n.MaxPrice > 0 && o.Price > n.MaxPrice:
		return overMax
	case !l.closes.IsZero() && !p.Now.Add(p.Providers[o.Market.Provider].Capabilities.BootTime+l.in(p.Catalog.Shapes[o.shape].NetworkBps, 1)).Before(l.closes):
		return windowCloses
	}
	if p.wanting {
		return usable
	}
	_, over := p.over("", c, o)
	return over
}

// because gives a ruling its numbers.
func (p *pass) because(r ruling, l *load, c *class, o *Offer) reason.Reason {
	code := rulingCodes[r]
	switch r {
	case noPrice, full:
		return reason.New(code, "market", o.Market)
	case noQuota:
		return p.shortage(o, p.missing(c, o.Market))
	case tooFew:
		return reason.New(code, "market", o.Market, "have", max(0, o.Capacity-p.taken(o)), "want", p.missing(c, o.Market))
	case otherCurrency:
		return reason.New(code, "currency", o.Currency)
	case noAccount, providerNotAsked:
		return reason.New(code, "provider", o.Market.Provider)
	case refused:
		return c.refused[o.provider]
	case kindNotAllowed:
		return reason.New(code, "kind", o.Market.Kind)
	case regionNotAsked:
		return reason.New(code, "region", o.Market.Region)
	case zoneNotAsked:
		return reason.New(code, "zone", cmp.Or(o.Market.Zone, "unknown"))
	case tooFar, rttUnknown:
		return c.needs.Near.because(code, o.Market.Region, c.away[o.region])
	case stale:
		return reason.New(code, "seen", clock(o.Seen))
	case windowCloses:
		return reason.New(code, "closes", clock(l.closes))
	case overMax:
		return reason.New(code, "price", money.Amount(o.Price).Round(4), "max", c.needs.MaxPrice)
	case ruleKind, ruleGPU, ruleProvider, ruleRegion, rulePrice:
		s := &p.Catalog.Shapes[o.shape].Shape
		if of, broken := c.ruled(p.Facts, &o.Market, s, o.Price); broken == r {
			return of.because(r, o, s)
		}
	case atTaskLimit, atMachineLimit, atGPULimit, atHourlyLimit, keptForOther:
		if m, over := p.over("", c, o); over == r {
			return m.because(r, c.useOf(p, o))
		}
	case cooledDown:
		cool, _ := p.cooled(o.Market)
		return reason.New(code, "until", clock(cool.Until), "after", cool.Reason.Code)
	case usable, notInterruptible, dearer, rulings:
	}
	return reason.New(code)
}

// choose asks the market, once for all groups of a class with the same load.
func (p *pass) choose(c *class, l load) *choice {
	if ch, ok := c.choices[l]; ok {
		return ch
	}
	ch := p.look(c, &l, false)
	c.choices[l] = ch
	return ch
}

// look walks the offers of the shapes that fit, by what the work costs there at
// the least, and stops where no later one can enter the best. whole walks all.
func (p *pass) look(c *class, l *load, whole bool) *choice {
	t := tally{pass: p, load: l, class: c}
	ready := [...]top{{n: readySpot}, {n: readyOnDemand}}
	cooled := [...]top{{n: cooledSpot}, {n: cooledOnDemand}}
	filled := top{n: cooledSpot} // spot that may come again
	shown := top{n: best, various: true}
	ch := &choice{considered: p.Catalog.Offers}
	for k := range kinds {
		w := p.walk(c, l, k)
		for {
			at, least, ok := w.next()
			if !ok {
				break
			}
			f := c.fits.fits[at]
			shape := &p.Catalog.Shapes[f.shape]
			list := shape.list(k)
			if _, why := c.ruledOut(p.Facts, kinds[k], &shape.Shape); why != usable {
				t.add(why, &list[0], len(list))
				w.rest -= len(list)
				continue
			}
			if why := c.kinds[k]; why != usable {
				t.add(why, &list[0], w.rest)
				break
			}
			if !whole && ready[k].closed(least, 0) {
				t.add(dearer, &list[0], w.rest)
				break
			}
			w.rest -= len(list)
			e := p.on(c, l, &shape.Shape, f.figure)
			var floor float64
			var done time.Duration
			if !whole {
				if ready[k].late() {
					if done = p.soonest(l, f, e); ready[k].closed(0, done) {
						t.add(dearer, &list[0], len(list))
						continue
					}
				}
				floor = p.floor(l, f, e)
			}
			for j := range list {
				o := &list[j]
				if !whole && ready[k].closed(float64(o.least)*floor, done) {
					t.add(dearer, o, len(list)-j)
					break
				}
				why := p.rule(l, c, o)
				if (why == overMax || why == rulePrice) && !whole && o.commitment == 0 {
					t.add(why, o, len(list)-j) // the rest is dearer still
					break
				}
				again := kinds[k] == providers.Spot && why == full && (l.due(p.Now) || c.patient)
				if why != usable {
					t.add(why, o, 1)
					if !again {
						continue
					}
				}
				var moved *transfer
				if len(c.flows) > 0 {
					moved = p.transfer(c, o.Market.Provider, o.Market.Region)
				}
				one := p.price(l, f, e, o, o.Price, moved)
				if again {
					one.cooled = p.Now.Add(refill)
					filled.add(&one)
					continue
				}
				if cool, is := p.cooled(o.Market); is {
					one.cooled = cool.Until
					t.add(cooledDown, o, 1)
					cooled[k].add(&one)
					continue
				}
				ch.usable++
				ready[k].add(&one)
				if whole {
					shown.add(&one)
				}
				if p.spare(o) >= p.missing(c, o.Market) {
					one = p.price(l, f, e, o, paidFor, moved)
					one.committed = true
					ready[k].add(&one)
					if whole {
						shown.add(&one)
					}
				}
			}
		}
	}
	ch.shown = shown.list
	ch.candidates = slices.Concat(ready[0].list, ready[1].list, cooled[0].list, cooled[1].list)
	if len(ready[1].list)+len(cooled[1].list) > 0 && len(cooled[0].list) < cooledSpot {
		// What is full is only worth waiting for where something else could be taken.
		n := min(len(filled.list), cooledSpot-len(cooled[0].list))
		ch.candidates = append(ch.candidates, filled.list[:n]...)
	}
	slices.SortFunc(ch.candidates, func(a, b candidate) int { return a.compare(&b) })
	for i := range ch.candidates {
		c := &ch.candidates[i]
		c.named(p.Snapshot)
	}
	ch.reasons, ch.closest = t.counts(), t.closest()
	return ch
}

// options shows the best candidates, those that may be used now first. A whole look
// shows as many kinds of machines as there are: not one in five zones.
func (ch *choice) options(l *load, limit money.Rate) []Option {
	if ch.best == nil {
		for i := range ch.shown {
			ch.best = append(ch.best, ch.shown[i].option(l, limit))
		}
		for _, want := range [...]bool{false, true} {
			for i := range ch.candidates {
				if c := &ch.candidates[i]; c.cooled.IsZero() != want && len(ch.best) < best && (want || ch.shown == nil) {
					ch.best = append(ch.best, c.option(l, limit))
				}
			}
		}
	}
	return ch.best
}

// tally counts the offers that were ruled out.
type tally struct {
	pass  *pass
	load  *load
	class *class
	ruled [rulings]struct {
		offers int
		sample *Offer
	}
	refused map[reason.Code]*Count // each provider has its own reason
}

// add counts offers; o is one of them.
func (t *tally) add(r ruling, o *Offer, offers int) {
	if r == refused {
		why := t.class.refused[o.provider]
		if t.refused == nil {
			t.refused = map[reason.Code]*Count{}
		}
		c := t.refused[why.Code]
		if c == nil {
			c = &Count{Code: why.Code, Sample: why}
			t.refused[why.Code] = c
		}
		c.Offers += offers
		return
	}
	one := &t.ruled[r]
	one.offers += offers
	// The sample is the cheapest, which is the one that people ask about.
	if one.sample == nil || r != dearer && cmp.Or(cmp.Compare(o.Price, one.sample.Price), o.Market.Compare(one.sample.Market)) < 0 {
		one.sample = o
	}
}

func (t *tally) counts() []Count {
	out := slices.Clone(t.class.fits.unfit)
	merge := func(c Count) {
		if i := slices.IndexFunc(out, func(o Count) bool { return o.Code == c.Code }); i >= 0 {
			out[i].Offers += c.Offers
			return
		}
		out = append(out, c)
	}
	for r := range t.ruled {
		if one := &t.ruled[r]; one.offers > 0 {
			merge(Count{Code: rulingCodes[r], Offers: one.offers, Sample: t.pass.because(ruling(r), t.load, t.class, one.sample)})
		}
	}
	for _, c := range t.refused {
		merge(*c)
	}
	sortCounts(out)
	return out
}

// closest is the most common reason why machines that would do, and that the job
// admits, are not used: an account that is not set up, capacity, quotas, age.
// Where there is none it is zero.
func (t *tally) closest() reason.Reason {
	var out []Count
	if one := &t.ruled[keptForOther]; one.offers > 0 { // it would be free, were it not for that
		return t.pass.because(keptForOther, t.load, t.class, one.sample)
	}
	for _, r := range [...]ruling{full, tooFew, noQuota, stale, atTaskLimit, atMachineLimit, atGPULimit, atHourlyLimit} {
		if one := &t.ruled[r]; one.offers > 0 {
			out = append(out, Count{Code: rulingCodes[r], Offers: one.offers, Sample: t.pass.because(r, t.load, t.class, one.sample)})
		}
	}
	for _, c := range t.refused {
		out = append(out, *c)
	}
	if len(out) == 0 {
		return reason.Reason{}
	}
	sortCounts(out)
	return out[0].Sample
}

func sortCounts(counts []Count) {
	slices.SortFunc(counts, func(a, b Count) int { return cmp.Or(cmp.Compare(b.Offers, a.Offers), cmp.Compare(a.Code, b.Code)) })
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }
