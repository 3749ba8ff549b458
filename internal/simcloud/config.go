package simcloud

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/goccy/go-yaml"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// Duration is a duration that is written as text, for example "90s".
type Duration = simapi.Duration

// Config describes a world. Files are YAML or JSON, decoded strictly.
type Config struct {
	Seed     uint64         `json:"seed"`
	Currency money.Currency `json:"currency,omitzero"` // default USD

	Billing   Billing  `json:"billing,omitzero"`
	BillsBoot bool     `json:"bills_boot,omitzero"` // billing starts at launch, not when the machine runs
	Boot      Duration `json:"boot,omitzero"`       // from launch until the machine runs
	BootSpan  Duration `json:"boot_span,omitzero"`  // a seeded extra of up to this
	StopTime  Duration `json:"stop_time,omitzero"`  // from terminate until it is gone and billing ends
	Notice    Duration `json:"notice,omitzero"`     // warning before a preemption; 0 means none
	ListLag   Duration `json:"list_lag,omitzero"`   // lists show the machines as they were this long ago
	Remember  Duration `json:"remember,omitzero"`   // ended machines are shown this long; default 1 h
	PageSize  int      `json:"page_size,omitzero"`  // machines on a page of a list; default 100

	SelfEnd   providers.SelfEnd   `json:"self_end,omitzero"`   // default rolling
	EndAction providers.EndAction `json:"end_action,omitzero"` // default poweroff; with any other a machine that is powered off stays and is billed

	Offers []Offer         `json:"offers"`
	Quotas []Quota         `json:"quotas,omitzero"`
	Faults []simapi.Fault  `json:"faults,omitzero"`
	Script []simapi.Action `json:"script,omitzero"`

	Machines MachineConfig `json:"machines,omitzero"`
	Tokens   Tokens        `json:"-"` // never in the file
	Dialect  *Dialect      `json:"-"` // nil is simcloud's own
}

// Billing is the billing rule, as [money.Billing] states it.
type Billing struct {
	Unit    Duration `json:"unit,omitzero"`
	Minimum Duration `json:"minimum,omitzero"`
}

// Offer is one market of the world.
type Offer struct {
	simapi.Place    `json:",inline"`
	providers.Shape `json:",inline"`
	Price           money.Rate `json:"price"`
	Capacity        *int       `json:"capacity,omitzero"` // machines it can hold; absent means without limit
	Steps           []Step     `json:"steps,omitzero"`    // what changes, ascending
	Walk            *Walk      `json:"walk,omitzero"`     // a price that moves by itself
	Replay          *Replay    `json:"replay,omitzero"`   // steps from recorded files, added to Steps
}

// Step is a change of an offer at a moment after the world's start.
type Step struct {
	At       Duration    `json:"at"`
	Price    *money.Rate `json:"price,omitzero"`
	Capacity *int        `json:"capacity,omitzero"`
}

// Walk moves a price every Every by up to Percent of the first price, up or
// down, within Low and High percent of it. It is drawn from the world's seed.
type Walk struct {
	Every   Duration `json:"every"`
	Percent int64    `json:"percent"`
	Low     int64    `json:"low"`
	High    int64    `json:"high"`
}

// Quota is a limit of the account in a unit: vcpu, gpu or machine.
type Quota struct {
	Name   string         `json:"name"`
	Region string         `json:"region,omitzero"`
	Kind   providers.Kind `json:"kind,omitzero"`
	Types  []string       `json:"types,omitzero"` // empty means all
	Unit   string         `json:"unit"`
	Limit  float64        `json:"limit"`
}

// MachineConfig says how real machines are run.
type MachineConfig struct {
	Dir        string `json:"dir,omitzero"`         // their folders are made in it; default a temporary one
	Keep       bool   `json:"keep,omitzero"`        // folders stay after the end
	AgentImage string `json:"agent_image,omitzero"` // path of an agent that the machine's image holds
	Isolation  string `json:"isolation,omitzero"`   // auto, namespace or group; default auto
	Console    int    `json:"console,omitzero"`     // bytes of console kept; default 256 KiB
}

// Load reads a configuration file.
func Load(path string) (Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("simcloud: read configuration: %w", err)
	}
	cfg, err := Parse(data)
	if err != nil {
		return Config{}, fmt.Errorf("simcloud: %s: %w", path, err)
	}
	return cfg, nil
}

// Parse reads a configuration in YAML or JSON. Unknown keys are errors that
// show the line.
func Parse(data []byte) (Config, error) {
	var cfg Config
	if err := yaml.UnmarshalWithOptions(data, &cfg, yaml.Strict()); err != nil {
		return Config{}, err
	}
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return Config{}, err
	}
	return cfg, nil
}

func (c Config) withDefaults() Config {
	if c.Currency == "" {
		c.Currency = money.USD
	}
	if c.SelfEnd == "" {
		c.SelfEnd = providers.EndRolling
	}
	if c.EndAction == "" {
		c.EndAction = providers.EndPoweroff
	}
	if c.Remember == 0 {
		c.Remember = Duration(time.Hour)
	}
	if c.PageSize == 0 {
		c.PageSize = 100
	}
	if c.Machines.Isolation == "" {
		c.Machines.Isolation = IsolationAuto
	}
	if c.Machines.Console == 0 {
		c.Machines.Console = 256 << 10
	}
	return c
}

// Validate returns every fault of the configuration.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("simcloud: "+format, args...)) }
	if !validSelfEnd(c.SelfEnd) {
		bad("self_end %q: want rolling, fixed, guest or none", c.SelfEnd)
	}
	if !validEndAction(c.EndAction) {
		bad("end_action %q: want stop-tasks, poweroff or api", c.EndAction)
	}
	if c.PageSize < 0 || c.Machines.Console < 0 {
		bad("page_size and console must not be negative")
	}
	seen := map[simapi.Place]bool{}
	for i, o := range c.Offers {
		switch {
		case o.Type == "":
			bad("offer %d: type is missing", i+1)
		case o.Kind != providers.Spot && o.Kind != providers.OnDemand:
			bad("offer %s: kind %q: want spot or on-demand", o.Place, o.Kind)
		case o.Price <= 0:
			bad("offer %s: the price must be above zero", o.Place)
		case seen[o.Place]:
			bad("offer %s stands twice", o.Place)
		case o.Capacity != nil && *o.Capacity < 0:
			bad("offer %s: the capacity is negative", o.Place)
		case o.Walk != nil && (o.Walk.Every <= 0 || o.Walk.Percent < 0 || o.Walk.Low <= 0 || o.Walk.High < o.Walk.Low):
			bad("offer %s: walk needs every > 0, percent ≥ 0 and 0 < low ≤ high", o.Place)
		}
		seen[o.Place] = true
		for j, s := range o.Steps {
			if j > 0 && s.At < o.Steps[j-1].At {
				bad("offer %s: step %d is before the one above it", o.Place, j+1)
			}
			if s.Price != nil && *s.Price <= 0 || s.Capacity != nil && *s.Capacity < 0 {
				bad("offer %s: step %d: a price above zero and a capacity not below it", o.Place, j+1)
			}
		}
	}
	for _, q := range c.Quotas {
		if !slices.Contains([]string{"vcpu", "gpu", "machine"}, q.Unit) || q.Limit < 0 {
			bad("quota %q: unit vcpu, gpu or machine, and a limit not below zero", q.Name)
		}
	}
	for i, f := range c.Faults {
		if err := checkFault(f); err != nil {
			bad("fault %d: %w", i+1, err)
		}
	}
	for i, a := range c.Script {
		if err := checkAction(a); err != nil {
			bad("script entry %d: %w", i+1, err)
		}
	}
	switch c.Machines.Isolation {
	case IsolationAuto, IsolationNamespace, IsolationGroup:
	default:
		bad("machines.isolation %q: want auto, namespace or group", c.Machines.Isolation)
	}
	return errors.Join(errs...)
}

// Capabilities are the world's rules in the contract's words: what the settings
// of an account here should state.
func (c Config) Capabilities() providers.Capabilities {
	c = c.withDefaults()
	source := providers.NoticeMetadata
	if c.Notice == 0 {
		source = providers.NoticeNone
	}
	return providers.Capabilities{
		Kinds:        []providers.Kind{providers.Spot, providers.OnDemand},
		Notice:       c.Notice.D(),
		NoticeSource: source,
		Billing:      money.Billing{Unit: c.Billing.Unit.D(), Minimum: c.Billing.Minimum.D()},
		BillsBoot:    c.BillsBoot,
		PriceBound:   true,
		TagsAtLaunch: true,
		LaunchToken:  true,
		ListLag:      c.ListLag.D(),
		SelfEnd:      c.SelfEnd,
		EndAction:    c.EndAction,
		StopTime:     c.StopTime.D(),
		BootTime:     (c.Boot + c.BootSpan).D(),
		// User data is kept in memory; the limit is EC2's, so that scripts that
		// work here fit there (16 KiB: EC2 user guide, "User data").
		UserDataLimit: UserDataLimit,
		Metadata:      providers.MetadataSimcloud,
	}
}

// UserDataLimit is the longest user data in bytes.
const UserDataLimit = 16 << 10

func validSelfEnd(s providers.SelfEnd) bool {
	return slices.Contains([]providers.SelfEnd{providers.EndRolling, providers.EndFixed, providers.EndGuest, providers.EndNone}, s)
}

func validEndAction(a providers.EndAction) bool {
	return slices.Contains([]providers.EndAction{providers.EndStopTasks, providers.EndPoweroff, providers.EndAPI}, a)
}

func checkFault(f simapi.Fault) error {
	switch {
	case !slices.Contains(simapi.Effects(), f.Effect):
		return fmt.Errorf("effect %q is unknown; one of %v", f.Effect, simapi.Effects())
	case f.Op != "" && !slices.Contains(simapi.Ops(), f.Op):
		return fmt.Errorf("op %q is unknown; one of %v", f.Op, simapi.Ops())
	case (f.Effect == simapi.Lose || f.Effect == simapi.Short) != (f.Op == "notice"):
		return fmt.Errorf("effect %q with op %q: lose and short go with op notice, and nothing else does", f.Effect, f.Op)
	case f.Effect == simapi.Dud && f.Op != "launch":
		return fmt.Errorf("effect dud goes with op launch")
	case f.Effect == simapi.Stale && f.Op != "list" && f.Op != "offers":
		return fmt.Errorf("effect stale goes with op list or offers")
	case f.Chance < 0 || f.Chance > 100 || f.Nth < 0 || f.Times < -1:
		return fmt.Errorf("chance is 0 to 100, nth not negative, times not below -1")
	case f.Channel != "" && f.Channel != "metadata" && f.Channel != "events":
		return fmt.Errorf("channel %q: want metadata or events", f.Channel)
	}
	return nil
}

func checkAction(a simapi.Action) error {
	n := 0
	for _, set := range []bool{
		a.Preempt != nil, a.Rebalance != nil, a.Capacity != nil, a.Price != nil,
		a.SelfEnd != nil, a.Fault != nil, a.Crash != nil, a.Freeze != nil,
	} {
		if set {
			n++
		}
	}
	switch {
	case n != 1:
		return fmt.Errorf("holds %d actions; want exactly one of preempt, rebalance, capacity, price, self_end, fault, crash, freeze", n)
	case a.OnMachine < 0 || a.OnMachine > 0 && a.At != 0:
		return fmt.Errorf("either at or on_machine with after")
	case a.Price != nil && (a.Price.Price == nil) == (a.Price.Percent == 0):
		return fmt.Errorf("price: either price or percent")
	case a.Price != nil && (a.Price.Percent < 0 || a.Price.Price != nil && *a.Price.Price <= 0):
		return fmt.Errorf("price: must stay above zero")
	case a.Capacity != nil && a.Capacity.Machines != nil && *a.Capacity.Machines < 0:
		return fmt.Errorf("capacity: must not be negative")
	case a.SelfEnd != nil && !validSelfEnd(a.SelfEnd.SelfEnd):
		return fmt.Errorf("self_end %q: want rolling, fixed, guest or none", a.SelfEnd.SelfEnd)
	case a.SelfEnd != nil && a.SelfEnd.EndAction != "" && !validEndAction(a.SelfEnd.EndAction):
		return fmt.Errorf("end_action %q: want stop-tasks, poweroff or api", a.SelfEnd.EndAction)
	case a.Fault != nil:
		return checkFault(*a.Fault)
	}
	return nil
}

// The ways to cut machines off from one another.
const (
	IsolationAuto      = "auto"
	IsolationNamespace = "namespace"
	IsolationGroup     = "group"
)
