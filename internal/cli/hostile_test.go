package cli

import (
	"context"
	"encoding/csv"
	"math"
	"strings"
	"testing"
	"time"

	"charm.land/lipgloss/v2"

	"gpubroker/internal/api"
	"gpubroker/internal/market"
	"gpubroker/internal/money"
	"gpubroker/providers"
)

func quoteOf(typ string) market.Quote {
	return market.Quote{Offer: providers.Offer{
		Market: providers.Market{Provider: "acme", Region: "eu-1", Type: typ, Kind: providers.Spot},
		Shape:  providers.Shape{GPUs: 1, GPUName: typ}, Price: money.Rate(money.Unit), Currency: money.USD, Seen: time.Unix(1, 0),
	}}
}

func tableOf(quotes ...market.Quote) (string, error) {
	var out strings.Builder
	a := &app{look: look{&out, time.Now}}
	err := a.look.printf("%s", a.offerTable(api.Offers{Offers: quotes, Total: len(quotes)}))
	return out.String(), err
}

// Names are a cloud's or a marketplace's own: they may be of any length, and hold
// anything.
func TestOffersWithStrangeNamesAreATable(t *testing.T) {
	long := strings.Repeat("a very long name ", 20_000)
	begun := time.Now()
	for name, typ := range map[string]string{
		"too wide":        strings.Repeat("wide-", 30),
		"absurdly long":   long,
		"commands":        "\x1b[2J\x1b]0;title\x07 \x9b31m\u009b",
		"several lines":   "a\nb\r\nc\td",
		"no text at all":  "\xff\xfe" + strings.Repeat("\xff", 200),
		"styled and long": "\x1b[31m" + strings.Repeat("red", 100),
	} {
		full := quoteOf(typ)
		full.Available = providers.Full
		for _, q := range []market.Quote{quoteOf(typ), full} {
			text, err := tableOf(q)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(text, "\n"); n != 2 {
				t.Errorf("%s: %d lines", name, n)
			}
			for line := range strings.Lines(text) {
				if w := lipgloss.Width(line); w > width {
					t.Errorf("%s: %d wide", name, w)
				}
			}
			if strings.ContainsAny(text, "\x07\u009b") || strings.Contains(text, "\x1b[2J") {
				t.Errorf("%s: commands reach the terminal: %.100q", name, text)
			}
		}
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("they took %s", took)
	}
}

// What is sent as a table for a spreadsheet is data there, not formulas.
func TestATableForSpreadsheetsHoldsNoFormulas(t *testing.T) {
	for _, typ := range []string{`=HYPERLINK("http://evil.test","x")`, "+1", "-1", "@SUM(A1)", "\t=1", "a,b\n\"c\""} {
		var b strings.Builder
		if err := writeOffers(&b, []market.Quote{quoteOf(typ)}); err != nil {
			t.Fatal(err)
		}
		rows, err := csv.NewReader(strings.NewReader(b.String())).ReadAll()
		if err != nil || len(rows) != 2 || len(rows[0]) != len(rows[1]) {
			t.Fatalf("%q: %d rows, %v", typ, len(rows), err)
		}
		for i, cell := range rows[1] {
			if cell != "" && strings.ContainsRune("=+-@\t\r", rune(cell[0])) {
				t.Errorf("%q: %s is %q", typ, rows[0][i], cell)
			}
			if rows[0][i] == "instance_type" && strings.TrimPrefix(cell, "'") != typ {
				t.Errorf("%q became %q", typ, cell)
			}
		}
	}
}

// A feed that lists nothing does not take the snapshot's prices away.
func TestAnEmptyFeedLeavesTheSnapshot(t *testing.T) {
	var said strings.Builder
	a := &app{Wiring: Wiring{Now: time.Now, Public: func(context.Context) []PublicList {
		return []PublicList{{Title: "Microsoft Azure", Type: "azure"}}
	}}, Streams: Streams{Err: &said}}
	m, _ := a.shelf(t.Context(), true)
	if n := len(m.Lists()["azure"].Offers); n == 0 || !strings.Contains(said.String(), "Azure could not be read") {
		t.Errorf("%d offers: %s", n, said.String())
	}
}

// A moment that is further away than a duration can say is shown all the same.
func TestTheFarthestMoments(t *testing.T) {
	l := look{now: time.Now}
	for _, at := range []time.Time{time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC), time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC)} {
		if text := l.age(at); !strings.Contains(text, "d") {
			t.Errorf("%s is %q", at, text)
		}
	}
	if text := span(math.MinInt64); !strings.HasPrefix(text, "-1067") {
		t.Error(text)
	}
}
