package simcloud

import (
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"gpubroker/internal/simcloud/simapi"
)

// fault is a scripted fault with what it has done.
type fault struct {
	simapi.Fault
	from   time.Time
	random *rand.Rand
	seen   int // matching calls within its time
	used   int
}

func (w *World) addFault(f simapi.Fault) {
	w.faultSeq++
	w.faults = append(w.faults, &fault{Fault: f, from: w.now.Add(f.At.D()), random: w.random(forChance, w.faultSeq)})
}

// AddFault adds a fault; its times count from now.
func (w *World) AddFault(f simapi.Fault) error {
	if err := checkFault(f); err != nil {
		return apiError(http.StatusBadRequest, simapi.CodeInvalid, "%v", err)
	}
	w.enter()
	defer w.mu.Unlock()
	w.addFault(f)
	return nil
}

// Faults returns the faults that can still apply.
func (w *World) Faults() []simapi.Fault {
	w.enter()
	defer w.mu.Unlock()
	out := []simapi.Fault{}
	for _, f := range w.faults {
		if !f.spent(w.now) {
			out = append(out, f.Fault)
		}
	}
	return out
}

// ClearFaults removes every fault.
func (w *World) ClearFaults() {
	w.enter()
	defer w.mu.Unlock()
	w.faults = nil
}

// call is what a fault is matched against.
type call struct {
	op      string
	place   simapi.Place
	machine string
	age     time.Duration // of the machine, for not_found
}

// nextFault returns the fault that hits a call, nil for none. Faults are asked
// in the order in which they were added.
func (w *World) nextFault(c call) *simapi.Fault {
	w.faults = slices.DeleteFunc(w.faults, func(f *fault) bool { return f.spent(w.now) })
	for _, f := range w.faults {
		if !f.hits(c, w.now) {
			continue
		}
		f.used++
		w.note("fault", w.byID[c.machine], placeText(c.place), "%s: %s", c.op, f.Effect)
		return new(f.Fault)
	}
	return nil
}

func placeText(p simapi.Place) string {
	if p == (simapi.Place{}) {
		return ""
	}
	return p.String()
}

func (f *fault) hits(c call, now time.Time) bool {
	switch {
	case f.Op != c.op && (f.Op != "" || c.op == "notice"),
		!c.place.Matches(f.Match), f.Machine != "" && f.Machine != c.machine,
		now.Before(f.from), f.spent(now),
		f.Effect == simapi.NotFound && f.Delay > 0 && c.age >= f.Delay.D():
		return false
	}
	f.seen++
	if f.Nth > 0 && f.seen != f.Nth {
		return false
	}
	return f.Chance == 0 || f.random.IntN(100) < f.Chance
}

func (f *fault) spent(now time.Time) bool {
	switch {
	case f.For > 0 && !now.Before(f.from.Add(f.For.D())):
		return true
	case f.Times > 0:
		return f.used >= f.Times
	case f.Times == 0 && f.For == 0:
		return f.used > 0
	default:
		return false
	}
}

// channels are those on which a warning is given.
type channels struct{ metadata, events bool }

// noticeFault returns where a warning is given, and for a short one how long
// before the end.
func (w *World) noticeFault(m *machine) (channels, time.Duration) {
	f := w.nextFault(call{op: "notice", place: m.offer.Place, machine: m.id})
	switch {
	case f == nil:
		return channels{true, true}, 0
	case f.Effect == simapi.Short:
		return channels{true, true}, max(f.Delay.D(), 1)
	default:
		return channels{metadata: f.Channel == "events", events: f.Channel == "metadata"}, 0
	}
}

// instead are the answers that take a call's place.
func instead(f *simapi.Fault) *simapi.Error {
	e := func(status int, code, text string) *simapi.Error {
		return &simapi.Error{Status: status, Code: code, Message: text, RetryAfter: f.RetryAfter.D()}
	}
	switch f.Effect {
	case simapi.NoCapacity:
		return e(http.StatusInternalServerError, simapi.CodeCapacity, "no capacity at this time")
	case simapi.Quota:
		return e(http.StatusBadRequest, simapi.CodeQuota, "the limit of your account is reached")
	case simapi.PriceTooLow:
		return e(http.StatusBadRequest, simapi.CodePrice, "price_max is below the price")
	case simapi.Throttle:
		return e(http.StatusTooManyRequests, simapi.CodeThrottled, "too many calls")
	case simapi.Denied:
		return e(http.StatusUnauthorized, simapi.CodeUnauthorized, "the token is not valid")
	case simapi.NoFunds:
		return e(http.StatusPaymentRequired, simapi.CodeNoFunds, "the balance is used up")
	case simapi.Invalid:
		return e(http.StatusBadRequest, simapi.CodeInvalid, "the request is not valid")
	case simapi.Unavailable:
		return e(http.StatusServiceUnavailable, simapi.CodeUnavailable, "try again later")
	case simapi.Internal:
		return e(http.StatusInternalServerError, simapi.CodeInternal, "something went wrong")
	case simapi.ErrorIn200:
		return e(http.StatusOK, simapi.CodeInternal, "something went wrong")
	case simapi.Refuse:
		return e(http.StatusConflict, simapi.CodeRefused, "not possible at this time")
	case simapi.NotFound:
		return e(http.StatusNotFound, simapi.CodeNotFound, "no such machine")
	default:
		return nil
	}
}

// afterwards are the errors that follow a call's effect.
func afterwards(f *simapi.Fault) *simapi.Error {
	switch f.Effect {
	case simapi.UnavailableAfter:
		return &simapi.Error{Status: http.StatusServiceUnavailable, Code: simapi.CodeUnavailable, Message: "try again later", RetryAfter: f.RetryAfter.D()}
	case simapi.InternalAfter:
		return &simapi.Error{Status: http.StatusInternalServerError, Code: simapi.CodeInternal, Message: "something went wrong"}
	default:
		return nil
	}
}
