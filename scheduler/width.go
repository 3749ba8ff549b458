package scheduler

import (
	"math"
	"time"

	"gpubroker/internal/money"
)

// slot is how a load runs on one slot of an offer.
type slot struct {
	boot    time.Duration
	round   time.Duration // one task with what it fetches, saves and sends
	tail    time.Duration // paid after the last one
	slots   int           // of the machine
	billing money.Billing
	price   money.Rate
	guess   bool // nobody knows how long a task is
}

// due reports whether the load has a deadline that is still to come.
func (l *load) due(now time.Time) bool { return l.deadline.After(now) }

// room is the time that slots have until the deadline, on a machine that is asked
// for now: half of it where the work can be interrupted, so that it may be tried
// on spot and still be in time.
func (l *load) room(now time.Time, boot, margin time.Duration) time.Duration {
	room := min(l.deadline.Sub(now), 10*farAway) - boot - margin
	if l.stoppable {
		room /= 2
	}
	return room
}

// deep is how many tasks a slot may be given one after another.
//
// Without a deadline it is enough that the boot is a small part of what is paid,
// or that a long billing unit is filled. With one it is what costs least of all
// that is in time: each machine more is a boot more. Where nobody knows how long
// a task is, a deadline only ever makes it less. Time that is worth money makes
// it less, too.
func (l *load) deep(now time.Time, margin time.Duration, s slot) int {
	busy := s.boot * (100 - bootShare) / bootShare
	if unit := max(s.billing.Unit, s.billing.Minimum); unit >= longUnit {
		busy = max(busy, (unit-s.boot)/s.round*s.round)
	}
	n := (busy + s.round - 1) / s.round
	if l.due(now) {
		most := l.room(now, s.boot, margin) / s.round
		switch {
		case s.guess || s.price <= paidFor:
			n = min(n, most)
		default:
			n = l.cheapest(max(1, most), s)
		}
	}
	if l.value > 0 {
		n = min(n, l.brisk(s))
	}
	return int(max(1, min(n, math.MaxInt32)))
}

// widths is how many numbers of machines are compared where hours are billed.
const widths = 256

// cheapest is how many tasks one after another cost least in all, of at most most.
// By the second that is as many as there may be. By the hour it is what leaves the
// least of the hours unused, of the [widths] smallest numbers of machines.
func (l *load) cheapest(most time.Duration, s slot) time.Duration {
	all := time.Duration((l.waiting + s.slots - 1) / s.slots) // rounds of one machine
	most = min(most, all)
	if s.billing.Unit < longUnit {
		return most
	}
	units := func(rounds time.Duration) time.Duration {
		return s.billing.Paid(s.boot+often(int(rounds), s.round)) / s.billing.Unit
	}
	best, least := most, time.Duration(math.MaxInt64)
	for m := (all + most - 1) / most; m <= min(all, (all+most-1)/most+widths-1); m++ {
		n := (all + m - 1) / m
		if (all+n-1)/n < m {
			continue // slots that take n make do with fewer machines
		}
		each, rest := all/m, all%m // rounds of each, and how many machines have one more
		if paid := rest*units(each+1) + (m-rest)*units(each); paid < least {
			best, least = n, paid
		}
	}
	return best
}

// brisk is how many tasks one after another are the best where waiting costs
// value an hour: of w machines each costs a boot and a tail, and n tasks of round
// r take n·r/w, which is least in sum where a slot runs √(n·price·(boot+tail) /
// (slots·value·r)) of them. n counts those that run as well, and the root is rounded
// up, so that what was rented for all is enough for the rest.
func (l *load) brisk(s slot) time.Duration {
	overhead := float64(l.nodes) * s.price.Float() * (s.boot + s.tail).Hours()
	n := math.Sqrt(float64(l.waiting+l.beside) * overhead / (float64(s.slots) * l.value.Float() * s.round.Hours()))
	return time.Duration(max(1, min(math.Ceil(n), math.MaxInt32)))
}

// rounds is how many tasks a slot runs one after another: as many as it may, at
// least what the job's parallelism makes of it, and no more than there are.
func (l *load) rounds(deep, slots int) int {
	n := deep
	if l.width > 0 && l.width < l.waiting {
		n = max(n, (l.waiting+l.width-1)/l.width)
	}
	return min(n, (l.waiting+slots-1)/slots)
}

// machines is how many of a candidate the tasks that wait take.
func (l *load) machines(c *candidate) int {
	per := c.rounds * int(c.fit.slots)
	return max(1, (l.waiting+per-1)/per)
}

// span is how long tasks have run, summed.
type span struct {
	tasks int
	ran   time.Duration
}

// following is how many tasks each working slot of a machine takes until the
// deadline beside the one that it runs, and how long that holds at the least.
// What has passed of the boot, and of the tasks that run, is not to come again.
func (p *pass) following(l *load, h *host, one *candidate) (int, time.Duration) {
	room, round := l.room(p.Now, one.boot, p.Settings.Margin), one.round()
	var passed, most time.Duration // most is up to when passed grows with the time
	switch m := h.machine; {
	case m == nil:
	case m.Ready && h.used > 0:
		room += one.boot
		ran := h.spans
		passed = ran.ran / time.Duration(h.used)
		if ran.tasks >= h.used {
			most = round
		}
		if up := p.Now.Sub(m.Born) - one.boot; !m.Born.IsZero() && up < passed {
			passed = max(0, up) // the first of them were waiting for the boot
		}
		passed = min(passed, round)
	case m.Ready:
		room += one.boot
	case !m.Born.IsZero():
		passed, most = min(one.boot, max(0, p.Now.Sub(m.Born))), one.boot
	}
	n := (room + passed) / round
	return int(max(0, min(n, math.MaxInt32)-1)), max(0, most-passed) + (room+passed)%round + 1
}
