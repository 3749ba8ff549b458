package managed

import (
	"testing"

	"pgregory.net/rapid"

	"gpubroker/internal/money"
	"gpubroker/providers"
)

// A bound that is given to the provider never lets more be paid than it says, and
// is the highest that does not.
func TestABoundInTheProvidersTerms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &Provider{opts: Options{Discounts: []Discount{{Millionths: rapid.Int64Range(1, whole-1).Draw(t, "discount")}}}}
		m := &providers.Market{Type: "t", Kind: providers.Spot}
		bound := money.Rate(rapid.Int64Range(1, 1000*int64(money.Unit)).Draw(t, "bound"))
		gross := p.gross(m, bound)
		if net := p.net(m, gross); net > bound {
			t.Fatalf("a bound of %s lets %s be charged, of which %s is paid", bound, gross, net)
		}
		if net := p.net(m, gross+1); net <= bound {
			t.Fatalf("a bound of %s could let %s be charged, of which %s is paid", bound, gross+1, net)
		}
	})
}

func TestTheFirstDiscountThatFits(t *testing.T) {
	p := &Provider{opts: Options{Discounts: []Discount{
		{Millionths: 300_000, Types: []string{"p5.*"}, Kinds: []providers.Kind{providers.OnDemand}},
		{Millionths: 120_000},
	}}}
	for _, c := range []struct {
		name string
		kind providers.Kind
		want money.Rate
	}{
		{"p5.48xlarge", providers.OnDemand, 70_000_000_000},
		{"p5.48xlarge", providers.Spot, 88_000_000_000},
		{"g6.xlarge", providers.OnDemand, 88_000_000_000},
	} {
		o := providers.Offer{Market: providers.Market{Type: c.name, Kind: c.kind}, Price: 100_000_000_000}
		p.lower(&o)
		if o.Price != c.want || o.Parts[0].Price != 100_000_000_000 || o.Parts[1] != (providers.PricePart{Name: DiscountPart, Price: c.want - 100_000_000_000}) {
			t.Errorf("%s %s: %s, %v", c.name, c.kind, o.Price, o.Parts)
		}
	}
}
