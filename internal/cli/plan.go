package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpubroker/internal/api"
	"gpubroker/internal/api/client"
	"gpubroker/internal/control"
	"gpubroker/internal/market"
	"gpubroker/internal/money"
	"gpubroker/internal/reason"
	"gpubroker/internal/scenario"
	"gpubroker/internal/spec"
	"gpubroker/providers"
	"gpubroker/scheduler"
)

// specFiles are the endings that a spec's file may have.
var specFiles = []string{"", ".yaml", ".yml", ".json"}

func (a *app) validate() *cobra.Command {
	var sets []string
	cmd := &cobra.Command{
		Use: "validate FILE...", Short: "Check job specs; all faults are shown at once",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return exactly("FILE")(cmd, args)
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			var all spec.Errors
			for _, name := range args {
				text, err := readSpec(name, a.In)
				if err != nil {
					return err
				}
				j, err := anyBroker.Parse(name, text, sets...)
				faults, invalid := errors.AsType[spec.Errors](err)
				if ext := strings.ToLower(filepath.Ext(name)); invalid && !slices.Contains(specFiles, ext) {
					return usage("%s: a job spec is a file in YAML or JSON (.yaml, .yml, .json), not %s; docs/spec.md describes it", name, ext)
				}
				if err != nil && !invalid {
					return err
				}
				all = append(all, faults...)
				if !invalid && j.Unresolved() {
					_, hint := scenario.Builtin().Why(j.Scenario)
					fmt.Fprintf(a.Err, "%s: scenario %q is not built in, so the broker has to have it; %s\n", name, j.Scenario, hint)
				}
				if a.format == "text" && !invalid {
					if err := a.look.printf("%s: valid\n", name); err != nil {
						return err
					}
				}
			}
			if len(all) > 0 {
				return all
			}
			_, err := a.json(map[string]any{"valid": true, "files": args})
			return err
		},
	}
	cmd.Flags().StringArrayVar(&sets, "set", nil, "override a value: --set resources.slots=4 (repeatable)")
	return cmd
}

func (a *app) plan() *cobra.Command {
	var flags specFlags
	var file string
	var tasks int
	var snapshot bool
	cmd := &cobra.Command{
		Use:   "plan FILE | -- COMMAND...",
		Short: "Say where a job would run, when, at what cost, and why not elsewhere",
		Long: "Say where a job would run, when, at what cost, and why not elsewhere; nothing is committed. With\n" +
			"--offers it is planned against a table of offers, and no broker is needed. Where none is known, it is\n" +
			"planned against a dated snapshot that is built in, and the prices that clouds publish to everybody.\n\n" +
			"Exit code 3: nothing that is offered fits. 4: a budget has no room.",
		Example: "  gpubroker plan nightly.yaml\n  gpubroker plan train.yaml --offers offers.csv.gz --set resources.gpu=h100",
		RunE: func(cmd *cobra.Command, args []string) error {
			j, dir, err := flags.read(cmd, args, a.In)
			if err != nil {
				return err
			}
			defer a.slow("planning")()
			var p api.Plan
			var notes []string
			if file != "" {
				p, notes, err = a.planTable(cmd.Context(), j, dir, file, tasks)
			} else {
				err = a.either(cmd.Context(), snapshot, func(c *client.Client) (err error) {
					p, err = a.planAtBroker(cmd.Context(), c, j, dir)
					return err
				}, func(m *market.Market, _ string) (err error) {
					p, notes, err = a.planAlone(cmd.Context(), j, dir, m.Offers(), tasks)
					return err
				})
				if errors.Is(err, client.ErrUnreachable) {
					err = fmt.Errorf("%w; or plan against a table of offers with --offers FILE, or against built-in ones with --snapshot", err)
				}
			}
			if err != nil {
				return err
			}
			for _, n := range notes {
				fmt.Fprintln(a.Err, n)
			}
			if done, err := a.json(p); done {
				return errors.Join(err, verdict(p.Explanation))
			}
			if err := a.explain(j.Name, p); err != nil {
				return err
			}
			return verdict(p.Explanation)
		},
	}
	flags.register(cmd)
	cmd.Flags().StringVar(&file, "offers", "", "plan against this table of offers (.csv or .csv.gz) without a broker")
	cmd.Flags().IntVar(&tasks, "tasks", 1, "without a broker: how many tasks to plan where tasks.glob is of an object store")
	cmd.Flags().BoolVar(&snapshot, "snapshot", false, "plan against the offers that are built in, and ask nobody")
	return cmd
}

func (a *app) planAtBroker(ctx context.Context, c *client.Client, j *spec.Job, dir string) (api.Plan, error) {
	r, err := a.request(ctx, c, j, dir, false)
	if err != nil {
		return api.Plan{}, err
	}
	return c.Plan(ctx, r)
}

// assumed is what is taken for granted of accounts of which only offers are
// known: machines that are billed by the second, up in two minutes, and ended by
// their provider.
func assumed() providers.Capabilities {
	return providers.Capabilities{
		Kinds: []providers.Kind{providers.Spot, providers.OnDemand}, Notice: 30 * time.Second, NoticeSource: providers.NoticeMetadata,
		Billing: money.Billing{Unit: time.Second}, TagsAtLaunch: true, LaunchToken: true, SelfEnd: providers.EndRolling, BootTime: 2 * time.Minute,
	}
}

// planTable plans against a table of offers.
func (a *app) planTable(ctx context.Context, j *spec.Job, dir, file string, tasks int) (p api.Plan, notes []string, err error) {
	offers, skipped, err := market.ReadFile(file)
	if err != nil {
		return p, nil, &exit{ExitUsage, err}
	}
	p, notes, err = a.planAlone(ctx, j, dir, offers, tasks)
	if len(skipped) > 0 {
		notes = slices.Insert(notes, 0, fmt.Sprintf("%s: %s not used; the first is line %d: %s", file, plural(len(skipped), "row"), skipped[0].Line, skipped[0].Why))
	}
	return p, notes, err
}

// planAlone plans against offers without a broker.
func (a *app) planAlone(ctx context.Context, j *spec.Job, dir string, offers []providers.Offer, tasks int) (p api.Plan, notes []string, err error) {
	if j.Unresolved() {
		message, hint := scenario.Builtin().Why(j.Scenario)
		return p, nil, usage("%s here, and no broker is asked; %s", message, hint)
	}
	notes = append(notes, "assumed of every provider: billed by the second, up in 2m, prices still hold")
	if t := j.Tasks; t != nil && strings.Contains(t.Glob, "://") && !strings.HasPrefix(t.Glob, "file:") {
		notes = append(notes, fmt.Sprintf("%s is not read without a broker: planned for %s, see --tasks", t.Glob, plural(tasks, "task")))
		j.Tasks = &spec.Tasks{Parallelism: t.Parallelism, List: slices.Repeat([]string{folderOf(t.Glob) + "unknown"}, max(tasks, 1))}
	}
	now := a.Now().UTC()
	accounts := map[string]scheduler.Provider{}
	for _, o := range offers {
		accounts[o.Provider] = scheduler.Provider{Capabilities: assumed(), Cloud: o.Provider}
	}
	root, err := filepath.Abs(dir)
	if err != nil {
		return p, nil, err
	}
	set := scheduler.Settings{Lease: 20 * time.Minute, Idle: 2 * time.Minute}
	catalog := scheduler.NewCatalog(1, offers)
	draw := func(at time.Time) (scheduler.Explanation, *scheduler.Snapshot, error) {
		snap, err := control.Alone(ctx, j, spec.Local{Dir: root}, catalog, accounts, set, at)
		if errors.Is(err, control.ErrInvalid) {
			return scheduler.Explanation{}, nil, usage("%s", strings.TrimPrefix(err.Error(), control.ErrInvalid.Error()+": "))
		}
		if err != nil {
			return scheduler.Explanation{}, nil, err
		}
		if len(snap.Groups) == 0 {
			return scheduler.Explanation{}, nil, usage("the job has no tasks")
		}
		e, _ := scheduler.Explain(snap, nil, snap.Groups[0].ID)
		return e, snap, nil
	}
	e, snap, err := draw(now)
	if err != nil {
		return p, nil, err
	}
	if opens := e.Decision.Again; e.Decision.Why.Code == "outside_window" && opens.After(now) {
		notes = append(notes, "its window is closed; this is the plan for when it opens, "+local(opens))
		if e, snap, err = draw(opens); err != nil {
			return p, nil, err
		}
	}
	return api.PlanOf(e, scheduler.Plan(snap, nil).Launches, money.USD), notes, nil
}

// folderOf is what of a pattern names a place.
func folderOf(glob string) string {
	if i := strings.IndexAny(glob, `*?[\`); i >= 0 {
		glob = glob[:i]
	}
	return glob[:strings.LastIndexByte(glob, '/')+1]
}

// verdict is the exit of a plan: nothing placed for want of an offer, or of money.
func verdict(e scheduler.Explanation) error {
	d := e.Decision
	switch {
	case d.Placed > 0:
		return nil
	case d.Why.Code == "over_budget":
		return &exit{code: ExitNoMoney}
	case e.Considered > 0 && e.Usable == 0, d.Why.Code == "no_offer_fits", d.Why.Code == "price_over_max":
		return &exit{code: ExitNoPlace}
	}
	return nil
}

// explain shows a decision and all that people ask about it.
func (a *app) explain(name string, p api.Plan) error {
	d, currency, seats := p.Decision, string(cmp.Or(p.Currency, money.USD)), seated(p.Notes)
	unit := "task"
	if seats {
		unit = "seat and hour"
	}
	var b strings.Builder
	line := func(what, value string) { fmt.Fprintf(&b, "  %-10s %s\n", what, wrap(value, 13)) }
	fmt.Fprintf(&b, "%s  as of %s\n", styleHead.Render(name), local(p.Now))
	switch {
	case d.Waiting == 1 && d.Placed == 1:
		line("tasks", "the one task would be placed now")
	case d.Placed == d.Waiting:
		line("tasks", fmt.Sprintf("all %d would be placed now", d.Waiting))
	default:
		line("tasks", fmt.Sprintf("%d of %d would be placed now", d.Placed, d.Waiting))
	}
	for i, n := range p.Notes {
		line([...]string{"needs", ""}[min(i, 1)], n.String())
	}
	switch {
	case len(p.Launches) > 0:
		line("machines", launches(p.Launches))
	case d.Placed > 0:
		line("machines", "those in hand that have room; none is rented")
	}
	if p.Chosen && len(p.Options) > 0 {
		best := p.Options[0]
		cost := "about " + part(best.Cost.Total) + " " + currency
		if d.Waiting > 1 {
			cost += fmt.Sprintf(" for each %s, %s for %d", unit, in(best.Cost.Total*money.Amount(d.Waiting), p.Currency), d.Waiting)
			if seats {
				cost += " an hour"
			}
		}
		line("cost", cost)
		if !seats && (d.Placed == d.Waiting || d.Why.Code == "in_turn") { // what follows is in its time, too
			done := p.Now.Add(best.Done)
			line("done", local(done)+", "+a.look.age(done)+undisturbed(best))
		}
	}
	line("why", moments(d.Why.String()))
	if what := cmp.Or(p.Change, d.Why.Change()); d.Wait && what != "" {
		line("waits for", moments(what))
	}
	at := p.Again
	if at.IsZero() { // an older broker does not say
		at = d.Again
	}
	if !at.IsZero() {
		line("next look", local(at)+", "+a.look.age(at))
	}
	if len(p.Options) > 0 {
		b.WriteString("\n" + options(p.Options, p.Chosen, seats, d.Waiting, currency+" a "+unit))
	}
	if len(p.Otherwise) > 0 {
		b.WriteString("\n  otherwise, for one " + unit + "\n")
		for _, o := range p.Otherwise {
			saves := ""
			if o.Saves > 0 {
				saves = ", " + part(o.Saves) + " " + currency + " less"
			}
			if o.Sooner > 0 {
				saves += ", " + span(o.Sooner) + " sooner"
			}
			switch {
			case o.Relax == scheduler.RelaxRules:
				saves = " (" + o.Kept.Args["allowed"] + ")" + saves
			case !o.Kept.IsZero():
				saves += "; " + o.Kept.String()
			}
			fmt.Fprintf(&b, "  %12s  %s\n", part(o.Option.Cost.Total)+" "+currency, wrap(moments(o.Why.String())+saves, 16))
		}
	}
	if p.Considered > 0 {
		fmt.Fprintf(&b, "\n  %s considered, %d usable\n", plural(p.Considered, "offer"), p.Usable)
		for _, r := range p.Reasons {
			example := moments(r.Sample.String())
			if r.Offers > 1 {
				example = "for example, " + example
			}
			fmt.Fprintf(&b, "  %9d  %s\n", r.Offers, wrap(example, 13))
		}
	}
	return a.look.printf("%s", b.String())
}

// seated reports whether a plan is for people with a picture each, whose tasks are
// hours of a seat.
func seated(notes []reason.Reason) bool {
	return slices.ContainsFunc(notes, func(n reason.Reason) bool { return n.Code == "needs_seats" })
}

// undisturbed says what the time of an option leaves out: the cost has the work
// that is expected to be redone in it, the time has not.
func undisturbed(o scheduler.Option) string {
	if o.Cost.Redo == 0 {
		return ""
	}
	return " unless a machine is taken back"
}

func launches(list []api.Launch) string {
	type kind struct{ market, gpus string }
	n := map[kind]int{}
	for _, l := range list {
		n[kind{where(l.Market) + " " + string(l.Market.Kind), gpus(l.Shape)}]++
	}
	var out []string
	for _, k := range slices.SortedFunc(maps.Keys(n), func(x, y kind) int { return cmp.Compare(x.market, y.market) }) {
		out = append(out, fmt.Sprintf("%d × %s (%s)", n[k], k.market, k.gpus))
	}
	return strings.Join(out, ", ")
}

// part shows a part of a cost, so that the parts of a table line up.
func part(a money.Amount) string {
	if a >= 100*money.Unit {
		return padDecimals(a.Round(2).String(), 2)
	}
	return padDecimals(a.Round(4).String(), 4)
}

// where names a market without its kind: provider, what is known of its place,
// and type.
func where(m providers.Market) string {
	return place(m.Provider, m.Region, m.Zone) + " " + m.Type
}

// place joins what is known of a place. A zone that is named after its region says
// both.
func place(provider, region, zone string) string {
	parts := []string{provider, region, zone}
	if strings.HasPrefix(zone, region) {
		parts[1] = ""
	}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "/")
}
