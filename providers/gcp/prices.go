package gcp

import (
	"context"
	"maps"
	"math"
	"math/big"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// service is Compute Engine in the catalog.
const service = "6F81-5844-456A"

// source is where prices are from.
const source = "Cloud Billing catalog, services/" + service

// skuFields are what is read of a SKU: a tenth of what the catalog says.
const skuFields = "skus(description,category(resourceGroup),serviceRegions,pricingInfo(pricingExpression(usageUnit,baseUnitConversionFactor,tieredRates))),nextPageToken"

type skuPage struct {
	SKUs []sku  `json:"skus"`
	Next string `json:"nextPageToken"`
}

type sku struct {
	Description string `json:"description"`
	Category    struct {
		Group string `json:"resourceGroup"`
	} `json:"category"`
	Regions []string `json:"serviceRegions"`
	Pricing []struct {
		Expression struct {
			Unit   string  `json:"usageUnit"`
			Factor float64 `json:"baseUnitConversionFactor"`
			Rates  []struct {
				Price struct {
					Currency string `json:"currencyCode"`
					Units    string `json:"units"`
					Nanos    int64  `json:"nanos"`
				} `json:"unitPrice"`
			} `json:"tieredRates"`
		} `json:"pricingExpression"`
	} `json:"pricingInfo"`
}

// unitPrice is what a unit costs: nano-units of money for so many hours of it. A
// price per month stays one, since an hour of it is no whole number.
type unitPrice struct {
	nanos int64
	hours float64 // of one usage unit
}

// times is the price of amount/per units for an hour: exact, and rounded up once.
func (u unitPrice) times(amount, per int64) money.Rate {
	hours, _ := new(big.Rat).SetString(strconv.FormatFloat(u.hours, 'f', -1, 64))
	sum := new(big.Rat).SetInt64(u.nanos)
	sum.Mul(sum, big.NewRat(amount, per)).Quo(sum, hours)
	n := new(big.Int).Add(sum.Num(), sum.Denom())
	n.Sub(n, big.NewInt(1)).Quo(n, sum.Denom())
	return money.Rate(n.Int64())
}

// skuKey is what one price is for.
type skuKey struct {
	name   string // description without place and spot
	region string // "global" for what costs the same everywhere
	kind   providers.Kind
}

// catalog are the prices of Compute Engine.
type catalog struct {
	prices map[skuKey]unitPrice
	gpus   map[string]bool // names of GPU SKUs that are plain prices
	at     time.Time       // when it was read
}

// prices reads the whole catalog.
func (a *Adapter) prices(ctx context.Context) (*catalog, error) {
	c := &catalog{prices: map[skuKey]unitPrice{}, gpus: map[string]bool{}}
	token := ""
	for {
		q := url.Values{"pageSize": {"5000"}, "currencyCode": {string(money.USD)}, "fields": {skuFields}}
		if token != "" {
			q.Set("pageToken", token)
		}
		var page skuPage
		if err := a.billing.Do(ctx, rest.Call{Op: "offers", Path: "/v1/services/" + service + "/skus", Query: q, Out: &page, Page: token != ""}); err != nil {
			return nil, err
		}
		for _, s := range page.SKUs {
			c.add(s)
		}
		switch page.Next {
		case "":
			c.at = time.Now().UTC()
			return c, nil
		case token:
			return nil, a.billing.Strange("offers", "", "a page of the catalog names itself as the next")
		}
		token = page.Next
	}
}

// add keeps a SKU that is a plain price per hour or month in dollars.
func (c *catalog) add(s sku) {
	name, kind, plain := readDescription(s.Description)
	if !plain || len(s.Pricing) == 0 {
		return
	}
	price, ok := s.price()
	if !ok {
		return
	}
	if s.Category.Group == "GPU" {
		c.gpus[name] = true
	}
	for _, region := range s.Regions {
		k := skuKey{name, region, kind}
		// Two prices for the same: the dearer is a bound.
		if have, ok := c.prices[k]; !ok || have.times(1, 1) < price.times(1, 1) {
			c.prices[k] = price
		}
	}
}

// price is the price of the last tier: the first of some are a month's free hours.
func (s sku) price() (unitPrice, bool) {
	e := s.Pricing[len(s.Pricing)-1].Expression
	if len(e.Rates) == 0 {
		return unitPrice{}, false
	}
	p := e.Rates[len(e.Rates)-1].Price
	units := int64(0)
	if p.Units != "" {
		var err error
		if units, err = strconv.ParseInt(p.Units, 10, 64); err != nil || units < 0 || units > math.MaxInt32 {
			return unitPrice{}, false
		}
	}
	u := unitPrice{nanos: units*1e9 + p.Nanos, hours: 1}
	switch e.Unit {
	case "h", "GiBy.h":
	case "GiBy.mo":
		// The catalog says how long its month is: 2783138807808000 byte-seconds are
		// a GiB for 720 hours.
		u.hours = 730
		if e.Factor > 0 {
			u.hours = e.Factor / (1 << 30) / 3600
		}
	default:
		return u, false
	}
	return u, p.Currency == string(money.USD) && p.Nanos >= 0 && u.nanos > 0
}

// readDescription takes a SKU's description apart: "Spot Preemptible A2 Instance
// Core running in Americas" is the spot price of "A2 Instance Core". Commitments,
// reservations and the like are no plain prices.
func readDescription(text string) (name string, kind providers.Kind, plain bool) {
	name, _, found := strings.Cut(text, " running in ")
	if !found {
		name, _, _ = strings.Cut(text, " in ")
	}
	name = strings.TrimSpace(name)
	kind = providers.OnDemand
	for _, before := range []string{"Spot Preemptible ", "Preemptible "} {
		if rest, ok := strings.CutPrefix(name, before); ok {
			name, kind = rest, providers.Spot
		}
	}
	for _, after := range []string{" attached to Spot Preemptible VMs", " attached to Spot Preemptible", " attached to Preemptible VMs", " attached to preemptible VMs"} {
		if rest, ok := strings.CutSuffix(name, after); ok {
			name, kind = rest, providers.Spot
		}
	}
	for _, word := range special {
		if strings.Contains(text, word) {
			return name, kind, false
		}
	}
	return name, kind, true
}

// special are words of SKUs that are bought in another way.
var special = []string{"Commitment", "Reserved", "DWS", "Calendar", "Sole Tenancy", "Premium", "Committed", "Flex Start", "Workstation", "vGPU"}

// find returns the price of the first of some names in a region.
func (c *catalog) find(names []string, region string, kind providers.Kind) (unitPrice, bool) {
	for _, n := range names {
		for _, where := range []string{region, "global"} {
			if p, ok := c.prices[skuKey{n, where, kind}]; ok {
				return p, true
			}
		}
	}
	return unitPrice{}, false
}

// unused are the GPU prices that no family of ours names.
func (c *catalog) unused() []string {
	known := map[string]bool{}
	for _, f := range tables().families {
		for _, n := range f.gpu {
			known[n] = true
		}
	}
	for _, t := range tables().attachments {
		known[t.gpu] = true
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(c.gpus)) {
		if !known[name] {
			out = append(out, name)
		}
	}
	return out
}

// diskNames are the capacity SKUs of boot disks.
var diskNames = map[string]string{"pd-balanced": "Balanced PD Capacity", "hyperdisk-balanced": "Hyperdisk Balanced Capacity"}

var (
	// dearestDisk is twice the list price of pd-balanced in us-central1, 0.10 USD per
	// GiB and month, the dearer of both kinds (cloud.google.com/compute/disks-image-pricing).
	dearestDisk = unitPrice{nanos: 200_000_000, hours: 720}
	// listAddress is what an address in use costs on demand, and twice what it costs
	// on spot (cloud.google.com/vpc/network-pricing#ipaddress).
	listAddress = unitPrice{nanos: 5_000_000, hours: 1}
)

const (
	ssdName = "SSD backed Local Storage"
	ssdGiB  = 375 // of each local SSD (cloud.google.com/compute/docs/disks/local-ssd)
)

// addressName is the SKU of an external address; those of spot machines have one of
// their own, priced like any other SKU.
func addressName(k providers.Kind) string {
	if k == providers.Spot {
		return "External IP Charge on a Spot Preemptible VM"
	}
	return "External IP Charge on a Standard VM"
}
