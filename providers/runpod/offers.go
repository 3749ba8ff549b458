package runpod

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
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

// product is what an instance type of ours stands for: "2x NVIDIA L4", that is so
// many GPUs of a type, or "8vcpu cpu5c", so many vCPUs of a flavor.
type product struct {
	id    string
	count int
	cpu   bool
}

var productText = regexp.MustCompile(`^([1-9]\d{0,3})(x|vcpu) (.+)$`)

func (p product) String() string {
	if p.cpu {
		return fmt.Sprintf("%dvcpu %s", p.count, p.id)
	}
	return fmt.Sprintf("%dx %s", p.count, p.id)
}

func parseProduct(s string) (product, bool) {
	m := productText.FindStringSubmatch(s)
	if m == nil {
		return product{}, false
	}
	n, err := strconv.Atoi(m[1])
	return product{m[3], n, m[2] == "vcpu"}, err == nil
}

// stock says how much there is of something.
type stock struct {
	Availability string `json:"availability"`
	DataCenters  []struct {
		ID           string `json:"id"`
		Availability string `json:"availability"`
	} `json:"dataCenters"`
}

type gpuType struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Memory    int64  `json:"memory"`
	Secure    bool   `json:"secure"`
	Community bool   `json:"community"`
	Price     struct {
		Secure    json.Number `json:"secure"`
		Community json.Number `json:"community"`
	} `json:"price"`
	Max struct {
		Secure    int `json:"secure"`
		Community int `json:"community"`
	} `json:"maxCount"`
	stock
}

// in returns what a type costs in a cloud, and how many a pod can have.
func (g gpuType) in(cloud string) (price json.Number, most int, sold bool) {
	if cloud == "community" {
		return g.Price.Community, g.Max.Community, g.Community
	}
	return g.Price.Secure, g.Max.Secure, g.Secure
}

type cpuType struct {
	ID   string `json:"id"`
	VCPU struct {
		Min int `json:"min"`
		Max int `json:"max"`
	} `json:"vcpu"`
	MemoryPerVCPU json.Number `json:"ramGbPerVcpu"`
	Price         struct {
		Secure json.Number `json:"securePerVcpu"`
	} `json:"price"`
	stock
}

// rateOf reads a price per hour. The API sends numbers, of which some are the
// nearest float to a decimal: those are rounded to the nano-unit.
func rateOf(n json.Number) (money.Rate, bool) {
	r, err := money.RateOf(string(n))
	if err != nil {
		f, ferr := strconv.ParseFloat(string(n), 64)
		amount, aerr := money.FromFloat(f)
		if ferr != nil || aerr != nil {
			return 0, false
		}
		r = money.Rate(amount)
	}
	return r, r > 0 && r <= dearest
}

// dearest is the highest price of one GPU that is believed; so many of them as a pod
// can have are still a number.
const dearest = 100_000 * money.Rate(money.Unit)

// diskRate is the price of a container disk per GB and hour: 0.10 USD per GB and
// month on running pods (docs.runpod.io/pods/pricing). A month of 720 hours is
// assumed, the shortest of those in use, and rounded up to a nano-unit.
const diskRate = (money.Rate(money.Unit)/10 + 719) / 720

func diskGB(bytes int64) int64 { return (bytes + gb - 1) / gb }

// diskFor is the size of a pod's disk in GB.
func (a *Adapter) diskFor(asked int64) int64 { return diskGB(max(asked, a.set.Disk.Bytes())) }

// catalog collects offers and counts what has no price.
type catalog struct {
	a        *Adapter
	seen     time.Time
	scope    providers.Scope
	offers   []providers.Offer
	unpriced int
}

// add lists a product at one place.
func (c *catalog) add(kind providers.Kind, region, cloud string, p product, shape providers.Shape, unit money.Rate, available providers.Availability, source string) {
	a := c.a
	if len(a.set.Regions) > 0 && !slices.Contains(a.set.Regions, region) || c.scope.Region != "" && c.scope.Region != region {
		return
	}
	compute, disk := unit*money.Rate(p.count), diskRate*money.Rate(a.diskFor(0))
	c.offers = append(c.offers, providers.Offer{
		Market: providers.Market{Provider: a.name, Region: region, Zone: cloud, Type: p.String(), Kind: kind},
		Shape:  shape, Price: compute + disk, Parts: []providers.PricePart{{Name: "compute", Price: compute}, {Name: "disk", Price: disk}},
		Currency: money.USD, Available: available, Seen: c.seen, Source: source,
	})
}

// addStock lists a product where it stands, or, with no place named, anywhere.
func (c *catalog) addStock(cloud string, p product, shape providers.Shape, unit money.Rate, s stock, source string) {
	for _, d := range s.DataCenters {
		c.add(providers.OnDemand, d.ID, cloud, p, shape, unit, availability(d.Availability), source)
	}
	if len(s.DataCenters) == 0 {
		c.add(providers.OnDemand, "", cloud, p, shape, unit, availability(s.Availability), source)
	}
}

func availability(level string) providers.Availability {
	switch level {
	case "NONE":
		return providers.Full
	case "":
		return providers.Unsaid
	}
	return providers.Open
}

// Offers returns every GPU type in every number, cloud and data center that the
// settings name, with one call for each number and cloud. A type that stands
// nowhere at present is listed without a region, as full.
func (a *Adapter) Offers(ctx context.Context, scope providers.Scope) ([]providers.Offer, error) {
	c := &catalog{a: a, seen: time.Now().UTC(), scope: scope, offers: []providers.Offer{}}
	for _, cloud := range a.set.Clouds {
		for _, count := range a.set.Counts {
			if err := c.gpus(ctx, cloud, count); err != nil {
				return nil, err
			}
		}
	}
	if slices.Contains(a.set.Clouds, "secure") {
		for _, n := range a.set.VCPUs {
			if err := c.cpus(ctx, n); err != nil {
				return nil, err
			}
		}
	}
	if a.set.Spot == viaGraphQL {
		if err := c.spot(ctx); err != nil {
			return nil, err
		}
	}
	var lines []string
	if c.unpriced > 0 {
		lines = []string{fmt.Sprintf("%d types without a price", c.unpriced)}
	}
	if a.Note("", lines...) && c.unpriced > 0 {
		a.log.WarnContext(ctx, "types without a price are left out", "provider", a.name, "types", c.unpriced)
	}
	return c.offers, nil
}

func (c *catalog) gpus(ctx context.Context, cloud string, count int) error {
	var got struct {
		GPUs []gpuType `json:"gpus"`
	}
	query := url.Values{"include": {"AVAILABILITY"}, "product": {"POD"}, "cloud": {strings.ToUpper(cloud)}, "count": {strconv.Itoa(count)}}
	if err := c.a.call(ctx, rest.Call{Op: "offers", Target: c.scope.Region, Path: "/catalog/gpus", Query: query, Out: &got}); err != nil {
		return err
	}
	if got.GPUs == nil {
		return c.a.api.Strange("offers", c.scope.Region, "the answer holds no types")
	}
	for _, g := range got.GPUs {
		price, most, sold := g.in(cloud)
		unit, priced := rateOf(price)
		switch {
		case !sold || count > most:
		case !priced:
			c.unpriced++
		default:
			c.addStock(cloud, product{id: g.ID, count: count}, c.a.shape(g.ID, g.Name, g.Memory, count), unit, g.stock, "RunPod /v2/catalog/gpus")
		}
	}
	return nil
}

func (c *catalog) cpus(ctx context.Context, count int) error {
	var got struct {
		CPUs []cpuType `json:"cpus"`
	}
	query := url.Values{"include": {"AVAILABILITY"}, "product": {"POD"}, "vcpuCount": {strconv.Itoa(count)}}
	if err := c.a.call(ctx, rest.Call{Op: "offers", Target: c.scope.Region, Path: "/catalog/cpus", Query: query, Out: &got}); err != nil {
		return err
	}
	if got.CPUs == nil {
		return c.a.api.Strange("offers", c.scope.Region, "the answer holds no types")
	}
	for _, t := range got.CPUs {
		unit, priced := rateOf(t.Price.Secure)
		switch {
		case count < t.VCPU.Min || count > t.VCPU.Max:
		case !priced:
			c.unpriced++
		default:
			perVCPU, err := t.MemoryPerVCPU.Float64()
			if err != nil {
				perVCPU = 0 // unknown
			}
			shape := providers.Shape{VCPU: float64(count), Memory: int64(perVCPU * float64(count) * gb), Disk: c.a.diskFor(0) * gb, Arch: "amd64"}
			c.addStock("secure", product{t.ID, count, true}, shape, unit, t.stock, "RunPod /v2/catalog/cpus")
		}
	}
	return nil
}

const gib = 1 << 30

// shape is a pod with GPUs. The catalog says nothing of the host: what we ask for
// at least is what is promised.
func (a *Adapter) shape(id, name string, memory int64, count int) providers.Shape {
	s := providers.Shape{
		GPUName: id, GPUs: float64(count), GPUMemory: memory * gib,
		VCPU: float64(a.set.VCPUPerGPU * count), Memory: a.set.MemoryPerGPU.Bytes() / gb * int64(count) * gb, Disk: a.diskFor(0) * gb, Arch: "amd64",
	}
	for _, words := range []string{id, name} {
		if known, err := gpu.Builtin().Identify("runpod", "", words, int(memory)*1024); err == nil {
			s.GPU = known
			break
		}
	}
	return s
}
