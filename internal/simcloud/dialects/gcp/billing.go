package gcp

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
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

// What stands beside the machine in its price, in nano-dollars: list prices of
// us-central1 (cloud.google.com/compute/disks-image-pricing and …/vpc/network-pricing).
const (
	diskMonth    = 100_000_000 // a GiB of balanced disk, a month
	ssdMonth     = 80_000_000  // a GiB of local SSD, a month
	ssdMonthSpot = 48_000_000
	address      = 5_000_000 // an external address, an hour
	addressSpot  = 2_500_000

	diskGiB   = 100 // what the price of an offer includes
	ssdGiB    = 375 // each local SSD
	monthHour = 720 // the catalog's months have 30 days: 2783138807808000 By.s in a GiBy.mo
)

// parts splits the price of one of the world's offers.
func parts(o simapi.Offer) (compute, disk, ssd, ip int64) {
	month, ip := int64(ssdMonth), int64(address)
	if spot(o.Kind) {
		month, ip = ssdMonthSpot, addressSpot
	}
	f, _ := familyOf(o.Type)
	disk = ceil(diskMonth*diskGiB, monthHour)
	ssd = ceil(month*int64(f.ssds)*int64(o.GPUs)*ssdGiB, monthHour)
	return int64(o.Price) - disk - ssd - ip, disk, ssd, ip
}

func ceil(a, b int64) int64 { return (a + b - 1) / b }

// sku is one price of the catalog.
type sku struct {
	text    string // description without the place
	region  string // "" is everywhere
	group   string
	family  string
	unit    string // h, GiBy.h, GiBy.mo
	price   int64  // nano
	kind    providers.Kind
	tiers   bool // the first hours are free
	storage bool // "Balanced PD Capacity in Iowa"
	special string
}

// catalog makes SKUs of the world's prices. See the package's own words for when
// the parts sum to them exactly.
func catalog(offers []simapi.Offer) []sku {
	// The dearest zone speaks for its region; the cheapest type sets the price of
	// cores and memory of its family.
	type market struct {
		region, typ string
		kind        providers.Kind
	}
	dearest := map[market]simapi.Offer{}
	for _, o := range offers {
		k := market{o.Region, o.Type, o.Kind}
		if have, ok := dearest[k]; !ok || o.Price > have.Price {
			dearest[k] = o
		}
	}
	var list []simapi.Offer
	for _, o := range dearest {
		list = append(list, o)
	}
	slices.SortFunc(list, func(a, b simapi.Offer) int {
		return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Price, b.Price), cmp.Compare(a.Type, b.Type))
	})
	type host struct {
		region, core string
		kind         providers.Kind
	}
	type rates struct{ core, ram int64 }
	hosts := map[host]rates{}
	cards := map[string]bool{}
	regions := map[string]bool{}
	var out []sku
	for _, o := range list {
		f, ok := familyOf(o.Type)
		if !ok {
			continue
		}
		regions[o.Region] = true
		compute, _, _, _ := parts(o)
		cores, mib := int64(o.VCPU), o.Memory>>20
		k := host{o.Region, f.core, o.Kind}
		rate, known := hosts[k]
		if !known && f.core != "" {
			if f.gpu == "" {
				rate.ram = compute * 3 / 10 * 1024 / mib
				rate.core = ceil(compute-ceil(rate.ram*mib, 1024), cores)
			} else {
				rate.core = compute / 5 / cores
				rate.ram = compute / 10 * 1024 / mib
			}
			hosts[k] = rate
			out = append(out,
				sku{text: f.core, region: o.Region, group: "CPU", family: "Compute", unit: "h", price: rate.core, kind: o.Kind},
				sku{text: f.ram, region: o.Region, group: "RAM", family: "Compute", unit: "GiBy.h", price: rate.ram, kind: o.Kind})
		}
		if f.gpu == "" || cards[o.Region+f.gpu+string(o.Kind)] {
			continue
		}
		cards[o.Region+f.gpu+string(o.Kind)] = true
		card := ceil(compute-rate.core*cores-ceil(rate.ram*mib, 1024), int64(o.GPUs))
		out = append(out, sku{text: f.gpu, region: o.Region, group: "GPU", family: "Compute", unit: "h", price: card, kind: o.Kind})
	}
	for _, r := range slices.Sorted(maps.Keys(regions)) {
		out = append(out,
			sku{text: "Balanced PD Capacity", region: r, group: "SSD", family: "Storage", unit: "GiBy.mo", price: diskMonth, kind: providers.OnDemand, storage: true},
			sku{text: "Regional Balanced PD Capacity", region: r, group: "SSD", family: "Storage", unit: "GiBy.mo", price: 2 * diskMonth, kind: providers.OnDemand, storage: true},
			sku{text: "SSD backed Local Storage", region: r, group: "LocalSSD", family: "Storage", unit: "GiBy.mo", price: ssdMonth, kind: providers.OnDemand, storage: true},
			sku{text: "SSD backed Local Storage", region: r, group: "LocalSSD", family: "Storage", unit: "GiBy.mo", price: ssdMonthSpot, kind: providers.Spot, storage: true},
			// What a reader must not take for the price of a machine.
			sku{text: "Nvidia L4 GPU", region: r, group: "GPU", family: "Compute", unit: "h", price: 1, special: "commitment"},
			sku{text: "Nvidia L4 GPU", region: r, group: "GPU", family: "Compute", unit: "h", price: 1, special: "dws"},
			sku{text: "A2 Core", region: r, group: "CPU", family: "Compute", unit: "h", price: 1, special: "reserved"},
			// A card that no machine type brings.
			sku{text: "Nvidia Tesla K80 GPU", region: r, group: "GPU", family: "Compute", unit: "h", price: 450_000_000, kind: providers.OnDemand},
		)
	}
	return append(out,
		sku{text: "External IP Charge on a Standard VM", group: "IpAddress", family: "Network", unit: "h", price: address, kind: providers.OnDemand, tiers: true},
		sku{text: "External IP Charge on a Spot Preemptible VM", group: "IpAddress", family: "Network", unit: "h", price: addressSpot, kind: providers.OnDemand, tiers: true})
}

// cities are how descriptions name a region.
var cities = map[string]string{"us-central1": "Iowa", "us-east4": "Northern Virginia", "europe-west4": "Netherlands", "asia-southeast1": "Singapore"}

func (s sku) description() string {
	where := cmp.Or(cities[s.region], s.region)
	switch {
	case s.special == "commitment":
		return "Commitment v1: " + s.text + " running in " + where + " for 1 Year"
	case s.special == "dws":
		return s.text + " attached to DWS Defined Duration VMs running in " + where
	case s.special == "reserved":
		return "Reserved " + s.text + " in " + where
	case s.region == "":
		return s.text
	}
	text, in := s.text, " running in "
	if s.storage {
		in = " in "
	}
	switch {
	case !spot(s.kind):
	case s.storage:
		text += " attached to Spot Preemptible VMs"
	case s.group == "GPU" && !strings.Contains(s.text, "slice"):
		text += " attached to Spot Preemptible VMs"
	default:
		text = "Spot Preemptible " + text
	}
	return text + in + where
}

func (s sku) view(at time.Time) object {
	sum := fmt.Sprintf("%X", sha256.Sum256([]byte(s.description()+s.region)))
	id := sum[:4] + "-" + sum[4:8] + "-" + sum[8:12]
	usage := "OnDemand"
	switch {
	case s.special == "commitment":
		usage = "Commit1Yr"
	case spot(s.kind) && !strings.Contains(s.text, "slice"): // Google tags the slices OnDemand
		usage = "Preemptible"
	}
	expression := object{"usageUnit": s.unit, "displayQuantity": 1}
	switch s.unit {
	case "h":
		expression["usageUnitDescription"], expression["baseUnit"], expression["baseUnitDescription"], expression["baseUnitConversionFactor"] = "hour", "s", "second", 3600
	case "GiBy.h":
		expression["usageUnitDescription"], expression["baseUnit"], expression["baseUnitDescription"], expression["baseUnitConversionFactor"] = "gibibyte hour", "By.s", "byte second", 3865470566400
	case "GiBy.mo":
		expression["usageUnitDescription"], expression["baseUnit"], expression["baseUnitDescription"], expression["baseUnitConversionFactor"] = "gibibyte month", "By.s", "byte second", 2783138807808000
	}
	tiers := []any{}
	start := 0
	if s.tiers {
		tiers = append(tiers, object{"startUsageAmount": 0, "unitPrice": object{"currencyCode": string(money.USD), "units": "0", "nanos": 0}})
		start = 744
	}
	expression["tieredRates"] = append(tiers, object{
		"startUsageAmount": start,
		"unitPrice":        object{"currencyCode": string(money.USD), "units": strconv.FormatInt(s.price/1e9, 10), "nanos": s.price % 1e9},
	})
	regions, taxonomy := []string{"global"}, object{"type": "GLOBAL"}
	if s.region != "" {
		regions, taxonomy = []string{s.region}, object{"type": "REGIONAL", "regions": []string{s.region}}
	}
	return object{
		"name": "services/" + service + "/skus/" + id, "skuId": id, "description": s.description(),
		"category":       object{"serviceDisplayName": "Compute Engine", "resourceFamily": s.family, "resourceGroup": s.group, "usageType": usage},
		"serviceRegions": regions, "geoTaxonomy": taxonomy, "serviceProviderName": "Google",
		"pricingInfo": []any{object{"summary": "", "pricingExpression": expression, "currencyConversionRate": 1, "effectiveTime": at.UTC().Format(time.RFC3339Nano)}},
	}
}

// service is Compute Engine's number in the catalog.
const service = "6F81-5844-456A"

func (h *handler) skus(rw http.ResponseWriter, r *http.Request) {
	h.answer(rw, r, simcloud.Call{Op: "offers"}, func(age time.Duration, _ bool) (any, error) {
		if r.PathValue("service") != service {
			return nil, &simapi.Error{Status: http.StatusNotFound, Code: simapi.CodeNotFound, Message: "Service not found: services/" + r.PathValue("service")}
		}
		if c := r.URL.Query().Get("currencyCode"); c != "" && c != string(money.USD) {
			return nil, bad("currencyCode", c)
		}
		now := h.w.Now()
		size := h.w.Config().PageSize
		if s := r.URL.Query().Get("pageSize"); s != "" {
			n, err := strconv.Atoi(s)
			if err != nil || n < 0 || n > 5000 {
				return nil, bad("pageSize", s)
			}
			if n > 0 {
				size = min(size, n)
			}
		}
		page, next, err := pageOf(r, size, catalog(h.w.Offers("", age)))
		if err != nil {
			return nil, err
		}
		skus := []any{}
		for _, s := range page {
			skus = append(skus, s.view(now))
		}
		return object{"skus": skus, "nextPageToken": next}, nil
	})
}
