package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"gpubroker/internal/api"
	"gpubroker/internal/gpu"
)

func (a *app) gpus() *cobra.Command {
	return &cobra.Command{
		Use: "gpus [NAME]", Short: "List GPUs, or what is known of one", Args: atMostOne,
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			var ids []string
			for _, f := range gpu.Builtin().All() {
				ids = append(ids, f.ID)
			}
			return ids, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			facts := gpu.Builtin()
			list := facts.All()
			if len(args) == 1 {
				ids, err := facts.Resolve(args[0])
				if err != nil {
					return &exit{ExitUsage, err}
				}
				list = nil
				for _, id := range ids {
					if f, ok := facts.Lookup(id); ok {
						list = append(list, f)
					}
				}
			}
			if done, err := a.json(api.GPUs{GPUs: list}); done {
				return err
			}
			if len(args) == 0 || len(list) > 1 {
				return a.printGPUs(list)
			}
			return a.printGPU(facts, list)
		},
	}
}

// fact shows a fact, or a question mark when it is not known.
func fact[T comparable](k gpu.Known[T], unit string) string {
	v, ok := k.Get()
	if !ok {
		return "?"
	}
	return strings.TrimSpace(fmt.Sprint(v) + " " + unit)
}

// rateFact shows a rate, and a dash where the GPU does not compute so.
func rateFact(k gpu.Known[float64]) string {
	if v, ok := k.Get(); ok && v == 0 {
		return "–"
	}
	return fact(k, "TF")
}

func (a *app) printGPUs(list []gpu.Fact) error {
	t := table{head: []string{"GPU", "NAME", "CLASS", "MEMORY", "BANDWIDTH", "BF16", "FP64", "ENC", "DEC", "YEAR"}, right: []int{3, 4, 5, 6, 7, 8}, flexible: []int{1, 0}}
	for _, f := range list {
		t.row(f.ID, f.Name, fact(f.Class, ""), fact(f.Memory, "GiB"), fact(f.MemoryBandwidth, "GB/s"), rateFact(f.BF16Peak()), rateFact(f.FP64),
			fact(f.Encoders, ""), fact(f.Decoders, ""), fact(f.Year, ""))
	}
	return a.look.printf("%s", t.String())
}

func (a *app) printGPU(facts *gpu.Table, list []gpu.Fact) error {
	var b strings.Builder
	for _, f := range list {
		fmt.Fprintf(&b, "%s  %s\n", styleHead.Render(f.ID), f.Name)
		for _, at := range gpu.Attributes() {
			v := facts.Value(f, at)
			text := v.String()
			if n, ok := v.Number.Get(); ok {
				text = strings.TrimSpace(strconv.FormatFloat(n, 'g', 5, 64) + " " + at.Unit)
			}
			fmt.Fprintf(&b, "  %-19s %-21s %s\n", at.Name, text, wrap(at.Doc, 44))
		}
		if f.Conflicts != "" {
			fmt.Fprintf(&b, "  %-19s %s\n", "sources disagree", wrap(f.Conflicts, 22))
		}
	}
	return a.look.printf("%s", b.String())
}
