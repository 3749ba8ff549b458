package lambda

import (
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

const gib = 1 << 30

// worldRegions are the regions of [Default]; regions describes them in Lambda's words.
var worldRegions = []string{"us-east-1", "us-south-1", "us-west-1"}

var regions = map[string]string{
	"us-east-1": "Virginia, USA", "us-south-1": "Texas, USA", "us-west-1": "California, USA",
}

// Default is a world in Lambda's names: three regions, which have no zones, six
// types of machine on demand. Capacity is scarce, as it is there: some types are
// sold out in a region, and one comes back after ten minutes.
//
// Prices are Lambda's list of 2026-05-24 per GPU (gpu-pricing, community); the
// machines with several GPUs cost that times their number, and the one without is
// assumed. It boots in a second, so that demonstrations are quick; billing is
// Lambda's, by the minute from the first moment that it runs.
func Default(seed uint64) simcloud.Config {
	types := []struct {
		name   string
		words  string
		gpu    string
		gpus   float64
		memory int64 // GiB per GPU
		vcpu   float64
		host   int64 // GiB
		disk   int64 // GiB
		cents  int64
		arch   string
		free   [3]*int // by region; nil is without limit
	}{
		{"cpu_4x_general", "", "", 0, 0, 4, 16, 64, 20, "amd64", [3]*int{}},
		{"gpu_1x_a10", "A10 (24 GB PCIe)", "a10", 1, 24, 30, 226, 1400, 129, "amd64", [3]*int{new(8), new(0), new(4)}},
		{"gpu_1x_a6000", "A6000 (48 GB)", "rtx-a6000", 1, 48, 14, 100, 512, 109, "amd64", [3]*int{new(0), new(6), new(2)}},
		{"gpu_1x_gh200", "GH200 (96 GB)", "gh200-96gb", 1, 96, 64, 432, 4096, 229, "arm64", [3]*int{new(4), new(0), new(0)}},
		{"gpu_1x_h100_pcie", "H100 (80 GB PCIe)", "h100-pcie-80gb", 1, 80, 26, 225, 1024, 329, "amd64", [3]*int{new(0), new(0), new(4)}},
		{"gpu_8x_a100", "A100 (40 GB SXM4)", "a100-sxm-40gb", 8, 40, 124, 1800, 6144, 1592, "amd64", [3]*int{new(2), new(1), new(0)}},
		{"gpu_8x_h100_sxm5", "H100 (80 GB SXM5)", "h100-sxm-80gb", 8, 80, 208, 1800, 24780, 3432, "amd64", [3]*int{new(1), new(1), new(0)}},
	}
	cfg := simcloud.Config{
		Seed: seed, Dialect: Dialect(), SelfEnd: providers.EndNone, EndAction: providers.EndStopTasks,
		Billing: simcloud.Billing{Unit: simapi.Duration(time.Minute)},
		Boot:    simapi.Duration(time.Second), BootSpan: simapi.Duration(500 * time.Millisecond),
		StopTime: simapi.Duration(500 * time.Millisecond), ListLag: simapi.Duration(2 * time.Second), Remember: simapi.Duration(time.Hour),
		Quotas: []simcloud.Quota{{Name: "instances", Unit: "machine", Limit: 24}, {Name: "gpus", Unit: "gpu", Limit: 32}},
	}
	for k, name := range worldRegions {
		for _, t := range types {
			cfg.Offers = append(cfg.Offers, simcloud.Offer{
				Place: simapi.Place{Region: name, Type: t.name, Kind: providers.OnDemand},
				Shape: providers.Shape{
					GPU: t.gpu, GPUName: t.words, GPUs: t.gpus, GPUMemory: t.memory * gib, VCPU: t.vcpu, Memory: t.host * gib, Disk: t.disk * gib, Arch: t.arch,
				},
				Price: money.Rate(t.cents) * money.Rate(money.Unit) / 100, Capacity: t.free[k],
			})
		}
	}
	cfg.Script = []simapi.Action{{
		At:       simapi.Duration(10 * time.Minute),
		Capacity: &simapi.Capacity{Match: simapi.Place{Region: "us-south-1", Type: "gpu_1x_a10"}, Machines: new(2)},
	}}
	return cfg
}
