package cli

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"gpubroker/internal/api/client"
	"gpubroker/internal/gpu"
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
