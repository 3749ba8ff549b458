// Package report writes what a replay found as one HTML file that opens from
// disk: charts in SVG, and tables of the same figures. It has no script and loads
// nothing, which its content security policy says too. It follows the reader's
// choice of light or dark.
package report

import (
	"fmt"
	"html"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/backtest"
	"gpubroker/internal/quantity"
)

// Single writes the report of one job's replay.
func Single(w io.Writer, r backtest.Result, o backtest.Options) error {
	p := page{title: "One job on a recorded market"}
	deadline := o.Deadline
	if deadline == 0 {
		deadline = time.Duration(float64(o.Length) / o.Fraction).Round(time.Second)
	}
	gang := ""
	if o.Gang > 1 {
		gang = fmt.Sprintf(", a gang of %d", o.Gang)
	}
	p.lead("%s of work in %s on %s/%s%s, replayed from %s. With all of the future known it would cost %s USD: %.3f of on demand.",
		quantity.Duration(o.Length), quantity.Duration(deadline), filepath.Base(filepath.Dir(o.Market)), filepath.Base(o.Market), gang,
		count(r.Windows, "start"), usd(r.Optimum.SumCost), r.Optimum.OverOnDemand)
	p.ratios("Cost ÷ the optimum", singleBars(r))
	if r.Timeline != nil {
		p.timeline(r.Timeline)
	}
	t := table{head: []string{"policy", "cost, USD", "÷ optimum", "mean", "90th percentile", "worst", "÷ on demand", "misses", "preempted", "moves", "probes, USD", "egress, USD", "paid without progress"}}
	for _, s := range r.Policies {
		t.row(s.Name, usd(s.SumCost), three(s.SumRatio), three(s.MeanRatio), three(s.P90Ratio), three(s.MaxRatio), three(s.OverOnDemand),
			whole(s.Misses), whole(s.Preemptions), whole(s.Moves), usd(s.ProbeCost), usd(s.EgressCost), percent(s.WasteShare))
	}
	p.section("Figures")
	p.table("All starts together, each policy", t)
	if r.Timeline != nil {
		p.spanTable(r.Timeline)
	}
	p.notes(r.Notes)
	return p.write(w)
}

// Queue writes the report of a queue's replay.
func Queue(w io.Writer, r backtest.QueueResult) error {
	p := page{title: "A queue on recorded markets"}
	p.lead("%s on %s of %s (%s), over %s. Each alone and with all of the future known, they would cost %s USD at least; on demand %s USD.",
		count(r.Jobs, "job"), count(r.Pools, "pool"), count(len(r.Markets), "market"), strings.Join(r.Markets, ", "),
		quantity.Duration(time.Duration(r.Horizon)*time.Second), usd(r.Bound), usd(r.OnDemandCost))
	p.ratios("Cost ÷ the bound, of the jobs admitted", queueBars(r))
	p.spending(r)
	p.jobs(r)
	t := table{head: tallyHead("policy")}
	for _, s := range r.Policies {
		t.row(append([]string{s.Name}, tallyRow(s.Tally)...)...)
	}
	p.section("Figures")
	p.table("All teams together, each policy", t)
	for i := range r.Policies[0].Teams {
		t := table{head: append(tallyHead("policy"), "of its cap")}
		team := r.Policies[0].Teams[i]
		name := "Team " + team.Name + ", no cap"
		if team.Cap != nil {
			name = "Team " + team.Name + ", cap " + usd(*team.Cap) + " USD"
		}
		for _, s := range r.Policies {
			of := ""
			if limit := s.Teams[i].Cap; limit != nil && *limit > 0 {
				of = percent(s.Teams[i].SumCost / *limit)
			}
			t.row(append(append([]string{s.Name}, tallyRow(s.Teams[i].Tally)...), of)...)
		}
		p.table(name, t)
	}
	p.details(r)
	p.notes(r.Notes)
	return p.write(w)
}

func tallyHead(first string) []string {
	return []string{first, "jobs", "admitted", "misses", "caps broken", "cost, USD", "bound, USD", "÷ bound", "÷ on demand", "preempted", "moves", "probes, USD", "egress, USD", "paid without progress"}
}

func tallyRow(t backtest.Tally) []string {
	return []string{
		whole(t.Jobs), whole(t.Admitted), whole(t.Misses), whole(t.CapBreaches), usd(t.SumCost), usd(t.Bound), three(t.Ratio), three(t.OverOnDemand),
		whole(t.Preemptions), whole(t.Moves), usd(t.ProbeCost), usd(t.EgressCost), percent(t.WasteShare),
	}
}

// details lists the jobs under one policy, folded up.
func (p *page) details(r backtest.QueueResult) {
	s := r.Policies[chief(r)]
	t := table{head: []string{"job", "team", "arrives", "work", "deadline", "gang", "checkpoint, GB", "cost, USD", "÷ bound", "done after", "what happened"}, words: true}
	for _, j := range s.Details {
		cost, ratio, done, said := usd(j.Cost), "", span(j.Finish), ""
		switch {
		case !j.Admitted:
			cost, done, said = "", "", "not admitted: "+j.Why
		case j.Missed:
			said = "late"
		}
		if j.Admitted && j.Preempted > 0 {
			said = strings.TrimPrefix(said+", "+count(j.Preempted, "preemption"), ", ")
		}
		if j.Admitted && j.Bound > 0 {
			ratio = three(j.Cost / j.Bound)
		}
		t.row(j.Name, j.Team, span(j.Arrival), span(j.Length), span(j.Deadline), whole(j.Gang), strconv.FormatFloat(j.Checkpoint, 'g', 4, 64), cost, ratio, done, said)
	}
	p.f("<details><summary>%s under %s</summary>\n", esc(count(len(s.Details), "job")), esc(s.Name))
	p.table("Jobs by arrival", t)
	p.f("</details>\n")
}

// spanTable says in words what the timeline shows.
func (p *page) spanTable(tl *backtest.Timeline) {
	p.f("<details><summary>The timeline in words</summary>\n")
	for _, track := range tl.Tracks {
		t := table{head: []string{"from", "to", "where", "end"}, words: true}
		for _, s := range track.Spans {
			end := ""
			if s.Lost {
				end = "taken away"
			}
			t.row(clock(s.From), clock(s.To), where(s), end)
		}
		p.table(track.Policy, t)
	}
	p.f("</details>\n")
}

func where(s backtest.Span) string {
	if s.Kind == backtest.Waiting {
		return string(s.Kind)
	}
	return string(s.Kind) + " in " + s.Pool
}

// chief is the policy whose jobs are shown one by one: ours, or else the first.
func chief(r backtest.QueueResult) int {
	for i, s := range r.Policies {
		if s.Name == "ours" {
			return i
		}
	}
	return 0
}

// page is built up and then written. All text passes esc.
type page struct {
	title string
	body  strings.Builder
	ids   int
}

func esc(s string) string { return html.EscapeString(s) }

func (p *page) f(format string, args ...any) { fmt.Fprintf(&p.body, format, args...) }

func (p *page) lead(format string, args ...any) {
	p.f("<p class=\"lead\">%s</p>\n", esc(fmt.Sprintf(format, args...)))
}

func (p *page) section(title string) { p.f("<h2>%s</h2>\n", esc(title)) }

func (p *page) text(format string, args ...any) {
	p.f("<p>%s</p>\n", esc(fmt.Sprintf(format, args...)))
}

func (p *page) notes(notes []string) {
	if len(notes) == 0 {
		return
	}
	p.section("Notes")
	p.f("<ul>\n")
	for _, n := range notes {
		p.f("<li>%s</li>\n", esc(n))
	}
	p.f("</ul>\n")
}

// table is rows under a head. Its first column is a head too; numbers are set to
// the right, unless it has words.
type table struct {
	head  []string
	rows  [][]string
	words bool
}

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

func (p *page) table(caption string, t table) {
	class := "numbers"
	if t.words {
		class = "words"
	}
	// What scrolls can be reached with the keyboard.
	p.f("<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"%s\"><table class=\"%s\"><caption>%s</caption>\n<thead><tr>", esc(caption), class, esc(caption))
	for _, h := range t.head {
		p.f("<th scope=\"col\">%s</th>", esc(h))
	}
	p.f("</tr></thead>\n<tbody>\n")
	for _, row := range t.rows {
		for i, c := range row {
			if i == 0 {
				p.f("<tr><th scope=\"row\">%s</th>", esc(c))
			} else {
				p.f("<td>%s</td>", esc(c))
			}
		}
		p.f("</tr>\n")
	}
	p.f("</tbody></table></div>\n")
}

func (p *page) write(w io.Writer) error {
	_, err := fmt.Fprintf(w, `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'"/>
<title>%[1]s: gpubroker backtest</title>
<style>%[2]s</style>
</head>
<body>
%[4]s
<main>
<h1>%[1]s</h1>
%[3]s</main>
</body>
</html>
`, esc(p.title), style, p.body.String(), hatch)
	return err
}

// The colours of kinds and lines are told apart with each kind of colour
// blindness, and never alone: lines are dashed, and on demand is hatched.
const style = `
:root { color-scheme: light dark; --back: #ffffff; --ink: #1c2128; --dim: #57606a; --rule: #d0d7de;
  --spot: #0f766e; --on-spot: #ffffff; --demand: #c2570c; --bar: #8296ab; --ours: #1d4ed8; --cap: #b3261e;
  --line0: #1d4ed8; --line1: #c2570c; --line2: #0f766e; --line3: #7e22ce; }
@media (prefers-color-scheme: dark) { :root { --back: #12161c; --ink: #e6edf3; --dim: #a0aab5; --rule: #38414c;
  --spot: #2fa89b; --on-spot: #06201d; --demand: #f0883e; --bar: #64748b; --ours: #79a6ff; --cap: #ff8077;
  --line0: #79a6ff; --line1: #f0883e; --line2: #3fc1b0; --line3: #c792ea; } }
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; margin: 0 0 .5rem; } h2 { font-size: 1.2rem; margin: 2.25rem 0 .5rem; }
p { max-width: 48rem; margin: .4rem 0; } .lead { font-size: 1.05rem; } .key { color: var(--dim); }
figure { margin: 1rem 0; overflow-x: auto; } .broad svg { min-width: 42rem; } svg { display: block; width: 100%; height: auto; }
.keys { max-width: none; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; } .keys span { white-space: nowrap; }
.mark { display: inline-block; width: 2.1rem; vertical-align: -.1em; } .pair figure { margin: 0; }
.pair { display: grid; grid-template-columns: repeat(auto-fill, minmax(24rem, 1fr)); gap: 1rem; }
@media (max-width: 27rem) { .pair { grid-template-columns: 1fr; } }
text { fill: var(--ink); font: 12px system-ui, sans-serif; } .small { font-size: 10px; } .dim { fill: var(--dim); }
.bold { font-weight: 650; } .end { text-anchor: end; } .mid { text-anchor: middle; }
.grid { stroke: var(--rule); stroke-width: 1; } .axis { stroke: var(--dim); stroke-width: 1; }
.bar { fill: var(--bar); } .bar.ours { fill: var(--ours); } .dot { fill: var(--back); stroke: var(--ink); stroke-width: 1.5; }
.spot { fill: var(--spot); stroke: var(--back); stroke-width: .6; } .cut { stroke: var(--back); stroke-width: 2.5; } .faint { opacity: .45; } .inside { fill: var(--on-spot); } .demand { fill: url(#hatch); stroke: var(--demand); }
.hatched { stroke: var(--demand); stroke-width: 3; } .hatchback { fill: var(--back); }
.wait { stroke: var(--dim); stroke-width: 1.5; stroke-dasharray: 2 3; } .lost { fill: var(--ink); }
.cap { stroke: var(--cap); stroke-width: 2; } .captext { fill: var(--cap); }
.line { fill: none; stroke-width: 1.8; } .held { fill: none; stroke: var(--dim); stroke-width: 1; }
.line0 { stroke: var(--line0); } .line1 { stroke: var(--line1); stroke-dasharray: 7 3; }
.line2 { stroke: var(--line2); stroke-dasharray: 2 3; } .line3 { stroke: var(--line3); stroke-dasharray: 9 3 2 3; }
.wide { overflow-x: auto; margin: 1rem 0; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .85rem; }
caption { text-align: left; font-weight: 650; padding: .25rem 0; } th, td { padding: .2rem .45rem; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap; }
thead th { color: var(--dim); font-weight: 550; vertical-align: bottom; white-space: normal; } th:first-child { text-align: left; }
.words th, .words td { text-align: left; } .words td:last-child { white-space: normal; } summary { cursor: pointer; margin-top: 1rem; }
`
