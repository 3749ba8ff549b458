package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"gpubroker/internal/api"
	"gpubroker/internal/api/client"
	"gpubroker/internal/gpu"
	"gpubroker/internal/market"
	"gpubroker/internal/money"
)

func (a *app) gpus() *cobra.Command {
	var snapshot bool
	cmd := &cobra.Command{
		Use: "gpus [NAME]", Short: "List GPUs and where each is cheapest, or what is known of one", Args: atMostOne,
		Long: "List GPUs: the facts that people pick by, and the cheapest spot and on-demand price of a GPU-hour now; with\n" +
			"NAME all that is known of it. Where no broker is known the prices are those of a dated snapshot that is\n" +
			"built in, and what clouds publish to everybody.",
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			var ids []string
			for _, f := range gpu.Builtin().All() {
				ids = append(ids, f.ID)
			}
			return ids, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var ids []string
			if len(args) == 1 {
				var err error
				if ids, err = gpu.Builtin().Resolve(args[0]); err != nil {
					return &exit{ExitUsage, err}
				}
			}
			out, err := a.models(cmd.Context(), snapshot)
			if err != nil {
				return err
			}
			if ids != nil {
				out.GPUs = slices.DeleteFunc(out.GPUs, func(m market.Model) bool { return !slices.Contains(ids, m.ID) })
			}
			if done, err := a.json(out); done {
				return err
			}
			if len(args) == 0 || len(out.GPUs) != 1 {
				return a.printModels(out.GPUs)
			}
			return a.printModel(&out.GPUs[0])
		},
	}
	cmd.Flags().BoolVar(&snapshot, "snapshot", false, "take prices from the snapshot that is built in, and ask nobody")
	return cmd
}

func (a *app) models(ctx context.Context, snapshot bool) (out api.GPUs, err error) {
	err = a.either(ctx, snapshot, func(c *client.Client) (err error) {
		out, err = c.GPUs(ctx)
		return err
	}, func(m *market.Market, day string) error {
		out = api.GPUs{GPUs: m.View().Models(a.Now()), Snapshot: day}
		return nil
	})
	return out, err
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
func rateFact(k gpu.Known[float64], unit string) string {
	if v, ok := k.Get(); ok && v == 0 {
		return "–"
	}
	return fact(k, unit)
}

// cheapest shows a price of a GPU-hour.
func cheapest(b *market.Best) string {
	switch {
	case b == nil:
		return "–"
	case b.Currency != money.USD:
		return rate(b.PerGPU) + " " + string(b.Currency)
	}
	return rate(b.PerGPU)
}

func (a *app) printModels(list []market.Model) error {
	t := table{
		head:  []string{"GPU", "CLASS", "GB", "GB/S", "BF16", "FP8", "FP64", "ENC", "DEC", "LINK", "SPOT", "ON DEMAND"},
		right: []int{2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, flexible: []int{0},
	}
	for _, m := range list {
		name := m.ID
		if m.ID == market.UnknownGPU {
			name = strings.TrimSpace(m.ID + " " + m.Name)
		}
		t.row(name, fact(m.Class, ""), fact(m.Memory, ""), fact(m.MemoryBandwidth, ""), rateFact(m.BF16Peak(), ""), rateFact(m.FP8, ""), rateFact(m.FP64, ""),
			fact(m.Encoders, ""), fact(m.Decoders, ""), link(m.Fact), cheapest(m.Spot), cheapest(m.OnDemand))
	}
	return a.look.printf("%s%s\n", t.String(), styleDim.Render("dense TFLOPS; GB/s of memory and of the link among GPUs; USD per GPU-hour; ? is not known"))
}

// link is the speed of the fabric among GPUs, a dash where there is none.
func link(f gpu.Fact) string {
	if f.Link.Or("") == "none" {
		return "–"
	}
	return fact(f.LinkBandwidth, "")
}

func (a *app) printModel(m *market.Model) error {
	facts := gpu.Builtin()
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s\n", styleHead.Render(m.ID), m.Name)
	for _, at := range gpu.Attributes() {
		v := facts.Value(m.Fact, at)
		text := v.String()
		if n, ok := v.Number.Get(); ok {
			text = strings.TrimSpace(strconv.FormatFloat(n, 'g', 5, 64) + " " + at.Unit)
		}
		fmt.Fprintf(&b, "  %-19s %-21s %s\n", at.Name, text, wrap(at.Doc, 44))
	}
	if m.Conflicts != "" {
		fmt.Fprintf(&b, "  %-19s %s\n", "sources disagree", wrap(m.Conflicts, 22))
	}
	for _, x := range [...]struct {
		name string
		best *market.Best
	}{{"cheapest spot", m.Spot}, {"cheapest on demand", m.OnDemand}} {
		text := "none"
		if x.best != nil {
			text = fmt.Sprintf("%s %s/h, %s, seen %s", rate(x.best.PerGPU), x.best.Currency, where(x.best.Market), a.look.age(x.best.Seen))
		}
		fmt.Fprintf(&b, "  %-19s %s\n", x.name, wrap(text, 22))
	}
	return a.look.printf("%s", b.String())
}
