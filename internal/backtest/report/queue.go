package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"gpubroker/internal/backtest"
)

// mostLines is how many policies a chart of spending shows.
const mostLines = 4

// lines are the policies whose spending is drawn: ours, and those with the best
// ratios.
func lines(r backtest.QueueResult) []int {
	all := make([]int, len(r.Policies))
	for i := range all {
		all[i] = i
	}
	slices.SortStableFunc(all, func(a, b int) int {
		x, y := r.Policies[a], r.Policies[b]
		if x.Name == "ours" || y.Name == "ours" {
			return cmp.Compare(b2i(y.Name == "ours"), b2i(x.Name == "ours"))
		}
		return cmp.Compare(x.Ratio, y.Ratio)
	})
	return all[:min(len(all), mostLines)]
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// spending draws for each team what was spent over time, below its cap.
func (p *page) spending(r backtest.QueueResult) {
	p.section("What each team had spent")
	shown := lines(r)
	p.text("A job is admitted only if what it needs on demand fits between what is spent or reserved and the cap.")
	var marks [][2]string
	for i, k := range shown {
		marks = append(marks, [2]string{fmt.Sprintf(`<line x1="0" y1="7" x2="34" y2="7" class="line line%d"/>`, i), r.Policies[k].Name})
	}
	p.keys(append(marks,
		[2]string{`<line x1="0" y1="7" x2="34" y2="7" class="held"/>`, r.Policies[shown[0]].Name + ", with what it had reserved"},
		[2]string{`<line x1="0" y1="7" x2="34" y2="7" class="cap"/>`, "cap"},
	)...)
	p.f("<div class=\"pair\">\n")
	for i := range r.Policies[0].Teams {
		p.team(r, i, shown)
	}
	p.f("</div>\n")
}

func (p *page) team(r backtest.QueueResult, team int, shown []int) {
	const w, h, left, bottom = 470.0, 230.0, 62.0, 26.0
	first := r.Policies[shown[0]].Teams[team]
	top, title := 1.0, first.Name
	if first.Cap != nil {
		top = max(top, *first.Cap)
		title += ", cap " + usd(*first.Cap) + " USD"
	}
	said := make([]string, 0, len(shown))
	for _, k := range shown {
		t := r.Policies[k].Teams[team]
		for _, s := range t.Spend {
			top = max(top, s.Spent)
		}
		said = append(said, fmt.Sprintf("%s spent %s USD in the end and admitted %d of %d jobs", r.Policies[k].Name, usd(t.SumCost), t.Admitted, t.Jobs))
	}
	top *= 1.06
	hours := float64(r.Horizon) / 3600
	x := func(d time.Duration) float64 { return left + d.Hours()/hours*(w-left-8) }
	y := func(v float64) float64 { return h - bottom - v/top*(h-bottom-26) }
	p.svg(w, h, "What "+title+", had spent over time", strings.Join(said, "; ")+".")
	p.label(left, 14, "bold", title)
	for _, v := range ticks(0, top, 5) {
		p.line(left, y(v), w-8, y(v), "grid")
		p.label(left-6, y(v)+4, "end small dim", strings.TrimSuffix(usd(v), ".00"))
	}
	for _, v := range ticks(0, hours, 6) {
		p.label(x(time.Duration(v*float64(time.Hour))), h-8, "mid small dim", short(v)+" h")
	}
	p.line(left, y(0), w-8, y(0), "axis")
	path := func(class string, points []backtest.Spend, of func(backtest.Spend) float64) {
		p.f("<path class=\"%s\" d=\"M%.1f %.1f", class, x(0), y(0))
		for _, s := range points {
			p.f("L%.1f %.1f", x(s.At), y(of(s)))
		}
		p.f("\"/>\n")
	}
	path("held", first.Spend, func(s backtest.Spend) float64 { return s.Committed })
	for i, k := range slices.Backward(shown) {
		path(fmt.Sprintf("line line%d", i), r.Policies[k].Teams[team].Spend, func(s backtest.Spend) float64 { return s.Spent })
	}
	if first.Cap != nil {
		p.line(left, y(*first.Cap), w-8, y(*first.Cap), "cap")
	}
	p.closeSVG()
}

// mostJobs is how many jobs are drawn.
const mostJobs = 400

// jobs draws where each job was under one policy, in the order of arrival.
func (p *page) jobs(r backtest.QueueResult) {
	s := r.Policies[chief(r)]
	var shown []backtest.JobOutcome
	for _, j := range s.Details {
		if j.Admitted && len(shown) < mostJobs {
			shown = append(shown, j)
		}
	}
	if len(shown) == 0 || len(shown[0].Spans) == 0 {
		return
	}
	p.section("Where the jobs were under " + s.Name)
	p.text("Each line is a job that was admitted, in the order of arrival; the table of jobs below has the same.")
	p.legend()
	row := min(14, max(4, 700/float64(len(shown))))
	height := 30 + row*float64(len(shown))
	const left, right = 40.0, 16.0
	hours := float64(r.Horizon) / 3600
	x := func(d time.Duration) float64 { return left + d.Hours()/hours*(width-left-right) }
	var all []backtest.Span
	for _, j := range shown {
		all = append(all, j.Spans...)
	}
	p.svg(width, height, "Where each job was", "All together: "+shares(all)+".")
	for _, v := range ticks(0, hours, 12) {
		at := x(time.Duration(v * float64(time.Hour)))
		p.line(at, 4, at, height-20, "grid")
		p.label(at, height-6, "mid small dim", short(v)+" h")
	}
	for i, j := range shown {
		y := 4 + row*float64(i)
		p.f("<g><title>%s</title>\n", esc(fmt.Sprintf("%s of %s, gang of %d: %s", j.Name, j.Team, j.Gang, shares(j.Spans))))
		p.spans(j.Spans, x, y+0.5, row-1, false)
		p.f("</g>\n")
	}
	p.closeSVG()
	if hidden := s.Admitted - len(shown); hidden > 0 {
		p.text("%s more are in the table.", count(hidden, "job"))
	}
}
