package azure

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v8"
	"golang.org/x/sync/errgroup"

	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/providers"
)

// atOnce is how many regions are read at the same time.
const atOnce = 4

// source says where a price is from.
const source = "Azure Resource SKUs and Retail Prices"

// Offers joins the sizes that the subscription may see with the public prices: one
// offer for each zone, or one without a zone where the region has none.
//
// A size that the subscription is restricted from (NotAvailableForSubscription,
// QuotaId) is Full: it is there, and cannot be had until Microsoft lifts that.
// A size without a price is left out; how many are is logged. Sizes for Arm hosts
// are left out too, since the image is for x64.
func (a *Adapter) Offers(ctx context.Context, scope providers.Scope) ([]providers.Offer, error) {
	if err := a.alive(ctx, "offers", scope.Region); err != nil {
		return nil, err
	}
	region := strings.ToLower(scope.Region)
	if region != "" && len(a.set.Regions) > 0 && !slices.Contains(a.set.Regions, region) {
		return []providers.Offer{}, nil
	}
	sizes, err := a.sizes(ctx, region)
	if err != nil {
		return nil, err
	}
	byRegion := map[string][]size{}
	var regions []string
	for _, s := range sizes {
		if byRegion[s.region] == nil {
			regions = append(regions, s.region)
		}
		byRegion[s.region] = append(byRegion[s.region], s)
	}
	slices.Sort(regions)
	found := make([][]providers.Offer, len(regions))
	missing := make([]int, len(regions))
	work, workCtx := errgroup.WithContext(ctx)
	work.SetLimit(atOnce)
	for n, r := range regions {
		work.Go(func() error {
			var err error
			found[n], missing[n], err = a.regional(workCtx, r, byRegion[r])
			return err
		})
	}
	if err := work.Wait(); err != nil {
		return nil, a.failure(ctx, "offers", scope.Region, err)
	}
	unmatched := 0
	for _, n := range missing {
		unmatched += n
	}
	var lines []string
	if unmatched > 0 {
		lines = []string{fmt.Sprintf("%d offers of sizes without a retail price", unmatched)}
	}
	if scope.Region == "" && a.Note("", lines...) && unmatched > 0 {
		a.log.InfoContext(ctx, "offers without a price are left out", "offers", unmatched)
	}
	out := slices.Concat(found...)
	if out == nil {
		out = []providers.Offer{}
	}
	return out, nil
}

// size is an instance type in one region.
type size struct {
	name, family, region string
	caps                 map[string]string
	zones                []string
	closed               map[string]bool // zones that the subscription may not use
	shut                 bool            // all of it
}

// sizes lists the sizes with a GPU, and those without one that the settings name,
// in the account's regions or in one.
func (a *Adapter) sizes(ctx context.Context, region string) ([]size, error) {
	regions := a.set.Regions
	if region != "" {
		regions = []string{region}
	}
	if len(regions) == 0 {
		return a.listSizes(ctx, "")
	}
	lists := make([][]size, len(regions))
	work, workCtx := errgroup.WithContext(ctx)
	work.SetLimit(atOnce)
	for n, r := range regions {
		work.Go(func() error {
			var err error
			lists[n], err = a.listSizes(workCtx, r)
			return err
		})
	}
	if err := work.Wait(); err != nil {
		return nil, a.failure(ctx, "offers", region, err)
	}
	return slices.Concat(lists...), nil
}

func (a *Adapter) listSizes(ctx context.Context, region string) ([]size, error) {
	opts := &armcompute.ResourceSKUsClientListOptions{}
	if region != "" {
		opts.Filter = new("location eq '" + strings.ReplaceAll(region, "'", "''") + "'")
	}
	var out []size
	for pages := a.cloud.skus.NewListPager(opts); pages.More(); {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, a.failure(ctx, "offers", region, err)
		}
		if page.Value == nil {
			return nil, a.errorf("offers", region, providers.Unavailable, "", "the answer holds no list of sizes")
		}
		for _, raw := range page.Value {
			if s, ok := a.sizeOf(raw); ok && (region == "" || s.region == region) {
				out = append(out, s)
			}
		}
		if err := a.sameHost(page.NextLink, "offers"); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// sizeOf reads a record; it is of one location
// (learn.microsoft.com/rest/api/compute/resource-skus/list).
func (a *Adapter) sizeOf(raw *armcompute.ResourceSKU) (size, bool) {
	if raw == nil || !strings.EqualFold(text(raw.ResourceType), "virtualMachines") || text(raw.Name) == "" {
		return size{}, false
	}
	here := new(armcompute.ResourceSKULocationInfo)
	switch {
	case len(raw.LocationInfo) > 0 && raw.LocationInfo[0] != nil:
		here = raw.LocationInfo[0]
	case len(raw.Locations) > 0: // without its zones
		here.Location = raw.Locations[0]
	default:
		return size{}, false
	}
	s := size{name: text(raw.Name), family: text(raw.Family), region: strings.ToLower(text(here.Location)), caps: map[string]string{}, closed: map[string]bool{}}
	for _, c := range raw.Capabilities {
		if c != nil {
			s.caps[text(c.Name)] = text(c.Value)
		}
	}
	for _, z := range here.Zones {
		s.zones = append(s.zones, text(z))
	}
	slices.Sort(s.zones)
	for _, r := range raw.Restrictions {
		switch {
		case r == nil || r.Type == nil:
		case *r.Type == armcompute.ResourceSKURestrictionsTypeLocation:
			s.shut = true
		case r.RestrictionInfo != nil:
			for _, z := range r.RestrictionInfo.Zones {
				s.closed[text(z)] = true
			}
		}
	}
	it, known := a.table.InstanceType("azure", s.name)
	gpus, _ := strconv.ParseFloat(s.caps["GPUs"], 64)
	wanted := gpus > 0 || known && it.GPU != "" || slices.ContainsFunc(a.set.Sizes, func(n string) bool { return strings.EqualFold(n, s.name) })
	return s, wanted && s.caps["CpuArchitectureType"] != "Arm64" && (a.set.DiskType != premium || s.caps["PremiumIO"] != "False")
}

// shape is what a size is. The facts of package gpu come before the capability
// GPUs, which calls a share of a GPU one, or none.
func (a *Adapter) shape(s size) providers.Shape {
	n := func(name string) float64 {
		f, _ := strconv.ParseFloat(s.caps[name], 64) // what is not a number is unknown
		return f
	}
	tier, _ := tierFor(a.set.Disk.Bytes())
	out := providers.Shape{
		GPUs: n("GPUs"), VCPU: cmp.Or(n("vCPUsAvailable"), n("vCPUs")), Memory: int64(n("MemoryGB") * (1 << 30)),
		Disk: int64(tier.gib) << 30, Arch: "amd64",
	}
	return filled(a.table, out, s.name, s.family)
}

// filled adds what package gpu knows of a size.
func filled(t *gpu.Table, out providers.Shape, name, words string) providers.Shape {
	it, known := t.InstanceType("azure", name)
	if known && it.GPU != "" {
		out.GPU = it.GPU
		if n, ok := it.GPUs.Get(); ok {
			out.GPUs = n
		}
		f, _ := t.Lookup(it.GPU)
		if m, ok := f.MemoryBytes().Get(); ok {
			if out.GPUs < 1 {
				m = int64(float64(m) * out.GPUs)
			}
			out.GPUMemory = m
		}
	}
	if known {
		if gbps, ok := it.NetworkGbps.Get(); ok {
			out.NetworkBps = int64(gbps * 1e9)
		}
		if out.VCPU == 0 {
			out.VCPU = float64(it.VCPU.Or(0))
		}
		if out.Memory == 0 {
			out.Memory = int64(it.MemoryGiB.Or(0) * (1 << 30))
		}
	}
	if out.GPUs > 0 {
		out.GPUName = cmp.Or(words, name)
	}
	return out
}

// regional returns a region's offers, and how many are left out for want of a price.
func (a *Adapter) regional(ctx context.Context, region string, sizes []size) ([]providers.Offer, int, error) {
	rows, err := a.prices.read(ctx, region, where(region, "serviceName eq 'Virtual Machines'"))
	if err != nil {
		return nil, 0, err
	}
	compute, err := machines(rows)
	if err != nil {
		return nil, 0, a.errorf("offers", region, providers.Unavailable, "", "%v", err)
	}
	beside, how, err := a.besideNow(ctx, region)
	if err != nil {
		return nil, 0, err
	}
	seen := time.Now().UTC()
	var out []providers.Offer
	missing := 0
	for _, s := range sizes {
		shape := a.shape(s)
		zones := s.zones
		if len(zones) == 0 {
			zones = []string{""}
		}
		for _, kind := range []providers.Kind{providers.OnDemand, providers.Spot} {
			// Where it is not said, the price list tells.
			if said, ok := s.caps["LowPriorityCapable"]; kind == providers.Spot && ok && !strings.EqualFold(said, "True") {
				continue
			}
			price, ok := compute[place{region, strings.ToLower(s.name), kind}]
			if !ok {
				missing++
				continue
			}
			for _, zone := range zones {
				available := providers.Unsaid
				if s.shut || s.closed[zone] {
					available = providers.Full
				}
				out = append(out, providers.Offer{
					Market: providers.Market{Provider: a.name, Region: region, Zone: zone, Type: s.name, Kind: kind},
					Shape:  shape, Price: price + beside.disk + beside.address, Parts: beside.parts(price),
					Currency: money.USD, Available: available, Seen: seen, Source: source + how,
				})
			}
		}
	}
	return out, missing, nil
}

// parts are what a machine's price is made of.
func (s sides) parts(compute money.Rate) []providers.PricePart {
	out := []providers.PricePart{{Name: "compute", Price: compute}, {Name: "disk", Price: s.disk}}
	if s.address > 0 {
		out = append(out, providers.PricePart{Name: "address", Price: s.address})
	}
	return out
}

// beside returns what disk and address cost in a region, as the list of offers last
// said, or as the price list says now.
func (a *Adapter) beside(ctx context.Context, region string) (sides, error) {
	a.mu.Lock()
	s, ok := a.sides[region]
	a.mu.Unlock()
	if ok {
		return s, nil
	}
	s, _, err := a.besideNow(ctx, region)
	return s, err
}

// besideNow asks for the prices of a region's disks and addresses, and says where
// those that the list lacks are from.
func (a *Adapter) besideNow(ctx context.Context, region string) (sides, string, error) {
	var s sides
	how := ""
	t, _ := tierFor(a.set.Disk.Bytes())
	disks, err := a.prices.disks(ctx, region, t, a.set.DiskType)
	if err != nil {
		return s, "", err
	}
	var ok bool
	if s.disk, ok = disks[region]; !ok {
		if s.disk, err = rateOf(json.Number(t.most), hoursAMonth); err != nil {
			return s, "", err
		}
		how += "; disk: an upper bound, the list has none"
	}
	if !a.set.Network.Private {
		addresses, err := a.prices.addresses(ctx, region)
		if err != nil {
			return s, "", err
		}
		if s.address, ok = addresses[region]; !ok {
			if s.address, err = rateOf(listAddress, 1); err != nil {
				return s, "", err
			}
			how += "; address: the published price, the list has none"
		}
	}
	a.mu.Lock()
	a.sides[region] = s
	a.mu.Unlock()
	return s, how, nil
}
