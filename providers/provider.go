package providers

import (
	"cmp"
	"context"
	"time"

	"gpubroker/internal/money"
)

// Provider is one named account at a cloud, at a marketplace, or a set of
// machines that somebody owns.
type Provider interface {
	// Name is the account's name in the configuration, stable and lower-case.
	Name() string

	// Capabilities are static facts; no call is made.
	Capabilities() Capabilities

	// Offers returns every offer in the scope, unavailable ones too, each with
	// its price and the moment it was seen: the whole list or an error.
	Offers(ctx context.Context, scope Scope) ([]Offer, error)

	// Launch rents at most one machine per request id, however often it is
	// called, tags it in the same step where the cloud can, and returns once the
	// cloud has accepted it. On failure it leaves nothing behind, or says
	// [OutcomeUnknown].
	Launch(ctx context.Context, req LaunchRequest) (Instance, error)

	// Terminate asks for the machine's end and repeats safely. nil means that the
	// request was accepted, not that the machine is gone; [NotFound] means that
	// it is certainly gone.
	Terminate(ctx context.Context, ref Ref) error

	// Describe returns the machine as it is now, and why it ended where the
	// cloud says so. A machine that is gone from the cloud's memory is NotFound.
	Describe(ctx context.Context, ref Ref) (Instance, error)

	// List returns every machine that bears our owner tag, those that the broker
	// has forgotten included: the whole list or an error. Ended machines may be
	// listed while the cloud remembers them.
	List(ctx context.Context) ([]Instance, error)
}

// Ref names a machine. ID is the cloud's, and empty when it was never learned;
// Request is ours and always set.
type Ref struct {
	ID      string `json:"id,omitzero"`
	Request string `json:"request"`
	Region  string `json:"region,omitzero"`
	Zone    string `json:"zone,omitzero"`
}

// String names the machine in messages: the cloud's id, else ours.
func (r Ref) String() string { return cmp.Or(r.ID, r.Request) }

// Tags mark a machine as ours. An adapter stores them under its cloud's rules
// and returns them from Describe and List.
type Tags struct {
	Owner      string    `json:"owner"`      // the broker's name
	Generation string    `json:"generation"` // the store's generation
	Request    string    `json:"request"`    // our instance id
	Project    string    `json:"project,omitzero"`
	DeleteAt   time.Time `json:"delete_at"` // nobody needs the machine after this
}

// LaunchRequest asks for one machine.
type LaunchRequest struct {
	Request  string // our instance id: the idempotency token, and part of the tags
	Market   Market
	PriceMax money.Rate    // the price bound; 0 means none
	UserData string        // a script that the machine runs as root at boot
	End      time.Time     // when the provider shall end it (SelfEnd rolling and fixed)
	Life     time.Duration // the longest life that may be asked for (SelfEnd fixed)
	Disk     int64         // bytes of disk wanted; 0 means the type's own
	Group    string        // machines of one group stand close together, on the fast network where the type has one; "" means anywhere
	Tags     Tags
}

// InstanceState is what the cloud says about a machine.
type InstanceState string

// The observed states.
const (
	Pending      InstanceState = "pending"
	Running      InstanceState = "running"
	Stopping     InstanceState = "stopping"
	Terminated   InstanceState = "terminated"
	StateStrange InstanceState = "unknown" // the cloud said a word that we do not know
)

// Cause is why a machine ended.
type Cause string

// The causes. CauseUnknown means that the cloud did not say.
const (
	CauseUnknown   Cause = ""
	CausePreempted Cause = "preempted" // the provider took it back
	CauseUser      Cause = "user"      // terminated by a call
	CauseExpired   Cause = "expired"   // its own end came
	CauseGuest     Cause = "guest"     // it shut itself down
	CauseError     Cause = "error"     // it failed at the provider
	CausePrice     Cause = "price"     // the price rose above the bound
)

// Instance is a machine as the cloud sees it.
type Instance struct {
	Ref      Ref           `json:"ref"`
	Market   Market        `json:"market"`
	State    InstanceState `json:"state"`
	Cause    Cause         `json:"cause,omitzero"`
	Message  string        `json:"message,omitzero"` // the cloud's words on its end
	Tags     Tags          `json:"tags"`
	Launched time.Time     `json:"launched"`
	Ended    time.Time     `json:"ended,omitzero"`
	End      time.Time     `json:"end,omitzero"` // the end that the provider keeps for it
	Price    money.Rate    `json:"price,omitzero"`
	Address  string        `json:"address,omitzero"`
}

// Live reports whether the machine may still cost money.
func (i Instance) Live() bool { return i.State != Terminated }
