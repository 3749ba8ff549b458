package simtest

import (
	"errors"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/providers/providertest"
)

// Inject is providertest's knob of the same name, for a world: the dialect says
// the fault in its own words.
func Inject(w *simcloud.World) func(providertest.Fault) error {
	return func(f providertest.Fault) error {
		effect, ok := effectOf(f)
		if !ok {
			return errors.ErrUnsupported
		}
		return w.AddFault(simapi.Fault{Op: f.Op, Effect: effect, Delay: simapi.Duration(24 * time.Hour), RetryAfter: simapi.Duration(7 * time.Second)})
	}
}

func effectOf(f providertest.Fault) (string, bool) {
	switch {
	case f.Hang && f.After:
		return simapi.Slow, true
	case f.Hang:
		return simapi.Hang, true
	case f.After && f.Code == providers.Unavailable:
		return simapi.UnavailableAfter, true
	case f.After:
		return "", false
	}
	effect, ok := map[providers.Code]string{
		providers.NoCapacity: simapi.NoCapacity, providers.QuotaExceeded: simapi.Quota, providers.PriceTooLow: simapi.PriceTooLow,
		providers.RateLimited: simapi.Throttle, providers.Unauthorized: simapi.Denied, providers.NoFunds: simapi.NoFunds,
		providers.InvalidRequest: simapi.Invalid, providers.Unavailable: simapi.Unavailable, providers.NotFound: simapi.NotFound,
	}[f.Code]
	return effect, ok
}

// Preempt is providertest's knob of the same name. world turns a cloud's id of a
// machine into the world's; nil means that they are the same.
func Preempt(w *simcloud.World, world func(id string) string) func(providers.Ref) error {
	return func(ref providers.Ref) error {
		id := ref.ID
		if world != nil {
			id = world(id)
		}
		_, err := w.Do(simapi.Action{Preempt: &simapi.Preempt{Pick: simapi.Pick{Machine: id}}})
		return err
	}
}
