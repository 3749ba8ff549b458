package egress_test

import (
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpubroker/internal/egress"
	"gpubroker/internal/money"
)

// TestPrices holds the table to what its sources say.
func TestPrices(t *testing.T) {
	table := egress.Builtin()
	for _, c := range []struct{ from, to, want string }{
		{"aws/us-east-1", "aws/us-east-1", "0.00"},
		{"aws/us-east-1", "aws/us-west-2", "0.02"},
		{"aws/us-east-1", "aws/us-east-2", "0.01"},
		{"aws/us-east-1", "gcp/us-east1", "0.09"},
		{"aws/us-east-1", "on-premises", "0.09"},
		{"aws/us-east-1", "lambda/us-east-1", "0.09"},
		{"aws/sa-east-1", "aws/us-east-1", "0.138"},
		{"aws/ap-southeast-2", "runpod/EU-1", "0.114"},
		{"aws/ap-northeast-1", "gcp/us-east1", "unknown"},
		{"aws/us-east-1", "aws", "unknown"}, // it might be the same region
		{"aws", "gcp/us-east1", "unknown"},
		{"gcp/us-east1", "gcp/us-west1", "0.02"},
		{"gcp/us-east1", "gcp/europe-west4", "0.08"},
		{"gcp/europe-west4", "aws/eu-west-1", "0.12"},
		{"azure/eastus", "azure/westus2", "0.02"},
		{"azure/eastus", "azure/westeurope", "unknown"},
		{"azure/brazilsouth", "azure/eastus", "0.16"},
		{"azure/westeurope", "on-premises", "0.087"},
		{"lambda/us-east-1", "aws/us-east-1", "0.00"},
		{"runpod/EU-1", "runpod/US-1", "0.00"},
		{"on-premises", "aws/us-east-1", "0.00"},
		{"on-premises/shelf", "on-premises", "0.00"},
		{"vast/SE", "aws/us-east-1", "unknown"}, // each host sets its own
		{"verda/FIN-01", "aws/us-east-1", "unknown"},
		{"", "aws/us-east-1", "unknown"},
		{"gcp/us-east1", "", "0.12"},
	} {
		got := "unknown"
		if p, known := table.Price(place(c.from), place(c.to)); known {
			got = p.String()
		}
		if got != c.want {
			t.Errorf("%s to %s costs %s, want %s", c.from, c.to, got, c.want)
		}
	}
}

func place(s string) egress.Place {
	cloud, region, _ := strings.Cut(s, "/")
	return egress.Place{Cloud: cloud, Region: region}
}

// TestCost compares with exact arithmetic: it is never less, and less than a
// nano-unit more.
func TestCost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(0, 1<<60).Draw(t, "bytes")
		p := rapid.Int64Range(0, 10*int64(money.Unit)).Draw(t, "price")
		want := new(big.Int).Mul(big.NewInt(n), big.NewInt(p))
		want.Add(want, big.NewInt(999_999_999)).Div(want, big.NewInt(1_000_000_000))
		if want.IsInt64() && int64(egress.Cost(n, money.Amount(p))) != want.Int64() {
			t.Fatalf("%d bytes at %d cost %d, want %s", n, p, egress.Cost(n, money.Amount(p)), want)
		}
	})
	if got := egress.Cost(1<<62, money.MaxAmount); got != money.MaxAmount {
		t.Errorf("too much costs %d", got)
	}
}

func TestParseRefuses(t *testing.T) {
	head := "cloud,from,to,usd_per_gb,source,seen\n"
	for _, row := range []string{"aws,*,*,x,s,2026", "aws,*,*,-1,s,2026", "aws,*,*,0.1,,2026", "aws,*,*,0.1,s,", "aws,*,*"} {
		if _, err := egress.Parse(head+row+"\n", "cloud,regions,area\n"); err == nil {
			t.Errorf("%q is a row", row)
		}
	}
}
