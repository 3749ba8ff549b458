package cli

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"charm.land/lipgloss/v2"

	"gpubroker/internal/money"
)

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0ms", 250 * time.Millisecond: "250ms", time.Second: "1s", 59*time.Second + 600*time.Millisecond: "1m",
		90 * time.Second: "1m30s", 12*time.Minute + 5*time.Second: "12m", time.Hour: "1h", 25 * time.Hour: "1d1h",
		15 * 24 * time.Hour: "15d", -90 * time.Minute: "-1h30m",
	} {
		if got := span(d); got != want {
			t.Errorf("span(%v) = %s, want %s", d, got, want)
		}
	}
}

func TestAmount(t *testing.T) {
	for text, want := range map[string]string{
		"0": "0.00", "0.000001": "0.0000", "0.12345": "0.1235", "-0.5": "-0.5000", "1": "1.00", "1234.567": "1234.57", "-1": "-1.00",
	} {
		a, err := money.ParseAmount(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := amount(a); got != want {
			t.Errorf("amount(%s) = %s, want %s", text, got, want)
		}
	}
}

// A table is no wider than it may be as long as its fixed columns fit.
func TestTablesFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := table{head: []string{"A", "B", "C"}, right: []int{0}, flexible: []int{1, 2}}
		cell := rapid.StringOfN(rapid.RuneFrom([]rune("abc 日…–é")), 0, 200, -1)
		for range rapid.IntRange(0, 5).Draw(t, "rows") {
			x.row(rapid.StringOfN(rapid.RuneFrom([]rune("0123456789")), 0, 12, -1).Draw(t, "n"), cell.Draw(t, "b"), cell.Draw(t, "c"))
		}
		for line := range strings.Lines(x.String()) {
			if w := lipgloss.Width(strings.TrimSuffix(line, "\n")); w > width {
				t.Errorf("%d wide: %q", w, line)
			}
		}
	})
}

func TestWrap(t *testing.T) {
	text := strings.Repeat("some words ", 40)
	for i, line := range strings.Split(wrap(text, 13), "\n") {
		w := len(line)
		if i == 0 {
			w += 13
		}
		if w > width {
			t.Errorf("line %d is %d wide", i, w)
		}
	}
	if got := strings.Fields(wrap(text, 13)); !slices.Equal(got, strings.Fields(text)) {
		t.Error("words were lost")
	}
	name := strings.Repeat("x", 60)
	market := strings.Join([]string{name, name + "-region", name + "-zone", name + "-type", "spot"}, "/")
	lines := strings.Split(wrap("1 × "+market+" at 5", 13), "\n")
	for i, line := range lines {
		if w := lipgloss.Width(line); i == 0 && w+13 > width || i > 0 && w > width {
			t.Errorf("line %d of a long name is %d wide: %q", i, w, line)
		}
	}
	if got := strings.Join(strings.Fields(strings.Join(lines, "")), ""); got != "1×"+market+"at5" {
		t.Errorf("a long name is shown as %q", got)
	}
}
