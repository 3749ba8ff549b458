package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/backtest"
)

// width of a chart that takes the page's, in its own units.
const width = 960.0

// svg opens a chart; its title and description are what a screen reader says.
func (p *page) svg(w, h float64, title, description string) {
	p.ids++
	class := ""
	if w == width { // on a narrow screen it is scrolled, not shrunk beyond reading
		class = " class=\"broad\" tabindex=\"0\""
	}
	p.f("<figure%s><svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-labelledby=\"t%d d%d\">\n<title id=\"t%d\">%s</title>\n<desc id=\"d%d\">%s</desc>\n",
		class, w, h, p.ids, p.ids, p.ids, esc(title), p.ids, esc(description))
}

func (p *page) closeSVG() { p.f("</svg></figure>\n") }

func (p *page) label(x, y float64, class, text string) {
	p.f("<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">%s</text>\n", x, y, class, esc(text))
}

func (p *page) line(x1, y1, x2, y2 float64, class string) {
	p.f("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x1, y1, x2, y2, class)
}

// rect draws a box; a hint is shown where the pointer rests.
func (p *page) rect(x, y, w, h float64, class, hint string) {
	p.f("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"%s\">", x, y, max(w, 0.5), h, class)
	if hint != "" {
		p.f("<title>%s</title>", esc(hint))
	}
	p.f("</rect>\n")
}

// ticks are about n round values from lo, which is not negative, to hi.
func ticks(lo, hi float64, n int) []float64 {
	if !(hi > lo) {
		return []float64{lo}
	}
	raw := (hi - lo) / float64(n)
	step := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, m := range []float64{1, 2, 5, 10} {
		if step*m >= raw {
			step *= m
			break
		}
	}
	var all []float64
	for i := math.Ceil(lo/step - 1e-9); i*step <= hi+step*1e-9; i++ {
		all = append(all, math.Max(0, i*step))
	}
	return all
}

func short(x float64) string { return strconv.FormatFloat(math.Round(x*1e6)/1e6, 'f', -1, 64) }

// bar is one policy's ratio, and where there are many starts its 90th percentile.
type bar struct {
	name       string
	ratio, p90 float64
	said       string
}

func singleBars(r backtest.Result) []bar {
	var all []bar
	for _, s := range r.Policies {
		all = append(all, bar{s.Name, s.SumRatio, s.P90Ratio, ""})
	}
	return all
}

func queueBars(r backtest.QueueResult) []bar {
	var all []bar
	for _, s := range r.Policies {
		if s.Bound > 0 {
			all = append(all, bar{s.Name, s.Ratio, 0, fmt.Sprintf("%d of %d", s.Admitted, s.Jobs)})
		}
	}
	return all
}

// ratios draws what each policy pays beyond the optimum, the least first.
func (p *page) ratios(title string, bars []bar) {
	p.section(title)
	if len(bars) == 0 {
		p.text("Nothing was admitted.")
		return
	}
	slices.SortStableFunc(bars, func(a, b bar) int { return cmp.Compare(a.ratio, b.ratio) })
	top, said, percentiles, admitted := 1.0, []string{}, false, false
	for _, b := range bars {
		if b.name != "on-demand" || len(bars) == 1 {
			top = max(top, b.ratio, b.p90)
		}
		said = append(said, b.name+" "+three(b.ratio))
		percentiles = percentiles || b.p90 > 0
		admitted = admitted || b.said != ""
	}
	cut := slices.ContainsFunc(bars, func(b bar) bool { return b.ratio > top })
	key := "A bar begins at 1, the optimum, so its length is what was paid beyond that."
	if percentiles {
		key += " The ring is the 90th percentile over the starts."
	}
	if admitted {
		key += " On the right, how many jobs were admitted: compare only what admitted alike."
	}
	if cut {
		key += " The bar of on-demand is cut at the edge."
	}
	p.f("<p class=\"key\">%s</p>\n", esc(key))
	const left, right, row = 130.0, 130.0, 24.0
	height := 34 + row*float64(len(bars))
	p.svg(width, height, title, strings.Join(said, ", "))
	top = max(top*1.02, 1.05)
	x := func(v float64) float64 { return left + (min(v, top)-1)/(top-1)*(width-left-right) }
	for _, v := range ticks(1, top, 8) {
		p.line(x(v), 4, x(v), height-26, "grid")
		p.label(x(v), height-10, "mid small dim", short(v))
	}
	for i, b := range bars {
		y := 6 + row*float64(i)
		class, bold := "bar", ""
		if b.name == "ours" {
			class, bold = "bar ours", " bold"
		}
		p.label(left-8, y+14, "end"+bold, b.name)
		p.rect(x(1), y+3, x(b.ratio)-x(1), row-9, class, b.name+": "+three(b.ratio))
		if b.ratio > top { // two strokes say that it goes on
			p.line(x(top)-14, y+row-4, x(top)-8, y+1, "cut")
			p.line(x(top)-9, y+row-4, x(top)-3, y+1, "cut")
		}
		if b.p90 > 0 && b.p90 <= top {
			p.f("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" class=\"dot\"><title>%s</title></circle>\n", x(b.p90), y+row/2-1.5, esc("90th percentile "+three(b.p90)))
		}
		p.label(width-right+12, y+14, bold, three(b.ratio))
		if b.said != "" {
			p.label(width, y+14, "end small dim", b.said)
		}
	}
	p.line(x(1), 4, x(1), height-26, "axis")
	p.closeSVG()
}

// hatch fills what is on demand; all charts share it.
const hatch = `<svg width="0" height="0" aria-hidden="true" style="position:absolute"><defs><pattern id="hatch" width="7" height="7"
 patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="7" height="7" class="hatchback"/><line x1="0" y1="0" x2="0" y2="7" class="hatched"/></pattern></defs></svg>`

// mostPools is how many pools a timeline shows.
const mostPools = 30

// timeline draws where the job was under each policy, over what the market offered.
func (p *page) timeline(tl *backtest.Timeline) {
	p.section("Where the job was")
	p.text("One start, from %s, where the ratio is the median. Each row is a policy; its cost ÷ the optimum of this start is on the right.", tl.Start.Format("2006-01-02 15:04"))
	p.legend(
		[2]string{`<path d="M17 10l-4 -6h8z" class="lost"/>`, "taken away"},
		[2]string{`<circle cx="17" cy="7" r="3.5" class="dot"/>`, "done"},
		[2]string{`<line x1="17" y1="0" x2="17" y2="14" class="cap"/>`, "deadline"},
	)
	pools := tl.Pools[:min(len(tl.Pools), mostPools)]
	const left, right, row, strip = 150.0, 90.0, 27.0, 13.0
	base := 8 + row*float64(len(tl.Tracks))
	height := base + 44 + strip*float64(len(pools))
	end := tl.Deadline
	said := make([]string, 0, len(tl.Tracks))
	for _, t := range tl.Tracks {
		end = max(end, t.Finish)
		said = append(said, fmt.Sprintf("%s: %s, done after %s at %s times the optimum", t.Policy, shares(t.Spans), clock(t.Finish), three(t.Ratio)))
	}
	x := func(d time.Duration) float64 { return left + d.Hours()/(end.Hours()*1.01)*(width-left-right) }
	p.svg(width, height, "Where the job was in one window", strings.Join(said, "; ")+".")
	for _, v := range ticks(0, end.Hours(), 10) {
		at := x(time.Duration(v * float64(time.Hour)))
		p.line(at, 4, at, height-18, "grid")
		if d := x(tl.Deadline) - at; d < -14 || d > 66 { // there it says deadline
			p.label(at, base+14, "mid small dim", short(v)+" h")
		}
	}
	for i, t := range tl.Tracks {
		y := 6 + row*float64(i)
		bold := ""
		if t.Policy == "ours" {
			bold = " bold"
		}
		p.label(left-8, y+15, "end"+bold, t.Policy)
		p.spans(t.Spans, x, y+2, row-8, true)
		p.f("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" class=\"dot\"><title>%s</title></circle>\n", x(t.Finish), y+row/2-2, esc("done after "+clock(t.Finish)))
		late := ""
		if t.Missed {
			late = ", late"
		}
		p.label(width, y+15, "end"+bold, three(t.Ratio)+late)
	}
	p.line(x(tl.Deadline), 2, x(tl.Deadline), base, "cap")
	p.label(x(tl.Deadline)-4, base+14, "end small captext", "deadline "+clock(tl.Deadline))
	p.label(left-8, base+30, "end small dim", "spot could be had")
	for i, pool := range pools {
		y := base + 36 + strip*float64(i)
		p.label(left-8, y+9, "end small", pool.Pool)
		for _, up := range pool.Up {
			p.rect(x(up.From), y+1, x(min(up.To, end))-x(up.From), strip-3, "spot faint", "")
		}
	}
	p.closeSVG()
	if hidden := len(tl.Pools) - len(pools); hidden > 0 {
		p.text("%s more are not shown.", count(hidden, "pool"))
	}
}

// spans draws a job's way as boxes and marks what was taken away.
func (p *page) spans(spans []backtest.Span, x func(time.Duration) float64, y, h float64, named bool) {
	for _, s := range spans {
		from, to := x(s.From), x(s.To)
		hint := fmt.Sprintf("%s to %s: %s", clock(s.From), clock(s.To), where(s))
		switch s.Kind {
		case backtest.OnSpot:
			p.rect(from, y, to-from, h, "spot", hint)
			if named && to-from > 6.2*float64(len(s.Pool))+8 {
				p.label((from+to)/2, y+h/2+3.5, "mid small inside", s.Pool)
			}
		case backtest.OnDemand:
			p.rect(from, y, to-from, h, "demand", hint)
		default:
			p.line(from, y+h/2, to, y+h/2, "wait")
		}
		if s.Lost && named {
			p.f("<path d=\"M%.1f %.1fl-4 -6h8z\" class=\"lost\"><title>%s</title></path>\n", to, y+2, esc("taken away at "+clock(s.To)))
		}
	}
}

// shares says in words how much of its time a job was where.
func shares(spans []backtest.Span) string {
	sum, whole, lost := map[backtest.Kind]time.Duration{}, time.Duration(0), 0
	for _, s := range spans {
		sum[s.Kind] += s.To - s.From
		whole += s.To - s.From
		if s.Lost {
			lost++
		}
	}
	var all []string
	for _, k := range []backtest.Kind{backtest.OnSpot, backtest.OnDemand, backtest.Waiting} {
		if sum[k] > 0 {
			all = append(all, fmt.Sprintf("%s %s", percent(sum[k].Seconds()/whole.Seconds()), k))
		}
	}
	return strings.Join(all, ", ") + ", " + count(lost, "preemption")
}

// keys explains marks: each is drawn in a box of 34 by 14.
func (p *page) keys(marks ...[2]string) {
	p.f("<p class=\"keys\">\n")
	for _, m := range marks {
		p.f("<span><svg class=\"mark\" viewBox=\"0 0 34 14\" aria-hidden=\"true\">%s</svg> %s</span>\n", m[0], esc(m[1]))
	}
	p.f("</p>\n")
}

// legend says what the boxes mean.
func (p *page) legend(more ...[2]string) {
	p.keys(append([][2]string{
		{`<rect x="1" y="1" width="32" height="12" class="spot"/>`, "on spot"},
		{`<rect x="1" y="1" width="32" height="12" class="demand"/>`, "on demand"},
		{`<line x1="1" y1="7" x2="33" y2="7" class="wait"/>`, "waiting"},
	}, more...)...)
}
