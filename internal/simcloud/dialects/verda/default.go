package verda

import (
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// Default is a world in Verda's names: three locations, six GPU types and one
// without, spot and on demand, quick like simcloud's own, so that a demonstration
// sees all of a machine's life.
//
// Prices per GPU are those that tardellirs/gpu-pricing read on 2026-05-24, spot
// ones included; that of the machine without a GPU is assumed. Billing is by
// tens of minutes, as the adapter assumes it. Nothing ends a machine by itself and
// nothing warns of a spot end.
func Default(seed uint64) simcloud.Config {
	cfg := simcloud.Config{
		Seed:      seed,
		Dialect:   Dialect(),
		Billing:   simcloud.Billing{Unit: simcloud.Duration(10 * time.Minute)},
		BillsBoot: true,
		Boot:      simcloud.Duration(time.Second),
		BootSpan:  simcloud.Duration(500 * time.Millisecond),
		StopTime:  simcloud.Duration(500 * time.Millisecond),
		ListLag:   simcloud.Duration(time.Second),
		SelfEnd:   providers.EndNone,
		EndAction: providers.EndStopTasks,
		Quotas:    []simcloud.Quota{{Name: "gpus", Unit: "gpu", Limit: 64}},
	}
	cents := func(n int64) money.Rate { return money.Rate(n * 10_000_000) }
	types := []struct {
		name           string
		gpu, gpuName   string
		gpus, vram     int64
		vcpu, memory   int64
		onDemand, spot money.Rate // without the disk
		capacity       int        // spot machines in a location
	}{
		{"CPU.8V.32G", "", "", 0, 0, 8, 32, cents(12), cents(6), 16},
		{"1V100.6V", "v100-any-16gb", "Tesla V100 16GB", 1, 16, 6, 23, cents(14), cents(5), 12},
		{"1A6000.10V", "rtx-a6000", "RTX A6000 48GB", 1, 48, 10, 60, cents(49), cents(17), 8},
		{"1L40S.20V", "l40s", "L40S 48GB", 1, 48, 20, 60, cents(91), cents(32), 8},
		{"1A100.22V", "a100-sxm-80gb", "A100 SXM4 80GB", 1, 80, 22, 120, cents(129), cents(45), 6},
		{"1H100.80S.30V", "h100-sxm-80gb", "H100 SXM5 80GB", 1, 80, 30, 120, cents(229), cents(80), 4},
		{"8H100.80S.176V", "h100-sxm-80gb", "H100 SXM5 80GB", 8, 80, 176, 1480, cents(8 * 229), cents(8 * 80), 1},
	}
	for _, location := range []string{"FIN-01", "FIN-03", "ICE-01"} {
		for _, t := range types {
			shape := providers.Shape{
				GPU: t.gpu, GPUName: t.gpuName, GPUs: float64(t.gpus), GPUMemory: t.vram * gib,
				VCPU: float64(t.vcpu), Memory: t.memory * gib, Disk: DiskGB * 1e9, Arch: "amd64",
			}
			place := simapi.Place{Region: location, Type: t.name, Kind: providers.OnDemand}
			cfg.Offers = append(cfg.Offers, simcloud.Offer{Place: place, Shape: shape, Price: t.onDemand + diskRate(DiskGB)})
			place.Kind = providers.Spot
			cfg.Offers = append(cfg.Offers, simcloud.Offer{Place: place, Shape: shape, Price: t.spot + diskRate(DiskGB), Capacity: new(t.capacity)})
		}
	}
	return cfg
}
