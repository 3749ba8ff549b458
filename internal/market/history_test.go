package market_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/internal/market"
	"gpubroker/internal/money"
	"gpubroker/providers"
)

func open(t *testing.T, dir string, at time.Time) *market.History {
	t.Helper()
	h, err := market.OpenHistory(dir, at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func record(t *testing.T, h *market.History, at time.Time, prices ...string) {
	t.Helper()
	var list []providers.Offer
	for i, p := range prices {
		if p != "" {
			list = append(list, offer("aws", "r/"+string(rune('a'+i))+"/t/spot", 1, "l4", p))
		}
	}
	if err := h.Record("aws", list, at); err != nil {
		t.Fatal(err)
	}
}

func past(t *testing.T, h *market.History, since, until time.Time) map[string]market.Past {
	t.Helper()
	list, err := h.Query(t.Context(), market.HistoryQuery{Since: since, Until: until, Points: true})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]market.Past{}
	for _, p := range list {
		out[p.Zone] = p
	}
	return out
}

var day = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

func TestThePastOfAPrice(t *testing.T) {
	h := open(t, t.TempDir(), day)
	for i := range 7 { // 0:00 to 1:00, the second price from 0:30 on, gone at 1:00
		a := "0.30"
		if i >= 3 {
			a = "0.50"
		}
		b := "1"
		if i == 6 {
			b = ""
		}
		record(t, h, day.Add(time.Duration(i)*10*time.Minute), a, b)
	}
	got := past(t, h, day, day.Add(70*time.Minute))
	a := got["a"]
	if a.Min != rate("0.30") || a.Max != rate("0.50") || a.Median != rate("0.50") || a.Last != rate("0.50") || a.Changes != 1 || !a.Offered {
		t.Errorf("%+v", a)
	}
	if a.Known != 70*time.Minute || a.GPU != "l4" || a.GPUs != 1 || a.Currency != money.USD {
		t.Errorf("%+v", a)
	}
	want := []market.Point{{At: day, Price: rate("0.30")}, {At: day.Add(30 * time.Minute), Price: rate("0.50")}}
	if diff := cmp.Diff(want, a.Points); diff != "" {
		t.Error(diff)
	}
	if b := got["b"]; b.Offered || b.Known != time.Hour || b.Last != rate("1") {
		t.Errorf("%+v", b)
	}
	// The last half hour alone: its first price is the one that held then.
	if a := past(t, h, day.Add(40*time.Minute), day.Add(time.Hour))["a"]; a.Min != rate("0.50") || a.Known != 20*time.Minute || len(a.Points) != 1 {
		t.Errorf("%+v", a)
	}
}

// While nobody looks, nothing is known: a price holds for an hour at most.
func TestSilenceIsNoKnowledge(t *testing.T) {
	h := open(t, t.TempDir(), day)
	record(t, h, day, "0.30")
	record(t, h, day.Add(10*time.Hour), "0.50")
	a := past(t, h, day, day.Add(24*time.Hour))["a"]
	if a.Known != 2*time.Hour || a.Median != rate("0.30") {
		t.Errorf("%+v", a)
	}
}

func TestDaysArePackedAndGoInTime(t *testing.T) {
	dir := t.TempDir()
	h := open(t, dir, day)
	for i := range 100 {
		record(t, h, day.AddDate(0, 0, i), "0.30", "1")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) != 90 {
		t.Errorf("%d files, %v", len(files), err)
	}
	end := day.AddDate(0, 0, 99)
	if filepath.Base(files[0]) != "2026-11-11.log.gz" || filepath.Base(files[89]) != end.Format(time.DateOnly)+".log" {
		t.Errorf("from %s to %s", files[0], files[89])
	}
	got := past(t, h, day, end.Add(time.Hour))
	if got["a"].Known != 90*time.Hour || got["a"].Changes != 0 {
		t.Errorf("%+v", got["a"])
	}
	// What is offered no more on a new day ends there.
	record(t, h, end.AddDate(0, 0, 1), "0.30")
	if b := past(t, h, end, end.AddDate(0, 0, 2))["b"]; b.Offered || b.Known != time.Hour {
		t.Errorf("%+v", b)
	}
}

// A crash leaves any number of bytes of the last record: what was before it is
// read, and what comes after it is kept.
func TestATornEndIsCutOff(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "2026-11-01.log")
	h := open(t, dir, day)
	record(t, h, day, "0.30", "1")
	first, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	record(t, h, day.Add(time.Minute), "0.40", "1")
	both, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	for n := len(first); n <= len(both); n++ {
		for _, junk := range [][]byte{nil, {0xff}, bytes.Repeat([]byte{7}, 100)} {
			if err := os.WriteFile(file, append(both[:n:n], junk...), 0o600); err != nil {
				t.Fatal(err)
			}
			h := open(t, dir, day)
			record(t, h, day.Add(2*time.Minute), "0.50", "1")
			a := past(t, h, day, day.Add(time.Hour))["a"]
			want := []string{"0.30", "0.50"}
			if n == len(both) {
				want = []string{"0.30", "0.40", "0.50"}
			}
			var got []string
			for _, p := range a.Points {
				got = append(got, p.Price.String())
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("%d of %d bytes and %d of junk: %s", n, len(both), len(junk), diff)
			}
		}
	}
}

// A day that was being packed when the process died is packed at the next start;
// what its packing left is no second day.
func TestPackingIsFinished(t *testing.T) {
	dir := t.TempDir()
	h := open(t, dir, day)
	record(t, h, day, "0.30")
	log, err := os.ReadFile(filepath.Join(dir, "2026-11-01.log"))
	if err != nil {
		t.Fatal(err)
	}
	record(t, h, day.AddDate(0, 0, 1), "0.30")
	if err := os.WriteFile(filepath.Join(dir, "2026-11-01.log"), log, 0o600); err != nil {
		t.Fatal(err)
	}
	h = open(t, dir, day.AddDate(0, 0, 2))
	if got := past(t, h, day, day.AddDate(0, 0, 2))["a"]; got.Known != 2*time.Hour {
		t.Errorf("%+v", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "2026-11-02.log.gz")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "2026-11-01.log")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the log of a packed day is still there: %v", err)
	}
}

// 90 days of 50,000 offers have room in 2 GB: 444 bytes for each and a day. The
// same market as in BenchmarkHistory, with fewer offers.
func TestHistoryIsCompact(t *testing.T) {
	if testing.Short() {
		t.Skip("records a day of prices")
	}
	const offers = 2000
	if each := recordDays(t, t.TempDir(), offers, 1) / offers; each > 444 {
		t.Errorf("an offer takes %.0f bytes a day", each)
	} else {
		t.Logf("an offer takes %.0f bytes a day", each)
	}
}

// Whatever the bytes of a log are, it opens.
func FuzzHistory(f *testing.F) {
	dir := f.TempDir()
	h, err := market.OpenHistory(dir, day)
	if err != nil {
		f.Fatal(err)
	}
	for i, p := range []string{"0.3", "0.4"} {
		if err := h.Record("aws", []providers.Offer{offer("aws", "r/a/t/spot", 1, "l4", p)}, day.Add(time.Duration(i)*time.Minute)); err != nil {
			f.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "2026-11-01.log"))
	if err != nil {
		f.Fatal(err)
	}
	if err := h.Close(); err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(text[:20])
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "2026-11-01.log"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		h := open(t, dir, day)
		record(t, h, day.Add(time.Hour), "0.9")
		if a, ok := past(t, h, day, day.Add(2*time.Hour))["a"]; !ok || a.Last != rate("0.9") {
			t.Errorf("%+v", a)
		}
	})
}
