package simapi

import (
	"gpubroker/internal/money"
	"gpubroker/providers"
)

// Fault makes calls go wrong. It applies to calls of Op that match, from At
// after it was added; to the Nth of them only, or to Times of them, or to all
// until For has passed.
type Fault struct {
	Op     string `json:"op"`             // launch, terminate, list, describe, move_end, bill, offers, events, quotas, console, notice; "" means every call but notice
	Effect string `json:"effect"`         // one of Effects
	Match  Place  `json:"match,omitzero"` // empty fields match all; list and offers have no place
	// Machine narrows a fault to one machine by its id.
	Machine string   `json:"machine,omitzero"`
	At      Duration `json:"at,omitzero"`
	For     Duration `json:"for,omitzero"`   // 0 means without end
	Nth     int      `json:"nth,omitzero"`   // the nth matching call alone, from 1
	Times   int      `json:"times,omitzero"` // 0 means once, or without limit when For is set; -1 without limit
	// Chance in percent that a matching call is hit; 0 means always. Drawn from
	// the world's seed.
	Chance     int      `json:"chance,omitzero"`
	Delay      Duration `json:"delay,omitzero"`       // slow, late, stale, not_found, short
	RetryAfter Duration `json:"retry_after,omitzero"` // throttle, unavailable
	Channel    string   `json:"channel,omitzero"`     // lose: metadata or events; "" means both
}

// The effects of a [Fault].
const (
	// In place of the call's effect.
	NoCapacity  = "no_capacity"
	Quota       = "quota"
	PriceTooLow = "price_too_low"
	Throttle    = "throttle" // 429 with Retry-After
	Denied      = "unauthorized"
	NoFunds     = "no_funds"
	Invalid     = "invalid"
	Unavailable = "unavailable" // 503, nothing was done
	Internal    = "error"       // 500, nothing was done
	Proxy       = "proxy"       // 502 with a page of HTML, nothing was done
	ErrorIn200  = "error_in_200"
	Drop        = "drop"      // the connection ends, nothing was done
	Hang        = "hang"      // no answer until the caller leaves, nothing is done
	Refuse      = "refuse"    // the provider will not do it now
	NotFound    = "not_found" // a machine younger than Delay is denied (any age when 0)
	// After the call's effect.
	UnavailableAfter = "unavailable_after" // 503, it was done
	InternalAfter    = "error_after"       // 500, it was done
	DropAfter        = "drop_after"        // the connection ends, it was done
	Truncate         = "truncate"          // half of the answer, then the connection ends
	Slow             = "slow"              // done at once, answered after Delay
	Late             = "late"              // done and answered after Delay, though the caller may have left
	Stale            = "stale"             // list, offers: as they were Delay ago
	Dud              = "dud"               // launch: the machine runs, its user data does not
	// For op notice.
	Lose  = "lose"  // the warning is not given
	Short = "short" // it is given only Delay before the end
)

// Effects lists every effect.
func Effects() []string {
	return []string{
		NoCapacity, Quota, PriceTooLow, Throttle, Denied, NoFunds, Invalid, Unavailable, Internal, Proxy,
		ErrorIn200, Drop, Hang, Refuse, NotFound, UnavailableAfter, InternalAfter, DropAfter, Truncate, Slow,
		Late, Stale, Dud, Lose, Short,
	}
}

// Ops lists the operations that a fault can name.
func Ops() []string {
	return []string{"launch", "terminate", "list", "describe", "move_end", "bill", "offers", "events", "quotas", "console", "about", "invoice", "notice"}
}

// Action changes the world. In a script it happens At after the start, or After
// the moment at which machine number OnMachine first runs. Exactly one of the
// pointers is set.
type Action struct {
	At        Duration  `json:"at,omitzero"`
	OnMachine int       `json:"on_machine,omitzero"`
	After     Duration  `json:"after,omitzero"`
	Preempt   *Preempt  `json:"preempt,omitzero"`
	Rebalance *Pick     `json:"rebalance,omitzero"`
	Capacity  *Capacity `json:"capacity,omitzero"`
	Price     *Price    `json:"price,omitzero"`
	SelfEnd   *SelfEnd  `json:"self_end,omitzero"`
	Fault     *Fault    `json:"fault,omitzero"`
	Crash     *Pick     `json:"crash,omitzero"`  // every process on the machine dies, the machine stays
	Freeze    *Pick     `json:"freeze,omitzero"` // every process on the machine stops, and none goes on
}

// Pick chooses one live machine. In a script with OnMachine, the zero Pick is
// that machine.
type Pick struct {
	Machine string `json:"machine,omitzero"` // id
	Number  int    `json:"number,omitzero"`
	// Longest takes the spot machine that has run longest, Newest the one that
	// was launched last, both within Match.
	Longest bool  `json:"longest,omitzero"`
	Newest  bool  `json:"newest,omitzero"`
	Match   Place `json:"match,omitzero"`
}

// Preempt takes a machine away.
type Preempt struct {
	Pick `json:",inline"`
	// Notice is how long before the end it is announced; absent means the
	// world's own, "0s" none at all.
	Notice *Duration `json:"notice,omitzero"`
}

// Capacity sets how many machines each matching market can hold. Spot machines
// over it are preempted.
type Capacity struct {
	Match    Place `json:"match,omitzero"`
	Machines *int  `json:"machines"` // null means without limit
}

// Price sets the price of each matching market, or multiplies it by Percent.
type Price struct {
	Match   Place       `json:"match,omitzero"`
	Price   *money.Rate `json:"price,omitzero"`
	Percent int64       `json:"percent,omitzero"`
}

// SelfEnd sets who ends machines. Machines that run keep the end they have.
type SelfEnd struct {
	SelfEnd   providers.SelfEnd   `json:"self_end"`
	EndAction providers.EndAction `json:"end_action,omitzero"` // "" leaves it
}

// ActionResult says what an action hit.
type ActionResult struct {
	Machines []string `json:"machines,omitzero"`
	Places   []string `json:"places,omitzero"`
}
