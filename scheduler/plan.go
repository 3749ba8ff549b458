package scheduler

import (
	"slices"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/money"
	"gpubroker/internal/reason"
	"gpubroker/providers"
	"gpubroker/scheduler/policy"
)

// best is how many options a decision shows.
const best = 5

// look is how long may pass before a pass notices an event, for the policy.
const look = 5 * time.Second

// Plan decides what to do at s.Now. It does not change s, and may be run again
// at will: what it asks for is only done by whoever commits it. m may be nil.
func Plan(s *Snapshot, m *Memo) Result {
	if m == nil {
		m = &Memo{}
	}
	p := newPass(s, m)
	p.reconcile()
	p.serveAll()
	p.release()
	return p.out
}

// pass is the state of one Plan.
type pass struct {
	*Snapshot
	memo    *Memo
	classes map[string]*class
	book    *layer
	kept    map[budget.Key]string // periods whose room is kept, for which job
	// keptMarkets are markets whose next machine is kept, for which job.
	keptMarkets map[providers.Market]string
	ours        map[providers.Market]bool // where machines live; nil until asked for
	vacated     bool                      // machines are kept, which take no more tasks of others
	wanting     bool                      // what is in use does not count, see [pass.wanted]

	hosts   []host // of Snapshot.Machines
	pools   map[poolKey]*pool
	buckets map[bucketKey]*bucket

	quotas room // what is left in this pass

	aways map[string][]away // by the places of users, then by region of the catalog

	byID map[string]*host

	// born says when the machines that are not under way were launched; nil until
	// somebody asks.
	born map[providers.Market][]time.Time

	meters    meters                   // what is in use under the owner's limits
	given     map[string]money.Amount  // by project: what this pass has reserved for it
	rivals    bool                     // other projects wait for their turn
	rival     money.Amount             // what the next of them has had
	pause     func()                   // lets the others go on
	committed []int                    // machines on each commitment
	overdue   bool                     // a machine has tasks that should have ended long ago
	coming    map[providers.Market]int // machines under way
	launching int
	waitsFor  reason.Reason       // the launches that a gang before the others waits for
	gangs     int                 // placed by this pass
	jobTasks  map[string]int      // running
	jobPlaced map[string]int      // by this pass
	views     []policy.Candidate  // room for decide
	tables    map[policy.Key]bool // that are wanted
	scaled    []candidate         // room for shared
	world     uint64              // see seen
	regimes   []regime
	out       Result
}

func newPass(s *Snapshot, m *Memo) *pass {
	m.renew(s)
	p := &pass{
		Snapshot: s, memo: m, classes: map[string]*class{}, book: newLayer(s.Book), kept: map[budget.Key]string{}, keptMarkets: map[providers.Market]string{},
		pools: map[poolKey]*pool{}, buckets: make(map[bucketKey]*bucket, len(s.Machines)/2),
		given: map[string]money.Amount{}, coming: map[providers.Market]int{}, jobTasks: map[string]int{}, jobPlaced: map[string]int{},
	}
	for _, prov := range s.Providers {
		p.launching += prov.Launching
	}
	p.quotas, p.regimes = newRoom(s), s.regimes()
	p.index(s.Machines)
	for i := range s.Running {
		r := &s.Running[i]
		p.jobTasks[r.Group.Job]++
		h := p.byID[r.Machine]
		late := p.late(r, h)
		if h == nil {
			continue
		}
		h.spans.tasks++
		h.spans.ran += max(0, s.Now.Sub(r.Since))
		if late {
			h.overdue++
			p.overdue = true
		}
	}
	p.measure()
	p.commit()
	p.out.Decisions = make([]Decision, 0, len(s.Groups))
	return p
}

func (p *pass) wake(t time.Time) {
	if !t.IsZero() && t.After(p.Now) && (p.out.Wake.IsZero() || t.Before(p.out.Wake)) {
		p.out.Wake = t
	}
}

// serve places what it can of a group, and says why the rest waits.
func (p *pass) serve(g *Group) {
	at := len(p.out.Decisions)
	p.out.Decisions = append(p.out.Decisions, Decision{})
	d := Decision{Group: g.ID, Job: g.Job, Waiting: max(0, g.Waiting)}
	if d.Waiting > 0 {
		if d.Why, d.Again = p.hold(g); d.Why.IsZero() {
			p.wake(g.Closes)
			p.wake(g.StopAt)
			p.place(g, &d)
		}
	}
	d.Wait = d.Placed < d.Waiting
	p.wake(d.Again)
	p.jobPlaced[g.Job] += d.Placed
	p.out.Decisions[at] = d
}

// hold says why a group is not to start now, whatever the market, and until when.
func (p *pass) hold(g *Group) (reason.Reason, time.Time) {
	switch {
	case !p.Frozen.IsZero():
		return p.Frozen, time.Time{}
	case !g.Held.IsZero():
		return g.Held, time.Time{}
	case !g.StopAt.IsZero() && !g.StopAt.After(p.Now):
		return reason.New("deadline_passed", "deadline", clock(g.StopAt)), time.Time{}
	case g.Opens.After(p.Now):
		return reason.New("outside_window", "opens", clock(g.Opens)), g.Opens
	case g.NotBefore.After(p.Now):
		return reason.New("backoff", "until", clock(g.NotBefore)), g.NotBefore
	}
	return reason.Reason{}, time.Time{}
}

// room is how many tasks of a group may start, and what keeps the others.
func (p *pass) room(g *Group) (int, reason.Reason) {
	room, why := g.Waiting, reason.Reason{}
	if limit := max(0, g.Limit-p.jobPlaced[g.Job]); g.Limit >= 0 && limit < room {
		running := p.jobTasks[g.Job] + p.jobPlaced[g.Job]
		room, why = limit, reason.New("parallelism", "running", running, "limit", p.jobTasks[g.Job]+g.Limit)
	}
	for _, m := range p.limitsOf(g) {
		if free := max(0, m.Tasks-m.used.tasks); m.Tasks > 0 && free < room {
			room, why = free, m.because(atTaskLimit, use{})
		}
	}
	return room, why
}

// place fills slots in hand, then rents machines.
func (p *pass) place(g *Group, d *Decision) {
	room, limited := p.room(g)
	c := p.classOf(g)
	if d.Why = c.against; !d.Why.IsZero() {
		return
	}
	l := c.fits.ask.loadOf(g, p.jobTasks[g.Job])
	if g.Needs.gang() {
		p.placeGangs(g, c, &l, room, limited, d)
		return
	}
	d.Placed = p.reuse(g, p.inHandOnly(g, c, &l), &l, room)
	switch {
	case d.Placed < room:
		p.rent(g, c, &l, room, d)
		p.keep(g, c, &l, d)
		if d.Placed == room && !limited.IsZero() {
			d.Why = limited
		}
	case limited.IsZero():
		d.Why = reason.New("reused", "tasks", d.Placed)
	default:
		d.Why = limited
	}
}

// rent launches machines for what is left of a group, in the market that the
// policy picks; where that has no more, in the next that it picks.
func (p *pass) rent(g *Group, c *class, l *load, room int, d *Decision) {
	ch := p.choose(c, *l)
	d.Considered, d.Usable, d.Reasons, d.Best = ch.considered, ch.usable, ch.reasons, ch.options(l, c.limit)
	for k := range kinds {
		p.wake(p.Catalog.staleAt(k, p.Now, p.Settings.Stale))
	}
	if len(ch.candidates) == 0 {
		d.Why = nothingFits(ch)
		return
	}
	left := ch.candidates
	for d.Placed < room {
		if left = p.inStock(g.Job, c, left); len(left) == 0 {
			d.Why = p.usedUp(g.Job, c, ch)
			return
		}
		answer := p.decide(g, l, left, nil)
		p.wake(answer.Until)
		if answer.Action == policy.Wait {
			d.Why, d.Again = waits(&answer), answer.Until
			return
		}
		if d.Launched == 0 {
			d.Best = chosenFirst(d.Best, left[answer.Market].option(l, c.limit))
		}
		if p.launch(g, c, l, &left[answer.Market], room, d, answer.Why) {
			return
		}
	}
}

// launch rents machines at one candidate. It returns false when the offer has no
// more before the group is served or meets a limit.
func (p *pass) launch(g *Group, c *class, l *load, one *candidate, room int, d *Decision, why policy.Why) bool {
	slots := int(one.fit.slots)
	// What does not follow on slots that work now needs slots of its own, each
	// for as many tasks as it may take.
	follows := p.follow(g, c, l, one)
	for need := g.Waiting - d.Placed - follows; need > 0 && d.Placed < room; need -= slots * one.deep {
		if p.gone(g.Job, c, one) {
			return false
		}
		if d.Why = p.limits(g, 1); !d.Why.IsZero() {
			return true
		}
		lease, short, again := p.admit(g, c, one)
		if !short.IsZero() {
			d.Why, d.Again = short, again
			return true
		}
		lease.Tasks = min(room-d.Placed, slots)
		lease.Tasks = p.tasksLeft(g, lease.Market.Provider, lease.Tasks)
		p.out.Launches = append(p.out.Launches, lease)
		h := &host{launch: len(p.out.Launches) - 1, slots: slots, used: lease.Tasks, key: c.slotKey, price: lease.Price, billing: one.billing}
		p.put(g.pool(), c.slotKey, lease.Market, &one.shape.Shape, h)
		p.took(g, &lease, h)
		p.draw(one.offer)
		p.asks(g, &lease, one.billing)
		d.Launched++
		d.Placed += lease.Tasks
		p.turn(g.Project)
	}
	rest := g.Waiting - d.Placed
	p.claim(g, c, one, rest)
	switch {
	case d.Launched == 0:
		d.Why = reason.New("follows", "tasks", rest, "rounds", one.deep)
	case rest > 0 && d.Placed < room && l.due(p.Now) && !one.late:
		d.Why = reason.New("in_turn", "machines", d.Launched, "rounds", one.rounds, "by", clock(g.Deadline))
	case rest > 0 && d.Placed < room:
		d.Why = reason.New("in_turn", "machines", d.Launched, "rounds", one.deep)
	case one.committed:
		c := &p.Catalog.commitments[one.offer.commitment-1]
		d.Why = reason.New("committed", "market", one.offer.Market, "used", p.committed[one.offer.commitment-1], "machines", c.Machines)
	default:
		d.Why = reason.New("chosen", "why", why.String())
	}
	return true
}

// soldOut reports whether n more machines are not to be had: with those under way
// they are more than the offer has, or than its account's quotas leave.
func (p *pass) soldOut(o *Offer, n int) bool {
	if p.short(o, n) >= 0 {
		return true
	}
	return o.Capacity > 0 && p.taken(o)+n > o.Capacity
}

// taken counts the machines of an offer that its number does not know of: those
// under way, and those that were launched after it was seen.
func (p *pass) taken(o *Offer) int {
	n := p.coming[o.Market]
	for _, born := range p.bornIn(o.Market) {
		if born.After(o.Seen) {
			n++
		}
	}
	return n
}

// gone reports whether nothing more is to be had at a candidate for a job.
func (p *pass) gone(job string, c *class, one *candidate) bool {
	n := p.missing(c, one.offer.Market)
	if p.soldOut(one.offer, n) || one.committed && p.spare(one.offer) < n {
		return true
	}
	_, over := p.over(job, c, one.offer)
	return over != usable
}

// inStock leaves out the candidates that have no more.
func (p *pass) inStock(job string, c *class, candidates []candidate) []candidate {
	gone := func(one candidate) bool { return p.gone(job, c, &one) }
	if !slices.ContainsFunc(candidates, gone) {
		return candidates
	}
	return slices.DeleteFunc(slices.Clone(candidates), gone)
}

// usedUp says why nothing is left of what would do: the limit that the best of it
// meets, or that all is under way.
func (p *pass) usedUp(job string, c *class, ch *choice) reason.Reason {
	for i := range ch.candidates {
		o := ch.candidates[i].offer
		if n := p.missing(c, o.Market); p.short(o, n) >= 0 {
			return p.shortage(o, n)
		}
		if m, over := p.over(job, c, o); over != usable {
			return m.because(over, c.useOf(p, o))
		}
	}
	return reason.New("sold_out", "offers", len(ch.candidates))
}

func waits(answer *policy.Decision) reason.Reason {
	if answer.Why.Code == policy.CooledDown || answer.Why.Code == policy.NoCandidate {
		return reason.New("all_cooled_down", "until", clock(answer.Until))
	}
	return reason.New("policy_wait", "why", answer.Why.String())
}

func nothingFits(ch *choice) reason.Reason {
	if len(ch.reasons) == 0 {
		return reason.New("no_offers")
	}
	if !ch.closest.IsZero() {
		return reason.New("no_offer_fits", "closest", ch.closest, "offers", ch.considered)
	}
	// That other GPUs and places are not asked for says little: what keeps the rest
	// is the telling one.
	if i := slices.IndexFunc(ch.reasons, func(c Count) bool { return !slices.Contains(notAsked, c.Code) }); i > 0 {
		return reason.New("no_offer_fits", "asked", ch.reasons[i].Sample, "offers", ch.considered)
	}
	return reason.New("no_offer_fits", "top", ch.reasons[0].Sample, "offers", ch.considered)
}

// notAsked are the reasons against offers of what the job does not name.
var notAsked = []reason.Code{
	"no_gpu", "gpu_other", rulingCodes[noAccount], rulingCodes[providerNotAsked], rulingCodes[regionNotAsked], rulingCodes[zoneNotAsked],
}

func chosenFirst(list []Option, chosen Option) []Option {
	if len(list) > 0 && list[0].Market == chosen.Market && list[0].Committed == chosen.Committed {
		return list
	}
	out := []Option{chosen}
	for _, o := range list {
		if (o.Market != chosen.Market || o.Committed != chosen.Committed) && len(out) < best {
			out = append(out, o)
		}
	}
	return out
}

// decide asks the policy about candidates, each as the cost of one task.
func (p *pass) decide(g *Group, l *load, candidates []candidate, current *policy.Placement) policy.Decision {
	v := policy.View{
		Policy: g.Policy, Now: p.Now, Start: g.Accepted.Add(g.ShutBefore), Deadline: g.due(),
		Interruptible: g.Interruptible, SpotAllowed: g.SpotAllowed,
		AtRisk: l.atRisk, Margin: p.Settings.Margin, Look: look,
		Patience: g.MaxWait, WaitingSince: g.Waits, Current: current,
	}
	p.views = p.views[:0]
	for i := range candidates {
		p.views = append(p.views, candidates[i].view())
	}
	v.Candidates, v.Library, v.Egress = p.views, p.Library, elsewhere(p.views)
	if g.Reopens > 0 && !v.Deadline.IsZero() {
		again := time.Duration(0)
		for i := range v.Candidates {
			again = max(again, v.Candidates[i].Delay)
		}
		v.Deadline = v.Deadline.Add(-often(g.Reopens, again))
	}
	// The reference rate is the best candidate's, and the work is what its slots
	// run one after another.
	switch {
	case len(candidates) > 0:
		v.Left = candidates[0].work()
	case current != nil:
		v.Left = current.Work
	}
	v.Total = v.Left
	if g.Left > 0 && g.Left < 1 {
		v.Total = part(v.Left, 1/g.Left)
	}
	d := p.ask(g, &v)
	if d.Market >= 0 {
		// People read the price of the machine, not of a task's share.
		d.Why.Price = candidates[d.Market].price
	}
	return d
}
