package config

import (
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/yamlfile"
)

// Percent is a share of a price under the whole of it, in millionths.
type Percent int64

// Describe says how it is written.
func (Percent) Describe() string { return "a percentage such as 12% or 7.5%" }

// UnmarshalText reads at most four decimals.
func (p *Percent) UnmarshalText(b []byte) error {
	text := string(b)
	number, ok := strings.CutSuffix(text, "%")
	number = strings.TrimSpace(number)
	fault := func(hint string) error {
		return &yamlfile.Problem{Message: fmt.Sprintf("expected %s, found %q", p.Describe(), text), Hint: hint}
	}
	front, after, _ := strings.Cut(number, ".")
	n, err := strconv.ParseUint(front+(after + "0000")[:4], 10, 32)
	switch {
	case !ok:
		return fault("write it with its %")
	case err != nil || len(after) > 4 || strings.ContainsAny(number, "+-_"):
		return fault("")
	case n == 0 || n >= 1_000_000:
		return fault("above 0% and below 100%")
	}
	*p = Percent(n)
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (p Percent) MarshalText() ([]byte, error) {
	s := strconv.FormatInt(int64(p)/10_000, 10)
	if after := strings.TrimRight(fmt.Sprintf("%04d", int64(p)%10_000), "0"); after != "" {
		s += "." + after
	}
	return []byte(s + "%"), nil
}

// Day is a calendar day, written like 2027-05-31.
type Day struct{ time.Time }

// Describe says how it is written.
func (Day) Describe() string { return "a day such as 2027-05-31" }

// UnmarshalText reads a day.
func (d *Day) UnmarshalText(b []byte) error {
	t, err := time.Parse(time.DateOnly, string(b))
	if err != nil {
		return &yamlfile.Problem{Message: fmt.Sprintf("expected %s, found %q", d.Describe(), b)}
	}
	d.Time = t
	return nil
}

// MarshalText writes the day.
func (d Day) MarshalText() ([]byte, error) { return []byte(d.Format(time.DateOnly)), nil }

// End is the first moment that is no more of it, in UTC; zero for no day.
func (d Day) End() time.Time {
	if d.IsZero() {
		return time.Time{}
	}
	return d.AddDate(0, 0, 1)
}

// prices checks what an account says of its prices.
func (k checker) prices(at string, p *Provider) {
	for i, d := range p.Discounts {
		for n, pattern := range d.Types {
			if _, err := path.Match(pattern, ""); err != nil {
				k.Errorf(fmt.Sprintf("%s.discounts[%d].types[%d]", at, i, n), `write for example "p5.*"`, "%q is no pattern", pattern)
			}
		}
	}
	for i, c := range p.Commitments {
		where := fmt.Sprintf("%s.commitments[%d]", at, i)
		if c.Zone != "" && c.Region == "" {
			k.Errorf(where+".zone", "add region", "a zone stands in a region")
		}
		for n, first := range p.Commitments[:i] {
			if first.Type == c.Type && first.Kind == c.Kind && (first.Region == "" || first.Region == c.Region) && (first.Zone == "" || first.Zone == c.Zone) {
				k.Errorf(where, "add its machines to that one, or put the narrower one first", "it would never count: commitments[%d] is of the same machines and comes first", n)
				break
			}
		}
		if c.Sunk.Amount != 0 && c.Sunk.Currency != k.config.Currency && !k.Faulty(where+".sunk") && !k.Faulty("currency") {
			k.Errorf(where+".sunk", "", "the ledger is in %s, found %s", k.config.Currency, c.Sunk)
		}
	}
}

// ages refuses a limit under which a price is stale before the next look.
func (k checker) ages() {
	c := k.config
	for _, x := range []struct {
		path string
		old  time.Duration
	}{{"stale.spot", c.Stale.Spot.Std()}, {"stale.on_demand", c.Stale.OnDemand.Std()}} {
		if every := c.Intervals.Offers.Std(); x.old < 2*every && !k.Faulty(x.path) && !k.Faulty("intervals.offers") {
			at := x.path
			if !k.Has(at) {
				at = "intervals.offers"
			}
			k.Errorf(at, "", "prices are looked at every %s: with %s: %s they would be stale before the next look", short(every), x.path, short(x.old))
		}
	}
}
