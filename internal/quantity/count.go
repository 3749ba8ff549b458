package quantity

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"gpubroker/internal/yamlfile"
)

// Count is a large number of things, written like 70B, 350M or 1.5T: k, M, B and T
// are powers of 1000.
type Count float64

var countUnits = map[string]float64{"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}

// Describe says how a count is written.
func (Count) Describe() string { return "a number above zero such as 350M, 7B or 1.5T" }

// UnmarshalText reads a count above zero.
func (c *Count) UnmarshalText(b []byte) error {
	n, ok := suffixed(string(b), countUnits)
	if !ok {
		return &yamlfile.Problem{Message: fmt.Sprintf("expected %s, found %q", c.Describe(), b), Hint: c.meant(string(b))}
	}
	*c = Count(n)
	return nil
}

// meant guesses at what is no count: a space before the unit, commas or
// underscores between digits, or an exponent.
func (Count) meant(s string) string {
	plain := strings.NewReplacer(" ", "", "_", "", ",", "").Replace(s)
	var c Count
	if n, err := strconv.ParseFloat(plain, 64); err == nil && n > 0 && n < 1e18 {
		c = Count(n)
	} else if n, ok := suffixed(plain, countUnits); ok {
		c = Count(n)
	} else {
		return ""
	}
	return fmt.Sprintf("did you mean %q?", c)
}

// MarshalText writes what UnmarshalText reads.
func (c Count) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

func (c Count) String() string {
	for _, u := range []struct {
		unit string
		size float64
	}{{"T", 1e12}, {"B", 1e9}, {"M", 1e6}, {"k", 1e3}} {
		if float64(c) >= u.size {
			return strconv.FormatFloat(float64(c)/u.size, 'f', -1, 64) + u.unit
		}
	}
	return strconv.FormatFloat(float64(c), 'f', -1, 64)
}

// Tokens is a length of text, written like 4096 or 8k: k and M are powers of 1024,
// as models are named.
type Tokens int64

// Describe says how a number of tokens is written.
func (Tokens) Describe() string { return "a number of tokens such as 4096 or 8k" }

// UnmarshalText reads a whole number above zero.
func (t *Tokens) UnmarshalText(b []byte) error {
	n, ok := suffixed(string(b), map[string]float64{"": 1, "k": 1 << 10, "m": 1 << 20})
	if !ok || n != math.Trunc(n) || n > 1<<40 {
		return &yamlfile.Problem{Message: fmt.Sprintf("expected %s, found %q", t.Describe(), b)}
	}
	*t = Tokens(n)
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (t Tokens) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

func (t Tokens) String() string {
	if t > 0 && t%(1<<10) == 0 {
		return strconv.FormatInt(int64(t>>10), 10) + "k"
	}
	return strconv.FormatInt(int64(t), 10)
}

func suffixed(s string, units map[string]float64) (float64, bool) {
	number := strings.TrimRight(s, "kKmMbBtT")
	unit, known := units[strings.ToLower(s[len(number):])]
	n, err := strconv.ParseFloat(number, 64)
	return n * unit, known && err == nil && n > 0 && n*unit < 1e18 && !strings.ContainsAny(number, "eExX_+")
}
