package budget

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpubroker/internal/money"
)

func at(s string) time.Time {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		panic(err)
	}
	return t.UTC()
}

func TestPeriodsFollowTheBudgetsOwnZone(t *testing.T) {
	for _, c := range []struct {
		name           string
		rule           Rule
		now, from, end string
	}{
		{"a day in Tokyo", Rule{Length: Day, Zone: "Asia/Tokyo"}, "2026-03-01T16:00:00Z", "2026-03-01T15:00:00Z", "2026-03-02T15:00:00Z"},
		{"a day in Kiritimati", Rule{Length: Day, Zone: "Pacific/Kiritimati"}, "2026-01-01T09:59:59Z", "2025-12-31T10:00:00Z", "2026-01-01T10:00:00Z"},
		{"a day of 23 hours", Rule{Length: Day, Zone: "Europe/Berlin"}, "2026-03-29T12:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"},
		{"a day of 25 hours", Rule{Length: Day, Zone: "Europe/Berlin"}, "2026-10-25T12:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"},
		{"a day whose midnight is skipped", Rule{Length: Day, Zone: "America/Santiago"}, "2025-09-07T12:00:00Z", "2025-09-07T04:00:00Z", "2025-09-08T03:00:00Z"},
		{"a day whose midnight repeats", Rule{Length: Day, Zone: "America/Havana"}, "2025-11-02T12:00:00Z", "2025-11-02T04:00:00Z", "2025-11-03T05:00:00Z"},
		{"a week from Wednesday", Rule{Length: Week, Anchor: 3}, "2026-11-30T05:00:00Z", "2026-11-25T00:00:00Z", "2026-12-02T00:00:00Z"},
		{"the last evening of a month, local", Rule{Length: Month, Zone: "America/New_York"}, "2026-11-01T03:30:00Z", "2026-10-01T04:00:00Z", "2026-11-01T04:00:00Z"},
		{"a month from the 17th", Rule{Length: Month, Anchor: 17}, "2026-03-05T00:00:00Z", "2026-02-17T00:00:00Z", "2026-03-17T00:00:00Z"},
		{"a month from the 31st in February", Rule{Length: Month, Anchor: 31}, "2026-02-28T12:00:00Z", "2026-02-28T00:00:00Z", "2026-03-31T00:00:00Z"},
		{"before the 31st of March", Rule{Length: Month, Anchor: 31}, "2026-03-30T12:00:00Z", "2026-02-28T00:00:00Z", "2026-03-31T00:00:00Z"},
	} {
		from, end, err := c.rule.At(at(c.now))
		if err != nil || !from.Equal(at(c.from)) || !end.Equal(at(c.end)) {
			t.Errorf("%s: [%s, %s), %v; want [%s, %s)", c.name, from.Format(time.RFC3339), end.Format(time.RFC3339), err, c.from, c.end)
		}
	}
}

func TestPeriodsTile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Rule{
			Length: rapid.SampledFrom([]Length{Day, Week, Month}).Draw(t, "length"),
			Zone:   rapid.SampledFrom([]string{"", "Asia/Tokyo", "America/Havana", "Africa/Cairo", "Australia/Lord_Howe", "America/Asuncion"}).Draw(t, "zone"),
			Anchor: rapid.IntRange(0, 7).Draw(t, "anchor"),
		}
		if r.Length == Day {
			r.Anchor = 0
		}
		now := time.Unix(rapid.Int64Range(1.5e9, 2.2e9).Draw(t, "now"), 0)
		from, end, err := r.At(now)
		if err != nil || from.After(now) || !end.After(now) {
			t.Fatalf("%v at %v: [%v, %v), %v", r, now.UTC(), from, end, err)
		}
		next, _, _ := r.At(end)
		if !next.Equal(end) {
			t.Fatalf("%v: the period after [%v, %v) starts at %v", r, from, end, next)
		}
		if last, _, _ := r.At(end.Add(-1)); !last.Equal(from) {
			t.Fatalf("%v: the last moment of [%v, %v) is in the period from %v", r, from, end, last)
		}
	})
}

// memory is a book for tests: it applies changes to plain maps.
type memory struct {
	accounts map[Key]Account
	holds    map[string]map[Key]Hold
	entries  []Entry
}

func newMemory() *memory {
	return &memory{accounts: map[Key]Account{}, holds: map[string]map[Key]Hold{}}
}

func (m *memory) Account(k Key) *Account {
	if a, ok := m.accounts[k]; ok {
		return &a
	}
	return nil
}

func (m *memory) Hold(instance string, k Key) *Hold {
	if h, ok := m.holds[instance][k]; ok {
		return &h
	}
	return nil
}

func (m *memory) open(instance string) (out []Hold) {
	for _, h := range m.holds[instance] {
		if !h.Settled {
			out = append(out, h)
		}
	}
	return out
}

func (m *memory) apply(c Change) {
	for _, a := range c.Accounts {
		m.accounts[a.Key] = a
	}
	for _, h := range c.Holds {
		if m.holds[h.Instance] == nil {
			m.holds[h.Instance] = map[Key]Hold{}
		}
		m.holds[h.Instance][h.Key] = h
	}
	m.entries = append(m.entries, c.Entries...)
}

func TestTenLaunchesOfADollarFitACapOfTen(t *testing.T) {
	b := []Budget{{Name: "cap", Scope: Org, Capped: true, Cap: 10*money.Unit + 10*pad}}
	m := newMemory()
	from, admitted := at("2026-11-30T00:00:00Z"), 0
	for i := range 100 {
		c, err := Extend(b, Lease{Instance: string(rune('A' + i)), From: from, Until: from.Add(time.Hour), Bound: money.Rate(money.Unit)}, m)
		if room, ok := errors.AsType[*RoomError](err); ok {
			if room.Need != money.Unit+pad || room.Free != 0 {
				t.Fatalf("launch %d: %v", i, room)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		m.apply(c)
		admitted++
	}
	if admitted != 10 {
		t.Errorf("%d launches of $1 under a cap of $10", admitted)
	}
}

// Whatever is leased, extended, accrued and settled in any order: no cap is
// passed while machines keep to their leases, the sums of the ledger are the
// accounts, and once settled they are the providers' charges.
func TestLedgerAndCaps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		budgets := []Budget{
			{Name: Ledger, Scope: Org},
			{Name: "daily", Scope: Org, Capped: true, Cap: money.Amount(rapid.Int64Range(1, 60).Draw(t, "daily")) * money.Unit, Period: Rule{Length: Day, Zone: "Europe/Berlin"}},
			{Name: "media", Scope: Project, Match: "media", Capped: true, Cap: money.Amount(rapid.Int64Range(1, 90).Draw(t, "media")) * money.Unit, Period: Rule{Length: Total}},
		}
		type machine struct {
			l      Lease
			prices []Stretch
		}
		m := newMemory()
		live := map[string]*machine{}
		var charged money.Amount
		now := at("2026-10-24T10:00:00Z")
		check := func() {
			for _, b := range budgets {
				for k, a := range m.accounts {
					if k.Budget == b.Name && b.Capped && a.Committed() > b.Cap {
						t.Fatalf("%v: %v committed of %v", k, a.Committed(), b.Cap)
					}
				}
			}
			for k, a := range m.accounts {
				var reserved, cost money.Amount
				for _, e := range m.entries {
					if e.Key != k {
						continue
					}
					switch e.Kind {
					case Reserved:
						reserved += e.Amount
					case Released:
						reserved += e.Amount
					case Accrued:
						reserved, cost = reserved-e.Amount, cost+e.Amount
					case Settled:
						reserved, cost = reserved-e.Amount, cost+e.Amount
					case Overspent, Adjusted:
						cost += e.Amount
					}
				}
				if reserved != a.Reserved || cost != a.Cost || a.Reserved < 0 {
					t.Fatalf("%v: rows say reserved %v cost %v, the account %+v", k, reserved, cost, a)
				}
			}
		}
		names := []string{"a", "b", "c", "d"}
		for step := range rapid.IntRange(1, 30).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(3*time.Hour)).Draw(t, "dt")))
			id := rapid.SampledFrom(names).Draw(t, "machine")
			mc := live[id]
			if mc == nil {
				bound := money.Rate(rapid.Int64Range(1, 9e9).Draw(t, "bound"))
				mc = &machine{l: Lease{
					Instance: strconv.Itoa(step), From: now, Until: now.Add(20 * time.Minute), Bound: bound,
					Payer:   Payer{Project: rapid.SampledFrom([]string{"media", "lab"}).Draw(t, "project")},
					Billing: money.Billing{Unit: rapid.SampledFrom([]time.Duration{time.Second, time.Minute, time.Hour}).Draw(t, "unit")},
				}, prices: []Stretch{{now, money.Rate(rapid.Int64Range(0, int64(bound)).Draw(t, "price"))}}}
				c, err := Extend(budgets, mc.l, m)
				if err == nil {
					m.apply(c)
					live[id] = mc
				} else if _, ok := errors.AsType[*RoomError](err); !ok {
					t.Fatal(err)
				}
				check()
				continue
			}
			if now.After(mc.l.Until) || rapid.Bool().Draw(t, "settle") { // it ended within its lease
				end := mc.l.From.Add(time.Duration(rapid.Int64Range(1, int64(mc.l.Until.Sub(mc.l.From))).Draw(t, "life")))
				c, total, err := Settle(budgets, mc.l, mc.l.From, end, mc.prices, m.open(mc.l.Instance), m)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range c.Entries {
					if e.Kind == Overspent {
						t.Fatalf("overrun within the lease: %+v", e)
					}
				}
				m.apply(c)
				charged += total
				delete(live, id)
			} else {
				longer := mc.l
				longer.Until = now.Add(20 * time.Minute)
				if c, err := Extend(budgets, longer, m); err == nil {
					m.apply(c)
					mc.l = longer
				}
				c, err := Accrue(budgets, mc.l, mc.l.From, now, mc.prices, m)
				if err != nil {
					t.Fatal(err)
				}
				m.apply(c)
			}
			check()
		}
		for _, mc := range live {
			c, total, err := Settle(budgets, mc.l, mc.l.From, mc.l.Until, mc.prices, m.open(mc.l.Instance), m)
			if err != nil {
				t.Fatal(err)
			}
			m.apply(c)
			charged += total
		}
		check()
		if got := Sum(m.entries, Ledger); got != charged {
			t.Fatalf("the ledger sums to %v, the providers charged %v", got, charged)
		}
		for k, a := range m.accounts {
			if a.Reserved != 0 {
				t.Fatalf("%v still reserves %v", k, a.Reserved)
			}
		}
	})
}
