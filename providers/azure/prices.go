package azure

import (
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// pricesVersion is the version of the Retail Prices API whose filters are
// case-sensitive (learn.microsoft.com/rest/api/cost-management/retail-prices/azure-retail-prices).
const pricesVersion = "2023-01-01-preview"

// hoursAMonth is what Azure's monthly prices are divided by
// (azure.microsoft.com/pricing/calculator: "730 hours").
const hoursAMonth = 730

// prices reads the Retail Prices API, which needs no account.
type prices struct{ api *rest.Client }

func newPrices(provider, base string, client *http.Client) (*prices, error) {
	api, err := rest.New(rest.Options{Provider: provider, Base: base, Client: client, Judge: rest.ByStatus})
	if err != nil {
		return nil, err
	}
	return &prices{api}, nil
}

// row is one price. Its numbers are kept as they are written.
type row struct {
	Currency string      `json:"currencyCode"`
	Minimum  json.Number `json:"tierMinimumUnits"`
	Price    json.Number `json:"retailPrice"`
	Region   string      `json:"armRegionName"`
	Meter    string      `json:"meterName"`
	Product  string      `json:"productName"`
	SKU      string      `json:"skuName"`
	Unit     string      `json:"unitOfMeasure"`
	Type     string      `json:"type"`
	Size     string      `json:"armSkuName"`
	Start    string      `json:"effectiveStartDate"`
	End      string      `json:"effectiveEndDate"`
}

// holds reports whether a price is that of a moment, as far as its dates tell.
func (r row) holds(now time.Time) bool {
	start, errStart := time.Parse(time.RFC3339, r.Start)
	end, errEnd := time.Parse(time.RFC3339, r.End)
	return (errStart != nil || !now.Before(start)) && (errEnd != nil || now.Before(end))
}

// rows are those of a page; null is a list without any.
type rows struct {
	list []row
	said bool
}

func (r *rows) UnmarshalJSON(data []byte) error {
	r.said = true
	return json.Unmarshal(data, &r.list)
}

// read returns every row of a filter, whole or not at all. Links to further pages
// are followed within the host alone.
func (p *prices) read(ctx context.Context, target, filter string) ([]row, error) {
	var out []row
	call := rest.Call{Op: "offers", Target: target, Path: "/api/retail/prices", Query: url.Values{"api-version": {pricesVersion}, "$filter": {filter}}}
	for seen := map[string]bool{}; ; {
		var page struct {
			Items rows
			Next  string `json:"NextPageLink"`
		}
		call.Out = &page
		if err := p.api.Do(ctx, call); err != nil {
			return nil, err
		}
		if !page.Items.said {
			return nil, p.api.Error("offers", target, &providers.Error{Code: providers.Unavailable, Message: "the answer of the price list holds no items"})
		}
		out = append(out, page.Items.list...)
		if page.Next == "" {
			return out, nil
		}
		if seen[page.Next] {
			return nil, p.api.Strange("offers", target, "a page of the price list names itself as the next")
		}
		seen[page.Next] = true
		call = rest.Call{Op: "offers", Target: target, Path: page.Next, Page: true}
	}
}

// where limits a filter to one region, or to none.
func where(region, filter string) string {
	filter = "priceType eq 'Consumption' and " + filter
	if region != "" {
		filter = "armRegionName eq '" + strings.ReplaceAll(region, "'", "''") + "' and " + filter
	}
	return filter
}

// place is what a machine's price depends on.
type place struct {
	region, size string
	kind         providers.Kind
}

// kindOf tells the two prices of a Linux VM from the other rows that bear its size:
// what the product's and meter's names say is all there is (see doc.go).
func (r row) kindOf() (providers.Kind, bool) {
	switch {
	case r.Type != "Consumption", r.Unit != "1 Hour", r.Size == "", r.Currency != string(money.USD), !zero(r.Minimum),
		strings.Contains(r.Product, "Windows"), strings.Contains(r.Product, "Cloud Services"),
		strings.HasSuffix(r.SKU, " Low Priority"), strings.HasSuffix(r.Meter, " Low Priority"):
		return "", false
	case strings.HasSuffix(r.SKU, " Spot"), strings.HasSuffix(r.Meter, " Spot"):
		return providers.Spot, true
	}
	return providers.OnDemand, true
}

func zero(n json.Number) bool {
	f, err := n.Float64()
	return n == "" || err == nil && f == 0
}

// machines returns the prices per hour of rows about VMs. Where there are two for
// one thing, the dates tell which holds. Two that hold are none: nobody knows which is
// charged.
func machines(rows []row) (map[place]money.Rate, error) {
	type priced struct {
		rate  money.Rate
		holds bool
	}
	all, now := map[place][]priced{}, time.Now()
	for _, r := range rows {
		kind, ok := r.kindOf()
		if !ok {
			continue
		}
		rate, err := rateOf(r.Price, 1)
		if err != nil {
			return nil, fmt.Errorf("price of %s in %s: %w", r.Meter, r.Region, err)
		}
		k := place{strings.ToLower(r.Region), strings.ToLower(r.Size), kind}
		all[k] = append(all[k], priced{rate, r.holds(now)})
	}
	out := map[place]money.Rate{}
	for k, some := range all {
		differ := func(p priced) bool { return p.rate != some[0].rate }
		if slices.ContainsFunc(some, differ) {
			some = slices.DeleteFunc(some, func(p priced) bool { return !p.holds })
		}
		if len(some) > 0 && !slices.ContainsFunc(some, differ) {
			out[k] = some[0].rate
		}
	}
	return out, nil
}

// rateOf is a price for so many hours as a rate, exact to the nano-unit and rounded
// up beyond it.
func rateOf(n json.Number, hours int64) (money.Rate, error) {
	r, ok := new(big.Rat).SetString(string(n))
	if !ok || len(n) > 40 || r.Sign() < 0 {
		return 0, fmt.Errorf("%q is no price", string(n))
	}
	r.Mul(r, big.NewRat(int64(money.Unit), hours))
	up := new(big.Int).Add(r.Num(), new(big.Int).Sub(r.Denom(), big.NewInt(1)))
	up.Quo(up, r.Denom())
	if !up.IsInt64() {
		return 0, fmt.Errorf("%q is beyond all prices", string(n))
	}
	return money.Rate(up.Int64()), nil
}

// tier is a size in which disks are sold.
type tier struct {
	name string // without the letter of the type
	gib  int32
	most string // USD a month
}

// tiers are the sizes of premium (P) and standard (E) SSDs
// (learn.microsoft.com/azure/virtual-machines/disks-types). most is twice the list
// price of a premium one in East US, beyond which no region goes: it stands in
// where the price list has no row for a region, so that a bound still holds.
var tiers = []tier{
	{"4", 32, "10.56"},
	{"6", 64, "20.42"},
	{"10", 128, "39.42"},
	{"15", 256, "76.04"},
	{"20", 512, "146.44"},
	{"30", 1024, "270.34"},
	{"40", 2048, "518.10"},
	{"50", 4096, "991.14"},
	{"60", 8192, "1892.16"},
	{"70", 16384, "3604.12"},
	{"80", 32767, "7208.22"},
}

// listAddress is a standard IPv4 address per hour, the same in every region
// (azure.microsoft.com/pricing/details/ip-addresses).
const listAddress = "0.005"

// tierFor is the smallest tier that holds so many bytes.
func tierFor(bytes int64) (tier, bool) {
	for _, t := range tiers {
		if bytes <= int64(t.gib)<<30 {
			return t, true
		}
	}
	return tier{}, false
}

// disks returns what a disk costs per hour, by region.
func (p *prices) disks(ctx context.Context, region string, t tier, diskType string) (map[string]money.Rate, error) {
	product, letter := "Premium SSD Managed Disks", "P"
	if diskType == standardSSD {
		product, letter = "Standard SSD Managed Disks", "E"
	}
	sku := letter + t.name + " LRS"
	rows, err := p.read(ctx, region, where(region, "serviceName eq 'Storage' and productName eq '"+product+"' and skuName eq '"+sku+"'"))
	if err != nil {
		return nil, err
	}
	return pick(rows, hoursAMonth, func(r row) bool {
		// "… Disk Mount" is for disks that several machines share.
		return r.Product == product && (r.Meter == sku+" Disk" || r.Meter == letter+t.name+" Disks") && r.Unit == "1/Month"
	})
}

// addresses returns what a public address costs per hour, by region.
func (p *prices) addresses(ctx context.Context, region string) (map[string]money.Rate, error) {
	const meter = "Standard IPv4 Static Public IP"
	rows, err := p.read(ctx, region, where(region, "serviceName eq 'Virtual Network' and productName eq 'IP Addresses' and meterName eq '"+meter+"'"))
	if err != nil {
		return nil, err
	}
	return pick(rows, 1, func(r row) bool { return r.Meter == meter && (r.Unit == "1 Hour" || r.Unit == "1/Hour") })
}

// pick takes the dearest fitting row of each region.
func pick(rows []row, hours int64, fits func(row) bool) (map[string]money.Rate, error) {
	out := map[string]money.Rate{}
	for _, r := range rows {
		if !fits(r) || r.Type != "Consumption" || r.Currency != string(money.USD) || !zero(r.Minimum) {
			continue
		}
		rate, err := rateOf(r.Price, hours)
		if err != nil {
			return nil, fmt.Errorf("price of %s in %s: %w", r.Meter, r.Region, err)
		}
		region := strings.ToLower(r.Region)
		out[region] = max(out[region], rate)
	}
	return out, nil
}
