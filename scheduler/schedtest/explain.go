package schedtest

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/scheduler"
)

// columns is the width of text for people; markets that are longer are cut.
const columns = 100

// Explained is an explanation as the scripts show it: costs in USD for one task,
// times in UTC. What people see is drawn by the command line.
func Explained(e *scheduler.Explanation) string {
	var b strings.Builder
	d := &e.Decision
	say := func(format string, args ...any) { b.WriteString(wrap(fmt.Sprintf(format, args...), "  ") + "\n") }
	say("%s: %d waiting, %d placed now", e.Group, d.Waiting, d.Placed)
	if e.Chosen {
		o := &e.Options[0]
		say("  where  %s, %s", o.Market, machine(&o.Shape))
		say("  when   now; ready in %s, one task done in %s", short(o.Delay), short(o.Delay+o.Time))
		say("  cost   $%s a task (time %s), on %s at $%s/h each, bound $%s/h",
			cents(o.Cost.Total), o.Rate, plural(d.Launched, "machine"), o.Price, o.Bound)
	}
	say("  why    %s", d.Why)
	if e.Change != "" {
		say("  for    %s", e.Change)
	}
	if !e.Again.IsZero() {
		say("  again  %s", e.Again.UTC().Format("2006-01-02 15:04:05Z"))
	}
	table(e, &b)
	fmt.Fprintf(&b, "\n%s, %d usable\n", plural(e.Considered, "offer"), e.Usable)
	for _, c := range e.Reasons {
		b.WriteString(wrap(fmt.Sprintf("%8d  %s", c.Offers, c.Sample), strings.Repeat(" ", 10)) + "\n")
	}
	if len(e.Otherwise) > 0 {
		b.WriteString("\notherwise\n")
	}
	for _, o := range e.Otherwise {
		saves := ""
		if o.Saves > 0 {
			saves = fmt.Sprintf(", $%s less", cents(o.Saves))
		}
		if o.Sooner > 0 {
			saves += ", " + short(o.Sooner) + " sooner"
		}
		if !o.Kept.IsZero() {
			saves += "; " + o.Kept.String()
		}
		b.WriteString(wrap(fmt.Sprintf("  %s: $%s a task%s: %s at $%s/h", o.Why, cents(o.Option.Cost.Total), saves, o.Option.Market, o.Option.Price), "    ") + "\n")
	}
	return b.String()
}

// table shows the options side by side, their costs in parts.
func table(e *scheduler.Explanation, b *strings.Builder) {
	if len(e.Options) == 0 {
		return
	}
	parts := partsOf(e)
	const rest = len("  ") + len(" 0.0000  0.0000") + len(" 1h30m ") + 4
	place := min(32, columns-rest-9*len(parts)) // the parts go before the names of places
	fmt.Fprintf(b, "\n  %-*s %7s  %7s", place, "for one task, USD", "$/h", "total")
	for i, p := range parts {
		fmt.Fprintf(b, " %s%7s", []string{"=", "+"}[min(i, 1)], p.name)
	}
	fmt.Fprintf(b, " %6s\n", "time")
	for i := range e.Options {
		o := &e.Options[i]
		mark := " "
		switch {
		case i == 0 && e.Chosen:
			mark = ">"
		case !o.Cooled.IsZero():
			mark = "~"
		case o.Late:
			mark = "!"
		case o.Committed:
			mark = "="
		}
		fmt.Fprintf(b, "%s %-*s %7s  %7s", mark, place, shorten(o.Market.String(), place), cents(money.Amount(o.Price)), cents(o.Cost.Total))
		for _, p := range parts {
			fmt.Fprintf(b, "  %7s", cents(p.of(&o.Cost)))
		}
		fmt.Fprintf(b, " %6s\n", short(o.Time))
	}
	for i := range e.Options {
		if o := &e.Options[i]; o.Cost.Waiting > 0 {
			fmt.Fprintf(b, "  the time until it is done is worth %s more at %s\n", cents(o.Cost.Waiting), o.Market)
		}
	}
	seen := map[string]bool{}
	for i := range e.Options {
		for _, n := range e.Options[i].Notes {
			if text := n.String(); !seen[text] {
				seen[text] = true
				b.WriteString(wrap("  * "+text, "    ") + "\n")
			}
		}
	}
	if d := &e.Decision; d.Waiting > 1 {
		var all []string
		for i := range e.Options {
			if o := &e.Options[i]; o.Cost.Egress > 0 {
				all = append(all, "$"+cents(o.Cost.Egress*money.Amount(d.Waiting))+" at "+o.Market.String())
			}
		}
		if len(all) > 0 {
			b.WriteString(wrap(fmt.Sprintf("  * egress of all %d: %s", d.Waiting, strings.Join(all, ", ")), "    ") + "\n")
		}
	}
	for _, note := range [...]struct {
		when func(*scheduler.Option) bool
		text string
	}{
		{func(o *scheduler.Option) bool { return !o.Cooled.IsZero() }, "~ cools down after a refusal or a preemption"},
		{func(o *scheduler.Option) bool { return o.Late && o.Cooled.IsZero() }, "! misses the deadline"},
		{func(o *scheduler.Option) bool { return o.Committed }, "= committed: paid for already"},
	} {
		for i := range e.Options {
			if note.when(&e.Options[i]) {
				b.WriteString("  " + note.text + "\n")
				break
			}
		}
	}
}

// Times shows how long a task is expected to take in each option, and from what.
func Times(e *scheduler.Explanation) string {
	var b strings.Builder
	for i := range e.Options {
		o := &e.Options[i]
		fmt.Fprintf(&b, "%-26s %7s  %7s to %7s  %s\n", o.Market, short(o.Time), short(o.Low), short(o.High), strings.TrimSpace(string(o.Rate)+" "+o.RateOn))
	}
	return b.String()
}

type part struct {
	name string
	of   func(*scheduler.Parts) money.Amount
}

// partsOf are the parts that some option has; boot and work always stand.
func partsOf(e *scheduler.Explanation) []part {
	all := []part{
		{"boot", func(p *scheduler.Parts) money.Amount { return p.Boot }},
		{"staging", func(p *scheduler.Parts) money.Amount { return p.Staging }},
		{"work", func(p *scheduler.Parts) money.Amount { return p.Work }},
		{"saves", func(p *scheduler.Parts) money.Amount { return p.Saves }},
		{"redo", func(p *scheduler.Parts) money.Amount { return p.Redo }},
		{"egress", func(p *scheduler.Parts) money.Amount { return p.Egress }},
		{"round", func(p *scheduler.Parts) money.Amount { return p.Rounding }},
		{"idle", func(p *scheduler.Parts) money.Amount { return p.Idle }},
	}
	return slices.DeleteFunc(all, func(p part) bool {
		some := func(o scheduler.Option) bool { return p.of(&o.Cost).Round(4) != 0 }
		return p.name != "boot" && p.name != "work" && !slices.ContainsFunc(e.Options, some)
	})
}

// number is unknown when it is zero.
func number(f float64, unknown string) string {
	if f == 0 {
		return unknown
	}
	return strconv.FormatFloat(f, 'f', -1, 64)
}

func machine(s *providers.Shape) string {
	gpus := "no GPU"
	if s.GPUs > 0 {
		gpus = strconv.FormatFloat(s.GPUs, 'f', -1, 64) + " x " + cmp.Or(s.GPU, s.GPUName)
	}
	return fmt.Sprintf("%s, %s vCPU, %s", gpus, number(s.VCPU, "unknown"), number(float64(s.Memory)/(1<<30), "unknown")+" GiB of memory")
}

// cents shows money with as many decimals as tell it from others: two from $100,
// else four.
func cents(a money.Amount) string {
	decimals := 4
	if a >= 100*money.Unit {
		decimals = 2
	}
	return strconv.FormatFloat(a.Round(decimals).Float(), 'f', decimals, 64)
}

func plural(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return strconv.Itoa(n) + " " + what
}

// short shows a duration to the minute, or to the second under ten minutes.
func short(d time.Duration) string {
	unit := time.Second
	if d >= 10*time.Minute {
		unit = time.Minute
	}
	s := d.Round(unit).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// shorten cuts a text in its middle.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	head := (n - 1) / 3
	return s[:head] + "~" + s[len(s)-(n-1-head):]
}

// wrap breaks a line at spaces, and indents what follows.
func wrap(s, indent string) string {
	var out strings.Builder
	for len(s) > columns {
		at := strings.LastIndexByte(s[:columns+1], ' ')
		if at <= len(indent) {
			break
		}
		out.WriteString(s[:at] + "\n")
		s = indent + s[at+1:]
	}
	out.WriteString(s)
	return out.String()
}
