package aws

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// What a machine costs beside itself. gp3 is 0.08 USD per GiB and month in
// us-east-1 and us-west-2 (offer file of AmazonEC2), the month of 30 days
// (aws.amazon.com/ebs/pricing); a public IPv4 address 0.005 USD an hour (AWS blog,
// 2023-07-28).
const (
	DiskGiB   = 100
	gp3       = "0.0800000000"
	ipv4      = "0.0050000000"
	diskPrice = rate((80_000_000*DiskGiB + 719) / 720)
	ipv4Price = rate(5_000_000)
)

type rate = money.Rate

// compute is the machine's own part of the world's price.
func compute(total rate) rate { return total - diskPrice - ipv4Price }

// product is one of a price list.
type product struct {
	SKU        string            `json:"sku"`
	Family     string            `json:"productFamily,omitempty"`
	Attributes map[string]string `json:"attributes"`

	service, unit, usd string
}

func (p product) entry() string {
	id := p.SKU + ".JRTCKXETXF"
	dimension := id + ".6YS6EN2CT7"
	return string(encode(map[string]any{
		"product": p, "serviceCode": p.service, "version": "20260720000000", "publicationDate": "2026-07-20T00:00:00Z",
		"terms": map[string]any{"OnDemand": map[string]any{id: map[string]any{
			"offerTermCode": "JRTCKXETXF", "sku": p.SKU, "effectiveDate": "2026-07-01T00:00:00Z", "termAttributes": map[string]string{},
			"priceDimensions": map[string]any{dimension: map[string]any{
				"rateCode": dimension, "unit": p.unit, "beginRange": "0", "endRange": "Inf", "appliesTo": []string{},
				"description": fmt.Sprintf("$%s per %s", p.usd, p.unit), "pricePerUnit": map[string]string{"USD": p.usd},
			}},
		}}},
	}))
}

// products are the price list of the world.
func (q *request) products(age time.Duration) []product {
	var out []product
	add := func(p product) {
		h := fnv.New64a()
		for _, k := range slices.Sorted(keysOf(p.Attributes)) {
			_, _ = h.Write([]byte(k + "=" + p.Attributes[k] + ";")) // it has no errors
		}
		p.SKU = strings.ToUpper(fmt.Sprintf("%016x", h.Sum64()))
		p.Attributes["servicecode"] = p.service
		out = append(out, p)
	}
	seen := map[[2]string]bool{}
	regions := map[string]bool{}
	for _, o := range q.w.Offers("", age) {
		if !regions[o.Region] {
			regions[o.Region] = true
			for _, p := range sideProducts(o.Region) {
				add(p)
			}
		}
		if key := [2]string{o.Region, o.Type}; o.Kind == providers.OnDemand && !seen[key] {
			seen[key] = true
			for _, p := range machineProducts(o) {
				add(p)
			}
		}
	}
	return out
}

func keysOf(m map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// machineProducts are the products of a type, of which one is the plain machine.
func machineProducts(o simapi.Offer) []product {
	usd := compute(o.Price).String()
	plain := map[string]string{
		"regionCode": o.Region, "locationType": "AWS Region", "instanceType": o.Type, "operatingSystem": "Linux", "tenancy": "Shared",
		"capacitystatus": "Used", "preInstalledSw": "NA", "marketoption": "OnDemand", "licenseModel": "No License required",
		"instanceFamily": "General purpose", "vcpu": fmt.Sprint(o.VCPU), "usagetype": "BoxUsage:" + o.Type, "operation": "RunInstances",
	}
	if o.GPUs > 0 {
		plain["instanceFamily"] = "GPU instance"
	}
	one := func(usd string, changes ...string) product {
		a := map[string]string{}
		maps.Copy(a, plain)
		for i := 0; i < len(changes); i += 2 {
			a[changes[i]] = changes[i+1]
		}
		return product{Family: "Compute Instance", Attributes: a, service: "AmazonEC2", unit: "Hrs", usd: usd}
	}
	out := []product{
		one(usd),
		one((2 * compute(o.Price)).String(), "operatingSystem", "Windows", "operation", "RunInstances:0002"),
		one((compute(o.Price) + compute(o.Price)/10).String(), "tenancy", "Dedicated", "usagetype", "DedicatedUsage:"+o.Type),
		one("0.0000000000", "tenancy", "Host", "usagetype", "HostBoxUsage:"+o.Type),
		one(usd, "capacitystatus", "UnusedCapacityReservation", "usagetype", "UnusedBox:"+o.Type),
		one("0.0000000000", "capacitystatus", "AllocatedCapacityReservation", "usagetype", "Reservation:"+o.Type),
	}
	if strings.HasPrefix(o.Type, "p") {
		out = append(out, one("0.0000000000", "marketoption", "CapacityBlock", "operation", "RunInstances:CB"))
	}
	return out
}

func sideProducts(region string) []product {
	return []product{
		{Family: "Storage", service: "AmazonEC2", unit: "GB-Mo", usd: gp3, Attributes: map[string]string{
			"regionCode": region, "volumeApiName": "gp3", "volumeType": "General Purpose", "usagetype": "EBS:VolumeUsage.gp3",
		}},
		{Family: "Storage", service: "AmazonEC2", unit: "GB-Mo", usd: "0.1000000000", Attributes: map[string]string{
			"regionCode": region, "volumeApiName": "gp2", "volumeType": "General Purpose", "usagetype": "EBS:VolumeUsage.gp2",
		}},
		{service: "AmazonVPC", unit: "Hrs", usd: ipv4, Attributes: map[string]string{
			"regionCode": region, "group": "VPCPublicIPv4Address", "usagetype": "PublicIPv4:InUseAddress",
		}},
		{service: "AmazonVPC", unit: "Hrs", usd: "0.0080000000", Attributes: map[string]string{
			"regionCode": region, "group": "VPCPublicIPv4Address", "usagetype": "PublicIPv4:ContiguousBlock",
		}},
	}
}

func (q *request) getProducts() {
	var in struct {
		ServiceCode, NextToken string
		MaxResults             int
		Filters                []struct{ Type, Field, Value string }
	}
	q.serveJSON(&in, simcloud.Call{Op: "offers"}, func(age time.Duration) (any, error) {
		if in.MaxResults > 100 {
			return nil, errorf(http.StatusBadRequest, "InvalidParameterException", "MaxResults is at most 100")
		}
		var found []string
		for _, p := range q.products(age) {
			ok := in.ServiceCode == p.service
			for _, f := range in.Filters {
				have := p.Attributes[f.Field]
				if f.Field == "productFamily" {
					have = p.Family
				}
				switch f.Type {
				case "TERM_MATCH", "EQUALS":
					ok = ok && strings.EqualFold(have, f.Value)
				case "ANY_OF":
					ok = ok && slices.Contains(strings.Split(f.Value, ","), have)
				default:
					return nil, errorf(http.StatusBadRequest, "InvalidParameterException", "filter type %q", f.Type)
				}
			}
			if ok {
				found = append(found, p.entry())
			}
		}
		from, to, next, err := q.page(len(found), in.NextToken, in.MaxResults, 1, 100)
		if err != nil {
			return nil, err
		}
		out := map[string]any{"FormatVersion": "aws_v1", "PriceList": append([]string{}, found[from:to]...)}
		if next != "" {
			out["NextToken"] = next
		}
		return out, nil
	})
}

// serveJSON makes a call of a JSON protocol.
func (q *request) serveJSON(in any, c simcloud.Call, effect func(age time.Duration) (any, error)) {
	if len(q.body) > 0 {
		if err := json.Unmarshal(q.body, in); err != nil {
			q.fail(errorf(http.StatusBadRequest, "SerializationException", "%v", err))
			return
		}
	}
	q.w.Answer(q.rw, q.r, c, q.words(c), func(age time.Duration, _ bool) (simcloud.Reply, error) {
		v, err := effect(age)
		if err != nil {
			return simcloud.Reply{}, err
		}
		kind := "application/x-amz-json-1.1"
		switch q.service {
		case "sqs":
			kind = "application/x-amz-json-1.0"
		case "scheduler":
			kind = "application/json"
		}
		return simcloud.Reply{Type: kind, Body: encode(v)}, nil
	})
}
