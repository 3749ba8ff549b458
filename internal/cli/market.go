package cli

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"gpubroker/internal/api"
	"gpubroker/internal/api/client"
	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/internal/scenario"
	"gpubroker/providers"
)

func (a *app) offers() *cobra.Command {
	var q client.OfferQuery
	var limit int
	cmd := &cobra.Command{
		Use: "offers", Short: "List what can be rented now, cheapest first", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if q.Kind != "" && q.Kind != string(providers.Spot) && q.Kind != string(providers.OnDemand) {
				return usage("--kind %s: expected spot or on-demand", q.Kind)
			}
			if q.GPU != "" {
				if _, err := gpu.Builtin().Resolve(q.GPU); err != nil {
					return &exit{ExitUsage, err}
				}
			}
			c, err := a.broker()
			if err != nil {
				return err
			}
			defer a.slow("asking the broker")()
			out, err := c.Offers(cmd.Context(), q)
			if err != nil {
				return away(err)
			}
			if done, err := a.json(out); done {
				return err
			}
			return a.printOffers(out.Offers, limit)
		},
	}
	f := cmd.Flags()
	f.StringVar(&q.GPU, "gpu", "", "only with this GPU, by id, family or common name")
	f.StringVar(&q.Kind, "kind", "", "only spot or on-demand")
	f.StringVar(&q.Provider, "provider", "", "only of this account")
	f.StringVar(&q.Region, "region", "", "only in this region")
	f.IntVar(&limit, "limit", 50, "at most so many rows")
	return cmd
}

func (a *app) printOffers(list []providers.Offer, limit int) error {
	if len(list) == 0 {
		return a.look.printf("no offers; gpubroker providers says which accounts could be read\n")
	}
	t := table{head: []string{"PRICE/H", "KIND", "GPU", "TYPE", "WHERE", "VCPU", "MEMORY", "PROVIDER", "SEEN"}, right: []int{0, 5, 6}, flexible: []int{3, 4, 7, 2}}
	for _, o := range list[:min(limit, len(list))] {
		where := o.Zone
		if where == "" {
			where = o.Region
		}
		full := ""
		if o.Available == providers.Full {
			full = " (full)"
		}
		t.row(rate(o.Price)+" "+string(o.Currency), string(o.Kind)+full, gpus(o.Shape), o.Type, orDash(where),
			strconv.FormatFloat(o.VCPU, 'g', 4, 64), size(o.Memory), o.Provider, a.look.age(o.Seen))
	}
	if err := a.look.printf("%s", t.String()); err != nil {
		return err
	}
	if n := len(list) - limit; n > 0 {
		return a.look.printf("%s\n", styleDim.Render(fmt.Sprintf("%d more; --limit, --gpu, --kind, --provider and --region choose", n)))
	}
	return nil
}

// gpus names the GPUs of a machine: "2 × l4", "t4", "–".
func gpus(s providers.Shape) string {
	name := s.GPU
	if name == "" {
		name = s.GPUName
	}
	switch {
	case s.GPUs == 0:
		return "–"
	case name == "":
		name = "unknown"
	}
	if s.GPUs == 1 {
		return name
	}
	return strconv.FormatFloat(s.GPUs, 'g', 4, 64) + " × " + name
}

func (a *app) instances() *cobra.Command {
	return &cobra.Command{
		Use: "instances", Short: "List machines that are not settled", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.broker()
			if err != nil {
				return err
			}
			defer a.slow("asking the broker")()
			out, err := c.Instances(cmd.Context())
			if err != nil {
				return away(err)
			}
			if done, err := a.json(out); done {
				return err
			}
			if len(out.Instances) == 0 {
				return a.look.printf("no machines\n")
			}
			t := table{head: []string{"MACHINE", "STATE", "TYPE", "WHERE", "KIND", perHour(out.Currency), "RESERVED", "TASKS", "LEASE", "SEEN"}, right: []int{5, 6, 7}, flexible: []int{3, 2}}
			for _, i := range out.Instances {
				seen := a.look.age(i.Seen)
				note := state(string(i.State))
				if i.DeleteErr != "" {
					note = styleBad.Render("will not end")
				}
				where := i.Provider + "/" + i.Zone
				if i.Zone == "" {
					where = i.Provider + "/" + i.Region
				}
				t.row(i.ID, note, i.Type, where, i.Kind, rate(i.Price), reserved(i.Reserved),
					fmt.Sprintf("%d/%d", len(i.Attempts), i.Slots), a.look.age(i.Lease), strings.TrimSuffix(seen, " ago"))
			}
			return a.look.printf("%s", t.String())
		},
	}
}

func (a *app) providers() *cobra.Command {
	return &cobra.Command{
		Use: "providers", Short: "List accounts and how they are", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.broker()
			if err != nil {
				return err
			}
			defer a.slow("asking the broker")()
			out, err := c.Providers(cmd.Context())
			if err != nil {
				return away(err)
			}
			if done, err := a.json(out); done {
				return err
			}
			if len(out.Providers) == 0 {
				return a.look.printf("no providers; name them under providers: in the broker's configuration\n")
			}
			t := table{head: []string{"PROVIDER", "OFFERS", "SEEN", "MACHINES", "NOTICE", "ENDS BY ITSELF", "PROJECTS", "PROBLEM"}, right: []int{1, 3}, flexible: []int{7, 6}}
			for _, p := range out.Providers {
				t.row(p.Name, strconv.Itoa(p.Offers), a.seen(p), strconv.Itoa(p.Machines), notice(p), selfEnd(p),
					orDash(strings.Join(p.Projects, ",")), p.Error)
			}
			return a.look.printf("%s", t.String())
		},
	}
}

func (a *app) seen(p api.Provider) string {
	if p.Seen == nil {
		return "never"
	}
	return a.look.age(*p.Seen)
}

func notice(p api.Provider) string {
	if p.Capabilities.Notice == 0 {
		return "none"
	}
	return span(p.Capabilities.Notice)
}

// selfEnd says who ends a machine when the broker cannot.
func selfEnd(p api.Provider) string {
	switch p.Capabilities.SelfEnd {
	case providers.EndRolling:
		return "yes"
	case providers.EndFixed:
		return "at a fixed time"
	case providers.EndGuest:
		if p.Capabilities.Shared {
			return "stays (yours)"
		}
		return "only from within"
	case providers.EndNone:
		return "no"
	}
	return string(p.Capabilities.SelfEnd)
}

// reserved shows what a machine has reserved; text that is no amount stays as it is.
func reserved(text string) string {
	a, err := money.ParseAmount(text)
	if err != nil {
		return orDash(text)
	}
	return amount(a)
}

// perHour heads a column of prices.
func perHour(c money.Currency) string { return string(cmp.Or(c, money.USD)) + "/H" }

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
