package market

import (
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/providers"
)

// Skipped says why a row of an offers file is not used.
type Skipped struct {
	Line int    `json:"line"`
	Why  string `json:"why"`
}

// ReadFile reads an offers file, gzipped when its name ends in .gz.
func ReadFile(name string) ([]providers.Offer, []Skipped, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, fmt.Errorf("reading offers: %w", err)
	}
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(name, ".gz") {
		if r, err = gzip.NewReader(f); err != nil {
			return nil, nil, fmt.Errorf("reading offers from %s: %w", name, err)
		}
	}
	offers, skipped, err := ReadCSV(r)
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return offers, skipped, err
}

// columns must be there; a column "tier" may be.
var columns = []string{
	"provider", "instance_type", "gpu", "gpu_raw", "gpu_count", "gpu_mem_gb_each", "vcpu", "mem_gib",
	"region", "zone", "price_ondemand_usd_h", "price_spot_usd_h", "catalog_date", "source",
}

// ReadCSV reads offers as a table with a header row: prices in USD per hour for
// the whole machine, memory of each GPU in GB and of the host in GiB. A row gives
// an offer for each price that it has; an empty cell is unknown, and of a range
// such as 12-16 the least counts. Of rows for one market the newest counts, of
// those the first. A row that is not used is returned as skipped; a file that is
// no such table is an error.
func ReadCSV(r io.Reader) ([]providers.Offer, []Skipped, error) {
	in := csv.NewReader(r)
	header, err := in.Read()
	if err != nil {
		return nil, nil, fmt.Errorf("line 1: no header row: %w", err)
	}
	at := map[string]int{}
	for i, name := range header {
		at[strings.TrimSpace(name)] = i
	}
	for _, name := range columns {
		if _, ok := at[name]; !ok {
			return nil, nil, fmt.Errorf("line 1: column %s is missing; wanted %s", name, strings.Join(columns, ", "))
		}
	}
	var out []providers.Offer
	var skipped []Skipped
	type place struct{ line, offer int }
	places := map[providers.Market]place{}
	for {
		record, err := in.Read()
		if errors.Is(err, io.EOF) {
			return out, skipped, nil
		}
		if err != nil {
			return nil, nil, err
		}
		line, _ := in.FieldPos(0)
		offers, why := parseRow(func(name string) string {
			if i, ok := at[name]; ok {
				return strings.TrimSpace(record[i])
			}
			return ""
		})
		for _, o := range offers {
			before, twice := places[o.Market]
			switch {
			case !twice:
				places[o.Market] = place{line, len(out)}
				out = append(out, o)
			case o.Seen.After(out[before.offer].Seen):
				skipped = append(skipped, Skipped{before.line, fmt.Sprintf("line %d has %s at a later date", line, o.Market)})
				places[o.Market], out[before.offer] = place{line, before.offer}, o
			default:
				why = fmt.Sprintf("%s stands in line %d already", o.Market, before.line)
			}
		}
		if why != "" {
			skipped = append(skipped, Skipped{line, why})
		}
	}
}

func parseRow(cell func(string) string) ([]providers.Offer, string) {
	var bad string
	number := func(name string) float64 {
		s := cell(name)
		if s == "" {
			return 0
		}
		s, _, _ = strings.Cut(s, "-") // of a range, what is sure to be there
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || !(f >= 0 && f < 1e9) {
			bad = fmt.Sprintf("%s is %q, no number", name, cell(name))
		}
		return f
	}
	seen, err := time.Parse(time.DateOnly, cell("catalog_date"))
	if err != nil {
		return nil, fmt.Sprintf("catalog_date is %q, no date", cell("catalog_date"))
	}
	base := providers.Offer{
		Market: providers.Market{Provider: cell("provider"), Region: cell("region"), Zone: cell("zone"), Type: cell("instance_type")},
		Shape: providers.Shape{
			GPU: cell("gpu"), GPUName: cell("gpu_raw"), GPUs: number("gpu_count"),
			GPUMemory: int64(number("gpu_mem_gb_each") * 1e9), VCPU: number("vcpu"), Memory: int64(number("mem_gib") * (1 << 30)),
		},
		Currency: money.USD, Seen: seen, Source: cell("source"),
	}
	switch {
	case bad != "":
		return nil, bad
	case base.Provider == "":
		return nil, "no provider"
	case cell("tier") == "accelerator-only":
		return nil, "a price of GPUs without their machine"
	case base.Type == "":
		// A provider without names of types: what tells its rows apart.
		base.Type = typeName(base.GPUName, cell("gpu_mem_gb_each"), cell("gpu_count"), cell("tier"), cell("vcpu"), cell("mem_gib"))
	}
	if base.GPUs == 0 && base.GPU != "" {
		return nil, "the number of GPUs is not known"
	}
	var out []providers.Offer
	for _, kind := range [...]providers.Kind{providers.OnDemand, providers.Spot} {
		column := "price_ondemand_usd_h"
		if kind == providers.Spot {
			column = "price_spot_usd_h"
		}
		text := cell(column)
		if text == "" {
			continue
		}
		price, err := money.RateOf(text)
		if err != nil || price <= 0 {
			return nil, fmt.Sprintf("%s is %q, no price", column, text)
		}
		o := base
		o.Kind, o.Price = kind, price
		o.Fabric, o.RDMA = gpu.Builtin().Joined(o.Provider, o.Type, o.GPU, o.GPUs)
		out = append(out, o)
	}
	if len(out) == 0 {
		return nil, "no price"
	}
	return out, ""
}

// typeName joins what tells the machines of a provider apart: "h100-80gb-x8-secure".
func typeName(model, each, count, tier, vcpu, memory string) string {
	parts := []string{strings.Join(strings.Fields(strings.ToLower(model)), "-")}
	if tier == string(providers.OnDemand) || tier == string(providers.Spot) {
		tier = "" // that is the kind of its price
	}
	for _, p := range [...]struct{ format, value string }{{"%sgb", each}, {"x%s", count}, {"%s", tier}, {"v%s", vcpu}, {"m%s", memory}} {
		if p.value != "" {
			parts = append(parts, fmt.Sprintf(p.format, p.value))
		}
	}
	return strings.ReplaceAll(strings.Join(parts, "-"), "/", "-")
}
