package cli

import (
	"cmp"
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpubroker/internal/api"
	"gpubroker/internal/api/client"
	"gpubroker/internal/gpu"
	"gpubroker/internal/market"
	"gpubroker/internal/money"
	"gpubroker/internal/scenario"
	"gpubroker/providers"
)

// offerFlags are the flags of offers.
type offerFlags struct {
	market.Query
	kind, maxPrice, memory string
	near, maxRTT           string
	quarantined, snapshot  bool
	watch, history         bool
	every                  time.Duration
	days                   int
}

func (a *app) offers() *cobra.Command {
	var f offerFlags
	cmd := &cobra.Command{
		Use: "offers", Short: "List what can be rented now, with the age of each price", Args: exactly(),
		Long: "List what can be rented now, cheapest first, with the age of each price. Where no broker is known the\n" +
			"offers are those of a dated snapshot that is built in, and the prices that clouds publish to everybody.\n\n" +
			"A price that is too old is marked stale; nothing is launched at it. What cannot be believed is\n" +
			"quarantined: it is left out here, and --quarantined shows it with the reason. docs/market.md tells more.",
		Example: "  gpubroker offers --gpu h100 --kind spot --sort per-gpu\n  gpubroker offers --scenario transcode --max-price 0.50 --watch\n" +
			"  gpubroker offers --gpu a100-80gb --link nvlink --history --days 30\n  gpubroker offers -o csv > offers.csv",
		Annotations: map[string]string{moreForms: "csv"},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(a.format); err != nil {
				return err
			}
			switch {
			case f.history:
				return a.offerHistory(cmd.Context(), &f)
			case f.watch:
				return a.watchOffers(cmd.Context(), &f)
			}
			out, err := a.findOffers(cmd.Context(), &f)
			if err != nil {
				return err
			}
			return a.showOffers(out, &f)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.GPU, "gpu", "", "only with this GPU, by id, family or common name; unknown for those that nobody knows")
	flags.StringVar(&f.memory, "memory", "", "GB of each GPU, at least")
	flags.StringVar(&f.kind, "kind", "", "only spot or on-demand")
	flags.StringVar(&f.Provider, "provider", "", "only of this account")
	flags.StringVar(&f.Region, "region", "", "only in these regions, with commas between; * stands for any letters: 'eu*,*europe*'")
	flags.StringVar(&f.maxPrice, "max-price", "", "most that the machine may cost per hour")
	flags.StringVar(&f.near, "near", "", "only near to users there, with commas between: eu-west, SE, london; with --max-rtt")
	flags.StringVar(&f.maxRTT, "max-rtt", "", "most that a round trip to each of them may take, modelled from the distance: 30ms")
	flags.StringVar(&f.Link, "link", "", "how the link between its GPUs is called: nvlink, pcie, …; fabric for a full one")
	flags.BoolVar(&f.RDMA, "rdma", false, "only machines that reach each other by RDMA")
	flags.StringVar(&f.Scenario, "scenario", "", "only what is fit for this kind of work")
	flags.StringVar(&f.Sort, "sort", "price", strings.Join(market.Sorts, ", ")+"; a minus before it turns it round")
	flags.IntVar(&f.Limit, "limit", 50, "at most so many rows; 0 means all")
	flags.BoolVar(&f.watch, "watch", false, "look again and again, and show what changed")
	flags.DurationVar(&f.every, "every", 10*time.Second, "with --watch: the time between two looks")
	flags.BoolVar(&f.history, "history", false, "show what prices were instead")
	flags.IntVar(&f.days, "days", 7, "with --history: how far back, 90 at most")
	flags.BoolVar(&f.quarantined, "quarantined", false, "show the offers that are not used instead, and why")
	flags.BoolVar(&f.snapshot, "snapshot", false, "show the snapshot that is built in, and ask nobody")
	return cmd
}

// check reads what people wrote. What means nothing is said before anybody is
// asked.
func (f *offerFlags) check(format string) error {
	f.Kind = providers.Kind(f.kind)
	if f.kind != "" && f.Kind != providers.Spot && f.Kind != providers.OnDemand {
		return usage("--kind %s: expected spot or on-demand", f.kind)
	}
	if f.GPU != "" && f.GPU != market.UnknownGPU {
		if _, err := gpu.Builtin().Resolve(f.GPU); err != nil {
			return &exit{ExitUsage, err}
		}
	}
	if len(scenario.Builtin().Meanings(f.Scenario)) > 1 { // of any other name a broker may know more
		message, hint := scenario.Builtin().Why(f.Scenario)
		return usage("--scenario: %s; %s", message, hint)
	}
	if word := strings.TrimPrefix(f.Sort, "-"); !slices.Contains(market.Sorts, word) {
		return usage("--sort %s: %s", f.Sort, hint(word, market.Sorts, "expected "+strings.Join(market.Sorts, ", ")))
	}
	if f.memory != "" {
		number := strings.TrimRight(strings.ToLower(strings.ReplaceAll(f.memory, " ", "")), "gib")
		gb, err := strconv.ParseFloat(number, 64)
		if err != nil || !(gb > 0 && gb < 1e6) {
			return usage("--memory %s: expected a number of GB such as 24", f.memory)
		}
		f.Memory = gb
	}
	if f.maxPrice != "" {
		price, err := money.RateOf(f.maxPrice)
		if err != nil || price <= 0 {
			return usage("--max-price %s: expected a price per hour such as 2.50", f.maxPrice)
		}
		f.MaxPrice = price
	}
	near, err := market.ParseNear(f.near, f.maxRTT)
	if err != nil {
		return &exit{ExitUsage, err}
	}
	f.Near = near
	switch {
	case f.Limit < 0:
		return usage("--limit %d: expected 0 or more", f.Limit)
	case f.days < 1 || f.days > 90:
		return usage("--days %d: expected 1 to 90", f.days)
	case f.every < time.Second:
		return usage("--every %s: expected 1s or more", f.every)
	case f.history && f.quarantined, f.history && f.watch, f.history && f.snapshot, f.watch && f.snapshot:
		return usage("--history, --watch and --snapshot exclude each other, and so do --history and --quarantined")
	case format == "csv" && (f.history || f.quarantined || f.watch):
		return usage("-o csv: only for offers as they are; -o json gives the rest")
	}
	return nil
}

func (a *app) findOffers(ctx context.Context, f *offerFlags) (out api.Offers, err error) {
	err = a.either(ctx, f.snapshot, func(c *client.Client) (err error) {
		out, err = c.Offers(ctx, f.Query, f.quarantined)
		return err
	}, func(m *market.Market, day string) (err error) {
		v := m.View()
		out.Snapshot = day
		if out.Offers, out.Total, err = v.Find(f.Query, a.Now()); err != nil {
			return &exit{ExitUsage, err}
		}
		odd := v.Quarantined()
		if out.Quarantined = len(odd); f.quarantined {
			out.Quarantine = odd
		}
		return nil
	})
	return out, err
}

func (a *app) showOffers(out api.Offers, f *offerFlags) error {
	if done, err := a.json(out); done {
		return err
	}
	if a.format == "csv" {
		return writeOffers(a.Out, out.Offers)
	}
	if f.quarantined {
		return a.printQuarantine(out.Quarantine)
	}
	if len(out.Offers) == 0 && f.Region != "" {
		fmt.Fprintf(a.Err, "each provider has its own names of regions; --region 'eu*,*europe*' takes several, --sort region shows them\n")
	}
	return a.look.printf("%s", a.offerTable(out))
}

// watchOffers shows the offers again whenever something of them changed but their
// age. Where people look, the new picture takes the place of the old.
func (a *app) watchOffers(ctx context.Context, f *offerFlags) error {
	var last []market.Quote
	for first := true; ; first = false {
		out, err := a.findOffers(ctx, f)
		switch {
		case err != nil && first:
			return err
		case ctx.Err() != nil:
			return nil
		case err != nil:
			fmt.Fprintln(a.Err, "error: "+strings.TrimSpace(err.Error()))
		case out.Snapshot != "":
			return usage("--watch needs a broker: a snapshot does not change")
		case isTerminal(a.Out) && a.format == "text":
			if _, err := io.WriteString(a.Out, "\x1b[H\x1b[2J"); err != nil {
				return err
			}
			if err := a.look.printf("%s", a.offerTable(out)); err != nil {
				return err
			}
		case first || !slices.EqualFunc(last, out.Offers, unchanged):
			if a.format == "json" {
				err = writeJSONLine(a.Out, out)
			} else {
				err = a.look.printf("%s  %s offered\n%s", local(a.Now()), plural(out.Total, "machine"), a.offerTable(out))
			}
			if err != nil {
				return err
			}
		}
		if err == nil {
			last = out.Offers
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(f.every):
		}
	}
}

func unchanged(a, b market.Quote) bool {
	return a.Market == b.Market && a.Price == b.Price && a.Available == b.Available && a.Capacity == b.Capacity && a.Stale == b.Stale
}

// offerTable shows offers, and what is to be known of them together.
func (a *app) offerTable(out api.Offers) string {
	if len(out.Offers) == 0 {
		text := "no offers"
		if out.Quarantined > 0 {
			text += fmt.Sprintf(" but %d that %s quarantined; --quarantined shows why", out.Quarantined, are(out.Quarantined))
		} else if out.Snapshot == "" {
			text += "; gpubroker providers says which accounts could be read"
		}
		return text + "\n"
	}
	currency := cmp.Or(out.Offers[0].Currency, money.USD)
	t := table{head: []string{string(currency) + "/H", "PER GPU", "KIND", "GPU", "TYPE", "WHERE", "VCPU", "MEMORY", "AGE"}, right: []int{0, 1, 6, 7, 8}, flexible: []int{5, 4, 3}}
	if slices.ContainsFunc(out.Offers, func(q market.Quote) bool { return marks(&q) != "" }) {
		t.head, t.flexible = append(t.head, "NOTE"), append(t.flexible, 9)
	}
	stale := 0
	var paid []string
	for i := range out.Offers {
		q := &out.Offers[i]
		price, each := rate(q.Price), "–"
		if q.Currency != currency {
			price += " " + string(q.Currency)
		}
		if q.PerGPU > 0 {
			each = rate(q.PerGPU)
		}
		if q.Stale {
			stale++
		}
		if line := paidFor(q); line != "" && !slices.Contains(paid, line) {
			paid = append(paid, line)
		}
		t.row(price, each, string(q.Kind), gpus(q.Shape), q.Type, place(q.Provider, q.Region, q.Zone), number(q.VCPU), size(q.Memory), strings.TrimSuffix(a.look.age(q.Seen), " ago"))
		if len(t.head) > 9 {
			t.rows[i] = append(t.rows[i], marks(q))
		}
	}
	var b strings.Builder
	b.WriteString(t.String())
	note := func(format string, args ...any) {
		for line := range strings.SplitSeq(wrap(fmt.Sprintf(format, args...), 0), "\n") {
			b.WriteString(styleDim.Render(line) + "\n")
		}
	}
	if more := out.Total - len(out.Offers); more > 0 {
		note("%d more; --limit, --gpu, --kind, --provider and --region choose", more)
	}
	if stale > 0 {
		note("%d stale: too old for a launch until their provider answers again", stale)
	}
	if out.Quarantined > 0 {
		note("%d quarantined; --quarantined shows why", out.Quarantined)
	}
	for _, line := range paid {
		note("%s", line)
	}
	return b.String()
}

// marks says in few words what is to be known of an offer.
func marks(q *market.Quote) string {
	var out []string
	if q.Stale {
		out = append(out, "stale")
	}
	if q.Available == providers.Full {
		out = append(out, "full")
	}
	if q.Committed != nil {
		out = append(out, "paid")
	}
	if q.ListPrice > q.Price {
		out = append(out, fmt.Sprintf("-%.3g%%", 100*(1-q.Price.Float()/q.ListPrice.Float())))
	}
	return strings.Join(out, ", ")
}

// paidFor says how many machines of an offer are paid for already.
func paidFor(q *market.Quote) string {
	c := q.Committed
	if c == nil {
		return ""
	}
	text := fmt.Sprintf("paid: %s of %s %s in %s", plural(c.Machines, "machine"), c.Type, c.Kind, place(c.Provider, c.Region, c.Zone))
	if c.Sunk > 0 {
		text += ", at " + rate(c.Sunk) + "/h each, used or not"
	}
	if !c.Until.IsZero() {
		text += ", until the end of " + c.Until.Add(-time.Nanosecond).UTC().Format(time.DateOnly) + " UTC" // its last day, as configured
	}
	return text
}

func are(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

func number(f float64) string {
	if f == 0 {
		return "–"
	}
	return strconv.FormatFloat(f, 'g', 4, 64)
}

func (a *app) printQuarantine(list []market.Quarantined) error {
	if len(list) == 0 {
		return a.look.printf("no offers are quarantined\n")
	}
	var b strings.Builder
	for _, q := range list {
		o := &q.Offer
		fmt.Fprintf(&b, "%s %s at %s/h, %s\n  %s\n", where(o.Market), o.Kind, strings.TrimSpace(rate(o.Price)+" "+string(o.Currency)), gpus(o.Shape), wrap(q.Why.String(), 2))
	}
	return a.look.printf("%s", b.String())
}

func (a *app) offerHistory(ctx context.Context, f *offerFlags) error {
	c, err := a.broker()
	if err != nil {
		return fmt.Errorf("only a broker keeps a record of prices: %w", err)
	}
	defer a.slow("reading the record of prices")()
	out, err := c.OfferHistory(ctx, f.Query, f.days)
	if err != nil {
		return away(err)
	}
	if done, err := a.json(out); done {
		return err
	}
	if len(out.Series) == 0 {
		return a.look.printf("no price of it is on record since %s\n", local(out.Since))
	}
	t := table{head: []string{"LAST", "MIN", "MEDIAN", "MAX", "CHANGES", "KNOWN", "KIND", "GPU", "TYPE", "WHERE", "PROVIDER"}, right: []int{0, 1, 2, 3, 4, 5}, flexible: []int{7, 8, 9, 10}}
	list := out.Series
	if f.Limit > 0 {
		list = list[:min(f.Limit, len(list))]
	}
	for _, p := range list {
		last := rate(p.Last)
		if !p.Offered {
			last = "gone"
		}
		t.row(last, rate(p.Min), rate(p.Median), rate(p.Max), strconv.Itoa(p.Changes), span(p.Known), string(p.Kind),
			gpus(providers.Shape{GPU: p.GPU, GPUs: p.GPUs}), p.Type, orDash(place("", p.Region, p.Zone)), p.Provider)
	}
	text := t.String()
	if more := len(out.Series) - len(list); more > 0 {
		text += styleDim.Render(fmt.Sprintf("%d more; --limit, --gpu, --kind, --provider and --region choose", more)) + "\n"
	}
	return a.look.printf("%sprices per hour of the whole machine since %s, before discounts\n", text, local(out.Since))
}

// writeOffers writes offers as the table that plan --offers reads, with more columns
// at its end. A price in another currency than dollars stands only there.
func writeOffers(w io.Writer, list []market.Quote) error {
	out := csv.NewWriter(w)
	if err := out.Write([]string{
		"provider", "instance_type", "gpu", "gpu_raw", "gpu_count", "gpu_mem_gb_each", "vcpu", "mem_gib", "region", "zone", "tier",
		"price_ondemand_usd_h", "price_spot_usd_h", "catalog_date", "source", "kind", "price", "currency", "per_gpu", "list_price", "available", "seen", "stale",
	}); err != nil {
		return err
	}
	some := func(f float64) string {
		if f == 0 {
			return ""
		}
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	// A spreadsheet would compute what a marketplace may have called a machine.
	text := func(s string) string {
		if s != "" && strings.ContainsRune("=+-@\t\r", rune(s[0])) {
			return "'" + s
		}
		return s
	}
	price := func(r money.Rate) string {
		if r == 0 {
			return ""
		}
		return r.String()
	}
	for i := range list {
		q := &list[i]
		onDemand, spot := "", ""
		switch {
		case q.Currency != money.USD:
		case q.Kind == providers.Spot:
			spot = q.Price.String()
		default:
			onDemand = q.Price.String()
		}
		if err := out.Write([]string{
			text(q.Provider), text(q.Type), text(q.GPU), text(q.GPUName), some(q.GPUs), some(float64(q.GPUMemory) / 1e9), some(q.VCPU), some(float64(q.Memory) / (1 << 30)), text(q.Region), text(q.Zone), "",
			onDemand, spot, q.Seen.UTC().Format(time.DateOnly), text(q.Source), string(q.Kind), q.Price.String(), string(q.Currency), price(q.PerGPU), price(q.ListPrice),
			string(q.Available), q.Seen.UTC().Format(time.RFC3339), strconv.FormatBool(q.Stale),
		}); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

// gpus names the GPUs of a machine: "2 × l4", "t4", "–". One that nobody knows is
// unknown, with its provider's words.
func gpus(s providers.Shape) string {
	name := s.GPU
	if name == "" {
		name = strings.TrimSpace("unknown " + s.GPUName)
	}
	switch s.GPUs {
	case 0:
		return "–"
	case 1:
		return name
	}
	return strconv.FormatFloat(s.GPUs, 'g', 4, 64) + " × " + name
}
