package market_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/market"
	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/providers/managed"
)

// A day whose log could not be begun, on a full disk for example, is begun as soon
// as it can be.
func TestADayIsBegunLateWhenItCouldNotBe(t *testing.T) {
	dir := t.TempDir()
	h := open(t, dir, day)
	record(t, h, day, "0.50")
	next := day.AddDate(0, 0, 1)
	inTheWay := filepath.Join(dir, "2026-11-02.log")
	if err := os.Mkdir(inTheWay, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := h.Record("aws", []providers.Offer{offer("aws", "r/a/t/spot", 1, "l4", "0.60")}, next); err == nil {
			t.Error("what was not recorded is not told")
		}
	}
	if err := os.Remove(inTheWay); err != nil {
		t.Fatal(err)
	}
	record(t, h, next, "0.60")
	record(t, h, next.Add(time.Minute), "0.70")
	if p := past(t, h, day, next.Add(2*time.Minute))["a"]; p.Last.String() != "0.70" {
		t.Errorf("the newest price is %s", p.Last)
	}
}

// What cannot be packed is told, and keeps no broker from starting.
func TestADayThatCannotBePackedStopsNothing(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "2026-10-30.log", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	h := open(t, dir, day)
	list := []providers.Offer{offer("aws", "r/a/t/spot", 1, "l4", "0.60")}
	if err := h.Record("aws", list, day); err == nil || !strings.Contains(err.Error(), "2026-10-30") {
		t.Errorf("not told: %v", err)
	}
	if err := h.Record("aws", list, day.Add(time.Minute)); err != nil {
		t.Errorf("told again: %v", err)
	}
}

// Two processes in one folder spoil its day, and nothing else: it opens again, and
// other days are read.
func TestAFolderThatTwoUsedOpensAgain(t *testing.T) {
	dir := t.TempDir()
	one := open(t, dir, day)
	record(t, one, day, "0.50")
	next := day.AddDate(0, 0, 1)
	if err := one.Record("aws", nil, next); err != nil { // its day has begun
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, "2026-11-02.log"), 0); err != nil {
		t.Fatal(err)
	}
	two := open(t, dir, next)
	three := open(t, dir, next)
	record(t, two, next, "0.50")
	record(t, two, next.Add(time.Minute), "0.60")
	// What the other writes lies over the beginning, and is as long.
	if err := three.Record("gcp", []providers.Offer{offer("gcp", "r/z/t/spot", 1, "l4", "0.50")}, next); err != nil {
		t.Fatal(err)
	}
	again, err := market.OpenHistory(dir, next.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	record(t, again, next.Add(time.Hour), "0.75")
	if p := past(t, again, day, next.Add(2*time.Hour))["a"]; p.Last.String() != "0.75" {
		t.Errorf("%+v", p)
	}
}

// A packed day that is damaged is lost from there on; the others are not.
func TestADamagedDayIsReadAsFarAsItGoes(t *testing.T) {
	for name, spoil := range map[string]func([]byte) []byte{
		"cut off": func(b []byte) []byte { return b[:len(b)/2] }, "no end": func(b []byte) []byte { return b[:len(b)-4] },
		"empty": func([]byte) []byte { return nil }, "garbage": func([]byte) []byte { return []byte("<html>") },
		"turned bits": func(b []byte) []byte {
			for i := range b[20:] {
				b[20+i] ^= 0x55
			}
			return b
		},
	} {
		dir := t.TempDir()
		h := open(t, dir, day)
		for n := range 200 {
			record(t, h, day.Add(time.Duration(n)*time.Minute), "0."+string(rune('1'+n%9)))
		}
		next := day.AddDate(0, 0, 1)
		record(t, h, next, "0.95")
		file := filepath.Join(dir, "2026-11-01.log.gz")
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, spoil(b), 0o600); err != nil {
			t.Fatal(err)
		}
		if p := past(t, h, day, next.Add(time.Hour))["a"]; p.Last.String() != "0.95" {
			t.Errorf("%s: %+v", name, p.Last)
		}
	}
}

// A spot price is held against a price on demand that is itself believed, in the
// same currency, and before the discounts that both have.
func TestASpotPriceIsHeldAgainstABelievablePrice(t *testing.T) {
	cheaper := offer("aws", "r/a/g6/on-demand", 1, "l4", "0.40")
	cheaper.Parts = []providers.PricePart{{Name: "compute", Price: 2 * cheaper.Price}, {Name: managed.DiscountPart, Price: -cheaper.Price}}
	euros := offer("aws", "r/a/g7/on-demand", 1, "l4", "0.30")
	euros.Currency = money.Currency("EUR")
	m := market.New()
	m.Replace("aws", []providers.Offer{
		cheaper, offer("aws", "r/a/g6/spot", 1, "l4", "0.50"),
		euros, offer("aws", "r/a/g7/spot", 1, "l4", "0.50"),
		offer("aws", "r/a/g8/on-demand", 1, "l4", "0.0001"), offer("aws", "r/a/g8/spot", 1, "l4", "0.50"),
		offer("aws", "r/a/g9/on-demand", 1, "l4", "0.60"), offer("aws", "r/a/g9/spot", 1, "l4", "0.61"),
	}, noon)
	odd := quarantined(m)
	if len(odd) != 2 || !slices.ContainsFunc(odd, func(s string) bool { return strings.Contains(s, "g8/on-demand") }) || !slices.ContainsFunc(odd, func(s string) bool { return strings.Contains(s, "g9/spot") }) {
		t.Errorf("%q", odd)
	}
}
