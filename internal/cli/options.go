package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/scheduler"
)

// aspect is one line of the table of options.
type aspect struct {
	name   string
	cell   func(*scheduler.Option) string
	always bool // shown even where no option has anything in it
}

// amountOf shows a part of an option's cost; nothing where it has none.
func amountOf(name string, always bool, of func(*scheduler.Parts) money.Amount) aspect {
	return aspect{name, func(o *scheduler.Option) string {
		if p := of(&o.Cost); always || p.Round(4) != 0 {
			return part(p)
		}
		return ""
	}, always}
}

// aspects are the lines of the table; waiting is how many tasks wait. The time of a
// seat is always an hour, and is not shown.
func aspects(seats bool, waiting int) []aspect {
	type option = scheduler.Option
	type parts = scheduler.Parts
	took := []aspect{
		{"one task", func(o *option) string { return span(o.Time) }, true},
		{"  from", func(o *option) string { return band(o.Low, o.High) }, false},
		{"  to", func(o *option) string { return band(o.High, o.High) }, false},
		{"  known", source, true},
	}
	if seats {
		took = nil
	}
	out := slices.Concat([]aspect{
		{"provider", func(o *option) string { return o.Market.Provider }, true},
		{"where", func(o *option) string { return orDash(place("", o.Market.Region, o.Market.Zone)) }, true},
		{"type", func(o *option) string { return o.Market.Type }, true},
		{"GPU", func(o *option) string { return gpus(o.Shape) }, true},
		{"kind", func(o *option) string { return string(o.Market.Kind) }, true},
		{"", standing, false},
		{"round trip", func(o *option) string { return band(o.RTT, o.RTT) }, false},
		{"per hour", perMachine, true},
	}, took, []aspect{
		{"machines", func(o *option) string { return counted(waiting > 1, o.Machines) }, false},
		{"in turn", func(o *option) string { return counted(waiting > 1 && !seats, o.Rounds) }, false},
		amountOf("boot", true, func(p *parts) money.Amount { return p.Boot }),
		amountOf("staging", false, func(p *parts) money.Amount { return p.Staging }),
		amountOf("work", true, func(p *parts) money.Amount { return p.Work }),
		amountOf("saves", false, func(p *parts) money.Amount { return p.Saves }),
		amountOf("redo", false, func(p *parts) money.Amount { return p.Redo }),
		amountOf("egress", false, func(p *parts) money.Amount { return p.Egress }),
		amountOf("rounding", false, func(p *parts) money.Amount { return p.Rounding }),
		amountOf("idle", false, func(p *parts) money.Amount { return p.Idle }),
		amountOf("total", true, func(p *parts) money.Amount { return p.Total }),
		amountOf("+ waiting", false, func(p *parts) money.Amount { return p.Waiting }),
	})
	if waiting > 1 {
		out = append(out, aspect{"egress, all", func(o *option) string {
			if o.Cost.Egress == 0 {
				return ""
			}
			return part(o.Cost.Egress * money.Amount(waiting))
		}, false})
	}
	return out
}

// options shows ways to do the work side by side, with what one task (or seat and
// hour, as unit says) costs in parts. Parts that none of them has are left out.
func options(list []scheduler.Option, chosen, seats bool, waiting int, unit string) string {
	t := table{head: []string{"  " + unit}}
	for i := range list {
		mark := strconv.Itoa(i + 1)
		if i == 0 && chosen {
			mark = "→ 1"
		}
		t.head = append(t.head, mark)
		t.right = append(t.right, i+1)
		t.flexible = append(t.flexible, i+1)
	}
	for _, a := range aspects(seats, waiting) {
		cells, some := []string{"  " + a.name}, a.always
		for i := range list {
			c := a.cell(&list[i])
			some = some || c != ""
			cells = append(cells, c)
		}
		if some {
			t.row(cells...)
		}
	}
	return t.String() + notes(list)
}

// perMachine is the price of each machine, with how many of them a task needs.
func perMachine(o *scheduler.Option) string {
	if o.Nodes > 1 {
		return strconv.Itoa(o.Nodes) + " × " + part(money.Amount(o.Price))
	}
	return part(money.Amount(o.Price))
}

// source says where the time of an option is from.
func source(o *scheduler.Option) string {
	if o.Rate == scheduler.Scaled && o.RateOn != "" {
		return "scaled, " + o.RateOn
	}
	return string(o.Rate)
}

// band shows an end of the band around a time; an older broker does not say it.
func band(end, high time.Duration) string {
	if high <= 0 {
		return ""
	}
	return span(end)
}

// counted shows a number where it tells something.
func counted(when bool, n int) string {
	if !when || n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// standing is what an option is marked with.
func standing(o *scheduler.Option) string {
	switch {
	case !o.Cooled.IsZero():
		return "cools down"
	case o.Late:
		return "late"
	case o.Committed:
		return "paid already"
	}
	return ""
}

// notes are what the estimates take for granted or leave out, each once, with the
// options that it holds for.
func notes(list []scheduler.Option) string {
	var texts []string
	of := map[string][]string{}
	for i := range list {
		for _, n := range list[i].Notes {
			text := n.String()
			if !slices.Contains(texts, text) {
				texts = append(texts, text)
			}
			of[text] = append(of[text], strconv.Itoa(i+1))
		}
	}
	var b strings.Builder
	for _, text := range texts {
		fmt.Fprintf(&b, "  %s\n", wrap(strings.Join(of[text], ", ")+": "+text, 5))
	}
	return b.String()
}
