package providers

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Code is what a provider's answer means to the broker. The list is closed.
type Code string

// The codes. The reaction to each is in [Reactions].
const (
	NoCapacity     Code = "no_capacity"
	QuotaExceeded  Code = "quota_exceeded"
	PriceTooLow    Code = "price_too_low"
	RateLimited    Code = "rate_limited"
	Unauthorized   Code = "unauthorized"
	InvalidRequest Code = "invalid_request"
	NotFound       Code = "not_found"
	Conflict       Code = "conflict"
	Unavailable    Code = "unavailable"
	Unsupported    Code = "unsupported"
	NoFunds        Code = "no_funds"
	Canceled       Code = "canceled"
	DeadlineExceed Code = "deadline_exceeded"
	Unknown        Code = "unknown" // an answer that the adapter does not know: an adapter's defect, counted
)

// ErrScope is how far an error reaches: what else would fail the same way.
type ErrScope string

// The scopes, narrow to wide.
const (
	ScopeOffer    ErrScope = "offer"    // this market
	ScopeFamily   ErrScope = "family"   // this instance type in this region and kind
	ScopeRegion   ErrScope = "region"   // this region and kind
	ScopeProvider ErrScope = "provider" // the account
)

// Outcome is what is known about a launch that failed.
type Outcome string

// The outcomes. The zero value is for calls that are not launches.
const (
	NotCreated     Outcome = "not_created" // certainly no machine exists
	OutcomeUnknown Outcome = "unknown"     // one may: look for it by our id before another try
)

// Error is what every call of an adapter fails with.
type Error struct {
	Code       Code
	Scope      ErrScope
	Outcome    Outcome // launches only
	RetryAfter time.Duration
	Provider   string
	Op         string // launch, terminate, describe, list, offers, …
	Target     string // market or machine
	Message    string // the provider's words, redacted
	Err        error  // cause, may be nil
}

// Error is one line: "aws: launch p5.48xlarge/spot: no_capacity: …".
func (e *Error) Error() string {
	s := e.Provider + ": " + e.Op
	if e.Target != "" {
		s += " " + e.Target
	}
	s += ": " + string(e.Code)
	if e.Message != "" {
		s += ": " + e.Message
	}
	if e.Err != nil {
		s += fmt.Sprintf(": %v", e.Err)
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// CodeOf returns the code of the first [*Error] in err's chain. Context errors
// have codes of their own; anything else is [Unknown]. nil has the code "".
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	switch {
	case errors.Is(err, context.Canceled):
		return Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return DeadlineExceed
	default:
		return Unknown
	}
}

// OutcomeOf returns what is known about a failed launch. An error that says
// nothing leaves it unknown.
func OutcomeOf(err error) Outcome {
	if e, ok := errors.AsType[*Error](err); ok && e.Outcome != "" {
		return e.Outcome
	}
	return OutcomeUnknown
}

// Reaction is what the broker does about a code.
type Reaction struct {
	Scope    ErrScope      // how far the cool-down reaches unless the error says wider
	CoolDown time.Duration // first cool-down; doubles with each repeat
	Longest  time.Duration
	Retry    bool   // package managed may repeat the call (never a launch with an unknown outcome)
	Then     string // in words, for the docs
}

// Reactions returns the table of what the broker does about each code.
func Reactions() map[Code]Reaction {
	return map[Code]Reaction{
		NoCapacity:     {ScopeOffer, 3 * time.Minute, 10 * time.Minute, false, "try the next offer in the same pass"},
		QuotaExceeded:  {ScopeFamily, 15 * time.Minute, time.Hour, false, "try another family, region or kind; show it"},
		PriceTooLow:    {ScopeOffer, 3 * time.Minute, 30 * time.Minute, false, "read the price again, then raise within the caps or skip"},
		RateLimited:    {ScopeProvider, 0, 0, true, "wait as told and halve the pace"},
		Unauthorized:   {ScopeProvider, 10 * time.Minute, 10 * time.Minute, false, "stop launching there, go on ending machines, say so once"},
		NoFunds:        {ScopeProvider, 10 * time.Minute, time.Hour, false, "stop launching there and say so"},
		InvalidRequest: {ScopeFamily, 30 * time.Minute, 6 * time.Hour, false, "do not repeat it there; it is a defect or a setting"},
		NotFound:       {ScopeOffer, 0, 0, false, "describe, terminate: the machine is gone"},
		Conflict:       {ScopeOffer, 0, 0, false, "the request id exists: adopt what Describe returns"},
		Unavailable:    {ScopeProvider, 15 * time.Second, 5 * time.Minute, true, "launch: list by our id before any other; else back off"},
		DeadlineExceed: {ScopeProvider, 15 * time.Second, 5 * time.Minute, true, "as unavailable"},
		Canceled:       {ScopeOffer, 0, 0, false, "nothing"},
		Unsupported:    {ScopeFamily, 6 * time.Hour, 24 * time.Hour, false, "filtered out"},
		Unknown:        {ScopeOffer, 3 * time.Minute, 30 * time.Minute, false, "try the next offer, log it, count it"},
	}
}
