package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"gpubroker/internal/api"
	"gpubroker/internal/api/client"
	"gpubroker/internal/gpu"
	"gpubroker/internal/market"
	"gpubroker/internal/scenario"
)

func (a *app) scenarios() *cobra.Command {
	var snapshot, example bool
	cmd := &cobra.Command{
		Use: "scenarios [NAME]", Short: "List kinds of work, or explain one", Args: atMostOne,
		Long: "List kinds of work; with NAME explain one: what it asks of a GPU and why, which GPUs fit, in the order of\n" +
			"what a dollar buys, and what a job spec may say of it. A broker tells of the owner's own as well, with live\n" +
			"prices; where none answers, those that are built in are shown with the prices of a dated snapshot.",
		Example: "  gpubroker scenarios transcode\n  gpubroker scenarios qlora --example > job.yaml",
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return scenario.Builtin().Names(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				if example {
					return usage("--example: of which scenario? gpubroker scenarios NAME --example")
				}
				return a.listScenarios(cmd.Context(), snapshot)
			}
			page, err := a.scenarioPage(cmd.Context(), args[0], snapshot)
			if err != nil {
				return err
			}
			if example {
				if page.Spec == "" {
					return fmt.Errorf("scenario %s has no example", page.Scenario.Name)
				}
				return a.look.printf("%s", page.Spec)
			}
			if done, err := a.json(page); done {
				return err
			}
			return a.printScenario(page)
		},
	}
	cmd.Flags().BoolVar(&snapshot, "snapshot", false, "show what is built in, and ask nobody")
	cmd.Flags().BoolVar(&example, "example", false, "print a job spec for it, to begin with")
	return cmd
}

// orBuiltin asks the broker. ok is false where none can answer, and what is built in
// has to do: kinds of work are no secret of a broker's, and whoever reads about one
// need not be able to reach it.
func (a *app) orBuiltin(snapshot bool, ask func(*client.Client) error) (ok bool, err error) {
	if snapshot {
		return false, nil
	}
	c, err := a.broker()
	if err == nil {
		done := a.slow("asking the broker")
		err = ask(c)
		done()
	}
	switch {
	case err == nil:
		return true, nil
	case client.Is(err, http.StatusNotFound):
		return false, err
	case !errors.Is(err, errNoBroker):
		fmt.Fprintln(a.Err, "what is built in is shown: "+strings.TrimSpace(away(err).Error()))
	}
	return false, nil
}

func (a *app) listScenarios(ctx context.Context, snapshot bool) error {
	list := api.Scenarios{Scenarios: scenario.Builtin().All()}
	if _, err := a.orBuiltin(snapshot, func(c *client.Client) error {
		got, err := c.Scenarios(ctx)
		if err == nil {
			list = got
		}
		return err
	}); err != nil && !client.Is(err, http.StatusNotFound) {
		return err
	}
	if done, err := a.json(list); done {
		return err
	}
	t := table{head: []string{"SCENARIO", "WHAT", "COMPARED BY", "ON SPOT", "NOTE"}, flexible: []int{1, 4}}
	for _, p := range list.Scenarios {
		note := ""
		switch {
		case p.PlansOnly != "":
			note = "planned, not run"
		case p.Extends != "":
			note = "as " + p.Extends
		}
		t.row(p.Name, p.Title, p.FigureName, map[scenario.Interruptible]string{
			scenario.Auto: "yes", scenario.WithCheckpoint: "if it saves", scenario.Never: "never",
		}[p.Interruptible], note)
	}
	return a.look.printf("%s%s\n", t.String(), styleDim.Render("gpubroker scenarios NAME explains one"))
}

func (a *app) scenarioPage(ctx context.Context, name string, snapshot bool) (page api.ScenarioPage, err error) {
	asked, err := a.orBuiltin(snapshot, func(c *client.Client) (err error) {
		page, err = c.Scenario(ctx, name)
		return err
	})
	if asked {
		return page, nil
	}
	p, ok := scenario.Builtin().Find(name)
	switch {
	case ok: // a broker of another version may not have it
	case err != nil:
		return page, &exit{ExitUsage, err}
	default:
		message, hint := scenario.Builtin().Why(name)
		return page, usage("%s; %s", message, hint)
	}
	m, newest := market.Snapshot()
	page = api.PageOf(p, m.View(), a.Now())
	page.Snapshot = newest.Format("2006-01-02")
	return page, nil
}

func (a *app) printScenario(page api.ScenarioPage) error {
	p := &page.Scenario
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s\n", styleHead.Render(p.Name), p.Title)
	if own := slices.DeleteFunc(slices.Clone(p.Aliases), shared); len(own) > 0 {
		fmt.Fprintf(&b, "  %s\n", wrap("also called "+strings.Join(own, ", "), 2))
	}
	if p.Extends != "" {
		fmt.Fprintf(&b, "  as %s but for what differs\n", p.Extends)
	}
	fmt.Fprintf(&b, "\n  %s\n\n", wrap(p.Doc, 2))
	for _, l := range scenarioFacts(p) {
		fmt.Fprintf(&b, "  %-16s %s\n", l.name, wrap(l.text, 19))
	}
	b.WriteString("\n" + a.worthTable(page))
	if page.Spec != "" {
		fmt.Fprintf(&b, "\n  example (--example prints it alone)\n\n")
		for line := range strings.Lines(page.Spec) {
			b.WriteString("    " + line)
		}
	}
	return a.look.printf("%s", b.String())
}

// shared says that a name is asked back, since several scenarios have it.
func shared(alias string) bool { return len(scenario.Builtin().Meanings(alias)) > 1 }

// scenarioFact is one thing that is to be known of a scenario; without a name it is another
// of the kind before.
type scenarioFact struct{ name, text string }

// scenarioFacts are what a scenario asks and does, in the order of its page.
func scenarioFacts(p *scenario.Profile) (out []scenarioFact) {
	line := func(name, format string, args ...any) {
		out = append(out, scenarioFact{name, fmt.Sprintf(format, args...)})
	}
	because := func(key string) string {
		if why := p.Why[key]; why != "" {
			return ": " + why
		}
		return ""
	}
	if p.PlansOnly != "" {
		line("planned, not run", "%s", p.PlansOnly)
	}
	for _, asked := range []struct {
		name string
		of   scenario.Requirements
	}{{"must have", p.Require}, {"assumed", p.Assume}} {
		for _, attribute := range sorted(asked.of) {
			line(asked.name, "%s%s", want(attribute, asked.of[attribute]), because(attribute))
		}
	}
	if len(p.Require)+len(p.Assume) == 0 {
		line("must have", "nothing: any GPU will do")
	}
	if p.Fabric {
		line("several GPUs", "a full fabric among those of a machine%s", because("fabric"))
	}
	if p.RDMA {
		line("several machines", "RDMA between them%s", because("rdma"))
	}
	figure, _ := gpu.FindAttribute(p.FigureName)
	line("compared by", "%s, %s", p.FigureName, figure.Doc)
	if p.Metric != "" {
		line("ranked by", "%s", p.Metric)
	}
	for _, x := range p.Prefer {
		line("better", "%s: %s", x.What, x.Why)
	}
	switch p.Interruptible {
	case scenario.Auto:
		line("interruptible", "with a checkpoint, or when its tasks are short: then it runs on spot machines")
	case scenario.WithCheckpoint:
		line("interruptible", "only with a checkpoint: without one it runs on on-demand machines")
	case scenario.Never:
		line("interruptible", "never: it runs on on-demand machines")
	}
	if p.Checkpoint > 0 {
		line("saves", "every %s where nothing better is known", p.Checkpoint)
	}
	shares := "one task has a GPU for itself"
	if p.Slots > 1 {
		shares = fmt.Sprintf("%d tasks share a GPU", p.Slots)
	}
	switch p.Share {
	case scenario.Fraction:
		shares += "; a machine with a share of a GPU will do where a task asks for no more (resources.slots)"
	case scenario.WholeMachine:
		shares += "; from two GPUs on, it has the machine for itself"
	case scenario.WholeGPU:
		shares += "; a machine with a share of a GPU will not do"
	}
	line("sharing", "%s", shares)
	say := "resources and work"
	if len(p.Describe) > 0 {
		say = strings.Join(p.Describe, ", ") + "; resources and work as for any"
	}
	line("a spec may say", "%s (docs/spec.md)", say)
	for _, s := range p.Sources {
		line("source", "%s", s)
	}
	for i := len(out) - 1; i > 0; i-- {
		if out[i].name == out[i-1].name {
			out[i].name = ""
		}
	}
	return out
}

// wellKnown are GPUs that people ask about, of each generation and kind.
var wellKnown = []string{
	"t4", "v100-16gb", "a10", "a10g", "a40", "a100-sxm-40gb", "a100-sxm-80gb", "l4", "l40s", "rtx-4090", "rtx-5090", "rtx-pro-6000-se",
	"h100-sxm-80gb", "h200-sxm-141gb", "b200", "b300", "mi300x", "mi355x", "radeon-pro-v520", "radeon-pro-v710",
}

// worthTable shows which well-known GPUs fit, and why the others do not.
func (a *app) worthTable(page api.ScenarioPage) string {
	p := &page.Scenario
	var b strings.Builder
	t := table{head: []string{"  GPU", strings.ToUpper(p.FigureName), "SPOT", "ON DEMAND", "PER USD", "CHEAPEST"}, right: []int{1, 2, 3, 4}, flexible: []int{5}}
	more := 0
	var order []string // what is lacking, first come
	lacking := map[string][]string{}
	for i := range page.GPUs {
		w := &page.GPUs[i]
		known := slices.Contains(wellKnown, w.GPU)
		switch {
		case w.Lacks == nil && !known:
			more++
		case w.Lacks == nil:
			best := w.Best(p)
			cells := []string{"  " + w.GPU, "?", cheapest(w.Spot), cheapest(w.OnDemand), "–", "–"}
			if p.Interruptible == scenario.Never {
				cells[2] = "–"
			}
			if w.Figure > 0 {
				cells[1] = short(w.Figure)
			}
			if w.PerMoney > 0 {
				cells[4] = short(w.PerMoney)
			}
			if best != nil {
				cells[5] = where(best.Market)
			}
			t.row(cells...)
		case known:
			asked, name := p.Require, w.Lacks.Attribute
			if _, required := asked[name]; !required {
				asked = p.Assume
			}
			what := want(name, asked[name])
			if w.Assumed {
				what += ", unless the job says otherwise"
			}
			if _, ok := lacking[what]; !ok {
				order = append(order, what)
			}
			lacking[what] = append(lacking[what], w.GPU+" ("+w.Lacks.Have+")")
		}
	}
	if len(t.rows) > 0 {
		b.WriteString(t.String())
		note := "USD per GPU-hour, and what of " + p.FigureName + " one USD buys"
		if page.Snapshot != "" {
			note += "; list prices of a snapshot of " + page.Snapshot + " and before, not live"
		}
		if more > 0 {
			note += fmt.Sprintf("; %d more GPUs fit (-o json)", more)
		}
		for line := range strings.SplitSeq(wrap(note, 2), "\n") {
			b.WriteString("  " + styleDim.Render(strings.TrimSpace(line)) + "\n")
		}
	}
	if len(order) > 0 {
		b.WriteString("\n  these do not fit\n")
	}
	for _, what := range order {
		fmt.Fprintf(&b, "    %s\n", wrap(what+": "+strings.Join(lacking[what], ", "), 6))
	}
	return b.String()
}

// short shows a figure in three digits or its whole part.
func short(f float64) string {
	if f >= 1000 {
		return strconv.FormatFloat(f, 'f', 0, 64)
	}
	return strconv.FormatFloat(f, 'g', 3, 64)
}

// want shows what is asked of an attribute.
func want(name string, w gpu.Want) string {
	at, _ := gpu.FindAttribute(name)
	switch at.Kind {
	case gpu.Word:
		return name + " " + strings.Join(w.Words, " or ")
	case gpu.Flag:
		if !w.Flag {
			return name + " or not"
		}
		return name
	case gpu.Number:
	}
	unit := at.Unit
	if unit == "engines" { // "encoders ≥ 1" names already what is counted
		unit = ""
	}
	return strings.TrimSpace(fmt.Sprintf("%s ≥ %g %s", name, w.Number, unit))
}
