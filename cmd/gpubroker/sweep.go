package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"gpubroker/internal/cli"
	"gpubroker/providers"
)

// sweep lists, and ends when asked to, machines that bear our name, straight from
// the providers: it needs neither a broker nor its store, and so can run
// elsewhere when both are lost.
func sweep(ctx context.Context, o cli.SweepOptions) (cli.Swept, error) {
	cfg, err := readConfig(o.Config)
	if err != nil {
		return cli.Swept{}, err
	}
	if len(cfg.Providers) == 0 {
		return cli.Swept{}, errors.New("no provider is configured, so nothing can be swept: give the broker's configuration with --config")
	}
	accounts, err := openAccounts(ctx, cfg, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		return cli.Swept{}, err
	}
	out := cli.Swept{Machines: []cli.SweptMachine{}, Unread: map[string]string{}}
	now := time.Now()
	for _, a := range accounts {
		list, err := a.List(ctx)
		if err != nil {
			out.Unread[a.Name()] = err.Error()
			continue
		}
		for _, i := range list {
			m := cli.SweptMachine{Instance: i, Expired: expired(i, now)}
			if !i.Live() || o.Expired && !m.Expired {
				continue
			}
			if o.End && !a.Capabilities().Shared {
				err := a.Terminate(ctx, i.Ref)
				m.Ended = err == nil || providers.CodeOf(err) == providers.NotFound
				if !m.Ended {
					m.Error = err.Error()
				}
			}
			out.Machines = append(out.Machines, m)
		}
	}
	slices.SortFunc(out.Machines, func(a, b cli.SweptMachine) int {
		return cmp.Or(cmp.Compare(a.Market.Provider, b.Market.Provider), a.Launched.Compare(b.Launched))
	})
	return out, nil
}

// expired reports whether nobody needs a machine any more: the end that its
// provider keeps for it, and that each lease moves, has passed, or where there is
// none the delete-at that it was tagged with.
func expired(i providers.Instance, now time.Time) bool {
	end := i.End
	if end.IsZero() {
		end = i.Tags.DeleteAt
	}
	return !end.IsZero() && end.Before(now)
}
