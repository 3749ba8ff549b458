package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"gpubroker/internal/api"
	"gpubroker/internal/gpu"
	"gpubroker/internal/scenario"
)

func (a *app) scenarios() *cobra.Command {
	return &cobra.Command{
		Use: "scenarios [NAME]", Short: "List kinds of work, or explain one", Args: atMostOne,
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return scenario.Builtin().Names(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			list := scenario.Builtin().All()
			if len(args) == 1 {
				p, ok := scenario.Builtin().Find(args[0])
				if !ok {
					return usage("there is no scenario %q; %s", args[0], hint(args[0], scenario.Builtin().Names(), "gpubroker scenarios lists them"))
				}
				list = []scenario.Profile{p}
			}
			if done, err := a.json(api.Scenarios{Scenarios: list}); done {
				return err
			}
			if len(args) == 0 {
				t := table{head: []string{"SCENARIO", "WHAT", "SPEED GOES WITH", "INTERRUPTIBLE", "SLOTS"}, right: []int{4}, flexible: []int{1}}
				for _, p := range list {
					t.row(p.Name, p.Title, p.FigureName, string(p.Interruptible), strconv.Itoa(p.Slots))
				}
				return a.look.printf("%s", t.String())
			}
			return a.printScenario(list[0])
		},
	}
}

func (a *app) printScenario(p scenario.Profile) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s\n\n  %s\n\n", styleHead.Render(p.Name), p.Title, wrap(p.Doc, 2))
	line := func(name, value string) { fmt.Fprintf(&b, "  %-16s %s\n", name, wrap(value, 19)) }
	line("speed goes with", p.FigureName)
	line("must have", wants(p.Require))
	line("assumed", wants(p.Assume))
	switch p.Interruptible {
	case scenario.Auto:
		line("interruptible", "with a checkpoint, or when its tasks are short")
	case scenario.WithCheckpoint:
		line("interruptible", "only with a checkpoint")
	case scenario.Never:
		line("interruptible", "never: it runs on on-demand machines")
	}
	if p.Checkpoint > 0 {
		line("saves every", p.Checkpoint.String())
	}
	line("tasks per GPU", strconv.Itoa(p.Slots))
	if p.Fabric {
		line("several GPUs", "need a full fabric among those of a machine")
	}
	if p.RDMA {
		line("several machines", "need RDMA between them")
	}
	n := 0
	var names []string
	for _, f := range gpu.Builtin().All() {
		if len(p.Check(f)) == 0 {
			n++
			names = append(names, f.ID)
		}
	}
	line("GPUs that fit", fmt.Sprintf("%d: %s", n, strings.Join(names, ", ")))
	return a.look.printf("%s", b.String())
}

func wants(r scenario.Requirements) string {
	var out []string
	for _, name := range sorted(r) {
		at, _ := gpu.FindAttribute(name)
		w := r[name]
		switch {
		case at.Kind == gpu.Word:
			out = append(out, name+" "+strings.Join(w.Words, " or "))
		case at.Kind == gpu.Flag:
			out = append(out, name)
		default:
			unit := at.Unit
			if unit == "engines" { // "encoders ≥ 1" names already what is counted
				unit = ""
			}
			out = append(out, strings.TrimSpace(fmt.Sprintf("%s ≥ %g %s", name, w.Number, unit)))
		}
	}
	return orDash(strings.Join(out, ", "))
}
