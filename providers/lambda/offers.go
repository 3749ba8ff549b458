package lambda

import (
	"context"
	"encoding/json"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// publicRegions are those of PublicRegionCode in document 1.6.0, without the test
// regions. One that is newer is listed once it has capacity.
var publicRegions = []string{
	"asia-northeast-1", "asia-northeast-2", "asia-south-1", "australia-east-1", "europe-central-1", "me-west-1",
	"us-east-1", "us-east-2", "us-east-3", "us-midwest-1", "us-midwest-2", "us-south-1", "us-south-2", "us-south-3",
	"us-west-1", "us-west-2", "us-west-3",
}

type place struct {
	Name string `json:"name"`
}

type instanceType struct {
	Name           string      `json:"name"`
	GPUDescription string      `json:"gpu_description"`
	Cents          json.Number `json:"price_cents_per_hour"`
	Specs          struct {
		VCPUs   int64 `json:"vcpus"`
		Memory  int64 `json:"memory_gib"`
		Storage int64 `json:"storage_gib"`
		GPUs    int64 `json:"gpus"`
	} `json:"specs"`
}

// Offers returns every type in every region: open where there is capacity, full
// elsewhere.
func (a *Adapter) Offers(ctx context.Context, scope providers.Scope) ([]providers.Offer, error) {
	var got struct {
		Data map[string]struct {
			Type    instanceType `json:"instance_type"`
			Regions []place      `json:"regions_with_capacity_available"`
		} `json:"data"`
	}
	if err := a.call(ctx, rest.Call{Op: "offers", Target: scope.Region, Path: "/instance-types", Out: &got}); err != nil {
		return nil, err
	}
	if got.Data == nil {
		return nil, a.api.Strange("offers", scope.Region, "the answer holds no types")
	}
	seen := time.Now().UTC()
	regions := map[string]bool{}
	for _, r := range publicRegions {
		regions[r] = true
	}
	for _, t := range got.Data {
		for _, r := range t.Regions {
			regions[r.Name] = true
		}
	}
	maps.DeleteFunc(regions, func(r string, _ bool) bool {
		return len(a.set.Regions) > 0 && !slices.Contains(a.set.Regions, r) || scope.Region != "" && r != scope.Region
	})
	out := []providers.Offer{}
	unpriced := 0
	for _, key := range slices.Sorted(maps.Keys(got.Data)) {
		t := got.Data[key]
		price, ok := priceOf(t.Type.Cents)
		if !ok || t.Type.Name == "" {
			unpriced++ // a type without a price is no offer at the price 0
			continue
		}
		shape := shapeOf(t.Type)
		for _, r := range slices.Sorted(maps.Keys(regions)) {
			o := providers.Offer{
				Market: a.market(r, t.Type.Name), Shape: shape, Price: price, Parts: []providers.PricePart{{Name: "compute", Price: price}},
				Currency: money.USD, Available: providers.Full, Seen: seen, Source: "Lambda /instance-types",
			}
			if slices.Contains(t.Regions, place{r}) {
				o.Available = providers.Open
			}
			out = append(out, o)
		}
	}
	if unpriced > 0 {
		a.log.WarnContext(ctx, "instance types without a price are left out", "provider", a.name, "types", unpriced)
	}
	return out, nil
}

// cent is a hundredth of a dollar.
const cent = money.Rate(money.Unit / 100)

// priceOf reads whole US cents per hour.
func priceOf(cents json.Number) (money.Rate, bool) {
	n, err := strconv.ParseInt(string(cents), 10, 64)
	if err != nil || n <= 0 || n > math.MaxInt64/int64(cent) {
		return 0, false
	}
	return money.Rate(n) * cent, true
}

const gib = 1 << 30

func shapeOf(t instanceType) providers.Shape {
	s := providers.Shape{
		GPUs: float64(t.Specs.GPUs), VCPU: float64(t.Specs.VCPUs), Memory: t.Specs.Memory * gib, Disk: t.Specs.Storage * gib, Arch: "amd64",
	}
	// Grace is the only processor of theirs that is not x86.
	if strings.Contains(t.Name, "gh200") || strings.Contains(t.Name, "gb200") || strings.Contains(t.Name, "gb300") {
		s.Arch = "arm64"
	}
	if t.Specs.GPUs > 0 {
		s.GPUName = t.GPUDescription
		s.GPU, s.GPUMemory = identify(t.Name, t.GPUDescription)
	}
	return s
}

// described is how they write a GPU: "H100 (80 GB SXM5)", "A6000 (48 GB)".
var described = regexp.MustCompile(`^(.+?) \((\d+) GB(?: ([A-Za-z0-9]+))?\)$`)

// identify finds the GPU of a type: "" when the words lead to none or to several.
func identify(name, words string) (id string, memory int64) {
	tries := []string{words}
	mib := 0
	if m := described.FindStringSubmatch(words); m != nil {
		gb, err := strconv.Atoi(m[2])
		if err == nil {
			mib, memory = gb*1024, int64(gb)*gib
		}
		if m[3] != "" {
			tries = append(tries, m[1]+" "+m[3])
		}
		tries = append(tries, m[1])
	}
	for _, words := range tries {
		if id, err := gpu.Builtin().Identify("lambda", name, words, mib); err == nil {
			return id, memory
		}
	}
	return "", memory
}
