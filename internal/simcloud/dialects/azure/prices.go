package azure

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// What a machine's disk and address cost per hour, within the price of every
// offer of the world: a P10 at 19.71 USD a month of 730 hours, and a standard IPv4
// address (azure.microsoft.com/pricing/details/managed-disks and …/ip-addresses,
// East US, 2026).
const (
	Disk    money.Rate = 27_000_000
	Address money.Rate = 5_000_000
)

// item of Retail Prices, with the fields that a filter may name.
type price struct {
	region, service, product, sku, meter, size, kind, unit, term string
	price                                                        string
}

// fields are the names that filters know (learn.microsoft.com/rest/api/cost-management/retail-prices/azure-retail-prices).
func (p price) fields() map[string]string {
	return map[string]string{
		"armregionname": p.region, "location": p.region, "servicename": p.service, "productname": p.product, "skuname": p.sku, "metername": p.meter,
		"armskuname": p.size, "pricetype": p.kind, "currencycode": "USD", "servicefamily": "Compute", "productid": "", "skuid": "", "meterid": "", "serviceid": "",
	}
}

func (p price) view() object {
	v := object{
		"currencyCode": "USD", "tierMinimumUnits": json.Number("0.0"), "retailPrice": json.Number(p.price), "unitPrice": json.Number(p.price),
		"armRegionName": p.region, "location": p.region, "effectiveStartDate": "2026-06-01T00:00:00Z",
		"meterId": guid("meter", p.region, p.product, p.meter), "meterName": p.meter, "productId": "DZH318Z0" + strings.ToUpper(guid(p.product)[:4]),
		"skuId": "DZH318Z0" + strings.ToUpper(guid(p.product)[:4]) + "/" + strings.ToUpper(guid(p.sku)[:4]), "productName": p.product, "skuName": p.sku,
		"serviceName": p.service, "serviceId": "DZH313Z7MMC8", "serviceFamily": "Compute", "unitOfMeasure": p.unit, "type": p.kind,
		"isPrimaryMeterRegion": true, "armSkuName": p.size,
	}
	if p.term != "" {
		v["reservationTerm"] = p.term
	}
	return v
}

// prices are the rows of a world's markets, with the rows beside them that a
// reader must tell apart.
func (c *Cloud) prices(age time.Duration) []price {
	type key struct {
		region, size string
		kind         providers.Kind
	}
	dearest := map[key]money.Rate{}
	var order []key
	for _, o := range c.w.Offers("", age) {
		k := key{o.Region, o.Type, o.Kind}
		if _, ok := dearest[k]; !ok {
			order = append(order, k)
		}
		dearest[k] = max(dearest[k], o.Price)
	}
	var out []price
	region := ""
	for _, k := range order {
		compute := dearest[k] - Disk - Address
		name := strings.ReplaceAll(strings.TrimPrefix(k.size, "Standard_"), "_", " ")
		product := "Virtual Machines " + strings.TrimSuffix(familyOf(k.size), "Family") + " Series"
		row := price{region: k.region, service: "Virtual Machines", product: product, sku: name, meter: name, size: k.size, kind: "Consumption", unit: "1 Hour", price: compute.String()}
		with := func(edit func(*price)) {
			p := row
			edit(&p)
			out = append(out, p)
		}
		if k.region != region {
			region = k.region
			out = append(out,
				price{region: region, service: "Storage", product: "Premium SSD Managed Disks", sku: "P10 LRS", meter: "P10 LRS Disk", kind: "Consumption", unit: "1/Month", price: "19.71"},
				price{region: region, service: "Storage", product: "Premium SSD Managed Disks", sku: "P10 LRS", meter: "P10 LRS Disk Mount", kind: "Consumption", unit: "1/Month", price: "0.99"},
				price{region: region, service: "Virtual Network", product: "IP Addresses", sku: "Standard", meter: "Standard IPv4 Static Public IP", kind: "Consumption", unit: "1 Hour", price: Address.String()},
				price{region: region, service: "Virtual Network", product: "IP Addresses", sku: "Basic", meter: "Basic IPv4 Dynamic Public IP", kind: "Consumption", unit: "1 Hour", price: "0.004"},
			)
		}
		if k.kind == providers.Spot {
			with(func(p *price) { p.sku, p.meter = name+" Spot", name+" Spot" })
			with(func(p *price) {
				p.sku, p.meter, p.product, p.price = name+" Spot", name+" Spot", product+" Windows", (compute * 2).String()
			})
			continue
		}
		out = append(out, row)
		with(func(p *price) { p.product, p.price = product+" Windows", (compute * 2).String() })
		with(func(p *price) { p.product, p.price = product+" Cloud Services", (compute / 3).String() })
		with(func(p *price) { p.kind, p.price = "DevTestConsumption", (compute / 2).String() })
		with(func(p *price) {
			p.sku, p.meter, p.price = name+" Low Priority", name+" Low Priority", (compute / 5).String()
		})
		with(func(p *price) { p.kind, p.term, p.price = "Reservation", "1 Year", (compute * 5000).String() })
	}
	for _, size := range restricted {
		for _, region := range c.locations() {
			name := strings.ReplaceAll(strings.TrimPrefix(size, "Standard_"), "_", " ")
			out = append(out, price{region: region, service: "Virtual Machines", product: "Virtual Machines NCADSA100v4 Series", sku: name, meter: name, size: size, kind: "Consumption", unit: "1 Hour", price: "14.692"})
		}
	}
	return out
}

var term = regexp.MustCompile(`^(?:(\w+)\s+eq\s+'((?:[^']|'')*)'|(contains|startswith)\((\w+),\s*'((?:[^']|'')*)'\))$`)

// matcher reads the part of OData's filters that readers of prices use: eq,
// contains and startswith, joined by and. Values are case-sensitive, as they are
// from 2023-01-01-preview on.
func matcher(filter string) (func(price) bool, bool) {
	var conds []func(map[string]string) bool
	if strings.TrimSpace(filter) == "" {
		return func(price) bool { return true }, true
	}
	known := price{}.fields()
	for part := range strings.SplitSeq(filter, " and ") {
		m := term.FindStringSubmatch(strings.TrimSpace(part))
		if m == nil {
			return nil, false
		}
		field, value, test := strings.ToLower(m[1]+m[4]), strings.ReplaceAll(m[2]+m[5], "''", "'"), m[3]
		if _, ok := known[field]; !ok {
			return nil, false
		}
		conds = append(conds, func(f map[string]string) bool {
			switch test {
			case "contains":
				return strings.Contains(f[field], value)
			case "startswith":
				return strings.HasPrefix(f[field], value)
			}
			return f[field] == value
		})
	}
	return func(p price) bool {
		f := p.fields()
		for _, holds := range conds {
			if !holds(f) {
				return false
			}
		}
		return true
	}, true
}

// retail is the Retail Prices API, which asks for no credential.
func (c *Cloud) retail(rw http.ResponseWriter, r *http.Request) {
	words := func(rw http.ResponseWriter, err error) {
		e := translate(asSim(err), simapi.Place{})
		if e.RetryAfter > 0 {
			rw.Header().Set("Retry-After", strconv.Itoa(int(e.RetryAfter.Seconds())))
		}
		rw.Header().Set("Content-Type", "application/json; charset=utf-8")
		rw.WriteHeader(e.Status)
		_ = json.NewEncoder(rw).Encode(object{"Error": object{"Code": e.Code, "Message": e.Message}}) // the caller has gone
	}
	c.w.Answer(rw, r, simcloud.Call{Op: "offers"}, words, func(age time.Duration, _ bool) (simcloud.Reply, error) {
		q := r.URL.Query()
		fits, ok := matcher(q.Get("$filter"))
		if !ok || r.Method != http.MethodGet {
			return simcloud.Reply{}, &simapi.Error{Status: http.StatusBadRequest, Code: simapi.CodeInvalid, Message: "Invalid OData parameters supplied"}
		}
		var found []any
		for _, p := range c.prices(age) {
			if fits(p) {
				found = append(found, p.view())
			}
		}
		from, _ := strconv.Atoi(q.Get("$skip"))
		from = min(max(from, 0), len(found))
		to := min(from+c.w.Config().PageSize, len(found))
		v := object{"BillingCurrency": "USD", "CustomerEntityId": "Default", "CustomerEntityType": "Retail", "Items": append([]any{}, found[from:to]...), "NextPageLink": nil, "Count": to - from}
		if to < len(found) {
			q.Set("$skip", strconv.Itoa(to))
			// Azure writes the port out: https://prices.azure.com:443/….
			here := base(r)
			if strings.HasPrefix(here, "https:") && !strings.Contains(r.Host, ":") {
				here += ":443"
			}
			v["NextPageLink"] = here + r.URL.EscapedPath() + "?" + encode(q)
		}
		return body(http.StatusOK, v)
	})
}
