package simcloud

import (
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// GiB in bytes.
const gib = 1 << 30

// Default is the built-in world: two regions, four zones, five types, spot and
// on-demand. It is quick, so that a demonstration of a minute and a half sees
// all of a machine's life: a second to boot, a warning of five seconds, billing
// by the second from ten on.
//
// On-demand prices are those of EC2 in us-east-1 on 2026-07-20 for g4dn.xlarge,
// g6.xlarge, g6e.xlarge and p5.48xlarge (karpenter-provider-aws); that of the
// machine without a GPU is assumed. The second region is a tenth dearer. Spot
// prices begin near the medians of the AWS Spot Advisor of June 2025: 66 % off for
// g4dn, g6 and g6e, 52 % off for p5.
func Default(seed uint64) Config {
	cfg := Config{
		Seed:     seed,
		Billing:  Billing{Unit: Duration(time.Second), Minimum: Duration(10 * time.Second)},
		Boot:     Duration(time.Second),
		BootSpan: Duration(500 * time.Millisecond),
		StopTime: Duration(500 * time.Millisecond),
		Notice:   Duration(5 * time.Second),
		ListLag:  Duration(time.Second),
		Quotas: []Quota{
			{Name: "spot-vcpu", Region: "sim-east", Kind: providers.Spot, Unit: "vcpu", Limit: 256},
			{Name: "spot-vcpu", Region: "sim-west", Kind: providers.Spot, Unit: "vcpu", Limit: 256},
			{Name: "on-demand-vcpu", Kind: providers.OnDemand, Unit: "vcpu", Limit: 256},
		},
	}
	types := []struct {
		name     string
		shape    providers.Shape
		price    money.Rate // on demand
		spot     int64      // percent of it
		capacity int        // spot machines in a zone
	}{
		{"cpu8", providers.Shape{VCPU: 8, Memory: 16 * gib}, 357_000_000, 40, 16},
		{"t4x1", nvidia("t4", "T4", 1, 16, 4, 16, 125), 526_000_000, 34, 12},
		{"l4x1", nvidia("l4", "L4", 1, 24, 4, 16, 250), 804_800_000, 34, 8},
		{"l40sx1", nvidia("l40s", "L40S", 1, 48, 4, 32, 250), 1_861_000_000, 34, 4},
		{"h100x8", nvidia("h100-sxm-80gb", "H100 80GB HBM3", 8, 80, 192, 2048, 30400), 55_040_000_000, 48, 1},
	}
	zones := []struct {
		region, zone string
		percent      int64 // of the on-demand price
		spotShift    int64 // percent of the spot price: zones of a region differ
	}{
		{"sim-east", "sim-east-a", 100, 100},
		{"sim-east", "sim-east-b", 100, 106},
		{"sim-west", "sim-west-a", 110, 96},
		{"sim-west", "sim-west-b", 110, 112},
	}
	for _, z := range zones {
		for _, t := range types {
			shape := t.shape
			shape.Arch = "amd64"
			shape.Disk = max(shape.Disk, 100*gib)
			shape.NetworkBps = 10_000_000_000
			place := simapi.Place{Region: z.region, Zone: z.zone, Type: t.name}
			onDemand := t.price / 100 * money.Rate(z.percent)
			place.Kind = providers.OnDemand
			cfg.Offers = append(cfg.Offers, Offer{Place: place, Shape: shape, Price: onDemand})
			place.Kind = providers.Spot
			cfg.Offers = append(cfg.Offers, Offer{
				Place: place, Shape: shape, Capacity: new(t.capacity),
				Price: onDemand / 10_000 * money.Rate(t.spot*z.spotShift),
				Walk:  &Walk{Every: Duration(15 * time.Second), Percent: 3, Low: 70, High: 140},
			})
		}
	}
	return cfg.withDefaults()
}

func nvidia(id, name string, gpus float64, memory int64, vcpu float64, host, disk int64) providers.Shape {
	return providers.Shape{
		GPU: id, GPUName: "NVIDIA " + name, GPUs: gpus, GPUMemory: memory * gib, VCPU: vcpu, Memory: host * gib, Disk: disk * gib,
	}
}
