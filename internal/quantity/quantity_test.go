package quantity

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestDuration(t *testing.T) {
	for _, c := range []struct {
		in   string
		want time.Duration
		hint string // of the error
	}{
		{"90s", 90 * time.Second, ""},
		{"1h30m", 90 * time.Minute, ""},
		{"2d", 48 * time.Hour, ""},
		{"1d12h", 36 * time.Hour, ""},
		{"0s", 0, ""},
		{"1.5h", 90 * time.Minute, ""},
		{"5 minutes", 0, `write "5m"`},
		{"2 days", 0, `write "2d"`},
		{"300", 0, `"300s"`},
		{"-5m", 0, "sign"},
		{"0", 0, `"0s"`},
		{"soon", 0, "expected a duration"},
		{"", 0, "expected a duration"},
		{"99999999h", 0, "expected a duration"},
		{"60000d2000000h", 0, "expected a duration"},
	} {
		var d Duration
		err := d.UnmarshalText([]byte(c.in))
		switch {
		case c.hint == "" && (err != nil || d.Std() != c.want):
			t.Errorf("%q = %v, %v", c.in, d, err)
		case c.hint != "" && (err == nil || !strings.Contains(err.Error(), c.hint)):
			t.Errorf("%q = %v, %v; want an error with %s", c.in, d, err, c.hint)
		}
	}
}

func TestSize(t *testing.T) {
	for _, c := range []struct {
		in   string
		want int64
		hint string
	}{
		{"4GiB", 4 << 30, ""},
		{"50GB", 50e9, ""},
		{"1.5 TiB", 3 << 39, ""},
		{"512mib", 512 << 20, ""},
		{"0B", 0, ""},
		{"9007199254740993B", 9007199254740993, ""},
		{"4", 0, `"4GiB"`},
		{"4G", 0, `write "4GiB"`},
		{"4Gi", 0, `write "4GiB"`},
		{"4 gigs", 0, "expected a size"},
		{"-4GiB", 0, "expected a size"},
		{"1e9GB", 0, "expected a size"},
		{"", 0, "expected a size"},
		{"99999999TiB", 0, "expected a size"},
	} {
		var s Size
		err := s.UnmarshalText([]byte(c.in))
		switch {
		case c.hint == "" && (err != nil || s.Bytes() != c.want):
			t.Errorf("%q = %v, %v", c.in, s, err)
		case c.hint != "" && (err == nil || !strings.Contains(err.Error(), c.hint)):
			t.Errorf("%q = %v, %v; want an error with %s", c.in, s, err, c.hint)
		}
	}
}

func TestMoneyNeedsItsCurrency(t *testing.T) {
	for in, want := range map[string]string{"25 USD": "25.00 USD", "$0.5": "0.50 USD", "25": "", "-1 USD": "", "25 usd": "", "": ""} {
		var m Money
		err := m.UnmarshalText([]byte(in))
		if (err == nil) != (want != "") || err == nil && m.String() != want {
			t.Errorf("%q = %v, %v", in, m, err)
		}
	}
}

// What is written is read back as it was.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := Duration(rapid.Int64Range(0, 1<<62).Draw(t, "duration"))
		var d2 Duration
		if err := d2.UnmarshalText([]byte(d.String())); err != nil || d2 != d {
			t.Fatalf("%v: %v, %v", d, d2, err)
		}
		s := Size(rapid.OneOf(rapid.Int64Range(0, 1<<60-1), rapid.Map(rapid.Int64Range(0, 1<<20), func(i int64) int64 { return i << 30 })).Draw(t, "size") % (1 << 60))
		var s2 Size
		if err := s2.UnmarshalText([]byte(s.String())); err != nil || s2 != s {
			t.Fatalf("%v: %v, %v", s, s2, err)
		}
	})
}

func TestCountAndTokens(t *testing.T) {
	for text, want := range map[string]float64{"70B": 70e9, "7b": 7e9, "1.5T": 1.5e12, "350M": 350e6, "12": 12} {
		var c Count
		if err := c.UnmarshalText([]byte(text)); err != nil || float64(c) != want {
			t.Errorf("%s: %v, %v", text, c, err)
		}
	}
	for text, want := range map[string]int64{"8k": 8192, "4096": 4096, "128K": 131072, "1M": 1 << 20} {
		var n Tokens
		if err := n.UnmarshalText([]byte(text)); err != nil || int64(n) != want {
			t.Errorf("%s: %v, %v", text, n, err)
		}
	}
	for _, text := range []string{"", "B", "-7B", "0", "7 B", "7GB", "1e9", "nan", "inf", "0x10", "1_000"} {
		if err := new(Count).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is taken as a count", text)
		}
		if err := new(Tokens).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is taken as tokens", text)
		}
	}
	if err := new(Tokens).UnmarshalText([]byte("8.0001k")); err == nil {
		t.Error("a share of a token is taken")
	}
}
