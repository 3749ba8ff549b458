package main

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"gpubroker/internal/cli"
	"gpubroker/internal/config"
	"gpubroker/internal/control"
	"gpubroker/internal/market"
	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/providers/all"
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
	o := market.Options{Types: map[string]string{}, Stated: map[string]bool{}, Scenarios: cfg.Kinds(), Stale: stale, History: history, Log: log}
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

// publicPrices reads what clouds publish to everybody, all at once. What breaks the
// contract is sorted out as it is of an account; a cloud that has not answered when
// ctx ends is not waited for.
func publicPrices(ctx context.Context) []cli.PublicList {
	type answer struct {
		at   int
		list cli.PublicList
	}
	answers := make(chan answer, len(all.Descriptors()))
	var out []cli.PublicList
	for _, d := range all.Descriptors() {
		if d.Public == nil {
			continue
		}
		at := len(out)
		out = append(out, cli.PublicList{Title: d.Title, Type: d.Type, Err: context.DeadlineExceeded})
		go func() { answers <- answer{at, publicList(ctx, d)} }()
	}
	for range out {
		select {
		case a := <-answers:
			out[a.at] = a.list
		case <-ctx.Done():
			return out
		}
	}
	return out
}

func publicList(ctx context.Context, d providers.Descriptor) cli.PublicList {
	l := cli.PublicList{Title: d.Title, Type: d.Type}
	feed, err := d.Public(providers.Env{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		l.Err = err
		return l
	}
	offers, err := feed.Offers(ctx, providers.Scope{})
	if err != nil {
		l.Err = err
		return l
	}
	l.Offers = managed.SortOut(d.Type, offers, time.Now())
	return l
}
