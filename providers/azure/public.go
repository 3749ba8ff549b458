package azure

import (
	"context"
	"slices"
	"strings"
	"time"

	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/providers"
)

// public opens Azure's published prices: they need no account. Which sizes have
// which GPU is known from package gpu alone, and zones are not known.
func public(providers.Env) (providers.Feed, error) {
	p, err := newPrices("azure", defaultPrices, ownClient())
	if err != nil {
		return nil, err
	}
	return &feed{prices: p, table: gpu.Builtin()}, nil
}

// feed is the Retail Prices API alone.
type feed struct {
	prices *prices
	table  *gpu.Table
}

// Offers returns the GPU sizes of a region, or of all. A region takes a handful of
// pages, all of them a request for each size.
func (f *feed) Offers(ctx context.Context, scope providers.Scope) ([]providers.Offer, error) {
	region := strings.ToLower(scope.Region)
	known := map[string]gpu.InstanceType{}
	for _, t := range f.table.InstanceTypes("azure") {
		if t.GPU != "" {
			known[strings.ToLower(t.Name)] = t
		}
	}
	filters := []string{"serviceName eq 'Virtual Machines'"}
	if region == "" {
		filters = nil
		for _, t := range known {
			filters = append(filters, "serviceName eq 'Virtual Machines' and armSkuName eq '"+t.Name+"'")
		}
		slices.Sort(filters)
	}
	var rows []row
	for _, filter := range filters {
		some, err := f.prices.read(ctx, region, where(region, filter))
		if err != nil {
			return nil, err
		}
		rows = append(rows, some...)
	}
	compute, err := machines(rows)
	if err != nil {
		return nil, f.prices.api.Error("offers", region, &providers.Error{Code: providers.Unavailable, Err: err})
	}
	t, _ := tierFor(128 << 30)
	disks, err := f.prices.disks(ctx, region, t, premium)
	if err != nil {
		return nil, err
	}
	addresses, err := f.prices.addresses(ctx, region)
	if err != nil {
		return nil, err
	}
	seen := time.Now().UTC()
	out := []providers.Offer{}
	for k, price := range compute {
		it, ok := known[k.size]
		beside := sides{disks[k.region], addresses[k.region]}
		if !ok || beside.disk == 0 || beside.address == 0 {
			continue
		}
		out = append(out, providers.Offer{
			Market: providers.Market{Provider: "azure", Region: k.region, Type: it.Name, Kind: k.kind},
			Shape:  filled(f.table, providers.Shape{Disk: int64(t.gib) << 30, Arch: "amd64"}, it.Name, it.Name),
			Price:  price + beside.disk + beside.address, Parts: beside.parts(price), Currency: money.USD, Seen: seen, Source: "Azure Retail Prices",
		})
	}
	slices.SortFunc(out, func(a, b providers.Offer) int { return a.Market.Compare(b.Market) })
	return out, nil
}
