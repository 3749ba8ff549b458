// Package egress knows what clouds charge for bytes that leave them.
//
// Its prices are data: prices.csv has list prices in USD for a GB of 10^9 bytes,
// each with its source and the day it was seen; areas.csv says on which continent
// regions lie. Of prices that fall with the amount, the first and dearest counts,
// and free allowances do not: a price from here is a bound, not a bill. Within a
// region, and into a cloud, nothing is charged. What the table does not say is
// unknown, and never 0.
package egress

import (
	"cmp"
	_ "embed"
	"encoding/csv"
	"fmt"
	"math/bits"
	"path"
	"slices"
	"strings"

	"gpubroker/internal/money"
)

// OnPremises is the cloud of machines and folders of one's own.
const OnPremises = "on-premises"

// Place is where bytes lie or are worked on. An empty Cloud or Region is unknown.
type Place struct {
	Cloud  string // as provider types are called: aws, gcp, …
	Region string
}

func (p Place) String() string {
	if p.Cloud == "" {
		return "a place that is not known"
	}
	if p.Region == "" || p.Cloud == OnPremises {
		return p.Cloud
	}
	return p.Cloud + "/" + p.Region
}

// Table is prices. It is never changed, and safe for concurrent use.
type Table struct {
	prices []price
	areas  []area
}

// price is one row. from and to are a region, a pattern of regions, or @ and an
// area; to may also be other-region, internet, or * for both.
type price struct {
	cloud, from, to string
	perGB           money.Amount
}

type area struct{ cloud, regions, name string }

//go:embed prices.csv
var pricesCSV string

//go:embed areas.csv
var areasCSV string

// Builtin reads the table that is compiled in.
func Builtin() *Table {
	t, err := Parse(pricesCSV, areasCSV)
	if err != nil {
		panic(err) // the files are compiled in, and tested
	}
	return t
}

// Parse reads a table; an error names the row.
func Parse(prices, areas string) (*Table, error) {
	t := &Table{}
	err := rows(prices, 6, func(row []string) error {
		a, err := money.ParseAmount(row[3])
		if err != nil || a < 0 {
			return fmt.Errorf("%q is no price", row[3])
		}
		if row[4] == "" || row[5] == "" {
			return fmt.Errorf("no source, or not when it was seen")
		}
		t.prices = append(t.prices, price{row[0], row[1], row[2], a})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("prices of egress: %w", err)
	}
	err = rows(areas, 3, func(row []string) error {
		t.areas = append(t.areas, area{row[0], row[1], row[2]})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("areas of regions: %w", err)
	}
	return t, nil
}

func rows(text string, columns int, read func([]string) error) error {
	r := csv.NewReader(strings.NewReader(text))
	r.FieldsPerRecord = columns
	all, err := r.ReadAll()
	if err != nil {
		return err
	}
	for i, row := range all {
		if i == 0 {
			continue // the head
		}
		if err := read(row); err != nil {
			return fmt.Errorf("row %d: %w", i+1, err)
		}
	}
	return nil
}

// Price is what a GB (10^9 bytes) costs from one place to another, paid by whoever
// owns where it leaves. known is false where the table does not say.
func (t *Table) Price(from, to Place) (perGB money.Amount, known bool) {
	switch {
	case from.Cloud == "":
		return 0, false
	case from == to && from.Region != "":
		return 0, true
	}
	inside := from.Cloud == to.Cloud
	best := -1
	for i := range t.prices {
		p := &t.prices[i]
		if p.cloud != from.Cloud || !t.covers(p.from, from) || !t.reaches(p.to, to, inside) {
			continue
		}
		if best < 0 || precision(p) > precision(&t.prices[best]) {
			best = i
		}
	}
	if best < 0 {
		return 0, false
	}
	return t.prices[best].perGB, true
}

// covers reports whether a place is one of those that a word of a row means. A
// region that is not known is covered by * alone.
func (t *Table) covers(word string, p Place) bool {
	if word == "*" {
		return true
	}
	if p.Region == "" {
		return false
	}
	if name, ok := strings.CutPrefix(word, "@"); ok {
		return slices.ContainsFunc(t.areas, func(a area) bool {
			return a.name == name && a.cloud == p.Cloud && matches(a.regions, p.Region)
		})
	}
	return matches(word, p.Region)
}

func matches(pattern, region string) bool {
	ok, err := path.Match(pattern, region)
	return ok && err == nil
}

// reaches reports whether a place is where a row's price leads to. inside means
// that both ends are in one cloud; a region there that is not known might be the
// same one, so that its price is not known either.
func (t *Table) reaches(word string, to Place, inside bool) bool {
	switch {
	case word == "*":
		return true
	case word == "internet":
		return !inside
	case !inside || to.Region == "":
		return false
	}
	return word == "other-region" || t.covers(word, to)
}

// precision orders rows that hold for the same two places: the one that names
// them most closely counts.
func precision(p *price) int {
	rank := func(word string) int {
		switch {
		case word == "*" || word == "other-region" || word == "internet":
			return 0
		case word[0] == '@':
			return 1
		case strings.ContainsAny(word, "*?["):
			return 2
		}
		return 3
	}
	return 4*rank(p.to) + rank(p.from)
}

// Cost is what bytes cost at a price for a GB, rounded up to the nano-unit; more
// than money can say is [money.MaxAmount].
func Cost(n int64, perGB money.Amount) money.Amount {
	if n <= 0 || perGB <= 0 {
		return 0
	}
	const gb = 1_000_000_000
	hi, lo := bits.Mul64(uint64(n), uint64(perGB))
	lo, carry := bits.Add64(lo, gb-1, 0)
	if hi += carry; hi >= gb {
		return money.MaxAmount
	}
	q, _ := bits.Div64(hi, lo, gb)
	return money.Amount(min(q, uint64(money.MaxAmount)))
}

// Clouds lists the clouds that the table knows something of.
func (t *Table) Clouds() []string {
	var out []string
	for i := range t.prices {
		out = append(out, t.prices[i].cloud)
	}
	slices.SortFunc(out, cmp.Compare)
	return slices.Compact(out)
}
