// Package money holds exact amounts.
//
// An amount is an int64 count of nano-units (10⁻⁹ of one currency unit), so
// 9.2 billion dollars fit and a thousandth of a cent is 10,000. The broker's
// ledger has one currency, set in its configuration; a [Money] carries its
// currency where amounts enter from outside, and is refused there when it
// differs. Floats never enter an amount that is recorded: [Amount.Float] is for
// comparing and showing.
package money

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// Amount is money in nano-units of the ledger's currency.
type Amount int64

// Unit is one whole currency unit, for example one dollar.
const Unit Amount = 1_000_000_000

// MaxAmount is the largest amount; sums saturate nowhere, they fail.
const MaxAmount Amount = math.MaxInt64

// Rate is money per hour, in nano-units.
type Rate int64

// Currency is an ISO 4217 code such as "USD".
type Currency string

// USD is the default currency.
const USD Currency = "USD"

// Money is an amount with its currency, as it stands in specs, configurations
// and offers.
type Money struct {
	Amount   Amount
	Currency Currency
}

// ErrOverflow says that a sum or a charge does not fit an [Amount].
var ErrOverflow = errors.New("money: amount too large")

// Add returns a+b, or [ErrOverflow].
func Add(a, b Amount) (Amount, error) {
	c := a + b
	if (c > a) != (b > 0) && b != 0 {
		return 0, ErrOverflow
	}
	return c, nil
}

// Float returns the amount in currency units, for comparing and showing only.
func (a Amount) Float() float64 { return float64(a) / float64(Unit) }

// Float returns the rate in currency units per hour, for comparing only.
func (r Rate) Float() float64 { return float64(r) / float64(Unit) }

// RateOf turns a decimal price per hour such as "3.468" into a Rate.
// More than nine decimals are an error, so that nothing is rounded silently.
func RateOf(decimal string) (Rate, error) {
	a, err := parseDecimal(decimal)
	return Rate(a), err
}

// FromFloat rounds a price that reaches us as a float to the nearest
// nano-unit. It is for feeds whose wire format is a JSON number.
func FromFloat(f float64) (Amount, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) || math.Abs(f) >= float64(math.MaxInt64)/float64(Unit) {
		return 0, fmt.Errorf("money: %v is no amount", f)
	}
	return Amount(math.Round(f * float64(Unit))), nil
}

// ParseAmount reads a decimal amount such as "25" or "0.375".
func ParseAmount(s string) (Amount, error) { return parseDecimal(s) }

// Parse reads "25 USD", "25USD", "$25" or "25"; without a currency it takes def.
func Parse(s string, def Currency) (Money, error) {
	t := strings.TrimSpace(s)
	cur := def
	if rest, ok := strings.CutPrefix(t, "$"); ok {
		t, cur = rest, USD
	} else if i := strings.IndexFunc(t, func(r rune) bool { return r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' }); i > 0 {
		cur, t = Currency(strings.TrimSpace(t[i:])), strings.TrimSpace(t[:i])
		if len(cur) != 3 || strings.ToUpper(string(cur)) != string(cur) {
			return Money{}, fmt.Errorf("money: %q: the currency is three capitals, for example %q", s, "25 USD")
		}
	}
	a, err := parseDecimal(t)
	if err != nil {
		return Money{}, fmt.Errorf("money: %q is no amount; write for example %q", s, "25 USD")
	}
	return Money{Amount: a, Currency: cur}, nil
}

func parseDecimal(s string) (Amount, error) {
	s = strings.TrimSpace(s)
	neg := strings.HasPrefix(s, "-")
	whole, frac, _ := strings.Cut(strings.TrimPrefix(s, "-"), ".")
	if whole == "" && frac == "" || strings.ContainsAny(whole+frac, "+-eE_ ") {
		return 0, fmt.Errorf("money: %q is no decimal number", s)
	}
	trimmed := strings.TrimRight(frac, "0")
	if len(trimmed) > 9 {
		return 0, fmt.Errorf("money: %q has more than nine decimals", s)
	}
	digits := whole + trimmed + strings.Repeat("0", 9-len(trimmed))
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("money: %q is no decimal number in range", s)
	}
	if neg {
		n = -n
	}
	return Amount(n), nil
}

// String shows the amount exactly, with at least two decimals: "0.375", "25.00".
func (a Amount) String() string { return format(int64(a)) }

// String shows the rate exactly, per hour.
func (r Rate) String() string { return format(int64(r)) }

// String shows "25.00 USD".
func (m Money) String() string { return m.Amount.String() + " " + string(m.Currency) }

func format(n int64) string {
	sign, u := "", uint64(n)
	if n < 0 {
		sign, u = "-", uint64(-(n+1))+1
	}
	frac := fmt.Sprintf("%09d", u%uint64(Unit))
	frac = frac[:2] + strings.TrimRight(frac[2:], "0")
	return sign + strconv.FormatUint(u/uint64(Unit), 10) + "." + frac
}

// Round returns the amount rounded half away from zero to the given number of
// decimals, for tables; at the ends of the range, where that does not fit, towards
// zero.
func (a Amount) Round(decimals int) Amount {
	step := Amount(1)
	for range 9 - decimals {
		step *= 10
	}
	down, rest := a/step*step, a%step
	up := step
	if a < 0 {
		rest, up = -rest, -step
	}
	if sum := down + up; step > 1 && rest >= step/2 && (sum > down) == (up > 0) {
		return sum
	}
	return down
}

// Short returns the amount rounded for a sentence: to two decimals, and where
// that would leave less of it to two significant digits.
func (a Amount) Short() Amount {
	decimals := 2
	for n := max(a, -a); n > 0 && n < Unit/10 && decimals < 9; n *= 10 {
		decimals++
	}
	return a.Round(decimals)
}

// MarshalText writes the decimal form.
func (a Amount) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads the decimal form.
func (a *Amount) UnmarshalText(b []byte) (err error) {
	*a, err = parseDecimal(string(b))
	return err
}

// MarshalText writes the decimal form of the price per hour.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads the decimal form of the price per hour.
func (r *Rate) UnmarshalText(b []byte) error {
	a, err := parseDecimal(string(b))
	*r = Rate(a)
	return err
}

// Billing is how a provider rounds time: paid time is at least Minimum and a
// whole number of Units.
type Billing struct {
	Unit    time.Duration `json:"unit"`    // zero means one second
	Minimum time.Duration `json:"minimum"` // zero means one Unit
}

// Paid returns the billed time for a life of d: rounded up to whole units, and
// at least the minimum. A life of zero or less is not billed.
func (b Billing) Paid(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	unit := b.Unit
	if unit <= 0 {
		unit = time.Second
	}
	d = max(d, b.Minimum)
	if rest := d % unit; rest != 0 {
		d += unit - rest
	}
	return d
}

// Segment is a stretch of time at one price.
type Segment struct {
	Duration time.Duration
	Rate     Rate
}

// Charge returns the price of a life of d at one rate under the billing rule,
// rounded up to a nano-unit.
func Charge(d time.Duration, r Rate, b Billing) (Amount, error) {
	return ChargeSegments([]Segment{{Duration: d, Rate: r}}, b)
}

// ChargeSegments returns the price of a life whose price changed: each stretch
// at its own rate, the time that rounding adds at the last one's, and one
// rounding up to a nano-unit at the end.
func ChargeSegments(segments []Segment, b Billing) (Amount, error) {
	var life time.Duration
	for _, s := range segments {
		if s.Duration < 0 || s.Rate < 0 {
			return 0, fmt.Errorf("money: negative segment %v at %v/h", s.Duration, s.Rate)
		}
		life += s.Duration
	}
	extra := b.Paid(life) - life
	var hi, lo uint64
	for i, s := range segments {
		d := s.Duration
		if i == len(segments)-1 {
			d += extra
		}
		h, l := bits.Mul64(uint64(d), uint64(s.Rate))
		var carry uint64
		lo, carry = bits.Add64(lo, l, 0)
		hi, carry = bits.Add64(hi, h, carry)
		if carry != 0 {
			return 0, ErrOverflow
		}
	}
	const hour = uint64(time.Hour)
	if hi >= hour {
		return 0, ErrOverflow
	}
	q, rem := bits.Div64(hi, lo, hour)
	if rem != 0 {
		q++
	}
	if q > math.MaxInt64 {
		return 0, ErrOverflow
	}
	return Amount(q), nil
}
