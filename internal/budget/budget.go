// Package budget keeps spending under its caps.
//
// A budget caps money over periods. An instance may live only while money for
// it is reserved: each grant or extension of its lease raises a [Hold] in every
// matching budget, and every period that the lease touches must have room. A
// hold shrinks only when its machine is settled, on the provider's word that it
// is gone. The package is pure: it computes rows, and whoever owns the tables
// commits them.
package budget

import (
	"fmt"
	"time"

	"gpubroker/internal/money"
)

// Scope is what a budget covers.
type Scope string

// The scopes, wide to narrow.
const (
	Org     Scope = "org"
	Team    Scope = "team"
	Project Scope = "project"
	Job     Scope = "job"
)

// Guard is how a budget treats machines that only end themselves.
type Guard string

// The guards.
const (
	// Normal reserves up to the lease's end.
	Normal Guard = "normal"
	// Strict admits only machines that the provider ends (rolling, fixed), and
	// reserves up to that end.
	Strict Guard = "strict"
)

// Ledger is the name of the budget that always exists, covers everything and
// has no cap: its entries are the broker's ledger.
const Ledger = "all"

// Budget is a cap on money over a period.
type Budget struct {
	Name   string       `json:"name"`
	Scope  Scope        `json:"scope"`
	Match  string       `json:"match,omitzero"` // team, project or job id; "" for the org
	Capped bool         `json:"capped"`
	Cap    money.Amount `json:"cap"`
	Period Rule         `json:"period"`
	Guard  Guard        `json:"guard"`
}

// Payer is what a machine is rented for.
type Payer struct {
	Team, Project, Job string
}

// Matches reports whether the budget pays for p.
func (b *Budget) Matches(p Payer) bool {
	switch b.Scope {
	case Org:
		return true
	case Team:
		return b.Match == p.Team
	case Project:
		return b.Match == p.Project
	case Job:
		return b.Match == p.Job
	}
	return false
}

// Key names one period of one budget.
type Key struct {
	Budget string    `json:"budget"`
	Start  time.Time `json:"start"` // UTC; the zero time for the single period of "total"
}

// String returns "name@start".
func (k Key) String() string {
	if k.Start.IsZero() {
		return k.Budget
	}
	return k.Budget + "@" + k.Start.Format(time.RFC3339)
}

// Account is one period of one budget. Reserved+Cost never exceeds the cap by
// an act of ours.
type Account struct {
	Key
	Version  int64        `json:"version"`
	End      time.Time    `json:"end,omitzero"` // the first moment of the next period
	Reserved money.Amount `json:"reserved"`     // may still be spent by machines that live
	Cost     money.Amount `json:"cost"`         // accrued and settled
	Overrun  money.Amount `json:"overrun"`      // the part of Cost beyond reservations
}

// Committed is what the period has spent or may yet spend.
func (a *Account) Committed() money.Amount { return a.Reserved + a.Cost }

// Hold is the money that one machine has reserved in one period of one budget.
type Hold struct {
	Instance string `json:"instance"`
	Key
	Version  int64        `json:"version"`
	Reserved money.Amount `json:"reserved"` // not yet accrued
	Accrued  money.Amount `json:"accrued"`  // estimated cost so far; the exact cost once settled
	Settled  bool         `json:"settled"`
}

// Kind is a kind of ledger entry.
type Kind string

// The kinds of entries. Reserved and Released move reservations; the others sum
// to the cost.
const (
	Reserved  Kind = "reserve"
	Released  Kind = "release" // negative: reservation given back
	Accrued   Kind = "accrue"  // an estimate, moved from reservation to cost
	Settled   Kind = "settle"  // the exact charge less what was accrued; may be negative
	Overspent Kind = "overrun" // the exact charge beyond the reservation
	Adjusted  Kind = "adjust"  // an imported bill's difference
)

// Entry is one row of the ledger: append-only, and self-explaining without
// today's catalog.
type Entry struct {
	Seq int64     `json:"seq"`
	At  time.Time `json:"at"`
	Key
	Kind     Kind         `json:"kind"`
	Instance string       `json:"instance,omitzero"`
	Project  string       `json:"project,omitzero"`
	Job      string       `json:"job,omitzero"`
	Amount   money.Amount `json:"amount"`
	From     time.Time    `json:"from,omitzero"` // the time that the amount is for
	To       time.Time    `json:"to,omitzero"`
	Rate     money.Rate   `json:"rate,omitzero"`
	Market   string       `json:"market,omitzero"`
}

// A RoomError says which budget lacks room, and by how much.
type RoomError struct {
	Budget Budget
	Key    Key
	Need   money.Amount // what the lease adds in this period
	Free   money.Amount // may be negative after a cap was lowered
}

// Error names the budget, what is free and what is needed.
func (e *RoomError) Error() string {
	return fmt.Sprintf("budget %s: %s free of %s, and the lease needs %s more; raise the cap or wait for the next period",
		e.Key, e.Free, e.Budget.Cap, e.Need)
}
