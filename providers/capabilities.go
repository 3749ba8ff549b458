package providers

import (
	"context"
	"time"

	"gpubroker/internal/money"
)

// SelfEnd says who ends a machine when the broker cannot.
type SelfEnd string

// The ways in which a machine ends without the broker.
const (
	// EndRolling means that the provider ends it at a time that can be moved.
	EndRolling SelfEnd = "rolling"
	// EndFixed means that the provider ends it at a time set at launch for good.
	EndFixed SelfEnd = "fixed"
	// EndGuest means that the machine must end itself.
	EndGuest SelfEnd = "guest"
	// EndNone means that nothing ends it.
	EndNone SelfEnd = "none"
)

// EndAction is what the agent does on the machine when its lease ends.
type EndAction string

// The end actions. The zero value is EndStopTasks, which is always safe.
const (
	EndStopTasks EndAction = "stop-tasks"
	EndPoweroff  EndAction = "poweroff" // only when the metadata's instance id matches
	EndAPI       EndAction = "api"      // the machine's own credential deletes it
)

// NoticeSource is how a warning of preemption reaches us.
type NoticeSource string

// The sources of notices.
const (
	NoticeNone     NoticeSource = "none"
	NoticeMetadata NoticeSource = "metadata" // the machine's metadata address
	NoticeEvents   NoticeSource = "events"   // a stream at the provider
)

// Metadata is the kind of metadata service that a cloud's machines have.
type Metadata string

// The metadata services that the agent speaks.
const (
	MetadataNone     Metadata = ""
	MetadataSimcloud Metadata = "simcloud"
	MetadataEC2      Metadata = "ec2" // IMDSv2
	MetadataGCE      Metadata = "gce"
	MetadataAzure    Metadata = "azure" // with Scheduled Events
)

// Capabilities are the static facts of a provider. No call is made for them.
type Capabilities struct {
	Kinds         []Kind        `json:"kinds"`
	Notice        time.Duration `json:"notice"` // typical warning before a preemption; 0 means none
	NoticeSource  NoticeSource  `json:"notice_source"`
	Billing       money.Billing `json:"billing"`
	BillsBoot     bool          `json:"bills_boot"`     // time before the machine runs is paid
	PriceBound    bool          `json:"price_bound"`    // a maximum price can be set at launch and is kept
	TagsAtLaunch  bool          `json:"tags_at_launch"` // tags are set in the launch call itself
	LaunchToken   bool          `json:"launch_token"`   // a repeated launch with the same id returns the same machine
	ListLag       time.Duration `json:"list_lag"`       // a new machine may be missing from List for this long
	SelfEnd       SelfEnd       `json:"self_end"`
	EndAction     EndAction     `json:"end_action"`
	Beside        bool          `json:"beside,omitzero"`     // a machine that ends by itself leaves disks, addresses or scripts behind, which Terminate removes
	EndScript     string        `json:"end_script,omitzero"` // EndAPI: shell text with which a machine deletes itself; it runs as root and may run again
	Metadata      Metadata      `json:"metadata,omitzero"`   // the service that tells a machine of its notices
	StopTime      time.Duration `json:"stop_time"`           // from terminate to the end of billing, at most
	BootTime      time.Duration `json:"boot_time"`           // typical, until the agent calls in
	LongestLife   time.Duration `json:"longest_life,omitzero"`
	UserDataLimit int           `json:"user_data_limit,omitzero"` // bytes
	Reach         Reach         `json:"reach,omitzero"`           // from where its machines call the broker: Network.Reach(endpoint)
	Shared        bool          `json:"shared,omitzero"`          // machines that are not ours to end: never powered off, never deleted
}

// The optional abilities: an adapter implements those that its cloud has.
type (
	// Interrupter streams warnings from the provider until ctx ends. The channel
	// is closed by the adapter.
	Interrupter interface {
		Interruptions(ctx context.Context) (<-chan Notice, error)
	}
	// EndMover moves the end that the provider keeps for a machine
	// (SelfEnd rolling). It repeats safely.
	EndMover interface {
		MoveEnd(ctx context.Context, ref Ref, end time.Time) error
	}
	// Biller reports what a machine has been charged for, once it is gone or
	// while it runs.
	Biller interface {
		Bill(ctx context.Context, ref Ref) (Bill, error)
	}
	// Quotas reports the account's limits.
	Quotas interface {
		Quotas(ctx context.Context) ([]Quota, error)
	}
	// Preflight checks credentials and permissions without renting anything.
	Preflight interface {
		Preflight(ctx context.Context) error
	}
	// Balance reports what is left of a prepaid account.
	Balance interface {
		Balance(ctx context.Context) (Funds, error)
	}
	// Scores reports how likely it is that so many machines of a type can be had,
	// where the provider says so.
	Scores interface {
		Scores(ctx context.Context, instanceType string, regions []string, machines int) ([]Score, error)
	}
	// Gaps says what the last list of offers leaves out, and why. It makes no call.
	Gaps interface {
		Unmatched() []string
	}
	// BulkLauncher rents many machines in few calls.
	BulkLauncher interface {
		// LaunchMany is Launch for requests of one market, bound and group, which
		// differ only in what is each machine's own. Answer i is that of request i.
		LaunchMany(ctx context.Context, reqs []LaunchRequest) []LaunchAnswer
	}
	// Console returns the last bytes of a machine's console.
	Console interface {
		Console(ctx context.Context, ref Ref) ([]byte, error)
	}
)

// Notice is a warning about a machine.
type Notice struct {
	Ref  Ref        `json:"ref"`
	Kind NoticeKind `json:"kind"`
	At   time.Time  `json:"at"` // when the machine is taken; zero when not said
}

// NoticeKind is what a notice warns of.
type NoticeKind string

// The kinds of notices.
const (
	NoticePreempt   NoticeKind = "preempt"   // the machine is going to be taken
	NoticeRebalance NoticeKind = "rebalance" // the risk has risen: save now, nothing more
)

// Bill is what a provider has recorded for one machine.
type Bill struct {
	Start  time.Time     `json:"start"`
	End    time.Time     `json:"end,omitzero"`   // zero while it runs
	Prices []PriceChange `json:"prices"`         // first at Start, ascending; none when it is only said when
	Total  *money.Amount `json:"total,omitzero"` // the provider's own sum, when it says one
}

// PriceChange is the price of a machine from a moment on.
type PriceChange struct {
	From  time.Time  `json:"from"`
	Price money.Rate `json:"price"`
}

// Quota is one limit of the account.
type Quota struct {
	Name   string   `json:"name"`
	Region string   `json:"region,omitzero"`
	Kind   Kind     `json:"kind,omitzero"`
	Types  []string `json:"types,omitzero"` // the instance types it counts; empty means all
	Unit   string   `json:"unit"`           // see the Unit constants; another one is only shown
	Limit  float64  `json:"limit"`          // negative means none
	Used   float64  `json:"used"`
}

// What quotas count.
const (
	UnitVCPU    = "vcpu"
	UnitGPU     = "gpu"
	UnitMachine = "machine"
)

// Funds is what is left of a prepaid account.
type Funds struct {
	Left     money.Amount   `json:"left"`
	Currency money.Currency `json:"currency"`
	At       time.Time      `json:"at"`
}

// LaunchAnswer is what a launch gave: a machine or an error.
type LaunchAnswer struct {
	Instance Instance
	Err      error
}

// Score is a provider's word on how likely capacity is.
type Score struct {
	Region string `json:"region"`
	Zone   string `json:"zone,omitzero"`
	Of10   int    `json:"of_10"` // 1 to 10, 10 the likeliest
}
