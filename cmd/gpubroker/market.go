package main

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"gpubroker/internal/config"
	"gpubroker/internal/control"
	"gpubroker/internal/market"
	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/providers/managed"
	"gpubroker/scheduler"
)

// openMarket makes the market of a broker, with its record of prices in the data
// folder.
func openMarket(cfg *config.Config, accounts []*control.Account, stale scheduler.Stale, log *slog.Logger) (*market.Market, error) {
	history, err := market.OpenHistory(filepath.Join(cfg.DataDir, "prices"), time.Now())
	if err != nil {
		return nil, fmt.Errorf("%w; is data_dir of another user?", err)
	}
	o := market.Options{Types: map[string]string{}, Stated: map[string]bool{}, Stale: stale, History: history, Log: log}
	for _, a := range accounts {
		// What the owner's machines cost is the owner's word.
		o.Stated[a.Name()] = a.Capabilities().Shared
	}
	for _, p := range cfg.Providers {
		o.Types[p.Name] = p.Type
		for _, c := range p.Commitments {
			o.Commitments = append(o.Commitments, scheduler.Commitment{
				Provider: p.Name, Region: c.Region, Zone: c.Zone, Type: c.Type, Kind: providers.Kind(c.Kind),
				Machines: c.Machines, Sunk: money.Rate(c.Sunk.Amount), Until: c.Until.End(),
			})
		}
	}
	return market.With(o), nil
}

// discounts are an account's discounts as its wrapper applies them.
func discounts(list []config.Discount) []managed.Discount {
	var out []managed.Discount
	for _, d := range list {
		one := managed.Discount{Millionths: int64(d.Percent), Types: d.Types}
		for _, k := range d.Kinds {
			one.Kinds = append(one.Kinds, providers.Kind(k))
		}
		out = append(out, one)
	}
	return out
}
