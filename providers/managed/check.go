package managed

import (
	"fmt"
	"math"
	"reflect"
	"time"

	"gpubroker/providers"
)

// Reason is a breach of the contract by an adapter. The list is closed.
type Reason string

// The breaches by offers.
const (
	WrongProvider Reason = "wrong_provider" // the market names another account
	NoType        Reason = "no_type"
	StrangeKind   Reason = "strange_kind"   // neither spot nor on-demand
	NoPrice       Reason = "no_price"       // zero, negative or missing
	PartsDiffer   Reason = "parts_differ"   // the parts do not sum to the price
	NoCurrency    Reason = "no_currency"    // not three capitals
	NotSeen       Reason = "not_seen"       // no moment at which it was seen
	SeenInFuture  Reason = "seen_in_future" // more than five minutes ahead of our clock
	BadShape      Reason = "bad_shape"      // a negative or impossible number
	KeyTwice      Reason = "key_twice"      // two offers in one market; when they differ, none can be trusted
)

// The breaches by machines.
const (
	ForeignOwner Reason = "foreign_owner" // without our owner tag
	WrongRequest Reason = "wrong_request" // another request id than the one asked for
	WrongMarket  Reason = "wrong_market"  // launched elsewhere than asked
	WrongID      Reason = "wrong_id"      // another cloud id than the one asked for
	NoID         Reason = "no_id"
	SameID       Reason = "same_id"     // one machine for two requests
	WrongCount   Reason = "wrong_count" // not one answer for each request
)

// The breaches by other answers.
const (
	BadFunds Reason = "bad_funds" // no currency, or no moment
	BadScore Reason = "bad_score" // not from 1 to 10, or of a region that was not asked for
)

// Catalog is a whole list of offers, sorted out.
type Catalog struct {
	Offers      []providers.Offer
	Quarantined []Quarantined
}

// Quarantined is an offer that must not be rented, and why.
type Quarantined struct {
	Offer  providers.Offer
	Reason Reason
}

// clockSkew is how far a provider's clock may be ahead of ours.
const clockSkew = 5 * time.Minute

// SortOut splits a list of offers of one provider by the contract. It keeps their
// order, and sets the zone of their times.
func SortOut(provider string, offers []providers.Offer, now time.Time) Catalog {
	first := make(map[providers.Market]int, len(offers))
	differ := map[providers.Market]bool{}
	for i := range offers {
		offers[i].Seen = offers[i].Seen.UTC()
		if j, ok := first[offers[i].Market]; !ok {
			first[offers[i].Market] = i
		} else if !reflect.DeepEqual(offers[i], offers[j]) {
			differ[offers[i].Market] = true
		}
	}
	c := Catalog{Offers: make([]providers.Offer, 0, len(offers))}
	for i, o := range offers {
		why := checkOffer(provider, o, now)
		if why == "" && (differ[o.Market] || first[o.Market] != i) {
			why = KeyTwice
		}
		if why != "" {
			c.Quarantined = append(c.Quarantined, Quarantined{Offer: showable(o), Reason: why})
			continue
		}
		c.Offers = append(c.Offers, o)
	}
	return c
}

// showable is an offer without what JSON cannot hold.
func showable(o providers.Offer) providers.Offer {
	for _, f := range [...]*float64{&o.GPUs, &o.VCPU} {
		if math.IsNaN(*f) || math.IsInf(*f, 0) {
			*f = 0
		}
	}
	o.Seen = providers.Sane(o.Seen)
	return o
}

func checkOffer(provider string, o providers.Offer, now time.Time) Reason {
	switch {
	case o.Provider != provider:
		return WrongProvider
	case o.Type == "":
		return NoType
	case o.Kind != providers.Spot && o.Kind != providers.OnDemand:
		return StrangeKind
	case o.Price <= 0:
		return NoPrice
	case !sumsUp(o):
		return PartsDiffer
	case !currency(string(o.Currency)):
		return NoCurrency
	case o.Seen.IsZero():
		return NotSeen
	case o.Seen.After(now.Add(clockSkew)):
		return SeenInFuture
	case !sane(o.GPUs) || !sane(o.VCPU) || o.GPUMemory < 0 || o.Memory < 0 || o.Disk < 0 || o.NetworkBps < 0 || o.Capacity < 0:
		return BadShape
	}
	return ""
}

func sumsUp(o providers.Offer) bool {
	if len(o.Parts) == 0 {
		return true
	}
	left := o.Price
	for _, part := range o.Parts {
		if part.Price < 0 || part.Price > left {
			return false
		}
		left -= part.Price
	}
	return left == 0
}

func currency(s string) bool {
	if len(s) != 3 {
		return false
	}
	for _, c := range []byte(s) {
		if c < 'A' || c > 'Z' {
			return false
		}
	}
	return true
}

func sane(f float64) bool { return f >= 0 && !math.IsInf(f, 0) } // NaN compares false

// checkRequest finds what is wrong with a launch before any call is made.
func checkRequest(provider string, caps providers.Capabilities, req providers.LaunchRequest) error {
	switch {
	case req.Request == "":
		return fmt.Errorf("no request id")
	case req.Tags.Request != req.Request:
		return fmt.Errorf("the tags name request %q, the launch %q", req.Tags.Request, req.Request)
	case req.Tags.Owner == "":
		return fmt.Errorf("no owner tag: the machine could not be found again")
	case req.Market.Provider != provider:
		return fmt.Errorf("the market is of provider %q", req.Market.Provider)
	case req.PriceMax < 0:
		return fmt.Errorf("negative price bound %s", req.PriceMax)
	case caps.UserDataLimit > 0 && len(req.UserData) > caps.UserDataLimit:
		return fmt.Errorf("user data has %d bytes, the provider takes %d", len(req.UserData), caps.UserDataLimit)
	}
	return nil
}

func checkLaunched(owner string, req providers.LaunchRequest, i providers.Instance) Reason {
	if why := checkIdentity(owner, providers.Ref{Request: req.Request}, i); why != "" {
		return why
	}
	switch {
	case i.Ref.ID == "":
		return NoID
	case i.Market != req.Market:
		return WrongMarket
	}
	return ""
}

// checkIdentity reports whether i is the machine that ref names. Tags that the
// cloud has not stored yet are no contradiction.
func checkIdentity(owner string, ref providers.Ref, i providers.Instance) Reason {
	switch {
	case ref.ID != "" && i.Ref.ID != ref.ID:
		return WrongID
	case i.Ref.Request != ref.Request, i.Tags.Request != "" && i.Tags.Request != ref.Request:
		return WrongRequest
	case owner != "" && i.Tags.Owner != "" && i.Tags.Owner != owner:
		return ForeignOwner
	}
	return ""
}

func checkListed(owner string, i providers.Instance) Reason {
	switch {
	case owner != "" && i.Tags.Owner != owner:
		return ForeignOwner
	case i.Ref.ID == "":
		return NoID
	case i.Tags.Request != "" && i.Ref.Request != i.Tags.Request:
		return WrongRequest
	}
	return ""
}
