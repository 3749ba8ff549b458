package cli

import (
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"charm.land/lipgloss/v2"

	"gpubroker/internal/money"
)

// width is what tables fit in.
const width = 100

// look is how things are shown.
type look struct {
	out io.Writer
	now func() time.Time
}

var (
	styleHead = lipgloss.NewStyle().Bold(true)
	styleGood = lipgloss.NewStyle().Foreground(lipgloss.Green)
	styleBad  = lipgloss.NewStyle().Foreground(lipgloss.Red)
	styleWarn = lipgloss.NewStyle().Foreground(lipgloss.Yellow)
	styleDim  = lipgloss.NewStyle().Faint(true)
)

// printf writes text whose colours are dropped where there is no terminal and
// under NO_COLOR. Nothing in it commands a terminal but colours.
func (l look) printf(format string, args ...any) error {
	_, err := lipgloss.Fprint(l.out, tame(fmt.Sprintf(format, args...)))
	return err
}

// style is a sequence that changes how text looks, and nothing else.
var style = regexp.MustCompile(`^\x1b\[[0-9;]*m`)

// tame replaces control characters, which names of clouds and marketplaces may hold,
// but for ends of lines, tabs and styles.
func tame(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if !strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) && r != '\n' }) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == '\x1b' {
			if seq := style.FindString(s[i:]); seq != "" {
				b.WriteString(seq)
				i += len(seq)
				continue
			}
		}
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			r = ' '
		}
		b.WriteRune(r)
		i += n
	}
	return b.String()
}

// state colours a state of a job, task, attempt or instance.
func state(s string) string {
	switch s {
	case "succeeded", "ready":
		return styleGood.Render(s)
	case "failed", "lost":
		return styleBad.Render(s)
	case "held", "draining", "terminating", "cancelled":
		return styleWarn.Render(s)
	}
	return s
}

// table is rows under a head. The cells of flexible columns are cut short where
// the table is wider than it may be; numbers are set to the right.
type table struct {
	head     []string
	right    []int
	flexible []int // the widest gives up first
	rows     [][]string
}

// row adds a line; a cell that holds several becomes one.
func (t *table) row(cells ...string) {
	for i, c := range cells {
		cells[i] = strings.NewReplacer("\r", " ", "\n", " ", "\t", " ").Replace(tame(c))
	}
	t.rows = append(t.rows, cells)
}

const gap = 2

// shortest is what a flexible column keeps at least.
const shortest = 10

func (t *table) String() string {
	widths := make([]int, len(t.head))
	for _, row := range append([][]string{t.head}, t.rows...) {
		for i, c := range row {
			widths[i] = max(widths[i], lipgloss.Width(c))
		}
	}
	over := -width - gap
	for _, w := range widths {
		over += w + gap
	}
	least := make([]int, len(t.head))
	for i, h := range t.head {
		least[i] = max(shortest, lipgloss.Width(h))
	}
	for ; over > 0; over-- {
		widest := -1
		for _, i := range t.flexible {
			if widths[i] > least[i] && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break // nothing more can be given up
		}
		widths[widest]--
	}
	var b strings.Builder
	line := func(row []string, style *lipgloss.Style) {
		var out strings.Builder
		for i, c := range row {
			c = shorten(c, widths[i])
			pad := strings.Repeat(" ", max(0, widths[i]-lipgloss.Width(c)))
			if style != nil {
				c = style.Render(c)
			}
			if slices.Contains(t.right, i) {
				c = pad + c
			} else {
				c += pad
			}
			out.WriteString(c + strings.Repeat(" ", gap))
		}
		b.WriteString(strings.TrimRight(out.String(), " ") + "\n")
	}
	line(t.head, &styleHead)
	for _, row := range t.rows {
		line(row, nil)
	}
	return b.String()
}

// shorten cuts text without styles at a width.
func shorten(s string, w int) string {
	if lipgloss.Width(s) <= w {
		return s
	}
	room := w - 1
	for i, r := range s {
		if room -= lipgloss.Width(string(r)); room < 0 {
			return strings.TrimRight(s[:i], " ") + "…"
		}
	}
	return s
}

// wrap breaks text at spaces, each further line indented.
func wrap(text string, indent int) string {
	var b strings.Builder
	at := indent
	for i, word := range words(text, width-indent) {
		w := lipgloss.Width(word)
		switch {
		case i == 0:
		case at+1+w > width:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			at = indent
		default:
			b.WriteString(" ")
			at++
		}
		b.WriteString(word)
		at += w
	}
	return b.String()
}

// words are those of a text; one that is longer than a line, such as the name of a
// market, is broken, where it can be after a slash or a hyphen.
func words(text string, line int) []string {
	var out []string
	for word := range strings.FieldsSeq(text) {
		for rest := []rune(word); ; {
			if line <= 0 || len(rest) <= line {
				out = append(out, string(rest))
				break
			}
			at := line
			if i := strings.LastIndexAny(string(rest[:line]), "/-"); i > 0 {
				at = len([]rune(string(rest[:line])[:i+1]))
			}
			out = append(out, string(rest[:at]))
			rest = rest[at:]
		}
	}
	return out
}

// local shows a moment in the local zone, with the zone.
func local(t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	return t.Local().Format("2006-01-02 15:04 MST")
}

// stamp is a moment as reasons write it.
var stamp = regexp.MustCompile(`\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ`)

// moments shows the moments of a text in the time zone of whoever reads it.
func moments(text string) string {
	return stamp.ReplaceAllStringFunc(text, func(s string) string {
		t, err := time.Parse("2006-01-02 15:04:05Z07:00", s)
		if err != nil {
			return s
		}
		return local(t)
	})
}

// age shows how long ago or how far ahead a moment is.
func (l look) age(t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	d := max(l.now().Sub(t), -math.MaxInt64) // its negative must be one, too
	if d < 0 {
		return "in " + span(-d)
	}
	if d < time.Second {
		return "now"
	}
	return span(d) + " ago"
}

// span shows a length of time in at most two units.
func span(d time.Duration) string {
	units := []struct {
		of   time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}}
	if d < 0 {
		return "-" + span(-max(d, -math.MaxInt64))
	}
	if d < time.Second {
		return fmt.Sprintf("%dms", d.Milliseconds())
	}
	d = d.Round(time.Second)
	for i, u := range units {
		if d < u.of {
			continue
		}
		n := d / u.of
		out := fmt.Sprintf("%d%s", n, u.name)
		if i+1 < len(units) && n < 10 {
			if rest := (d - n*u.of) / units[i+1].of; rest > 0 {
				out += fmt.Sprintf("%d%s", rest, units[i+1].name)
			}
		}
		return out
	}
	return "0s"
}

// size shows a number of bytes.
func size(n int64) string {
	if n <= 0 {
		return "–"
	}
	f, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for f >= 1024 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	if f >= 100 || f == math.Trunc(f) {
		return fmt.Sprintf("%.0f %s", f, units[i])
	}
	return fmt.Sprintf("%.1f %s", f, units[i])
}

// amount shows money with four decimals below a dollar and two from there on.
func amount(a money.Amount) string {
	if a > -money.Unit && a < money.Unit && a != 0 {
		return padDecimals(a.Round(4).String(), 4)
	}
	return padDecimals(a.Round(2).String(), 2)
}

// in shows money with its currency.
func in(a money.Amount, currency money.Currency) string {
	return strings.TrimSpace(amount(a) + " " + string(currency))
}

// rate shows a price per hour.
func rate(r money.Rate) string { return padDecimals(money.Amount(r).Round(4).String(), 4) }

func padDecimals(s string, n int) string {
	_, after, ok := strings.Cut(s, ".")
	if !ok {
		return s + "." + strings.Repeat("0", n)
	}
	return s + strings.Repeat("0", max(0, n-len(after)))
}

func percent(share float64) string { return strconv.FormatFloat(100*share, 'f', 0, 64) + " %" }

// plural is "1 task" or "3 tasks".
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func orDash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

// isTerminal reports whether people look at w.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
