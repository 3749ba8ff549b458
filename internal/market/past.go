package market

import (
	"cmp"
	"compress/flate"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"gpubroker/internal/money"
)

// HistoryQuery asks for prices of the past.
type HistoryQuery struct {
	Since, Until time.Time
	Want         func(Series) bool // nil wants all
	Points       bool              // with each change
}

// Past is what the price of a series was. Min, Max and Median are over the time in
// which it was known; the median is the price under which it stood for half of it.
type Past struct {
	Series
	Min     money.Rate    `json:"min"`
	Max     money.Rate    `json:"max"`
	Median  money.Rate    `json:"median"`
	Last    money.Rate    `json:"last" doc:"the newest price"`
	Offered bool          `json:"offered" doc:"whether it was offered at the end"`
	Changes int           `json:"changes"`
	Known   time.Duration `json:"known" doc:"for how long its price was known, in nanoseconds"`
	Points  []Point       `json:"points,omitempty"`
}

// Point is a price from a moment on; a price of 0 means that it was not offered.
type Point struct {
	At    time.Time  `json:"at"`
	Price money.Rate `json:"price"`
}

// Query returns the past of the series that are wanted, by market. What was known
// in no moment of the time asked for is left out.
func (h *History) Query(ctx context.Context, q HistoryQuery) ([]Past, error) {
	h.mu.Lock()
	days, err := h.days()
	h.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("price history: %w", err)
	}
	t := teller{query: q, providers: map[string]*told{}}
	first, last := dayOf(q.Since), dayOf(q.Until)
	for _, d := range days {
		if d.day < first || d.day > last {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		t.day = newState()
		if err := h.read(d, t.take); err != nil {
			return nil, fmt.Errorf("price history of %s: %w", d.day, err)
		}
	}
	return t.end(), nil
}

// read calls each with a day's records.
func (h *History) read(d dayFile, each func(*record) error) error {
	f, err := os.Open(h.file(d.day, d.ending))
	if errors.Is(err, fs.ErrNotExist) && d.ending == openDay { // packed meanwhile
		d.ending = packedDay
		f, err = os.Open(h.file(d.day, d.ending))
	}
	if errors.Is(err, fs.ErrNotExist) { // or removed
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var in io.Reader = f
	if d.ending == packedDay {
		in, err = gzip.NewReader(f)
	}
	if err == nil {
		_, err = readLog(in, each)
	}
	if damaged(err) { // one bad day must not take the others with it
		return nil
	}
	return err
}

// damaged reports whether a packed day ends where it should not.
func damaged(err error) bool {
	_, corrupt := errors.AsType[flate.CorruptInputError](err)
	return corrupt || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum)
}

// teller goes through records in order.
type teller struct {
	query     HistoryQuery
	day       state
	providers map[string]*told
}

// told is what was seen of a provider. Time is counted on a clock of its own,
// which runs only while its prices are known and inside what is asked for.
type told struct {
	clock  time.Duration
	looked time.Time
	series map[string]*tale // by name; nil where nobody asks
	day    []*tale          // by the numbers of the day
}

type tale struct {
	past  Past
	price money.Rate
	since time.Duration // on the provider's clock
	held  map[money.Rate]time.Duration
	day   string // in which it was last listed
}

// pass lets a provider's clock run to a moment.
func (p *told) pass(to time.Time, q *HistoryQuery) {
	if p.looked.IsZero() {
		return
	}
	from, until := p.looked, p.looked.Add(min(to.Sub(p.looked), silent))
	if from.Before(q.Since) {
		from = q.Since
	}
	if until.After(q.Until) {
		until = q.Until
	}
	p.clock += max(0, until.Sub(from))
}

func (t *teller) take(r *record) error {
	p := t.providers[r.provider]
	if p == nil {
		p = &told{series: map[string]*tale{}}
		t.providers[r.provider] = p
	}
	if r.at.After(t.query.Until) {
		return nil
	}
	p.pass(r.at, &t.query)
	p.looked = r.at
	_, begun := t.day.providers[r.provider]
	if err := t.day.apply(r); err != nil {
		return err
	}
	day := dayOf(r.at)
	if !begun { // a day begins with the whole list
		p.day = p.day[:0]
	}
	for _, f := range r.fresh {
		s, known := p.series[f.name]
		if !known {
			if series, ok := seriesOf(r.provider, f.name); ok && (t.query.Want == nil || t.query.Want(series)) {
				s = &tale{past: Past{Series: series}, held: map[money.Rate]time.Duration{}}
			}
			p.series[f.name] = s
		}
		p.day = append(p.day, s)
		if s != nil {
			s.day = day
			t.set(p, s, r.at, f.price)
		}
	}
	if !begun {
		for _, s := range p.series {
			if s != nil && s.day != day {
				t.set(p, s, r.at, 0)
			}
		}
	}
	for _, c := range r.changes {
		if s := p.day[c.series]; s != nil {
			t.set(p, s, r.at, c.price)
		}
	}
	return nil
}

// set gives a series its price from now on.
func (t *teller) set(p *told, s *tale, at time.Time, price money.Rate) {
	if s.price == price {
		return
	}
	s.close(p.clock)
	if !at.Before(t.query.Since) {
		if s.price > 0 || s.past.Last > 0 {
			s.past.Changes++
		}
		if t.query.Points {
			s.past.Points = append(s.past.Points, Point{at, price})
		}
	} else if t.query.Points { // what it was when the time begins
		s.past.Points = append(s.past.Points[:0], Point{t.query.Since, price})
	}
	s.price = price
	if price > 0 {
		s.past.Last = price
	}
}

// close counts the price that was up to a moment of the provider's clock.
func (s *tale) close(clock time.Duration) {
	if s.price > 0 && clock > s.since {
		s.held[s.price] += clock - s.since
	}
	s.since = clock
}

func (t *teller) end() []Past {
	out := []Past{}
	for _, p := range t.providers {
		p.pass(t.query.Until, &t.query)
		for _, s := range p.series {
			if s == nil {
				continue
			}
			s.close(p.clock)
			if len(s.held) > 0 {
				out = append(out, s.sum())
			}
		}
	}
	slices.SortFunc(out, func(a, b Past) int { return a.Compare(b.Market) })
	return out
}

func (s *tale) sum() Past {
	type step struct {
		price money.Rate
		held  time.Duration
	}
	steps := make([]step, 0, len(s.held))
	for price, held := range s.held {
		steps = append(steps, step{price, held})
		s.past.Known += held
	}
	slices.SortFunc(steps, func(a, b step) int { return cmp.Compare(a.price, b.price) })
	s.past.Min, s.past.Max = steps[0].price, steps[len(steps)-1].price
	var so time.Duration
	for _, x := range steps {
		if so += x.held; 2*so >= s.past.Known {
			s.past.Median = x.price
			break
		}
	}
	s.past.Offered = s.price > 0
	return s.past
}
