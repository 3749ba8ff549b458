package verda

import (
	"context"
	"errors"
	"math/big"
	"net/url"
	"regexp"
	"strings"
	"time"

	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// sized is a part of an instance type.
type sized struct {
	Description string  `json:"description"`
	Cores       float64 `json:"number_of_cores"`
	GPUs        float64 `json:"number_of_gpus"`
	Gigabytes   float64 `json:"size_in_gigabytes"`
}

type instanceType struct {
	Type      string     `json:"instance_type"`
	Model     string     `json:"model"`
	Name      string     `json:"name"`
	CPU       sized      `json:"cpu"`
	GPU       sized      `json:"gpu"`
	GPUMemory sized      `json:"gpu_memory"` // of all GPUs together
	Memory    sized      `json:"memory"`
	Price     rest.Price `json:"price_per_hour"` // of the whole machine
	Spot      rest.Price `json:"spot_price"`
	Currency  string     `json:"currency"`
}

func (t instanceType) price(kind providers.Kind) (money.Rate, bool) {
	if kind == providers.Spot {
		return t.Spot.Rate()
	}
	return t.Price.Rate()
}

// catalog is what a pass over the prices reads.
type catalog struct {
	types []instanceType
	disk  money.Rate // of the OS volume
	seen  time.Time
}

// currency is asked for: the broker's ledger has one, and Verda's is the dollar
// unless the account was opened in euros.
const currency = "usd"

func (a *Adapter) catalog(ctx context.Context, op, target string, diskGB int64) (catalog, error) {
	c := catalog{seen: time.Now().UTC()}
	err := a.call(ctx, rest.Call{Op: op, Target: target, Path: "/instance-types", Query: url.Values{"currency": {currency}}, Out: &c.types})
	if err != nil {
		return c, err
	}
	if len(c.types) == 0 {
		return c, a.api.Strange(op, target, "the answer holds no types")
	}
	c.disk, err = a.diskPrice(ctx, op, target, diskGB)
	return c, err
}

// listMonthly is the list price of NVMe storage in USD per GB and month
// (https://verda.com/products), for an API that does not tell it.
const listMonthly = "0.2"

// diskPrice is what the OS volume of a machine costs per hour.
func (a *Adapter) diskPrice(ctx context.Context, op, target string, size int64) (money.Rate, error) {
	var types []struct {
		Type  string `json:"type"`
		Price struct {
			Monthly  rest.Price `json:"price_per_month_per_gb"`
			Older    rest.Price `json:"monthly_per_gb"` // its name in older answers
			Currency string     `json:"currency"`
		} `json:"price"`
	}
	monthly := listMonthly
	err := a.call(ctx, rest.Call{Op: op, Target: target, Path: "/volume-types", Query: url.Values{"currency": {currency}}, Out: &types})
	if e, ok := errors.AsType[*providers.Error](err); ok && (e.Code == providers.InvalidRequest || e.Code == providers.Unknown) {
		a.log.Warn("storage prices are not told, the list price is taken", "provider", a.name, "usd_per_gb_month", monthly)
	} else if err != nil {
		return 0, err
	}
	for _, t := range types {
		if t.Type != volumeType {
			continue
		}
		if c := t.Price.Currency; c != "" && !strings.EqualFold(c, currency) {
			a.log.Warn("storage is priced in another currency, the list price is taken", "provider", a.name, "currency", c, "usd_per_gb_month", monthly)
			continue
		}
		for _, p := range []rest.Price{t.Price.Monthly, t.Price.Older} {
			if p.Text != "" {
				monthly = p.Text
				break
			}
		}
	}
	rate, ok := perHour(monthly, size)
	if !ok {
		return 0, a.api.Strange(op, target, "a price of storage of %q per GB and month", monthly)
	}
	return rate, nil
}

// volumeType is the kind of storage that OS volumes are made of.
const volumeType = "NVMe"

// perHour is the price of a volume: a month has 730 hours, and the sum is rounded
// up to a hundredth of a cent (verda-cli, cmd/vm/CLAUDE.md, "Pricing").
func perHour(monthlyPerGB string, size int64) (money.Rate, bool) {
	x, ok := new(big.Rat).SetString(monthlyPerGB)
	if !ok || x.Sign() <= 0 {
		return 0, false
	}
	x.Mul(x, big.NewRat(size*10_000, 730))
	n, rest := new(big.Int).QuoRem(x.Num(), x.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		n.Add(n, big.NewInt(1))
	}
	const hundredthOfCent, most = money.Rate(money.Unit / 10_000), 1e13 // a thousand million dollars
	return money.Rate(n.Int64()) * hundredthOfCent, n.IsInt64() && n.Int64() <= most
}

// Offers returns each instance type in each location, spot and on demand, with
// its OS volume. What is not to be had now is listed as full.
func (a *Adapter) Offers(ctx context.Context, scope providers.Scope) ([]providers.Offer, error) {
	locations, err := a.locations(ctx, opOffers)
	if err != nil {
		return nil, err
	}
	open := map[providers.Kind]map[string]map[string]bool{}
	for _, kind := range kinds() {
		if open[kind], err = a.available(ctx, kind); err != nil {
			return nil, err
		}
	}
	c, err := a.catalog(ctx, opOffers, scope.Region, a.set.disk()/gb)
	if err != nil {
		return nil, err
	}
	out, unpriced := []providers.Offer{}, 0
	for _, t := range c.types {
		shape := a.shape(t)
		for _, kind := range kinds() {
			compute, ok := t.price(kind)
			if !ok {
				unpriced++ // not sold so, or not said: no offer, and never one for nothing
				continue
			}
			for _, location := range locations {
				if scope.Region != "" && location != scope.Region || !a.set.wants(location) {
					continue
				}
				o := providers.Offer{
					Market: providers.Market{Provider: a.name, Region: location, Type: t.Type, Kind: kind},
					Shape:  shape, Price: compute + c.disk,
					Parts:    []providers.PricePart{{Name: "compute", Price: compute}, {Name: "disk", Price: c.disk}},
					Currency: money.Currency(strings.ToUpper(t.Currency)), Available: providers.Full,
					Seen: c.seen, Source: "verda /v1/instance-types",
				}
				if open[kind][location][t.Type] {
					o.Available = providers.Open
				}
				out = append(out, o)
			}
		}
	}
	a.log.Debug("offers read", "provider", a.name, "offers", len(out), "types", len(c.types), "unpriced", unpriced)
	return out, nil
}

func kinds() []providers.Kind { return []providers.Kind{providers.Spot, providers.OnDemand} }

func (a *Adapter) locations(ctx context.Context, op string) ([]string, error) {
	var got []struct {
		Code string `json:"code"`
	}
	if err := a.call(ctx, rest.Call{Op: op, Path: "/locations", Out: &got}); err != nil {
		return nil, err
	}
	out := []string{}
	for _, l := range got {
		out = append(out, l.Code)
	}
	if len(out) == 0 {
		return nil, a.api.Strange(op, "", "the answer holds no location")
	}
	return out, nil
}

// available returns, by location, the types that can be had now.
func (a *Adapter) available(ctx context.Context, kind providers.Kind) (map[string]map[string]bool, error) {
	var got []struct {
		Location string   `json:"location_code"`
		Types    []string `json:"availabilities"`
	}
	spot := "false"
	if kind == providers.Spot {
		spot = "true"
	}
	if err := a.call(ctx, rest.Call{Op: opOffers, Path: "/instance-availability", Query: url.Values{"is_spot": {spot}}, Out: &got}); err != nil {
		return nil, err
	}
	out := map[string]map[string]bool{}
	for _, l := range got {
		if out[l.Location] == nil {
			out[l.Location] = map[string]bool{}
		}
		for _, t := range l.Types {
			out[l.Location][t] = true
		}
	}
	return out, nil
}

const gib = 1 << 30

func (a *Adapter) shape(t instanceType) providers.Shape {
	s := providers.Shape{
		GPUs: t.GPU.GPUs, VCPU: t.CPU.Cores, Memory: int64(t.Memory.Gigabytes * gib), Disk: a.set.disk(), Arch: "amd64",
	}
	if s.GPUs <= 0 {
		return s
	}
	s.GPUMemory = int64(t.GPUMemory.Gigabytes / s.GPUs * gib)
	names := []string{withoutCount(t.GPU.Description), withoutCount(t.Name), t.GPU.Description, t.Name, t.Model}
	s.GPUName = names[0]
	for _, name := range names {
		if name == "" {
			continue
		}
		if s.GPUName == "" {
			s.GPUName = name
		}
		id, err := gpu.Builtin().Identify("verda", t.Type, name, int(s.GPUMemory>>20))
		if err == nil {
			s.GPU = id
			break
		}
	}
	if strings.HasPrefix(s.GPU, "gb") || strings.HasPrefix(s.GPU, "gh") {
		s.Arch = "arm64" // Grace
	}
	return s
}

var count = regexp.MustCompile(`^\d+x `)

func withoutCount(name string) string { return count.ReplaceAllString(name, "") }
