package policy

import (
	"fmt"
	"time"

	"gpubroker/internal/money"
)

// Code is a stable reason. Its text is made by [Why.String], from numbers.
type Code string

// The reasons; [Why.String] says what each means.
const (
	Done             Code = "done"
	NotInterruptible Code = "not-interruptible"
	NoCandidate      Code = "no-candidate"
	CooledDown       Code = "cooled-down"
	SpotCheapest     Code = "spot-cheapest"
	SpotOnly         Code = "spot-only"
	SpotFirst        Code = "spot-first"
	WaitOver         Code = "wait-over"
	OnSpot           Code = "on-spot"
	OnSchedule       Code = "on-schedule"
	Behind           Code = "behind"
	CatchUp          Code = "catch-up"
	Ahead            Code = "ahead"
	KeepOnDemand     Code = "keep-on-demand"
	SafetyNet        Code = "safety-net"
	NoSpot           Code = "no-spot"
	OnDemandCheaper  Code = "on-demand-cheaper"
	OnDemandAway     Code = "on-demand-away"
	DeadlineAtRisk   Code = "deadline-at-risk"
	Launching        Code = "launching"
	CheapestNow      Code = "cheapest-now"
	CheapestHeld     Code = "cheapest-held"
	MovePays         Code = "move-pays"
	Patience         Code = "patience"
	SpotSoon         Code = "spot-soon"
	WaitCosts        Code = "wait-costs"
	TableSoon        Code = "table-soon"
)

// Codes are all reasons.
func Codes() []Code {
	return []Code{
		Done, NotInterruptible, NoCandidate, CooledDown, SpotCheapest, SpotOnly, SpotFirst, WaitOver, OnSpot,
		OnSchedule, Behind, CatchUp, Ahead, KeepOnDemand, SafetyNet, NoSpot, OnDemandCheaper,
		OnDemandAway, DeadlineAtRisk, Launching, CheapestNow, CheapestHeld, MovePays, Patience,
		SpotSoon, WaitCosts, TableSoon,
	}
}

// Why is a reason with its numbers; those that do not apply are zero.
type Why struct {
	Code   Code       `json:"code"`
	Market string     `json:"market,omitempty"`
	Price  money.Rate `json:"price,omitzero"`
	// Cost is the expected cost to finish there; Instead that of the alternative.
	Cost    money.Amount `json:"cost,omitzero"`
	Instead money.Amount `json:"instead,omitzero"`
	// Slack is the time that may still pass without progress, in nanoseconds;
	// negative if it is already too late.
	Slack time.Duration `json:"slack,omitzero"`
	// Behind is how far the work is behind its line, in nanoseconds of work.
	Behind time.Duration `json:"behind,omitzero"`
	// Soon is the time in which some spot is expected, in nanoseconds.
	Soon time.Duration `json:"soon,omitzero"`
	// At is when the next look is due, Latest when on demand starts at the latest
	// (or patience ends).
	At     time.Time `json:"at,omitzero"`
	Latest time.Time `json:"latest,omitzero"`
}

// String is the reason as a sentence in English, with times in UTC.
func (w Why) String() string {
	at := fmt.Sprintf("%s at $%s/h", w.Market, w.Price)
	slack := short(w.Slack)
	switch w.Code {
	case Done:
		return "nothing is left to do"
	case NotInterruptible:
		return fmt.Sprintf("%s: the work may not be interrupted", at)
	case NoCandidate:
		return "no market is left that this work may use"
	case CooledDown:
		return fmt.Sprintf("waiting: every usable market refused lately; next try at %s", clock(w.At))
	case SpotCheapest:
		return fmt.Sprintf("%s: the cheapest spot, about $%s to finish; %s of slack", at, w.Cost.Short(), slack)
	case SpotOnly:
		return fmt.Sprintf("%s: on demand is not allowed, so the deadline is only a hope", at)
	case SpotFirst: // the caller's, who does not show on-demand before Latest
		if w.Market == "" {
			return fmt.Sprintf("waiting for spot; on demand from %s at the latest", clock(w.Latest))
		}
		return fmt.Sprintf("%s; on demand from %s at the earliest", at, clock(w.Latest))
	case WaitOver:
		return fmt.Sprintf("%s: the longest wait for spot is over", at)
	case OnSpot:
		return fmt.Sprintf("staying on %s; %s of slack", at, slack)
	case OnSchedule:
		return fmt.Sprintf("waiting for spot: %s of slack left; on demand from %s at the latest", slack, clock(w.Latest))
	case Behind:
		return fmt.Sprintf("%s: no spot, and %s of work behind the line to the deadline", at, short(w.Behind))
	case CatchUp:
		return fmt.Sprintf("staying on %s: %s of work short of moving to spot safely", at, short(w.Behind))
	case Ahead:
		return fmt.Sprintf("moving to %s: far enough ahead of the line to the deadline", at)
	case KeepOnDemand:
		return fmt.Sprintf("staying on %s: no spot that pays can be started", at)
	case SafetyNet:
		return fmt.Sprintf("%s: %s of slack is too little for another try on spot", at, slack)
	case NoSpot:
		return fmt.Sprintf("%s: no spot market is offered for this work", at)
	case OnDemandCheaper:
		return fmt.Sprintf("%s: spot is not expected to be cheaper", at)
	case OnDemandAway:
		return fmt.Sprintf("%s: on demand refused lately, and there is no time to wait for it", at)
	case DeadlineAtRisk:
		return fmt.Sprintf("%s: the deadline may be missed by %s", at, short(-w.Slack))
	case Launching:
		return fmt.Sprintf("%s is starting", at)
	case CheapestNow:
		return fmt.Sprintf("%s: least expected cost, about $%s to finish", at, w.Cost.Short())
	case CheapestHeld:
		return fmt.Sprintf("staying on %s: no move pays; about $%s to finish", at, w.Cost.Short())
	case MovePays:
		return fmt.Sprintf("moving to %s: about $%s to finish instead of $%s", at, w.Cost.Short(), w.Instead.Short())
	case SpotSoon:
		return fmt.Sprintf("waiting: %s of slack left, spot expected within %s, best at $%s/h; on demand from %s at the latest",
			slack, short(w.Soon), w.Price, clock(w.Latest))
	case WaitCosts:
		return fmt.Sprintf("%s: waiting for spot would cost more; about $%s to finish", at, w.Cost.Short())
	case TableSoon: // the caller's, while it builds what Decision.Want says
		return fmt.Sprintf("waiting until %s at the longest for the expected costs of spot to be worked out", clock(w.At))
	case Patience:
		return fmt.Sprintf("waiting until %s for something cheaper than $%s to finish; patience ends at %s",
			clock(w.At), w.Cost.Short(), clock(w.Latest))
	}
	return string(w.Code)
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") }

// short shows a duration to the minute, or to the second under ten minutes.
func short(d time.Duration) string {
	if d.Abs() < 10*time.Minute {
		return d.Round(time.Second).String()
	}
	s := d.Round(time.Minute).String()
	return s[:len(s)-len("0s")]
}
