package scheduler

import (
	"cmp"
	"math"
	"strconv"
	"time"

	"gpubroker/internal/egress"
	"gpubroker/internal/money"
	"gpubroker/internal/reason"
	"gpubroker/scheduler/policy"
)

const (
	// assumedBps stands for the bandwidth of a machine whose offer says none, in
	// bits per second.
	assumedBps = 1_000_000_000
	// assumedSave stands for the time of a save whose size is not known.
	assumedSave = 30 * time.Second
)

// Way is how bytes go between a store and a task's machine.
type Way uint8

// The ways.
const (
	Fetch Way = iota // before the task starts
	Send             // when it is done
	Keep             // with every save
)

// Flow is bytes that each task moves.
type Flow struct {
	What  string // inputs, workdir, checkpoint, outputs: for people
	Way   Way
	Bytes int64 // of one task, and with Keep of one save
	// Unknown says that the size is not known, or only that of a part of it.
	Unknown bool
	At      egress.Place // of the store
}

// Saves is how a task's program saves its state. The zero Saves is not at all.
type Saves struct {
	On    bool
	Every time.Duration // asked for; 0 is what pays best in the market
	Time  time.Duration // that a save takes; 0 is by its bytes, or assumed
}

// appendKey tells apart flows that cost differently somewhere.
func (f *Flow) appendKey(b []byte) []byte {
	b = append(b, byte(f.Way))
	b = append(b, f.What...)
	b = strconv.AppendInt(append(b, 0), f.Bytes, 10)
	b = appendBools(b, f.Unknown)
	return append(append(append(append(b, f.At.Cloud...), 0), f.At.Region...), 0)
}

// flow sums what each task moves.
func (l *load) flow(flows []Flow) {
	for i := range flows {
		switch f := &flows[i]; f.Way {
		case Fetch:
			l.fetch = more(l.fetch, f.Bytes)
		case Send:
			l.send = more(l.send, f.Bytes)
		case Keep:
			l.keep = more(l.keep, f.Bytes)
		}
	}
}

// transfer is what the flows of a task cost at one place.
type transfer struct {
	once  money.Amount // for a task
	saved money.Amount // for one of its saves
	notes []reason.Reason
}

// transfer prices the flows of a class at an offer's place. What is not known is
// not counted, and stands in the notes.
func (p *pass) transfer(c *class, provider, name string) *transfer {
	at := region{provider, name}
	if t, ok := c.transfers[at]; ok {
		return t
	}
	t := &transfer{}
	here := egress.Place{Cloud: p.Providers[provider].Cloud, Region: name}
	for i := range c.flows {
		f := &c.flows[i]
		from, to := f.At, here
		if f.Way != Fetch {
			from, to = here, f.At
		}
		price, known := money.Amount(0), false
		if p.Egress != nil {
			price, known = p.Egress.Price(from, to)
		}
		cost := egress.Cost(f.Bytes, price)
		if f.Unknown {
			t.notes = append(t.notes, reason.New("size_unknown", "what", f.What))
		}
		switch {
		case !known && (f.Bytes > 0 || f.Unknown):
			t.notes = append(t.notes, reason.New("egress_unknown", "what", f.What, "from", from, "to", to))
		case f.Unknown && price > 0:
			t.notes[len(t.notes)-1] = reason.New("egress_size_unknown", "what", f.What, "price", price, "from", from, "to", to)
		}
		if f.Way == Fetch { // every machine of a gang does
			cost = times(c.needs.nodes(), cost)
		}
		if f.Way == Keep {
			t.saved = more(t.saved, cost)
		} else {
			t.once = more(t.once, cost)
		}
	}
	c.transfers[at] = t
	return t
}

// more adds amounts of money, bytes or time; what does not fit is the most that does.
func more[T ~int64](a, b T) T {
	if s := a + b; b <= 0 || s > a {
		return s
	}
	return math.MaxInt64
}

// times is n times an amount, in the same way.
func times[T ~int64](n int, a T) T {
	if a > 0 && n > 0 && math.MaxInt64/a < T(n) {
		return math.MaxInt64
	}
	return T(n) * a
}

// often is a length n times over, bounded like [farAway].
func often(n int, d time.Duration) time.Duration { return min(times(n, d), 10*farAway) }

// moving is how long bytes take on a slot's share of a machine's link. What a
// machine's slots fetch, they fetch at once.
func moving(bytes, bps int64, slots int) time.Duration {
	if bytes <= 0 {
		return 0
	}
	if bps <= 0 {
		bps = assumedBps
	}
	seconds := float64(bytes) * 8 / float64(bps) * float64(max(1, slots))
	return time.Duration(min(seconds, farAway.Seconds()) * float64(time.Second)).Round(time.Millisecond)
}

// farAway bounds lengths that are worked out, so that sums of them fit.
const farAway = 10 * 365 * 24 * time.Hour

// in is how long a task fetches before it starts, on a slot.
func (l *load) in(bps int64, slots int) time.Duration {
	return l.stage + moving(l.fetch, bps, min(slots, l.waiting))
}

// out is how long it sends when it is done.
func (l *load) out(bps int64, slots int) time.Duration {
	return moving(l.send, bps, min(slots, l.waiting))
}

// saving is how a task of that length saves in a market: how often, and how much
// longer it takes for that. Saves by an interval that was asked for are made
// everywhere; others only where something can be lost.
func (l *load) saving(task, save time.Duration, history policy.History, spot bool) (every, overhead time.Duration, n int) {
	if !l.saves.On {
		return 0, 0, 0
	}
	if every = l.saves.Every; every <= 0 {
		if every = policy.CheckpointInterval(save, policy.Life(history, policy.History{})/time.Duration(l.nodes)); every <= 0 {
			return 0, 0, 0
		}
		if !spot {
			return every, 0, 0
		}
	}
	n = int(min((task-1)/every, 1<<20)) // none at the very end
	return every, min(often(n, save), farAway), n
}

// saveTime is how long one save holds up a task.
func (l *load) saveTime(bps int64, slots int) time.Duration {
	return cmp.Or(min(l.saves.Time, farAway), moving(l.keep, bps, min(slots, l.waiting)), assumedSave)
}

// assumptions is what an option's estimate takes for granted or leaves out.
func (c *candidate) assumptions(l *load) []reason.Reason {
	var out []reason.Reason
	if c.shape.NetworkBps <= 0 && l.fetch+l.send+l.keep > 0 {
		out = append(out, reason.New("bandwidth_assumed", "gbps", strconv.FormatFloat(assumedBps/1e9, 'f', -1, 64)))
	}
	if c.saves > 0 && l.saves.Time <= 0 && l.keep <= 0 {
		out = append(out, reason.New("save_assumed", "time", assumedSave))
	}
	if c.transfer != nil {
		out = append(out, c.transfer.notes...)
	}
	return out
}
