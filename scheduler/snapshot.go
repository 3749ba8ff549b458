package scheduler

import (
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/egress"
	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/internal/rates"
	"gpubroker/internal/reason"
	"gpubroker/internal/sizing"
	"gpubroker/providers"
	"gpubroker/scheduler/policy"
)

// Snapshot is everything that a plan may look at. Plan does not change it.
type Snapshot struct {
	Now   time.Time
	Facts *gpu.Table
	// Egress is what moving bytes costs; nil knows no price.
	Egress *egress.Table

	Catalog   *Catalog
	Groups    []Group
	Machines  []Machine
	Running   []Running
	Providers map[string]Provider
	Cooldowns map[string]Cooldown // by key, see the Key functions

	Budgets []budget.Budget
	// Book reads accounts and holds at this revision.
	Book budget.Book
	// Spent is each project's money in the fair-share window.
	Spent map[string]money.Amount
	// History is what was seen in spot markets, by market key.
	History map[string]policy.History
	// Library is the tables by which work with a deadline is decided; nil is Uniform
	// Progress. Outlooks are what was learned of spot markets, by market key, Unseen what
	// is believed of the others.
	Library  *policy.Library
	Outlooks map[string]*policy.Outlook
	Unseen   *policy.Outlook
	// Asked is since when tables are wanted that are not in the library. Work that holds
	// nothing waits for them for a while; with nil it never does.
	Asked map[policy.Key]time.Time

	Settings Settings
	// Frozen stops every launch, with the reason: a copied store, a store that
	// cannot be written.
	Frozen reason.Reason
}

// Settings are the owner's limits and lengths.
type Settings struct {
	Lease        time.Duration            // length of a lease
	ProjectLease map[string]time.Duration // where it differs
	Idle         time.Duration            // how long an empty machine is kept when billed by the second
	Stale        Stale                    // an offer seen longer ago is not used
	Launches     int                      // launches under way at most, over all; 0 means no limit
	All          Limits                   // over all
	Projects     map[string]Limits        // of a project; under "" of those not named
	Queues       map[string]Limits        // of a queue
	Shares       map[string]int           // of the money, against those of other projects; 1 of those not named
	Margin       time.Duration            // measured 99th percentile of the time to running beyond the usual
}

// Provider is what the broker knows of an account.
type Provider struct {
	Capabilities providers.Capabilities
	Cloud        string        // "aws", "lambda", …: tells apart regions of one name, and has egress prices; "" unknown
	Projects     []string      // that may use it; empty means all
	GuestEnd     bool          // the owner accepts machines that only end themselves
	Ready        reason.Reason // zero when launches are allowed, else why not
	Launching    int
	Limits       Limits // the owner's
	// Quotas are the account's limits that are known, with what is used of them
	// now. What none of them counts is not limited.
	Quotas []providers.Quota
}

// Cooldown is a part of the market that is left alone until a moment.
type Cooldown struct {
	Until  time.Time
	Reason reason.Reason
	// Taken means that a machine was taken there, and that no launch has been refused
	// since: what a gang has lost may be replaced there.
	Taken bool
}

// Needs is what one task asks of a machine. Zero asks for nothing.
type Needs struct {
	GPUs      float64          // for each task; 0 for a CPU task
	Slots     int              // tasks that may share one GPU; 0 and 1 mean that it is not shared
	Demand    sizing.Demand    // what they must hold, encode or carry; GPUs is then what it says where it has none
	Fabric    bool             // a task's GPUs, from two on, share a full fabric
	RDMA      bool             // its machines, from two on, are joined by RDMA
	WholeGPU  bool             // a machine that has a share of a GPU does not do
	Alone     bool             // a task on two GPUs and more has its machine alone
	GPU       []string         // canonical ids allowed; empty means any
	Require   gpu.Requirements // of the scenario and of the spec
	Runtime   gpu.Runtime      // what the software is built for
	Figure    string           // governing figure: an attribute of package gpu; "" means all are alike
	VCPU      float64
	Memory    int64
	Disk      int64
	Arch      string
	Kinds     []providers.Kind // allowed; empty means both
	Providers []string         // allowed; empty means all
	Regions   []string
	Zones     []string
	Near      Near
	MaxPrice  money.Rate // whole machine per hour; 0 means none
	// Nodes is how many machines a task needs at once, each of them whole and all
	// in one market; 0 and 1 mean one. The rest of the needs is of each.
	Nodes int
}

// Work is how much one task is.
type Work struct {
	// Task is how long one whole task runs on GPUs whose figure is Figure each, as
	// many and as shared as it asks for; 0 when nobody knows.
	Task time.Duration
	// Figure 0 means that nobody said which GPU: the fastest that may be used.
	Figure float64
	Source string        // given, assumed: where Task comes from
	Stage  time.Duration // before each task, beside what its bytes take
	Flows  []Flow        // what each task moves
	Saves  Saves
	// Rates are what was measured of jobs alike; nil when nothing was. They come
	// before Task. Groups whose jobs are alike share them.
	Rates *rates.Class
}

// Group is waiting tasks of one job that need the same: fresh ones, or ones that
// resume in the same region with about the same work left.
type Group struct {
	ID       string // job plus what tells the group apart
	Job      string
	Project  string
	Team     string
	Queue    string
	Priority int
	Accepted time.Time
	Since    time.Time // waiting since

	Waiting   int
	Left      float64 // share of each task's work left, 1 for fresh ones
	Limit     int     // how many more tasks of the job may run; -1 means no limit
	Needs     Needs
	Work      Work
	NotBefore time.Time

	Interruptible bool
	AtRisk        time.Duration // most work that a preemption undoes
	MaxDuration   time.Duration // 0 means none given
	Deadline      time.Time
	// Shut is how long its window is closed between now and the deadline, while it is
	// open now; ShutBefore how long it was since Accepted. Reopens is how often it opens
	// again in the time: each is another boot.
	Shut, ShutBefore time.Duration
	Reopens          int
	StopAt           time.Time // the deadline of a job that is not to start past it; zero means none
	Opens            time.Time // the window's next opening when it is closed now; zero when open
	Closes           time.Time // the window's end when it is open; zero when there is none
	Policy           policy.Name
	Value            money.Rate // of an hour until the job is done; 0 is none
	SpotAllowed      bool
	OnDemand         string        // see OnDemandAuto; "" is that
	MaxWait          time.Duration // of a task for spot, from Waits on; 0 means none given
	Waits            time.Time     // since when its tasks look for a machine
	Tried            bool          // they have looked in vain, or had one

	Notes []reason.Reason // how the needs follow from the work, for people
	Held  reason.Reason
	Rules []Rules // of its project and of its queue
	// Variants are other ways to do its work, for an explanation.
	Variants []Variant
	Payer    budget.Payer
	// Own means that the job has a budget of its own, and so machines of its own.
	Own bool
}

// Machine is one that lives, or is being launched.
type Machine struct {
	ID      string
	Market  providers.Market
	Shape   providers.Shape
	Project string
	Payer   string // the only job it serves; "" for any of the project
	Slots   int
	Used    int
	SlotKey string // what its slots were cut for
	Open    bool   // takes new tasks: requested, launching, booting or ready
	Ready   bool
	Price   money.Rate
	Bound   money.Rate // that its reservations assume; 0 means the price
	Born    time.Time  // billing starts
	Idle    time.Time  // empty since; zero while it works
	Lease   time.Time
	Billing money.Billing
	Shared  bool
}

// Running is an attempt that runs, for the policy and the clock.
type Running struct {
	Attempt string
	Machine string
	Beside  []string // the other machines of a gang
	Group   Group    // as if it waited: Left counts from its last commit
	Since   time.Time
	Useful  bool // the command runs
	Moves   bool // machines are rented already to which it moves
	// Unsaved is how long it has worked there since its last save.
	Unsaved time.Duration
	Stops   bool      // already asked to stop
	StopAt  time.Time // the deadline of a job that is not to run past it
}

// CooldownKey is the key under which a cool-down of that scope is kept, narrow
// to wide: "offer:" and the market, "family:" and the market without its zone,
// "region:" and provider, region and kind, "provider:" and the provider. A scope
// that is not known counts as the offer.
func CooldownKey(scope providers.ErrScope, m providers.Market) string {
	return string(appendCooldownKey(nil, scope, m))
}

func appendCooldownKey(b []byte, scope providers.ErrScope, m providers.Market) []byte {
	join := func(name string, parts ...string) []byte {
		b = append(append(b, name...), ':')
		for i, p := range parts {
			if i > 0 {
				b = append(b, '/')
			}
			b = append(b, p...)
		}
		return b
	}
	switch scope {
	case providers.ScopeFamily:
		return join("family", m.Provider, m.Region, m.Type, string(m.Kind))
	case providers.ScopeRegion:
		return join("region", m.Provider, m.Region, string(m.Kind))
	case providers.ScopeProvider:
		return join("provider", m.Provider)
	case providers.ScopeOffer:
	}
	return join("offer", m.Provider, m.Region, m.Zone, m.Type, string(m.Kind))
}

// cooled returns the longest cool-down that covers a market.
func (s *Snapshot) cooled(m providers.Market) (Cooldown, bool) {
	var out Cooldown
	if len(s.Cooldowns) == 0 {
		return out, false
	}
	var room [160]byte
	for _, scope := range [...]providers.ErrScope{providers.ScopeOffer, providers.ScopeFamily, providers.ScopeRegion, providers.ScopeProvider} {
		c, ok := s.Cooldowns[string(appendCooldownKey(room[:0], scope, m))]
		if ok && c.Until.After(s.Now) && c.Until.After(out.Until) {
			out = c
		}
	}
	return out, !out.Until.IsZero()
}

// history returns what was seen in a spot market.
func (s *Snapshot) history(m providers.Market) policy.History {
	if len(s.History) == 0 || m.Kind != providers.Spot {
		return policy.History{}
	}
	return s.History[m.String()]
}

// outlook is what was learned of a spot market, by its key.
func (s *Snapshot) outlook(market string) *policy.Outlook {
	if o, ok := s.Outlooks[market]; ok {
		return o
	}
	return s.Unseen
}
