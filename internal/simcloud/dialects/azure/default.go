package azure

import (
	"math/rand/v2"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

const gib = 1 << 30

// Default is a world in Azure's names: two regions, three zones and two, five GPU
// sizes and one without. It is as quick as simcloud's own, so that a demonstration
// sees all of a machine's life; a real machine boots in minutes.
//
// On-demand prices are those of the regions on 2026-06-18
// (Azure/karpenter-provider-azure), with [Disk] and [Address] added; that of
// D8as_v5 is the list's. Spot prices begin at a third of them, which is assumed.
// The zones of a region have one price, as on Azure, and so their walks are
// written out as steps.
func Default(seed uint64) simcloud.Config {
	cfg := simcloud.Config{
		Seed:      seed,
		Billing:   simcloud.Billing{Unit: simcloud.Duration(time.Second)},
		BillsBoot: true,
		Boot:      simcloud.Duration(time.Second),
		BootSpan:  simcloud.Duration(500 * time.Millisecond),
		StopTime:  simcloud.Duration(500 * time.Millisecond),
		Notice:    simcloud.Duration(5 * time.Second),
		ListLag:   simcloud.Duration(time.Second),
		PageSize:  10,
		SelfEnd:   providers.EndGuest,
		EndAction: providers.EndAPI, // a VM that shuts itself down goes on billing
		Dialect:   Dialect(),
	}
	regions := []struct {
		name    string
		zones   []string
		percent int64 // of East US
	}{
		{"eastus", []string{"1", "2", "3"}, 100},
		{"westeurope", []string{"1", "2"}, 128},
	}
	types := []struct {
		name     string
		shape    providers.Shape
		price    money.Rate // on demand, East US, without disk and address
		capacity int        // spot machines in a zone
	}{
		{"Standard_D8as_v5", providers.Shape{VCPU: 8, Memory: 32 * gib}, 344_000_000, 16},
		{"Standard_NV6ads_A10_v5", providers.Shape{GPU: "a10", GPUs: 0.1667, GPUMemory: 4 * gib, VCPU: 6, Memory: 55 * gib}, 454_000_000, 12},
		{"Standard_NC4as_T4_v3", providers.Shape{GPU: "t4", GPUs: 1, GPUMemory: 16 * gib, VCPU: 4, Memory: 28 * gib}, 526_000_000, 12},
		{"Standard_NC24ads_A100_v4", providers.Shape{GPU: "a100-pcie-80gb", GPUs: 1, GPUMemory: 80 * gib, VCPU: 24, Memory: 220 * gib}, 3_673_000_000, 8},
		{"Standard_NC40ads_H100_v5", providers.Shape{GPU: "h100-nvl-94gb", GPUs: 1, GPUMemory: 94 * gib, VCPU: 40, Memory: 320 * gib}, 6_980_000_000, 4},
		{"Standard_ND96isr_H100_v5", providers.Shape{GPU: "h100-sxm-80gb", GPUs: 8, GPUMemory: 80 * gib, VCPU: 96, Memory: 1900 * gib}, 98_320_000_000, 1},
	}
	for i, r := range regions {
		var families []string
		byFamily := map[string][]string{}
		for j, t := range types {
			if f := familyOf(t.name); byFamily[f] == nil {
				families = append(families, f)
			}
			byFamily[familyOf(t.name)] = append(byFamily[familyOf(t.name)], t.name)
			shape := t.shape
			shape.Arch, shape.Disk = "amd64", 128*gib
			onDemand := t.price / 100 * money.Rate(r.percent)
			first := onDemand / 3 / 1000 * 1000
			steps := walk(rand.New(rand.NewPCG(seed, uint64(i)<<32|uint64(j))), first)
			for _, zone := range r.zones {
				place := simapi.Place{Region: r.name, Zone: zone, Type: t.name, Kind: providers.OnDemand}
				cfg.Offers = append(cfg.Offers, simcloud.Offer{Place: place, Shape: shape, Price: onDemand + Disk + Address})
				place.Kind = providers.Spot
				cfg.Offers = append(cfg.Offers, simcloud.Offer{Place: place, Shape: shape, Price: first + Disk + Address, Capacity: new(t.capacity), Steps: steps})
			}
		}
		cfg.Quotas = append(cfg.Quotas,
			simcloud.Quota{Name: "lowPriorityCores", Region: r.name, Kind: providers.Spot, Unit: "vcpu", Limit: 512},
			simcloud.Quota{Name: "cores", Region: r.name, Kind: providers.OnDemand, Unit: "vcpu", Limit: 512},
			simcloud.Quota{Name: "virtualMachines", Region: r.name, Unit: "machine", Limit: 25000},
		)
		for _, f := range families {
			cfg.Quotas = append(cfg.Quotas, simcloud.Quota{Name: f, Region: r.name, Kind: providers.OnDemand, Types: byFamily[f], Unit: "vcpu", Limit: 256})
		}
	}
	return cfg
}

// walk is a price that moves every 15 s for two hours, between 70 and 140 percent
// of where it began, by up to 3 percent.
func walk(random *rand.Rand, first money.Rate) []simcloud.Step {
	var steps []simcloud.Step
	p := first
	for at := 15 * time.Second; at <= 2*time.Hour; at += 15 * time.Second {
		p += first / 1000 * money.Rate(random.Int64N(61)-30)
		p = min(max(p, first/100*70), first/100*140)
		steps = append(steps, simcloud.Step{At: simcloud.Duration(at), Price: new(p + Disk + Address)})
	}
	return steps
}
