package runpod

import (
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

const gib = 1 << 30

// Default is a world in RunPod's names: three data centers, the secure cloud and
// for some types the community's, six GPU types with one GPU or several, on demand
// and as spot pods, and pods without GPUs.
//
// On-demand prices per GPU are RunPod's list of 2026-05-24 (gpu-pricing,
// community); a vCPU is assumed. Spot prices begin at half of them, which is
// assumed too, since the list's are not below its on-demand ones, and move. It
// boots in a second, so that demonstrations are quick; billing is RunPod's, by the
// second from the create on.
func Default(seed uint64) simcloud.Config {
	cfg := simcloud.Config{
		Seed: seed, Dialect: Dialect(), SelfEnd: providers.EndGuest, EndAction: providers.EndStopTasks,
		Billing: simcloud.Billing{Unit: simapi.Duration(time.Second)}, BillsBoot: true,
		Boot: simapi.Duration(time.Second), BootSpan: simapi.Duration(500 * time.Millisecond),
		ListLag: simapi.Duration(2 * time.Second), Remember: simapi.Duration(24 * time.Hour), PageSize: 20,
		Quotas: []simcloud.Quota{{Name: "gpus", Unit: "gpu", Limit: 48}},
	}
	const cent = money.Rate(money.Unit) / 100
	types := []struct {
		id        string
		gpu       string
		memory    int64 // GiB per GPU
		secure    money.Rate
		community money.Rate // 0: not sold there
		counts    []int
		free      int // machines of a data center
	}{
		{"NVIDIA GeForce RTX 4090", "rtx-4090", 24, 69 * cent, 34 * cent, []int{1, 2, 4}, 12},
		{"NVIDIA L4", "l4", 24, 44 * cent, 0, []int{1, 2}, 8},
		{"NVIDIA L40S", "l40s", 48, 86 * cent, 79 * cent, []int{1, 2, 4}, 6},
		{"NVIDIA A100-SXM4-80GB", "a100-sxm-80gb", 80, 149 * cent, 139 * cent, []int{1, 8}, 4},
		{"NVIDIA H100 80GB HBM3", "h100-sxm-80gb", 80, 329 * cent, 269 * cent, []int{1, 2, 4, 8}, 2},
		{"NVIDIA B200", "b200", 180, 589 * cent, 0, []int{1, 8}, 1},
	}
	for d, region := range []string{"EU-RO-1", "US-KS-2", "US-TX-3"} {
		cfg.Offers = append(cfg.Offers, simcloud.Offer{
			Place: simapi.Place{Region: region, Zone: "secure", Type: cpuName(8, "cpu5c"), Kind: providers.OnDemand},
			Shape: providers.Shape{VCPU: 8, Memory: 16_000_000_000, Disk: diskGB * 1_000_000_000, Arch: "amd64"},
			Price: 8*(4*cent) + diskRate*diskGB,
		})
		for _, t := range types {
			for _, n := range t.counts {
				for k, zone := range []string{"secure", "community"} {
					unit := []money.Rate{t.secure, t.community}[k]
					if unit == 0 || zone == "community" && d == 0 {
						continue
					}
					o := simcloud.Offer{
						Place: simapi.Place{Region: region, Zone: zone, Type: gpuName(n, t.id), Kind: providers.OnDemand},
						Shape: providers.Shape{
							GPU: t.gpu, GPUName: t.id, GPUs: float64(n), GPUMemory: t.memory * gib, VCPU: float64(8 * n),
							Memory: int64(n) * 32_000_000_000, Disk: diskGB * 1_000_000_000, Arch: "amd64",
						},
						Price: unit*money.Rate(n) + diskRate*diskGB, Capacity: new(max(t.free/n, d)),
					}
					cfg.Offers = append(cfg.Offers, o)
					o.Kind, o.Price = providers.Spot, unit/2*money.Rate(n)+diskRate*diskGB
					if n == 1 { // a price per GPU is what a moving price must stay
						o.Walk = &simcloud.Walk{Every: simapi.Duration(20 * time.Second), Percent: 2, Low: 80, High: 130}
					}
					cfg.Offers = append(cfg.Offers, o)
				}
			}
		}
	}
	return cfg
}
