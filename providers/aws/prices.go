package aws

import (
	"context"
	"encoding/json"
	"math/big"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/pricing"
	"github.com/aws/aws-sdk-go-v2/service/pricing/types"

	"gpubroker/internal/money"
	"gpubroker/providers"
)

// sides are what a region takes for what stands beside a machine.
type sides struct {
	disk    money.Rate // gp3, per GiB and month
	address money.Rate // public IPv4, per hour
	how     string     // where prices that the list lacks are from, for an offer's source
}

// publicIPv4 is the price of an address in every region since 2024-02-01 (AWS
// blog, "New – AWS Public IPv4 Address Charge"), for price lists without it.
const publicIPv4 = money.Rate(5_000_000)

// hoursPerMonth is EBS's month: 30 days (aws.amazon.com/ebs/pricing, examples).
const hoursPerMonth = 30 * 24

// diskRate is the hourly price of a disk, rounded up to a nano-unit.
func diskRate(perMonth money.Rate, bytes int64) money.Rate {
	n := new(big.Int).Mul(big.NewInt(int64(perMonth)), big.NewInt(gibs(bytes)))
	n.Add(n, big.NewInt(hoursPerMonth-1))
	return money.Rate(n.Div(n, big.NewInt(hoursPerMonth)).Int64())
}

// gibs are whole GiB, as disks are sold.
func gibs(bytes int64) int64 { return (bytes + 1<<30 - 1) >> 30 }

// parts are what a machine's price sums.
func (a *Adapter) parts(compute money.Rate, s sides, disk int64) []providers.PricePart {
	out := []providers.PricePart{{Name: "compute", Price: compute}, {Name: "disk", Price: diskRate(s.disk, disk)}}
	if !a.set.Network.Private {
		out = append(out, providers.PricePart{Name: "address", Price: s.address})
	}
	return out
}

func total(parts []providers.PricePart) (sum money.Rate) {
	for _, p := range parts {
		sum += p.Price
	}
	return sum
}

// entry is a product of the price list with its terms.
type entry struct {
	Product struct {
		Attributes map[string]string `json:"attributes"`
	} `json:"product"`
	Terms struct {
		OnDemand map[string]struct {
			PriceDimensions map[string]struct {
				Unit         string            `json:"unit"`
				PricePerUnit map[string]string `json:"pricePerUnit"`
			} `json:"priceDimensions"`
		} `json:"OnDemand"`
	} `json:"terms"`
}

// price is the on-demand price in USD per unit; ok is false when there is none,
// or one of 0, which stands for what is sold otherwise.
func (e entry) price(unit string) (rate money.Rate, ok bool, err error) {
	for _, term := range e.Terms.OnDemand {
		for _, d := range term.PriceDimensions {
			text, there := d.PricePerUnit["USD"]
			if !there || !strings.EqualFold(d.Unit, unit) {
				continue
			}
			one, err := money.RateOf(trimZeros(text))
			if err != nil {
				return 0, false, err
			}
			rate = max(rate, one) // of several the dearest is a bound
		}
	}
	return rate, rate > 0, nil
}

// trimZeros leaves out what does not count of "0.5260000000".
func trimZeros(s string) string {
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

// products reads the price list of a region through filters.
func (a *Adapter) products(ctx context.Context, op, region, service string, filters map[string]string, see func(entry) error) error {
	in := &pricing.GetProductsInput{ServiceCode: aws.String(service), FormatVersion: aws.String("aws_v1"), MaxResults: aws.Int32(100)}
	add := func(field, value string) {
		in.Filters = append(in.Filters, types.Filter{Type: types.FilterTypeTermMatch, Field: aws.String(field), Value: aws.String(value)})
	}
	add("regionCode", region)
	for field, value := range filters {
		add(field, value)
	}
	for {
		page, err := call(ctx, a, op, region, a.pricing.GetProducts, in)
		if err != nil {
			return err
		}
		for _, text := range page.PriceList {
			var e entry
			if err := json.Unmarshal([]byte(text), &e); err != nil {
				return a.strange(op, region, "price list: %v", err)
			}
			if err := see(e); err != nil {
				return a.strange(op, region, "price list: %s: %v", e.Product.Attributes["usagetype"], err)
			}
		}
		if next, err := a.next(op, region, in.NextToken, page.NextToken); err != nil || next == nil {
			return err
		}
		in.NextToken = page.NextToken
	}
}

// plain are the attributes of a machine as we rent it. Other products of a type
// have other systems, tenancies, reservations, or are Capacity Blocks.
func plain() map[string]string {
	return map[string]string{"operatingSystem": "Linux", "tenancy": "Shared", "capacitystatus": "Used", "preInstalledSw": "NA", "marketoption": "OnDemand"}
}

// listPrices are the on-demand prices of a region by type.
func (a *Adapter) listPrices(ctx context.Context, region string) (map[string]money.Rate, error) {
	out := map[string]money.Rate{}
	read := func(field, value string) error {
		filters := plain()
		filters[field] = value
		return a.products(ctx, "offers", region, "AmazonEC2", filters, func(e entry) error {
			for key, want := range plain() { // servers that know fewer filters are not believed
				if have, ok := e.Product.Attributes[key]; ok && have != want {
					return nil
				}
			}
			rate, ok, err := e.price("Hrs")
			if ok && err == nil {
				out[e.Product.Attributes["instanceType"]] = rate
			}
			return err
		})
	}
	if err := read("instanceFamily", "GPU instance"); err != nil {
		return nil, err
	}
	for _, t := range a.set.Types {
		if err := read("instanceType", t); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// sidePrices reads what disks and addresses cost in a region, and remembers it
// for launches.
func (a *Adapter) sidePrices(ctx context.Context, op, region string) (sides, error) {
	s := sides{address: publicIPv4}
	err := a.products(ctx, op, region, "AmazonEC2", map[string]string{"volumeApiName": "gp3", "productFamily": "Storage"}, func(e entry) error {
		if rate, ok, err := e.price("GB-Mo"); err != nil || ok && e.Product.Attributes["volumeApiName"] == "gp3" {
			s.disk = rate
			return err
		}
		return nil
	})
	if err != nil {
		return s, err
	}
	if s.disk == 0 {
		s.disk, s.how = dearestDisk, "; disk: an upper bound, the list has none"
	}
	if !a.set.Network.Private {
		err = a.products(ctx, op, region, "AmazonVPC", map[string]string{"group": "VPCPublicIPv4Address"}, func(e entry) error {
			if !strings.HasSuffix(e.Product.Attributes["usagetype"], "PublicIPv4:InUseAddress") {
				return nil
			}
			rate, ok, err := e.price("Hrs")
			if ok {
				s.address = rate
			}
			return err
		})
		// A list of EC2's prices alone knows no other service; the address costs what
		// is published.
		if code := said(err); err != nil && code != "NotFoundException" && providers.CodeOf(err) != providers.InvalidRequest {
			return s, err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sides[region] = s
	return s, nil
}

// dearestDisk is above the gp3 price of every region: São Paulo, the dearest,
// takes 0.152 USD per GiB and month (aws.amazon.com/ebs/pricing, 2026).
const dearestDisk = money.Rate(200_000_000)

// sidesOf are the prices last seen, asked for when none were. A launch does not
// wait for a price list that does not answer: with the dearest prices its bound
// is kept all the more.
func (a *Adapter) sidesOf(ctx context.Context, region string) (sides, error) {
	a.mu.Lock()
	s, ok := a.sides[region]
	a.mu.Unlock()
	if ok {
		return s, nil
	}
	s, err := a.sidePrices(ctx, "launch", region)
	if err == nil || ctx.Err() != nil {
		return s, err
	}
	a.log.WarnContext(ctx, "the prices of disks and addresses are not known; the dearest are assumed", "provider", a.name, "region", region, "err", err)
	return sides{disk: dearestDisk, address: publicIPv4}, nil
}
