package gcp

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"

	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/providers"
)

// Offers returns every machine type of the families in every zone of the scope, on
// demand and spot, whose price can be summed from the catalog; [Adapter.Unmatched]
// names the others.
func (a *Adapter) Offers(ctx context.Context, scope providers.Scope) ([]providers.Offer, error) {
	types, err := a.machineTypes(ctx)
	if err != nil {
		return nil, a.failed("offers", scope.Region, err, false)
	}
	var cards map[string]map[string]int32
	if slices.Contains(a.set.families(), "n1") {
		if cards, err = a.attachable(ctx); err != nil {
			return nil, a.failed("offers", scope.Region, err, false)
		}
	}
	prices, err := a.prices(ctx)
	if err != nil {
		return nil, a.failed("offers", scope.Region, err, false)
	}
	out := []providers.Offer{}
	left := map[string]int{}
	for _, t := range types {
		region := regionOf(t.zone)
		if scope.Region != "" && region != scope.Region || !a.set.wants(region) {
			continue
		}
		for _, m := range variants(t, cards[t.zone]) {
			for _, kind := range []providers.Kind{providers.OnDemand, providers.Spot} {
				o, why := a.offer(t, m, kind, prices)
				if why != "" {
					left[why]++
					continue
				}
				out = append(out, o)
			}
		}
	}
	a.count(ctx, left, prices.unused())
	return out, nil
}

// count keeps what was left out, and says so when it is not what it was.
func (a *Adapter) count(ctx context.Context, left map[string]int, unused []string) {
	var lines []string
	n := 0
	for _, why := range slices.Sorted(maps.Keys(left)) {
		lines = append(lines, fmt.Sprintf("%s (%d)", why, left[why]))
		n += left[why]
	}
	for _, name := range unused {
		lines = append(lines, fmt.Sprintf("sku %q: no machine type is known to bring this GPU", name))
	}
	if a.Note("", lines...) && len(lines) > 0 {
		a.log.InfoContext(ctx, "offers without a price are left out", slog.String("provider", a.name), slog.Int("offers", n), slog.Int("skus", len(unused)), slog.String("why", strings.Join(lines, "; ")))
	}
}

// zoned is a machine type in a zone.
type zoned struct {
	*computepb.MachineType
	zone string
}

// machineTypes returns the types of the families, in every zone.
func (a *Adapter) machineTypes(ctx context.Context) ([]zoned, error) {
	filter := `name eq "(` + strings.Join(a.set.families(), "|") + `)-.*"`
	var out []zoned
	var lost error
	err := pages(ctx, a, "/aggregated/machineTypes", filter, func() *computepb.MachineTypeAggregatedList { return new(computepb.MachineTypeAggregatedList) }, func(p *computepb.MachineTypeAggregatedList) {
		each(p.GetItems(), &lost, func(key string, s *computepb.MachineTypesScopedList) {
			for _, t := range s.GetMachineTypes() {
				family, _, _ := strings.Cut(t.GetName(), "-")
				if slices.Contains(a.set.families(), family) && !over(t.GetDeprecated()) {
					out = append(out, zoned{t, last(cmp.Or(t.GetZone(), key))})
				}
			}
		})
	})
	return out, cmp.Or(err, lost)
}

// over reports whether something can no longer be had.
func over(d *computepb.DeprecationStatus) bool {
	return d.GetState() == "OBSOLETE" || d.GetState() == "DELETED"
}

// attachable returns the GPUs that n1 machines take, by zone, with the most for one.
func (a *Adapter) attachable(ctx context.Context) (map[string]map[string]int32, error) {
	out := map[string]map[string]int32{}
	var lost error
	const filter = `name eq "nvidia-tesla-.*"`
	err := pages(ctx, a, "/aggregated/acceleratorTypes", filter, func() *computepb.AcceleratorTypeAggregatedList { return new(computepb.AcceleratorTypeAggregatedList) }, func(p *computepb.AcceleratorTypeAggregatedList) {
		each(p.GetItems(), &lost, func(key string, s *computepb.AcceleratorTypesScopedList) {
			for _, t := range s.GetAcceleratorTypes() {
				if over(t.GetDeprecated()) {
					continue
				}
				zone := last(cmp.Or(t.GetZone(), key))
				if out[zone] == nil {
					out[zone] = map[string]int32{}
				}
				out[zone][t.GetName()] = t.GetMaximumCardsPerInstance()
			}
		})
	})
	return out, cmp.Or(err, lost)
}

// variants are the machines that a type makes: itself, and on n1 itself with GPUs.
func variants(t zoned, cards map[string]int32) []machine {
	out := []machine{{typ: t.GetName()}}
	if !attaches(t.GetName()) {
		return out
	}
	for _, at := range attachmentsFor(t.GetName(), int(t.GetGuestCpus()), int(t.GetMemoryMb())) {
		if at.count <= int(cards[at.card]) {
			out = append(out, machine{t.GetName(), at.card, at.count})
		}
	}
	return out
}

// offer prices one machine; why says what it lacks.
func (a *Adapter) offer(t zoned, m machine, kind providers.Kind, c *catalog) (o providers.Offer, why string) {
	region := regionOf(t.zone)
	f, ok := familyOf(m.typ)
	group, _, _ := strings.Cut(m.typ, "-")
	switch {
	case !ok:
		return o, group + ": no rule for its SKUs"
	case t.GetIsSharedCpu():
		return o, group + ": shares its cores, which are billed in fractions"
	case f.spotOnly && kind == providers.OnDemand:
		return o, m.typ + ": on demand only with a reservation"
	}
	shape, gpus := shapeOf(t, m)
	if gpus > 0 && gpus < 1 {
		return o, m.typ + ": no rule for a share of a GPU"
	}
	names := f.gpu
	for _, at := range tables().attachments {
		if m.cards > 0 && at.card == m.card {
			names = []string{at.gpu}
		}
	}
	if gpus > 0 && len(names) == 0 {
		return o, m.String() + ": no rule for its GPU " + shape.GPUName
	}
	var compute money.Rate
	ssds := int64(t.GetBundledLocalSsds().GetPartitionCount())
	if ssds > 0 && f.ssd == "unpriced" {
		return o, group + ": no rule for its local SSD"
	}
	for _, part := range []struct {
		names       []string
		amount, per int64
	}{
		{f.core, int64(t.GetGuestCpus()), 1},
		{f.ram, int64(t.GetMemoryMb()), 1024},
		{names, int64(gpus), 1},
		{[]string{ssdName}, ssds * ssdGiB, 1},
	} {
		if len(part.names) == 0 || part.amount == 0 || part.names[0] == ssdName && f.ssd == "included" {
			continue
		}
		p, ok := c.find(part.names, region, kind)
		if !ok {
			return o, fmt.Sprintf("%s: no %s price of %q in some regions", group, kind, part.names[0])
		}
		compute += p.times(part.amount, part.per)
	}
	if compute == 0 {
		return o, m.typ + ": costs nothing by its SKUs"
	}
	parts := []providers.PricePart{{Name: "compute", Price: compute}}
	how := ""
	disk, ok := c.find([]string{diskNames[f.disk]}, region, providers.OnDemand)
	if !ok {
		disk, how = dearestDisk, "; disk: an upper bound, the catalog has none"
	}
	parts = append(parts, providers.PricePart{Name: "disk", Price: disk.times((a.set.disk()+gib-1)/gib, 1)})
	if !a.set.Network.Private {
		ip, ok := c.address(region, kind)
		if !ok {
			ip = listAddress
			how += "; address: the published price, the catalog has none"
		}
		parts = append(parts, providers.PricePart{Name: "address", Price: ip.times(1, 1)})
	}
	o = providers.Offer{
		Market: providers.Market{Provider: a.name, Region: region, Zone: t.zone, Type: m.String(), Kind: kind},
		Shape:  shape, Parts: parts, Currency: money.USD, Seen: c.at, Source: source + how,
	}
	o.Disk += a.set.disk() + ssds*ssdGiB*gib
	for _, p := range parts {
		o.Price += p.Price
	}
	return o, ""
}

// address is the price of an external address.
func (c *catalog) address(region string, kind providers.Kind) (unitPrice, bool) {
	return c.find([]string{addressName(kind)}, region, providers.OnDemand)
}

// shapeOf is what a machine is, from what Google says of it and what is known of
// its GPU.
func shapeOf(t zoned, m machine) (providers.Shape, float64) {
	s := providers.Shape{VCPU: float64(t.GetGuestCpus()), Memory: int64(t.GetMemoryMb()) << 20, Arch: "amd64"}
	if t.GetArchitecture() == "ARM64" {
		s.Arch = "arm64"
	}
	if m.cards > 0 {
		s.GPUName, s.GPUs = m.card, float64(m.cards)
	} else if cards := t.GetAccelerators(); len(cards) > 0 {
		s.GPUName, s.GPUs = cards[0].GetGuestAcceleratorType(), float64(cards[0].GetGuestAcceleratorCount())
	}
	facts := gpu.Builtin()
	if known, ok := facts.InstanceType("gcp", m.typ); ok {
		if n, ok := known.GPUs.Get(); ok && m.cards == 0 {
			s.GPUs = n // Google counts a share as one
		}
		if bps, ok := known.NetworkGbps.Get(); ok {
			s.NetworkBps = int64(bps * 1e9)
		}
	}
	if s.GPUs == 0 {
		return s, 0
	}
	typ := m.typ
	if m.cards > 0 {
		typ = ""
	}
	if id, err := facts.Identify("gcp", typ, s.GPUName, 0); err == nil {
		s.GPU = id
		if fact, ok := facts.Lookup(id); ok {
			s.GPUMemory = fact.MemoryBytes().Or(0)
		}
	}
	return s, s.GPUs
}
