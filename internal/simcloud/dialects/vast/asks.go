package vast

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// DiskGB is the disk that the price of a world's market holds, and diskPerGB what
// a GB costs per hour.
const (
	DiskGB    = 50
	diskPerGB = 200_000 // nano-units: 0.144 USD a month of 720 hours
)

// storageMonthly is the same as the API shows it, USD per GB and month.
const storageMonthly = "0.144"

func diskRate(gb int64) money.Rate { return money.Rate(gb * diskPerGB) }

// asksPerMarket is how many machines a market without limit shows at a time.
const asksPerMarket = 3

// maxRows is the most that a search shows, whatever it is asked for.
const maxRows = 64

// firstAsk begins the numbers of asks: a thousand for each market.
const firstAsk = 10_000_000

// ask is one machine that can be rented.
type ask struct {
	id    int
	offer simapi.Offer
}

func (a ask) place() simapi.Place { return a.offer.Place }

// asks are the machines of the world that are free, by market and number. It is
// called locked.
func (s *server) asks(age time.Duration) []ask {
	rented := map[int]bool{}
	for _, c := range s.contracts {
		if c.holds(s.w) {
			rented[c.ask] = true
		}
	}
	var out []ask
	for market, o := range s.w.Offers("", age) {
		free := asksPerMarket
		if o.Free != nil {
			free = min(free, *o.Free)
		}
		for n := 0; free > 0; n++ {
			if id := firstAsk + market*1000 + n; !rented[id] {
				out = append(out, ask{id, o})
				free--
			}
		}
	}
	return out
}

// countries are the names that locations are shown with.
var countries = map[string]string{"SE": "Sweden", "US": "California", "JP": "Japan"}

func geolocation(code string) string {
	name, ok := countries[code]
	if !ok {
		name = code
	}
	return name + ", " + code
}

const mib = 1 << 20

// row is an ask as a search shows it. The memory and the cores are those of the
// host; what comes with the ask is their share of the effective cores.
func (a ask) row(storage int64) map[string]any {
	o := a.offer
	disk := diskRate(storage)
	base := o.Price - diskRate(DiskGB)
	bid := o.Kind == providers.Spot
	listed := base
	if bid {
		listed = base * 2
	}
	row := map[string]any{
		"id": a.id, "ask_contract_id": a.id, "machine_id": a.id / 10, "host_id": a.id / 1000,
		"gpu_name": o.GPUName, "num_gpus": int(o.GPUs), "gpu_ram": o.GPUMemory / mib, "gpu_arch": "nvidia", "gpu_frac": json.Number("0.5"),
		"cpu_arch": "amd64", "cpu_cores": int(2 * o.VCPU), "cpu_cores_effective": o.VCPU, "cpu_ram": 2 * o.Memory / mib, "cpu_name": "EPYC",
		"disk_space": 1500, "disk_name": "nvme", "inet_up": 800.5, "inet_down": 900.25, "inet_up_cost": 0.002, "inet_down_cost": 0.002,
		"geolocation": geolocation(o.Region), "verification": "verified", "reliability": 0.995, "rentable": true, "rented": false, "external": nil,
		"dph_base": number(listed), "dph_total": number(listed + disk), "min_bid": number(base), "is_bid": bid,
		"storage_cost": json.Number(storageMonthly), "storage_total_cost": number(disk), "cuda_max_good": 12.8, "driver_version": "570.00.00",
		"bundled_results": nil, "start_date": 1793450000.5, "end_date": 1893456000,
	}
	if bid {
		row["dph_base"], row["dph_total"] = number(base), number(base+disk)
	}
	if o.VCPU == 0 {
		row["cpu_cores"] = nil
	}
	return row
}

// search shows the free machines that fit, a page at a time. It needs no key.
func (s *server) search(rw http.ResponseWriter, r *http.Request) {
	var q map[string]json.RawMessage
	if err := decode(r, &q); err != nil {
		words(rw, err)
		return
	}
	s.call(rw, r, simcloud.Call{Op: "offers"}, func(age time.Duration, _ bool) (any, error) {
		var typ string
		limit, storage := maxRows, int64(8)
		var order [][2]string
		for key, into := range map[string]any{"type": &typ, "limit": &limit, "allocated_storage": &storage, "order": &order} {
			if v, ok := q[key]; ok {
				if err := json.Unmarshal(v, into); err != nil {
					return nil, invalid("bad %s", key)
				}
				delete(q, key)
			}
		}
		kind := providers.OnDemand
		if typ == "bid" {
			kind = providers.Spot
		}
		s.mu.Lock()
		all := s.asks(age)
		s.mu.Unlock()
		rows := []map[string]any{}
		for _, a := range all {
			row := a.row(storage)
			ok, err := fits(row, q)
			if err != nil {
				return nil, err
			}
			if ok && a.offer.Kind == kind {
				rows = append(rows, row)
			}
		}
		slices.SortStableFunc(rows, func(x, y map[string]any) int {
			for _, o := range order {
				c := compare(x[o[0]], y[o[0]])
				if o[1] == "desc" {
					c = -c
				}
				if c != 0 {
					return c
				}
			}
			return 0
		})
		most := min(limit, maxRows, s.w.Config().PageSize)
		cut := len(rows) > most
		if cut {
			rows = rows[:most]
		}
		return map[string]any{"success": true, "offers": rows, "truncated": cut && most < limit}, nil
	})
}

// fits reports whether a row passes every filter. A filter on what rows do not
// have passes all.
func fits(row map[string]any, q map[string]json.RawMessage) (bool, error) {
	for _, key := range slices.Sorted(maps.Keys(q)) {
		var ops map[string]any
		d := json.NewDecoder(strings.NewReader(string(q[key])))
		d.UseNumber()
		if err := d.Decode(&ops); err != nil {
			return false, invalid("%s: want an operator and a value", key)
		}
		have, ok := row[key]
		if !ok || key == "rented" {
			continue
		}
		if key == "geolocation" {
			text, _ := have.(string)
			have = text[strings.LastIndexByte(text, ' ')+1:]
		}
		for op, want := range ops {
			ok, err := holds(have, op, want)
			if err != nil || !ok {
				return false, err
			}
		}
	}
	return true, nil
}

func holds(have any, op string, want any) (bool, error) {
	list, _ := want.([]any)
	in := slices.ContainsFunc(list, func(w any) bool { return compare(have, w) == 0 })
	c := compare(have, want)
	switch op {
	case "eq":
		return c == 0, nil
	case "neq":
		return c != 0, nil
	case "lt":
		return c < 0, nil
	case "lte":
		return c <= 0, nil
	case "gt":
		return c > 0, nil
	case "gte":
		return c >= 0, nil
	case "in":
		return in, nil
	case "notin":
		return !in, nil
	}
	return false, invalid("operator %q", op)
}

// compare orders two values as numbers where both are, else as text.
func compare(a, b any) int {
	x, okX := new(big.Rat).SetString(fmt.Sprint(a))
	y, okY := new(big.Rat).SetString(fmt.Sprint(b))
	if okX && okY {
		return x.Cmp(y)
	}
	return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
}

// find returns an ask that is free; false where somebody has it.
func (s *server) find(id string) (ask, bool) {
	n, err := strconv.Atoi(id)
	if err != nil {
		return ask{}, false
	}
	for _, a := range s.asks(0) {
		if a.id == n {
			return a, true
		}
	}
	return ask{}, false
}
