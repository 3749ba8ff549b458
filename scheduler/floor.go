package scheduler

import (
	"math"
	"slices"
	"time"

	"gpubroker/internal/money"
	"gpubroker/scheduler/policy"
)

// regime is how machines of a provider are paid beside their work.
type regime struct {
	boot, tail time.Duration
	billing    money.Billing
}

func (s *Snapshot) regime(provider string) regime {
	caps := s.Providers[provider].Capabilities
	r := regime{boot: caps.BootTime, billing: caps.Billing}
	if max(caps.Billing.Unit, caps.Billing.Minimum) < longUnit {
		r.tail = s.Settings.Idle // billed by longer units, it is kept within the last one
	}
	return r
}

// regimes are those of all providers, each once.
func (s *Snapshot) regimes() []regime {
	var out []regime
	for name := range s.Providers {
		if r := s.regime(name); !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

// forgiven is what an expectation, which is rounded to the second, may be below
// the time it stands for.
const forgiven = 0.5

// shade makes a bound hold in spite of the arithmetic of floats.
const shade = 1 - 1e-6

// soonest is how long a slot takes at the least on a fit, whatever the market, for
// the rounds that the job's parallelism leaves it.
func (p *pass) soonest(l *load, f fitted, e estimate) time.Duration {
	bps, slots := p.Catalog.Shapes[f.shape].NetworkBps, int(f.slots)
	least := time.Duration(math.MaxInt64)
	for _, r := range p.regimes {
		least = min(least, r.boot)
	}
	in, out := l.in(bps, slots), l.out(bps, slots)
	return least + often(l.rounds(1, slots), in+e.task+l.sureSaves(e, bps, slots)+out) - out
}

// sureSaves is how long the saves of a task take that are made everywhere, whatever
// the market: those by an interval of the job's own.
func (l *load) sureSaves(e estimate, bps int64, slots int) time.Duration {
	if l.saves.Every <= 0 {
		return 0
	}
	_, saved, _ := l.saving(e.task, l.saveTime(bps, slots), policy.History{}, false)
	return saved
}

// floor is how many of a machine's hours one task costs at the least on a fit,
// whatever the market: boot, staging, work, saves by an interval of the job's own and
// idle time, with no other save, no preemption, no egress and no rounding. More rounds than are counted on here no
// slot has.
func (p *pass) floor(l *load, f fitted, e estimate) float64 {
	bps, slots := p.Catalog.Shapes[f.shape].NetworkBps, int(f.slots)
	round := l.in(bps, slots) + e.task + l.sureSaves(e, bps, slots) + l.out(bps, slots)
	least := 0.0
	for i, r := range p.regimes {
		rounds := l.rounds(l.deep(p.Now, p.Settings.Margin, slot{boot: r.boot, round: round, tail: r.tail, slots: slots, billing: l.loose(r.billing, e), price: math.MaxInt64, guess: e.source == Assumed}), slots)
		hold := (r.boot + r.tail).Seconds() + float64(rounds)*round.Seconds()
		each := max(0, hold-forgiven) / float64(rounds*min(slots, l.waiting))
		if i == 0 || each < least {
			least = each
		}
	}
	return float64(l.nodes) * least / 3600 * shade
}

// loose is a billing under which a slot is given the most rounds: with a deadline
// that is one by the second.
func (l *load) loose(b money.Billing, e estimate) money.Billing {
	if e.source != Assumed && !l.deadline.IsZero() {
		return money.Billing{Unit: time.Second}
	}
	return b
}

// rest is what a task costs at the least beside its work, for each unit of the
// price of a slot and of the figure: a share of a boot and an idle time. It is the
// least for the slowest of GPUs on which a task's time goes by the figure.
func (p *pass) rest(l *load, e estimate, figure float64) float64 {
	least := 0.0
	for i, r := range p.regimes {
		busy := max(r.boot*(100-bootShare)/bootShare, r.billing.Unit, r.billing.Minimum)
		if l.due(p.Now) {
			busy = max(busy, l.room(p.Now, r.boot, p.Settings.Margin))
		}
		rounds := busy.Seconds()/e.task.Seconds() + 1
		if l.width > 0 {
			rounds = max(rounds, float64(l.waiting)/float64(l.width)+1)
		}
		rest := max(0, (r.boot+r.tail).Seconds()-forgiven) / rounds
		if i == 0 || rest < least {
			least = rest
		}
	}
	return figure * least / 3600 * shade
}
