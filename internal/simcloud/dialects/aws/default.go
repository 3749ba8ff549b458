package aws

import (
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

const gib = 1 << 30

// Default is a world in AWS's names: two regions, five zones, seven types with
// GPUs and one without, spot and on-demand. It boots in a second, so that a
// demonstration is quick; notices are of two minutes, as EC2's are.
//
// On-demand prices are those of us-east-1 on 2026-07-20 (karpenter-provider-aws),
// the same in us-west-2; c6i.xlarge is of the price list of 2026. Spot prices begin at the
// AWS Spot Advisor's savings of June 2025 for each region and type; g6f, which it
// did not list, at half. Billing is by the second with a minute at least
// (aws.amazon.com/ec2/pricing/on-demand, Linux).
func Default(seed uint64) simcloud.Config {
	cfg := simcloud.Config{
		Seed: seed, Currency: money.USD,
		Billing:   simcloud.Billing{Unit: simapi.Duration(time.Second), Minimum: simapi.Duration(time.Minute)},
		Boot:      simapi.Duration(time.Second),
		BootSpan:  simapi.Duration(500 * time.Millisecond),
		StopTime:  simapi.Duration(500 * time.Millisecond),
		Notice:    simapi.Duration(2 * time.Minute),
		ListLag:   simapi.Duration(time.Second),
		Remember:  simapi.Duration(time.Hour),
		PageSize:  100,
		SelfEnd:   providers.EndRolling,
		EndAction: providers.EndPoweroff,
	}
	types := []struct {
		name       string
		gpu, words string
		gpus       float64
		memory     int64 // MiB per GPU
		vcpu       float64
		host       int64 // GiB
		gbps       int64 // tenths
		usd        money.Rate
		east, west int64 // percent saved by spot; of g6f and c6i assumed
		capacity   int
	}{
		{"c6i.xlarge", "", "", 0, 0, 4, 8, 16, 170_000_000, 60, 60, 16},
		{"g4dn.xlarge", "t4", "T4", 1, 16384, 4, 16, 50, 526_000_000, 64, 64, 12},
		{"g6f.xlarge", "l4", "L4", 0.125, 2861, 4, 16, 25, 237_500_000, 50, 50, 8},
		{"g6.xlarge", "l4", "L4", 1, 22888, 4, 16, 25, 804_800_000, 49, 47, 8},
		{"g5.xlarge", "a10g", "A10G", 1, 22888, 4, 16, 25, 1_006_000_000, 59, 63, 6},
		{"g6e.xlarge", "l40s", "L40S", 1, 45776, 4, 32, 25, 1_861_000_000, 58, 50, 4},
		{"p4d.24xlarge", "a100-sxm-40gb", "A100", 8, 40960, 96, 1152, 4000, 21_957_642_000, 67, 53, 2},
		{"p5.48xlarge", "h100-sxm-80gb", "H100", 8, 81920, 192, 2048, 32000, 55_040_000_000, 52, 46, 1},
	}
	zones := []struct {
		region, zone string
		shift        int64 // percent of the spot price: zones of a region differ
	}{
		{"us-east-1", "us-east-1a", 100},
		{"us-east-1", "us-east-1b", 106},
		{"us-east-1", "us-east-1c", 97},
		{"us-west-2", "us-west-2a", 96},
		{"us-west-2", "us-west-2b", 112},
	}
	for _, z := range zones {
		for _, t := range types {
			saved := t.east
			if z.region == "us-west-2" {
				saved = t.west
			}
			shape := providers.Shape{
				GPU: t.gpu, GPUName: t.words, GPUs: t.gpus, GPUMemory: t.memory * mib, VCPU: t.vcpu, Memory: t.host * gib,
				Disk: DiskGiB * gib, NetworkBps: t.gbps * 100_000_000, Arch: "amd64",
			}
			place := simapi.Place{Region: z.region, Zone: z.zone, Type: t.name, Kind: providers.OnDemand}
			cfg.Offers = append(cfg.Offers, simcloud.Offer{Place: place, Shape: shape, Price: t.usd + diskPrice + ipv4Price})
			place.Kind = providers.Spot
			cfg.Offers = append(cfg.Offers, simcloud.Offer{
				Place: place, Shape: shape, Capacity: new(t.capacity),
				Price: t.usd/10_000*money.Rate((100-saved)*z.shift) + diskPrice + ipv4Price,
				Walk:  &simcloud.Walk{Every: simapi.Duration(15 * time.Second), Percent: 3, Low: 70, High: 140},
			})
		}
	}
	cfg.Quotas = quotas(cfg.Offers)
	return cfg
}

// quotas are limits in vCPU in each region, by EC2's own names.
func quotas(offers []simcloud.Offer) []simcloud.Quota {
	var out []simcloud.Quota
	for _, region := range []string{"us-east-1", "us-west-2"} {
		for _, q := range []struct {
			name     string
			kind     providers.Kind
			families string
			limit    float64
		}{
			{"Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", providers.OnDemand, "acdhimrtz", 256},
			{"Running On-Demand G and VT instances", providers.OnDemand, "g", 256},
			{"Running On-Demand P instances", providers.OnDemand, "p", 384},
			{"All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests", providers.Spot, "acdhimrtz", 256},
			{"All G and VT Spot Instance Requests", providers.Spot, "g", 256},
			{"All P4, P3 and P2 Spot Instance Requests", providers.Spot, "p4", 192},
			{"All P5 Spot Instance Requests", providers.Spot, "p5", 384},
		} {
			var types []string
			for _, o := range offers {
				family := strings.ContainsAny(o.Type[:1], q.families)
				if q.families[0] == 'p' {
					family = strings.HasPrefix(o.Type, q.families)
				}
				if family && o.Zone == region+"a" && o.Kind == q.kind {
					types = append(types, o.Type)
				}
			}
			out = append(out, simcloud.Quota{Name: q.name, Region: region, Kind: q.kind, Types: types, Unit: "vcpu", Limit: q.limit})
		}
	}
	return out
}
