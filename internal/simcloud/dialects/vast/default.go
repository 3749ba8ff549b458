package vast

import (
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// Default is a world in Vast's names: three countries, seven kinds of GPU
// machines, on demand and interruptible, quick like simcloud's own. Vast rents no
// machine without a GPU.
//
// Prices per GPU in Sweden are those that tardellirs/gpu-pricing read on
// 2026-05-24, bids included, where it read one, and the disk on top; the other
// countries are dearer by an assumed share. Billing is by the second
// (https://docs.vast.ai/documentation/instances/pricing). Nobody is warned before
// being outbid, and machines end themselves.
func Default(seed uint64) simcloud.Config {
	cfg := simcloud.Config{
		Seed:      seed,
		Dialect:   Dialect(),
		Billing:   simcloud.Billing{Unit: simcloud.Duration(time.Second)},
		Boot:      simcloud.Duration(time.Second),
		BootSpan:  simcloud.Duration(500 * time.Millisecond),
		StopTime:  simcloud.Duration(500 * time.Millisecond),
		ListLag:   simcloud.Duration(time.Second),
		PageSize:  maxRows,
		SelfEnd:   providers.EndGuest,
		EndAction: providers.EndAPI,
		Quotas:    []simcloud.Quota{{Name: "instances", Unit: "machine", Limit: 40}},
	}
	const gib = 1 << 30
	mills := func(n int64) money.Rate { return money.Rate(n * 1_000_000) }
	types := []struct {
		name, gpu, gpuName string
		gpus, vram         int64
		vcpu, memory       int64
		onDemand, bid      money.Rate // of the machine, without the disk
		capacity           int        // interruptible machines in a country
	}{
		{"1x RTX 3090", "rtx-3090", "RTX 3090", 1, 24, 8, 32, mills(150), mills(110), 12},
		{"1x RTX 4090", "rtx-4090", "RTX 4090", 1, 24, 16, 64, mills(310), mills(290), 12},
		{"4x RTX 4090", "rtx-4090", "RTX 4090", 4, 24, 64, 256, mills(4 * 310), mills(4 * 290), 4},
		{"1x L40S", "l40s", "L40S", 1, 48, 16, 128, mills(400), mills(280), 6},
		{"1x A100 SXM4", "a100-sxm-80gb", "A100 SXM4", 1, 80, 16, 128, mills(600), mills(470), 6},
		{"1x H100 SXM", "h100-sxm-80gb", "H100 SXM", 1, 80, 16, 128, mills(1490), mills(1100), 4},
		{"8x H100 SXM", "h100-sxm-80gb", "H100 SXM", 8, 80, 128, 1024, mills(8 * 1490), mills(8 * 1100), 1},
	}
	for _, c := range []struct {
		code   string
		dearer int64 // percent of the price
	}{{"SE", 100}, {"US", 107}, {"JP", 113}} {
		for _, t := range types {
			shape := providers.Shape{
				GPU: t.gpu, GPUName: t.gpuName, GPUs: float64(t.gpus), GPUMemory: t.vram * gib,
				VCPU: float64(t.vcpu), Memory: t.memory * gib, Disk: DiskGB * 1e9, Arch: "amd64",
			}
			place := simapi.Place{Region: c.code, Type: t.name, Kind: providers.OnDemand}
			cfg.Offers = append(cfg.Offers, simcloud.Offer{Place: place, Shape: shape, Price: t.onDemand/100*money.Rate(c.dearer) + diskRate(DiskGB)})
			place.Kind = providers.Spot
			cfg.Offers = append(cfg.Offers, simcloud.Offer{Place: place, Shape: shape, Price: t.bid/100*money.Rate(c.dearer) + diskRate(DiskGB), Capacity: new(t.capacity)})
		}
	}
	return cfg
}
