package gcp

import (
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

const gib = 1 << 30

// Default is a world in Google's own names: two regions, four zones, five types
// with a GPU and two without, spot and on demand. It boots as quickly as
// simcloud's own world, but warns half a minute before it takes a machine and
// bills by the second from a minute on, as Google does.
//
// Prices of machines with a GPU are Google's of 2026-07-30 as
// Cyclenerd/google-cloud-pricing-cost-calculator computed them for us-central1 and
// europe-west4; that of the T4 is the GPU's static price in
// kubernetes/autoscaler with the host's list price; those of the machine without a
// GPU and of spot hosts are assumed. Disk, local SSD and address are added.
func Default(seed uint64) simcloud.Config {
	cfg := simcloud.Config{
		Seed:      seed,
		Billing:   simcloud.Billing{Unit: simcloud.Duration(time.Second), Minimum: simcloud.Duration(time.Minute)},
		Boot:      simcloud.Duration(time.Second),
		BootSpan:  simcloud.Duration(500 * time.Millisecond),
		StopTime:  simcloud.Duration(500 * time.Millisecond),
		Notice:    simcloud.Duration(30 * time.Second),
		ListLag:   simcloud.Duration(time.Second),
		PageSize:  10,
		SelfEnd:   providers.EndFixed,
		EndAction: providers.EndStopTasks,
		Dialect:   Dialect(),
	}
	types := []struct {
		shape    providers.Shape
		name     string
		us, eu   [2]int64 // on demand and spot, without disk and address, nano-dollars
		capacity int      // spot machines in a zone
	}{
		{shape("", "", 0, 0, 8, 32), "e2-standard-8", [2]int64{268_048_000, 80_416_000}, [2]int64{295_120_000, 88_536_000}, 16},
		{shape("", "", 0, 0, 8, 30), "n1-standard-8", [2]int64{379_998_000, 80_000_000}, [2]int64{418_000_000, 88_000_000}, 16},
		{shape("t4", "nvidia-tesla-t4", 1, 16, 8, 30), "n1-standard-8+nvidia-tesla-t4x1", [2]int64{729_998_000, 190_000_000}, [2]int64{799_998_000, 209_000_000}, 12},
		{shape("l4", "nvidia-l4", 1, 24, 8, 32), "g2-standard-8", [2]int64{853_620_000, 479_870_000}, [2]int64{897_200_000, 470_820_000}, 8},
		{shape("a100-sxm-40gb", "nvidia-tesla-a100", 1, 40, 12, 85), "a2-highgpu-1g", [2]int64{3_673_390_000, 1_928_020_000}, [2]int64{3_747_970_000, 1_692_840_000}, 4},
		{shape("a100-sxm-80gb", "nvidia-a100-80gb", 1, 80, 12, 170), "a2-ultragpu-1g", [2]int64{5_027_700_000, 2_734_870_000}, [2]int64{5_539_820_000, 2_920_530_000}, 2},
		{shape("h100-sxm-80gb", "nvidia-h100-80gb", 8, 80, 208, 1872), "a3-highgpu-8g", [2]int64{87_832_480_000, 50_214_896_000}, [2]int64{111_882_480_000, 43_724_136_000}, 1},
	}
	zones := []struct {
		region, zone string
		eu           bool
	}{
		{"us-central1", "us-central1-a", false},
		{"us-central1", "us-central1-b", false},
		{"europe-west4", "europe-west4-a", true},
		{"europe-west4", "europe-west4-b", true},
	}
	for _, z := range zones {
		for _, t := range types {
			compute := t.us
			if z.eu {
				compute = t.eu
			}
			for n, kind := range []providers.Kind{providers.OnDemand, providers.Spot} {
				o := simcloud.Offer{Place: simapi.Place{Region: z.region, Zone: z.zone, Type: t.name, Kind: kind}, Shape: t.shape}
				_, disk, ssd, ip := parts(simapi.Offer{Place: o.Place, Shape: t.shape})
				o.Price = money.Rate(compute[n] + disk + ssd + ip)
				if kind == providers.Spot {
					o.Capacity = new(t.capacity)
				}
				cfg.Offers = append(cfg.Offers, o)
			}
		}
	}
	for _, region := range []string{"us-central1", "europe-west4"} {
		for _, q := range []simcloud.Quota{
			{Name: "PREEMPTIBLE_CPUS", Kind: providers.Spot, Unit: "vcpu", Limit: 512},
			{Name: "CPUS", Kind: providers.OnDemand, Unit: "vcpu", Limit: 512},
			{Name: "NVIDIA_T4_GPUS", Kind: providers.OnDemand, Types: []string{"n1-standard-8+nvidia-tesla-t4x1"}, Unit: "gpu", Limit: 8},
			{Name: "PREEMPTIBLE_NVIDIA_T4_GPUS", Kind: providers.Spot, Types: []string{"n1-standard-8+nvidia-tesla-t4x1"}, Unit: "gpu", Limit: 16},
			{Name: "NVIDIA_L4_GPUS", Kind: providers.OnDemand, Types: []string{"g2-standard-8"}, Unit: "gpu", Limit: 8},
			{Name: "PREEMPTIBLE_NVIDIA_L4_GPUS", Kind: providers.Spot, Types: []string{"g2-standard-8"}, Unit: "gpu", Limit: 16},
			{Name: "PREEMPTIBLE_NVIDIA_H100_GPUS", Kind: providers.Spot, Types: []string{"a3-highgpu-8g"}, Unit: "gpu", Limit: 8},
		} {
			q.Region = region
			cfg.Quotas = append(cfg.Quotas, q)
		}
	}
	cfg.Quotas = append(cfg.Quotas, simcloud.Quota{Name: "GPUS_ALL_REGIONS", Unit: "gpu", Limit: 64})
	return cfg
}

func shape(gpu, name string, gpus float64, memory int64, vcpu float64, host int64) providers.Shape {
	return providers.Shape{
		GPU: gpu, GPUName: name, GPUs: gpus, GPUMemory: memory * gib, VCPU: vcpu, Memory: host * gib, Disk: diskGiB * gib,
		NetworkBps: 16_000_000_000, Arch: "amd64",
	}
}
