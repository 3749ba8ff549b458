package money

import (
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		in   string
		want string
		bad  bool
	}{
		{in: "25 USD", want: "25.00 USD"},
		{in: "25USD", want: "25.00 USD"},
		{in: "$0.375", want: "0.375 USD"},
		{in: "7", want: "7.00 EUR"},
		{in: "0.000000001", want: "0.000000001 EUR"},
		{in: "0.0000000001", bad: true},
		{in: "25 usd", bad: true},
		{in: "25 dollars", bad: true},
		{in: "1e3", bad: true},
		{in: "", bad: true},
		{in: "-", bad: true},
		{in: "99999999999", bad: true},
	} {
		m, err := Parse(c.in, "EUR")
		if (err != nil) != c.bad {
			t.Errorf("Parse(%q): error %v, want an error: %v", c.in, err, c.bad)
			continue
		}
		if err == nil && m.String() != c.want {
			t.Errorf("Parse(%q) = %v, want %v", c.in, m, c.want)
		}
	}
}

func TestChargeFollowsTheBillingRule(t *testing.T) {
	rate, err := RateOf("3.60")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		life time.Duration
		b    Billing
		want string
	}{
		{"not a second", 0, Billing{Minimum: time.Minute}, "0.00"},
		{"per second", 90 * time.Second, Billing{Unit: time.Second}, "0.09"},
		{"part of a second is a second", 1500 * time.Millisecond, Billing{}, "0.002"},
		{"minimum of a minute", 3 * time.Second, Billing{Unit: time.Second, Minimum: time.Minute}, "0.06"},
		{"whole hours", 61 * time.Minute, Billing{Unit: time.Hour}, "7.20"},
	} {
		got, err := Charge(c.life, rate, c.b)
		if err != nil || got.String() != c.want {
			t.Errorf("%s: %v, %v; want %s", c.name, got, err, c.want)
		}
	}
}

// A machine quoted per second, hour or month costs the same.
func TestOneUnitOfMoneyPerTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "segments")
		b := Billing{
			Unit:    rapid.SampledFrom([]time.Duration{0, time.Second, time.Minute, time.Hour}).Draw(t, "unit"),
			Minimum: rapid.SampledFrom([]time.Duration{0, time.Minute, 10 * time.Minute}).Draw(t, "minimum"),
		}
		var segments []Segment
		var life time.Duration
		sum := new(big.Int)
		for range n {
			s := Segment{
				Duration: time.Duration(rapid.Int64Range(0, int64(400*time.Hour)).Draw(t, "d")),
				Rate:     Rate(rapid.Int64Range(0, 200e9).Draw(t, "rate")),
			}
			segments = append(segments, s)
			life += s.Duration
			sum.Add(sum, new(big.Int).Mul(big.NewInt(int64(s.Duration)), big.NewInt(int64(s.Rate))))
		}
		extra := b.Paid(life) - life
		sum.Add(sum, new(big.Int).Mul(big.NewInt(int64(extra)), big.NewInt(int64(segments[n-1].Rate))))
		q, r := new(big.Int).QuoRem(sum, big.NewInt(int64(time.Hour)), new(big.Int))
		if r.Sign() != 0 {
			q.Add(q, big.NewInt(1))
		}
		got, err := ChargeSegments(segments, b)
		if err != nil || int64(got) != q.Int64() {
			t.Fatalf("ChargeSegments = %v, %v; want %v", got, err, q)
		}
	})
}

func TestAddFailsInsteadOfWrapping(t *testing.T) {
	if _, err := Add(MaxAmount, 1); err == nil {
		t.Error("MaxAmount + 1 did not fail")
	}
	if _, err := Add(-MaxAmount-1, -1); err == nil {
		t.Error("min - 1 did not fail")
	}
	if got, err := Add(5, -7); err != nil || got != -2 {
		t.Errorf("5 + -7 = %v, %v", got, err)
	}
}

func FuzzParseRoundTrip(f *testing.F) {
	for _, s := range []string{"0", "1.5", "-3.000000001", "9223372036.854775807", ".5", "5."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseAmount(s)
		if err != nil {
			return
		}
		b, err := ParseAmount(a.String())
		if err != nil || a != b {
			t.Fatalf("%q -> %v -> %v, %v", s, a, b, err)
		}
	})
}

func TestRoundAtTheEndsOfTheRange(t *testing.T) {
	for _, a := range []Amount{MaxAmount, -MaxAmount, -MaxAmount - 1} {
		for decimals := range 10 {
			got := a.Round(decimals)
			if (got < 0) != (a < 0) {
				t.Errorf("%d decimals of %s: %s", decimals, a, got)
			}
		}
	}
	for in, want := range map[Amount]Amount{15: 20, 14: 10, -15: -20, -14: -10, 0: 0, 5: 10, 4: 0} {
		if got := in.Round(8); got != want {
			t.Errorf("%d rounded to tens is %d, want %d", in, got, want)
		}
	}
}

func TestShortKeepsTwoDigits(t *testing.T) {
	for in, want := range map[string]string{
		"0": "0.00", "12.345": "12.35", "0.126": "0.13", "0.0126": "0.013", "0.000543": "0.00054", "-0.000543": "-0.00054",
		"0.000000001": "0.000000001", "0.001": "0.001", "-3.999": "-4.00",
	} {
		a, err := ParseAmount(in)
		if err != nil {
			t.Fatal(err)
		}
		if got := a.Short().String(); got != want {
			t.Errorf("%s is shown as %s, want %s", in, got, want)
		}
	}
}
