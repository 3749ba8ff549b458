package aws

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

const mib = 1 << 20

// cards are the network cards, all with EFA, of types that have EFA: from
// DescribeInstanceTypes of 2026-08. Others have one card without it.
func cards() map[string]int {
	return map[string]int{
		"g4dn.12xlarge": 1, "g5.12xlarge": 1, "g5.48xlarge": 1, "g6.12xlarge": 1, "g6e.12xlarge": 1, "g6e.48xlarge": 4,
		"p4d.24xlarge": 4, "p4de.24xlarge": 4, "p5.48xlarge": 32, "p5en.48xlarge": 16, "p6-b200.48xlarge": 8,
	}
}

// offersOf returns the markets of a region by type.
func offersOf(all []simapi.Offer) (types []string, byType map[string][]simapi.Offer) {
	byType = map[string][]simapi.Offer{}
	for _, o := range all {
		byType[o.Type] = append(byType[o.Type], o)
	}
	return slices.Sorted(maps.Keys(byType)), byType
}

func (q *request) describeInstanceTypes() {
	q.serve(simcloud.Call{Op: "offers"}, func(age time.Duration, _ bool) ([]node, error) {
		types, byType := offersOf(q.w.Offers(q.region, age))
		wanted := q.list("InstanceType")
		for _, t := range wanted {
			if byType[t] == nil {
				return nil, errorf(http.StatusBadRequest, "InvalidInstanceType", "The following supplied instance types do not exist: [%s]", t)
			}
		}
		var items [][]node
		for _, t := range types {
			ok, err := pass(q.filters(), func(name string) ([]string, bool) {
				s := byType[t][0].Shape
				switch name {
				case "instance-type":
					return []string{t}, true
				case "processor-info.supported-architecture":
					return []string{arch(s)}, true
				case "supported-usage-class":
					return usages(byType[t]), true
				case "current-generation", "bare-metal":
					return []string{strconv.FormatBool(name == "current-generation")}, true
				}
				return nil, false
			})
			if err != nil {
				return nil, err
			}
			if ok && (len(wanted) == 0 || slices.Contains(wanted, t)) {
				items = append(items, instanceType(t, byType[t]))
			}
		}
		from, to, next, err := q.formPage(len(items), 5, 100)
		if err != nil {
			return nil, err
		}
		return append([]node{set("instanceTypeSet", items[from:to]...)}, opt("nextToken", next)...), nil
	})
}

func arch(s providers.Shape) string {
	if s.Arch == "arm64" {
		return "arm64"
	}
	return "x86_64"
}

func usages(offers []simapi.Offer) []string {
	kinds := map[string]bool{}
	for _, o := range offers {
		kinds[string(o.Kind)] = true
	}
	return slices.Sorted(maps.Keys(kinds))
}

func instanceType(name string, offers []simapi.Offer) []node {
	s := offers[0].Shape
	texts := func(set string, values []string) node {
		n := node{name: set}
		for _, v := range values {
			n.kids = append(n.kids, tx("item", v))
		}
		return n
	}
	cores := max(int(s.VCPU)/2, 1)
	efa := cards()[name]
	gbps := float64(s.NetworkBps) / 1e9
	var network []node
	for i := range max(efa, 1) {
		each := gbps / float64(max(efa, 1))
		network = append(network, el("item",
			tx("networkCardIndex", i), tx("networkPerformance", fmt.Sprintf("%g Gigabit", each)), tx("maximumNetworkInterfaces", 4),
			tx("baselineBandwidthInGbps", each), tx("peakBandwidthInGbps", each)))
	}
	out := []node{
		tx("instanceType", name), tx("currentGeneration", true), tx("freeTierEligible", false),
		texts("supportedUsageClasses", usages(offers)), texts("supportedRootDeviceTypes", []string{"ebs"}),
		texts("supportedVirtualizationTypes", []string{"hvm"}), tx("bareMetal", false), tx("hypervisor", "nitro"),
		el("processorInfo", texts("supportedArchitectures", []string{arch(s)}), tx("sustainedClockSpeedInGhz", 3.1)),
		el("vCpuInfo", tx("defaultVCpus", int(s.VCPU)), tx("defaultCores", cores), tx("defaultThreadsPerCore", max(int(s.VCPU)/cores, 1))),
		el("memoryInfo", tx("sizeInMiB", s.Memory/mib)), tx("instanceStorageSupported", false),
		el("networkInfo",
			tx("networkPerformance", fmt.Sprintf("%g Gigabit", gbps)), tx("maximumNetworkInterfaces", 4), tx("maximumNetworkCards", max(efa, 1)),
			node{name: "networkCards", kids: network}, tx("efaSupported", efa > 0), tx("ipv6Supported", true), tx("enaSupport", "required")),
		el("placementGroupInfo", texts("supportedStrategies", []string{"cluster", "partition", "spread"})),
	}
	if s.GPUs > 0 {
		out = append(out, gpuInfo(s))
	}
	return out
}

// gpuInfo tells of a share of a GPU as EC2 does: the count is 0.
func gpuInfo(s providers.Shape) node {
	count, logical, part := int(s.GPUs), int(s.GPUs), 1.0
	if s.GPUs < 1 {
		count, logical, part = 0, 1, s.GPUs
	}
	maker := "NVIDIA"
	if strings.HasPrefix(s.GPUName, "Radeon") {
		maker = "AMD"
	}
	return el("gpuInfo",
		set("gpus", []node{
			tx("name", s.GPUName), tx("manufacturer", maker), tx("count", count), tx("logicalGpuCount", logical), tx("gpuPartitionSize", part),
			el("memoryInfo", tx("sizeInMiB", s.GPUMemory/mib)),
		}),
		tx("totalGpuMemoryInMiB", s.GPUMemory/mib*int64(logical)))
}

func (q *request) describeInstanceTypeOfferings() {
	q.serve(simcloud.Call{Op: "offers"}, func(age time.Duration, _ bool) ([]node, error) {
		kind := cmp.Or(q.form.Get("LocationType"), "region")
		if kind != "region" && kind != "availability-zone" {
			return nil, errorf(http.StatusBadRequest, "InvalidParameterValue", "Value (%s) for parameter LocationType is invalid.", kind)
		}
		seen := map[[2]string]bool{}
		var items [][]node
		for _, o := range q.w.Offers(q.region, age) {
			location := map[string]string{"region": o.Region, "availability-zone": o.Zone}[kind]
			key := [2]string{o.Type, location}
			ok, err := pass(q.filters(), func(name string) ([]string, bool) {
				switch name {
				case "instance-type":
					return []string{o.Type}, true
				case "location":
					return []string{location}, true
				}
				return nil, false
			})
			if err != nil {
				return nil, err
			}
			if ok && !seen[key] {
				seen[key] = true
				items = append(items, []node{tx("instanceType", o.Type), tx("locationType", kind), tx("location", location)})
			}
		}
		from, to, next, err := q.formPage(len(items), 5, 1000)
		if err != nil {
			return nil, err
		}
		return append([]node{set("instanceTypeOfferingSet", items[from:to]...)}, opt("nextToken", next)...), nil
	})
}

// describeSpotPriceHistory shows the present prices and, for a start that is
// past, those of then. Windows costs more: a caller that names no product gets both.
func (q *request) describeSpotPriceHistory() {
	q.serve(simcloud.Call{Op: "offers"}, func(age time.Duration, _ bool) ([]node, error) {
		now := q.w.Now()
		ages := []time.Duration{age}
		if s := q.form.Get("StartTime"); s != "" {
			start, err := time.Parse(time.RFC3339, s)
			if err != nil {
				return nil, errorf(http.StatusBadRequest, "InvalidParameterValue", "StartTime %q is no time.", s)
			}
			if past := now.Sub(start); past > time.Second {
				ages = append(ages, age+past)
			}
		}
		types, products := q.list("InstanceType"), q.list("ProductDescription")
		var items [][]node
		for _, age := range ages {
			for _, o := range q.w.Offers(q.region, age) {
				if o.Kind != providers.Spot || len(types) > 0 && !slices.Contains(types, o.Type) ||
					q.form.Get("AvailabilityZone") != "" && q.form.Get("AvailabilityZone") != o.Zone {
					continue
				}
				for product, times := range map[string]int64{"Linux/UNIX": 1, "Windows": 2} {
					if len(products) > 0 && !slices.Contains(products, product) {
						continue
					}
					items = append(items, []node{
						tx("instanceType", o.Type), tx("productDescription", product),
						tx("spotPrice", compute(o.Price)*rate(times)), tx("timestamp", now.Add(-age)), tx("availabilityZone", o.Zone),
					})
				}
			}
		}
		from, to, next, err := q.formPage(len(items), 1, 1000)
		if err != nil {
			return nil, err
		}
		return []node{set("spotPriceHistorySet", items[from:to]...), tx("nextToken", next)}, nil
	})
}

// zones returns the zones of a region in order.
func zones(offers []simapi.Offer) []string {
	seen := map[string]bool{}
	for _, o := range offers {
		seen[o.Zone] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

func (q *request) describeAvailabilityZones() {
	q.serve(simcloud.Call{Op: "about"}, func(time.Duration, bool) ([]node, error) {
		var items [][]node
		for n, z := range zones(q.w.Offers(q.region, 0)) {
			items = append(items, []node{
				tx("zoneName", z), tx("zoneState", "available"), tx("regionName", q.region), tx("zoneId", zoneID(q.region, n)), tx("zoneType", "availability-zone"),
			})
		}
		return []node{set("availabilityZoneInfo", items...)}, nil
	})
}

func zoneID(region string, n int) string {
	var short strings.Builder
	for part := range strings.SplitSeq(region, "-") {
		if len(part) > 2 {
			part = part[:1]
		}
		short.WriteString(part)
	}
	return fmt.Sprintf("%s-az%d", short.String(), n+1)
}

// getSpotPlacementScores rates by what is free: twice what is asked for is a 9.
func (q *request) getSpotPlacementScores() {
	q.serve(simcloud.Call{Op: "about"}, func(time.Duration, bool) ([]node, error) {
		types, regions := q.list("InstanceType"), q.list("RegionName")
		target, err := strconv.Atoi(q.form.Get("TargetCapacity"))
		if err != nil || target < 1 {
			return nil, errorf(http.StatusBadRequest, "InvalidParameterValue", "TargetCapacity must be a positive number.")
		}
		var items [][]node
		free := map[string]int{}
		for _, o := range q.w.Offers("", 0) {
			if o.Kind != providers.Spot || !slices.Contains(types, o.Type) || len(regions) > 0 && !slices.Contains(regions, o.Region) {
				continue
			}
			n := 2 * target
			if o.Free != nil {
				n = *o.Free
			}
			free[o.Region] += n
		}
		for _, region := range slices.Sorted(maps.Keys(free)) {
			score := 1
			switch n := free[region]; {
			case n >= 2*target:
				score = 9
			case n >= target:
				score = 6
			case n > 0:
				score = 3
			}
			items = append(items, []node{tx("region", region), tx("score", score)})
		}
		return []node{set("spotPlacementScoreSet", items...)}, nil
	})
}

func (q *request) getCallerIdentity() {
	q.serve(simcloud.Call{Op: "about"}, func(time.Duration, bool) ([]node, error) {
		return []node{tx("Arn", "arn:aws:iam::"+account+":user/broker"), tx("UserId", "AIDACKCEVSQ6C2EXAMPLE"), tx("Account", account)}, nil
	})
}
