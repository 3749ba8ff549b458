package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"gpubroker/internal/gpu"
	"gpubroker/internal/nearest"
	"gpubroker/internal/quantity"
)

// GPUIDs are the canonical ids of the GPUs that the rules allow, sorted. Names that
// nobody knows are left out: [Parse] has refused them.
func (r *Rules) GPUIDs() []string {
	var out []string
	for _, name := range r.GPU {
		ids, _ := gpu.Builtin().Resolve(name) // checked by Parse
		out = append(out, ids...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// bounds checks rules and limits: money in the ledger's currency, and names that
// exist.
func (k checker) bounds() {
	c := k.config
	k.money("limits.per_hour", c.Limits.PerHour)
	for i := range c.Providers {
		k.money(fmt.Sprintf("providers[%d].limits.per_hour", i), c.Providers[i].Limits.PerHour)
	}
	for i := range c.Projects {
		k.rules(fmt.Sprintf("projects[%d]", i), &c.Projects[i].Limits, &c.Projects[i].Rules)
	}
	for i := range c.Queues {
		k.rules(fmt.Sprintf("queues[%d]", i), &c.Queues[i].Limits, &c.Queues[i].Rules)
	}
}

func (k checker) money(at string, m *quantity.Money) {
	switch {
	case m == nil || k.Faulty(at):
	case m.Currency != k.config.Currency && !k.Faulty("currency"):
		k.Errorf(at, "", "the ledger is in %s, found %s", k.config.Currency, m)
	case m.Amount <= 0:
		k.Errorf(at, "leave it out for no limit", "expected more than nothing, found %s", m)
	}
}

// some refuses a list of nothing, which would allow all.
func (k checker) some(at string, list []string) {
	if list != nil && len(list) == 0 && !k.Faulty(at) {
		k.Errorf(at, "leave it out to allow all", "expected at least one, found none")
	}
}

func (k checker) rules(at string, l *Limits, r *Rules) {
	k.money(at+".limits.per_hour", l.PerHour)
	k.money(at+".rules.max_price", r.MaxPrice)
	k.some(at+".rules.gpu", r.GPU)
	k.some(at+".rules.kinds", r.Kinds)
	k.some(at+".rules.providers", r.Providers)
	k.some(at+".rules.regions", r.Regions)
	for n, name := range r.GPU {
		where := fmt.Sprintf("%s.rules.gpu[%d]", at, n)
		_, err := gpu.Builtin().Resolve(name)
		if e, wrong := errors.AsType[*gpu.NameError](err); wrong {
			k.Errorf(where, e.Ask(), "%s", e.Message())
		}
	}
	var accounts []string
	for _, p := range k.config.Providers {
		accounts = append(accounts, p.Name)
	}
	for n, name := range r.Providers {
		if !slices.Contains(accounts, name) {
			hint := nearest.Hint(name, accounts)
			if hint == "" {
				hint = "providers: " + strings.Join(accounts, ", ")
			}
			k.Errorf(fmt.Sprintf("%s.rules.providers[%d]", at, n), hint, "there is no provider %q", name)
		}
	}
}
