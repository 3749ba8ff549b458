// Package simapi is the wire form of simcloud's API, version 1: what its server
// answers and its adapter reads. docs/simcloud.md shows every path.
//
// Times are RFC 3339 in UTC, prices decimal strings per hour, durations as Go
// writes them ("1m30s").
package simapi

import (
	"fmt"
	"time"

	"gpubroker/internal/money"
	"gpubroker/providers"
)

// Duration is a time.Duration that is written as text, for example "90s".
type Duration time.Duration

// D returns the plain duration.
func (d Duration) D() time.Duration { return time.Duration(d) }

// String is Go's own text form.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes Go's text form.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads Go's text form; a negative duration is an error.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil || v < 0 {
		return fmt.Errorf("simcloud: %q is no duration; write for example \"90s\"", b)
	}
	*d = Duration(v)
	return nil
}

// Place is where capacity is bought: a market without the account's name.
type Place struct {
	Region string         `json:"region,omitzero"`
	Zone   string         `json:"zone,omitzero"`
	Type   string         `json:"type,omitzero"`
	Kind   providers.Kind `json:"kind,omitzero"`
}

// String is "region/zone/type/kind".
func (p Place) String() string {
	return p.Region + "/" + p.Zone + "/" + p.Type + "/" + string(p.Kind)
}

// Matches reports whether p is within the pattern, in which an empty field
// means any.
func (p Place) Matches(pattern Place) bool {
	in := func(have, want string) bool { return want == "" || have == want }
	return in(p.Region, pattern.Region) && in(p.Zone, pattern.Zone) &&
		in(p.Type, pattern.Type) && in(string(p.Kind), string(pattern.Kind))
}

// Offer is one thing to rent.
type Offer struct {
	Place           `json:",inline"`
	providers.Shape `json:",inline"`
	Price           money.Rate             `json:"price"`
	Currency        money.Currency         `json:"currency"`
	Available       providers.Availability `json:"available,omitzero"`
	Free            *int                   `json:"free,omitzero"` // machines still to be had; absent when unlimited
	Seen            time.Time              `json:"seen"`
}

// Offers is the answer to GET /v1/offers.
type Offers struct {
	Offers []Offer `json:"offers"`
}

// Launch is the body of POST /v1/machines.
type Launch struct {
	Place    `json:",inline"`
	Request  string            `json:"request"`
	PriceMax money.Rate        `json:"price_max,omitzero"`
	UserData string            `json:"user_data,omitzero"`
	EndAt    time.Time         `json:"end_at,omitzero"`
	Disk     int64             `json:"disk,omitzero"` // bytes; within the price
	Tags     map[string]string `json:"tags,omitzero"`
}

// Machine is one machine as the cloud shows it.
type Machine struct {
	Place    `json:",inline"`
	ID       string                  `json:"id"`
	Request  string                  `json:"request"`
	Number   int                     `json:"number"` // counted from 1 in the order of launch
	State    providers.InstanceState `json:"state"`
	Cause    providers.Cause         `json:"cause,omitzero"`
	Message  string                  `json:"message,omitzero"`
	Tags     map[string]string       `json:"tags,omitzero"`
	Launched time.Time               `json:"launched"`
	Running  time.Time               `json:"running,omitzero"`
	Ended    time.Time               `json:"ended,omitzero"`
	EndAt    time.Time               `json:"end_at,omitzero"`
	Price    money.Rate              `json:"price,omitzero"`
	PriceMax money.Rate              `json:"price_max,omitzero"`
	Address  string                  `json:"address,omitzero"`
}

// Machines is one page of GET /v1/machines. Next is the id to go on after, or
// empty on the last page.
type Machines struct {
	Machines []Machine `json:"machines"`
	Next     string    `json:"next,omitzero"`
}

// MoveEnd is the body of PUT /v1/machines/{id}/end.
type MoveEnd struct {
	EndAt time.Time `json:"end_at"`
}

// Notice is a warning about a machine.
type Notice struct {
	Seq     int64                `json:"seq"`
	Machine string               `json:"machine"`
	Request string               `json:"request"`
	Region  string               `json:"region"`
	Zone    string               `json:"zone"`
	Kind    providers.NoticeKind `json:"kind"`
	Time    time.Time            `json:"time,omitzero"` // when the machine is taken
}

// Notices is the answer to GET /v1/events. Next is the number to ask with next.
type Notices struct {
	Notices []Notice `json:"notices"`
	Next    int64    `json:"next"`
}

// InstanceAction is what the metadata address says about a coming end.
type InstanceAction struct {
	Action string    `json:"action"` // always "terminate"
	Time   time.Time `json:"time"`
}

// Quotas is the answer to GET /v1/quotas.
type Quotas struct {
	Quotas []providers.Quota `json:"quotas"`
}

// About states the rules of the cloud: GET /v1/about.
type About struct {
	Currency     money.Currency         `json:"currency"`
	Capabilities providers.Capabilities `json:"capabilities"`
	Now          time.Time              `json:"now"`
	Left         []string               `json:"left,omitzero"` // in the account beside machines, in a dialect's words
}

// Invoice is what the cloud charges: GET /v1/invoice.
type Invoice struct {
	Currency money.Currency `json:"currency"`
	At       time.Time      `json:"at"`
	Lines    []InvoiceLine  `json:"lines"`
	Total    money.Amount   `json:"total"`
}

// InvoiceLine is the charge for one machine.
type InvoiceLine struct {
	Machine  string `json:"machine"`
	Request  string `json:"request"`
	Place    `json:",inline"`
	Tags     map[string]string `json:"tags,omitzero"`
	From     time.Time         `json:"from"`
	To       time.Time         `json:"to"`       // the invoice's own moment while the machine runs
	Open     bool              `json:"open"`     // it still runs
	Paid     Duration          `json:"paid"`     // billed time, after rounding
	Segments []Segment         `json:"segments"` // lived time by price
	Amount   money.Amount      `json:"amount"`   // rounded up once
}

// Segment is a stretch of a machine's life at one price.
type Segment struct {
	From  time.Time  `json:"from"`
	To    time.Time  `json:"to"`
	Price money.Rate `json:"price"`
}

// Event is one thing that happened in the world.
type Event struct {
	Seq     int64     `json:"seq"`
	At      time.Time `json:"at"`
	Kind    string    `json:"kind"` // launched, running, notice, rebalance, end_moved, stopping, terminated, price, capacity, fault, action, error
	Machine string    `json:"machine,omitzero"`
	Request string    `json:"request,omitzero"`
	Place   string    `json:"place,omitzero"`
	Text    string    `json:"text,omitzero"`
}

// Events is the answer to GET /admin/events.
type Events struct {
	Events []Event `json:"events"`
	Next   int64   `json:"next"`
}

// The words of [Error.Code].
const (
	CodeCapacity     = "InsufficientCapacity"
	CodeQuota        = "QuotaExceeded"
	CodePrice        = "PriceTooLow"
	CodeThrottled    = "Throttled"
	CodeUnauthorized = "Unauthorized"
	CodeNoFunds      = "PaymentRequired"
	CodeInvalid      = "InvalidRequest"
	CodeNoOffer      = "NoSuchOffer"
	CodeNotFound     = "MachineNotFound"
	CodeMismatch     = "RequestMismatch"
	CodeRefused      = "OperationRefused"
	CodeEndFixed     = "EndNotMovable"
	CodeUnavailable  = "Unavailable"
	CodeInternal     = "InternalError"
)

// Error is the error of an answer. On the wire it stands in [ErrorBody].
type Error struct {
	Status     int           `json:"-"`
	RetryAfter time.Duration `json:"-"` // header Retry-After, whole seconds
	Code       string        `json:"code"`
	Message    string        `json:"message"`
}

// Error is "code: message".
func (e *Error) Error() string { return "simcloud: " + e.Code + ": " + e.Message }

// ErrorBody is the body of a failed answer.
type ErrorBody struct {
	Error *Error `json:"error"`
}
