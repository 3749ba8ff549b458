package vast

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// ask is one machine that can be rented, or a part of one.
type ask struct {
	ID        int64      `json:"id"`
	GPUName   string     `json:"gpu_name"`
	GPUs      int        `json:"num_gpus"`
	GPURAM    float64    `json:"gpu_ram"` // MiB of one
	GPUFrac   float64    `json:"gpu_frac"`
	CPUArch   string     `json:"cpu_arch"`
	Cores     float64    `json:"cpu_cores"`           // of the host
	CoresOurs float64    `json:"cpu_cores_effective"` // of them, what comes with the ask
	RAM       float64    `json:"cpu_ram"`             // MiB of the host
	Place     string     `json:"geolocation"`         // "Sweden, SE"
	Total     rest.Price `json:"dph_total"`
	MinBid    rest.Price `json:"min_bid"`
	Storage   rest.Price `json:"storage_total_cost"`
	Rented    bool       `json:"rented"` // not searched by: whoever asks sorts them out (vast-ai/docs, search_offers.yaml)
}

// region is the code of the ask's country; "" where it does not say.
func (k ask) region() string {
	code := strings.TrimSpace(k.Place[strings.LastIndexByte(k.Place, ',')+1:])
	if !country(code) {
		return ""
	}
	return code
}

// price is what the ask costs per hour with its disk, and how much of that the
// disk is. Interruptible, it is the least bid that gets it: who bids pays the bid.
func (k ask) price(kind providers.Kind) (total, disk money.Rate, ok bool) {
	disk, _ = k.Storage.Rate()
	if kind == providers.Spot {
		bid, ok := k.bid()
		return bid + disk, disk, ok
	}
	total, ok = k.Total.Rate()
	return total, disk, ok && disk < total
}

// leastBid is the lowest that is taken (vast-ai/docs, create_instance.yaml).
const leastBid = money.Rate(money.Unit / 1000)

func (k ask) bid() (money.Rate, bool) {
	bid, ok := k.MinBid.Rate()
	return max(bid, leastBid), ok
}

// shape is what the ask is, in round numbers: those of its class.
func (k ask) shape(disk int64) providers.Shape {
	s := providers.Shape{GPUName: k.GPUName, GPUs: float64(k.GPUs), GPUMemory: int64(k.GPURAM) << 20, VCPU: float64(floor2(k.CoresOurs)), Disk: disk, Arch: "amd64"}
	if k.CPUArch != "" {
		s.Arch = k.CPUArch
	}
	share := k.GPUFrac
	if k.Cores > 0 && k.CoresOurs > 0 {
		share = k.CoresOurs / k.Cores
	}
	s.Memory = int64(floor2(k.RAM*min(share, 1)/1024)) << 30
	id, err := gpu.Builtin().Identify("vast", "", k.GPUName, int(k.GPURAM))
	if err != nil {
		return s
	}
	s.GPU = id
	if fact, ok := gpu.Builtin().Lookup(id); ok {
		if nominal, ok := fact.MemoryBytes().Get(); ok {
			s.GPUMemory = nominal
		}
	}
	return s
}

// floor2 is the greatest power of two that is not above x; 0 below one.
func floor2(x float64) int {
	if !(x >= 1) || x > math.MaxInt32 {
		return 0
	}
	return 1 << (bits.Len64(uint64(x)) - 1)
}

// typeOf names the kind of machine: "RTX_4090-24G-x2-c16-m64" is two RTX 4090 with
// at least 16 vCPUs and 64 GiB of memory. Asks come and go and each is one
// machine; what history, budgets and cool-downs know is their kind.
func typeOf(s providers.Shape) string {
	return fmt.Sprintf("%s-%dG-x%d-c%d-m%d", strings.ReplaceAll(s.GPUName, " ", "_"), (s.GPUMemory+1<<29)>>30, int(s.GPUs), int(s.VCPU), s.Memory>>30)
}

// parseType reads what a search can be narrowed by out of a type.
func parseType(typ string) (gpuName string, gpus int, ok bool) {
	parts := strings.Split(typ, "-")
	if len(parts) < 5 {
		return "", 0, false
	}
	tail := parts[len(parts)-4:]
	count, isCount := strings.CutPrefix(tail[1], "x")
	gpus, err := strconv.Atoi(count)
	name := strings.Join(parts[:len(parts)-4], "-")
	ok = isCount && err == nil && gpus > 0 && name != "" && strings.HasSuffix(tail[0], "G") && tail[2][:min(1, len(tail[2]))] == "c" && tail[3][:min(1, len(tail[3]))] == "m"
	return strings.ReplaceAll(name, "_", " "), gpus, ok
}

// named reports whether the type of an ask of this name leads back to it.
func named(gpuName string) bool { return gpuName != "" && !strings.ContainsAny(gpuName, "_/") }

// askRows is how many asks a search asks for. Vast may show fewer and says so with
// "truncated"; as many as who names no number gets are taken for a part, too.
const (
	askRows  = 3000
	pageRows = 64
	maxPages = 500
)

// search returns every ask of a kind that fits the settings and more filters. The
// API has no pages: each further search begins at the price that the last one
// ended with.
func (a *Adapter) search(ctx context.Context, op, target string, kind providers.Kind, disk int64, more map[string]any) ([]ask, error) {
	query := maps.Clone(a.filters)
	maps.Copy(query, more)
	query["type"], query["limit"], query["order"] = words[kind], askRows, [][2]string{{"dph_total", "asc"}}
	query["allocated_storage"], query["disk_space"] = disk/gb, map[string]any{"gte": disk / gb}
	var out []ask
	known := map[int64]bool{}
	for page := range maxPages {
		var got struct {
			Asks      []ask `json:"offers"`
			Truncated bool  `json:"truncated"`
		}
		if e := a.quota.open(); e != nil {
			if op != opLaunch {
				ofOther(e)
			}
			return nil, a.api.Error(op, target, e)
		}
		err := a.call(ctx, rest.Call{Op: op, Target: target, Method: http.MethodPost, Path: "/api/v0/bundles/", In: query, Out: &got, Page: page > 0})
		if err != nil {
			return nil, a.quota.spent(err)
		}
		if got.Asks == nil {
			return nil, a.api.Strange(op, target, "the answer holds no list of offers")
		}
		fresh := 0
		for _, k := range got.Asks {
			if known[k.ID] {
				continue
			}
			known[k.ID] = true
			fresh++
			if !k.Rented {
				out = append(out, k)
			}
		}
		if n := len(got.Asks); n == 0 || !got.Truncated && n != pageRows && n < askRows {
			return out, nil
		}
		last := json.Number(got.Asks[len(got.Asks)-1].Total.Text)
		if _, err := last.Float64(); err != nil {
			return nil, a.api.Strange(op, target, "ask %d has a price of %q", got.Asks[len(got.Asks)-1].ID, last)
		}
		from := "gte"
		if fresh == 0 {
			if !got.Truncated {
				return out, nil
			}
			// More asks have this very price than a page holds: one host's machines.
			// Those beyond the page are as many more of the same.
			a.log.Warn("asks of one price fill a page, the rest of them is not seen", "provider", a.name, "price", last.String())
			from = "gt"
		}
		query["dph_total"] = map[string]any{from: last}
	}
	return nil, a.api.Strange(op, target, "the search does not end after %d pages", maxPages)
}

// quota remembers that a day's searches are used up. Vast says for how long, which
// may be hours; nothing else has to wait that long.
type quota struct {
	mu    sync.Mutex
	until time.Time
}

func (q *quota) open() *providers.Error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if left := time.Until(q.until); left > 0 {
		return &providers.Error{
			Code: providers.QuotaExceeded, Scope: providers.ScopeProvider, Outcome: providers.NotCreated,
			Message: "the day's searches are used up for another " + left.Round(time.Second).String(),
		}
	}
	return nil
}

func (q *quota) spent(err error) error {
	e, ok := errors.AsType[*providers.Error](err)
	if !ok || !strings.HasPrefix(e.Message, "search_quota_exceeded") {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.until = time.Now().Add(max(e.RetryAfter, time.Minute))
	e.RetryAfter = 0
	return e
}

// words are the search's words for kinds.
var words = map[providers.Kind]string{providers.OnDemand: "ondemand", providers.Spot: "bid"}

// Offers returns a market for each kind of machine in each country: at the price
// of its cheapest ask, with as many machines as there are asks.
func (a *Adapter) Offers(ctx context.Context, scope providers.Scope) ([]providers.Offer, error) {
	if scope.Region != "" && !a.set.wants(scope.Region) {
		return []providers.Offer{}, nil
	}
	more := map[string]any{}
	if regions := a.set.Regions; scope.Region != "" {
		more["geolocation"] = map[string]any{"in": []string{scope.Region}}
	} else if len(regions) > 0 {
		more["geolocation"] = map[string]any{"in": regions}
	}
	byMarket, left := map[providers.Market]providers.Offer{}, 0
	for _, kind := range kinds() {
		seen := time.Now().UTC()
		asks, err := a.search(ctx, opOffers, scope.Region, kind, a.set.disk(), more)
		if err != nil {
			return nil, err
		}
		for _, k := range asks {
			region := k.region()
			total, disk, ok := k.price(kind)
			if !ok || !named(k.GPUName) || k.GPUs <= 0 || region == "" || !a.set.wants(region) || scope.Region != "" && scope.Region != region {
				left++ // what has no price, name or place cannot be rented by us
				continue
			}
			shape := k.shape(a.set.disk())
			m := providers.Market{Provider: a.name, Region: region, Type: typeOf(shape), Kind: kind}
			o, known := byMarket[m]
			if !known || total < o.Price {
				n := o.Capacity
				o = providers.Offer{
					Market: m, Shape: shape, Price: total, Capacity: n, Currency: money.USD, Available: providers.Open, Seen: seen, Source: source,
					Parts: []providers.PricePart{{Name: "compute", Price: total - disk}, {Name: "disk", Price: disk}},
				}
			}
			o.Capacity++
			byMarket[m] = o
		}
	}
	a.log.Debug("offers read", "provider", a.name, "offers", len(byMarket), "asks_left_out", left)
	out := []providers.Offer{}
	for _, m := range slices.SortedFunc(maps.Keys(byMarket), providers.Market.Compare) {
		out = append(out, byMarket[m])
	}
	return out, nil
}

const source = "vast /api/v0/bundles"

func kinds() []providers.Kind { return []providers.Kind{providers.Spot, providers.OnDemand} }
