// Package quantity reads and writes the durations, sizes and amounts of money
// that people put into files. Each needs its unit; what is written is read back
// exactly.
package quantity

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"gpubroker/internal/money"
	"gpubroker/internal/yamlfile"
)

// Duration is a length of time, written like 90s, 5m, 1h30m or 2d. A day is 24
// hours.
type Duration time.Duration

const day = 24 * time.Hour

// Std returns the duration as the standard library has it.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// Describe says how a duration is written.
func (Duration) Describe() string { return "a duration such as 90s, 5m, 1h30m or 2d" }

// UnmarshalText reads a duration of zero or more.
func (d *Duration) UnmarshalText(b []byte) error {
	s := string(b)
	problem := func(hint string) error {
		return &yamlfile.Problem{Message: fmt.Sprintf("expected %s, found %q", d.Describe(), s), Hint: hint}
	}
	var days time.Duration
	rest := s
	if whole, after, ok := strings.Cut(s, "d"); ok {
		n, err := strconv.ParseUint(whole, 10, 16)
		if err != nil {
			return problem(unitHint(s))
		}
		days, rest = time.Duration(n)*day, after
	}
	if rest == "" && s != "" {
		*d = Duration(days)
		return nil
	}
	v, err := time.ParseDuration(rest)
	switch {
	case err != nil:
		return problem(unitHint(s))
	case strings.HasPrefix(rest, "-") || strings.HasPrefix(rest, "+"):
		return problem("it cannot have a sign")
	case rest == "0":
		return problem(`write "0s"`)
	case v > math.MaxInt64-days:
		return problem("it is too long")
	}
	*d = Duration(days + v)
	return nil
}

// unitHint guesses what "5 minutes" or "300" meant.
func unitHint(s string) string {
	number := strings.TrimRight(s, " abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	if _, err := strconv.ParseFloat(number, 64); err != nil || number == "" {
		return ""
	}
	word := strings.ToLower(strings.TrimSpace(s[len(number):]))
	for _, u := range []struct{ unit, words string }{
		{"s", "s sec secs second seconds"},
		{"m", "m min mins minute minutes"},
		{"h", "h hr hrs hour hours"},
		{"d", "d day days"},
	} {
		for w := range strings.SplitSeq(u.words, " ") {
			if w == word {
				return fmt.Sprintf("write %q", number+u.unit)
			}
		}
	}
	if word == "" {
		return fmt.Sprintf("it needs a unit: %q, %q or %q", number+"s", number+"m", number+"h")
	}
	return ""
}

// MarshalText writes the shortest form: 1h30m, not 1h30m0s.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// Size is a number of bytes, written like 512MiB, 50GB or 4GiB. KiB, MiB, GiB
// and TiB are powers of 1024; kB, MB, GB and TB powers of 1000.
type Size int64

// Bytes returns the size as a number.
func (s Size) Bytes() int64 { return int64(s) }

// GiB returns the size in GiB, for comparing and showing.
func (s Size) GiB() float64 { return float64(s) / (1 << 30) }

// Describe says how a size is written.
func (Size) Describe() string { return "a size such as 512MiB, 4GiB or 50GB" }

// UnmarshalText reads a size of zero or more.
func (s *Size) UnmarshalText(b []byte) error {
	text := string(b)
	problem := func(hint string) error {
		return &yamlfile.Problem{Message: fmt.Sprintf("expected %s, found %q", s.Describe(), text), Hint: hint}
	}
	number := strings.TrimRight(text, " abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	unit := strings.TrimSpace(text[len(number):])
	if unit == "" && number != "" {
		if _, err := strconv.ParseFloat(number, 64); err == nil && number != "0" {
			return problem(fmt.Sprintf("it needs a unit: %q or %q", number+"MiB", number+"GiB"))
		}
	}
	switch strings.ToLower(unit) {
	case "b", "kb", "mb", "gb", "tb", "kib", "mib", "gib", "tib":
	case "k", "m", "g", "t", "ki", "mi", "gi", "ti":
		return problem(fmt.Sprintf("write %q", number+strings.ToUpper(unit[:1])+"iB"))
	default:
		return problem("")
	}
	if n, err := strconv.ParseUint(number, 10, 63); err == nil && strings.EqualFold(unit, "b") {
		*s = Size(n) // exact, where a float would round
		return nil
	}
	n, err := humanize.ParseBytes(text)
	if err != nil || strings.ContainsAny(number, ",_eE+-") || n >= 1<<60 {
		return problem("")
	}
	*s = Size(n)
	return nil
}

// MarshalText writes the largest unit that gives a whole number.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s Size) String() string {
	for _, u := range []struct {
		size int64
		name string
	}{{1 << 40, "TiB"}, {1e12, "TB"}, {1 << 30, "GiB"}, {1e9, "GB"}, {1 << 20, "MiB"}, {1e6, "MB"}, {1 << 10, "KiB"}, {1e3, "kB"}} {
		if s != 0 && int64(s)%u.size == 0 && int64(s)/u.size < 1<<20 {
			return strconv.FormatInt(int64(s)/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10) + "B"
}

// Money is an amount with its currency, written like "25 USD".
type Money struct{ money.Money }

// Describe says how money is written.
func (Money) Describe() string { return "an amount with its currency such as 25 USD" }

// UnmarshalText reads an amount; the currency has to be there.
func (m *Money) UnmarshalText(b []byte) error {
	v, err := money.Parse(string(b), "")
	switch {
	case err != nil:
		return &yamlfile.Problem{Message: fmt.Sprintf("expected %s, found %q", m.Describe(), b)}
	case v.Currency == "":
		return &yamlfile.Problem{Message: fmt.Sprintf("expected %s, found %q", m.Describe(), b), Hint: fmt.Sprintf("it needs a currency: %q", strings.TrimSpace(string(b))+" USD")}
	case v.Amount < 0:
		return &yamlfile.Problem{Message: fmt.Sprintf("expected an amount of zero or more, found %q", b)}
	}
	m.Money = v
	return nil
}

// MarshalText writes the exact amount with its currency.
func (m Money) MarshalText() ([]byte, error) { return []byte(m.String()), nil }
