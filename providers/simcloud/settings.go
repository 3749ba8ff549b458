package simcloud

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// Settings are an account's part of the configuration. What the rules of the
// cloud are is stated here, since a broker must know them while the cloud is
// away; absent ones are those of simcloud's built-in world. [Adapter.Preflight]
// compares them with what the cloud says.
type Settings struct {
	Endpoint string `json:"endpoint"`        // "http://127.0.0.1:8700"
	Token    string `json:"token,omitempty"` // reference: "env:SIMCLOUD_TOKEN", "file:/run/token"

	BillingUnit    *simapi.Duration    `json:"billing_unit,omitempty"`    // what is paid is rounded up to it
	BillingMinimum *simapi.Duration    `json:"billing_minimum,omitempty"` // what is paid at least
	BillsBoot      bool                `json:"bills_boot,omitempty"`      // time before the machine runs is paid
	Notice         *simapi.Duration    `json:"notice,omitempty"`          // warning before a preemption
	ListLag        *simapi.Duration    `json:"list_lag,omitempty"`        // until a new machine is listed
	StopTime       *simapi.Duration    `json:"stop_time,omitempty"`       // from an end to the end of billing
	BootTime       *simapi.Duration    `json:"boot_time,omitempty"`       // until the agent calls in
	SelfEnd        providers.SelfEnd   `json:"self_end,omitempty"`        // rolling, fixed, guest or none
	EndAction      providers.EndAction `json:"end_action,omitempty"`      // stop-tasks, poweroff or api
}

// The rules of simcloud's built-in world.
const (
	defaultUnit      = time.Second
	defaultMinimum   = 10 * time.Second
	defaultNotice    = 5 * time.Second
	defaultListLag   = time.Second
	defaultStopTime  = 500 * time.Millisecond
	defaultBootTime  = 1500 * time.Millisecond
	userDataLimit    = 16 << 10
	defaultSelfEnd   = providers.EndRolling
	defaultEndAction = providers.EndPoweroff
)

// Descriptor is simcloud's entry in the list of built-in adapters.
func Descriptor() providers.Descriptor {
	return providers.Descriptor{Type: "simcloud", Title: "simcloud, the built-in adversarial cloud", Open: open}
}

func open(_ context.Context, name string, raw json.RawMessage, env providers.Env) (providers.Provider, error) {
	var s Settings
	if err := providers.DecodeSettings(name, raw, &s); err != nil {
		return nil, err
	}
	token := ""
	if s.Token != "" {
		var err error
		if token, err = env.Read(name, "token", s.Token); err != nil {
			return nil, err
		}
	}
	return New(name, s, Access{Token: token, Owner: env.Owner})
}

// Access is what is not in the settings' text.
type Access struct {
	Token  string       // the secret itself
	Owner  string       // List shows this owner's machines alone; "" shows every owner's
	Client *http.Client // nil means one of the adapter's own
}

// New returns the adapter of one account.
func New(name string, s Settings, access Access) (*Adapter, error) {
	if name == "" {
		return nil, errors.New("provider: the name is missing")
	}
	caps, err := s.capabilities()
	if err != nil {
		return nil, fmt.Errorf("provider %s: %w", name, err)
	}
	api, err := rest.New(rest.Options{
		Provider: name, Base: s.Endpoint, Client: access.Client, Judge: judge, Secrets: []string{access.Token},
		Authorize: func(_ context.Context, r *http.Request) error {
			if access.Token != "" {
				r.Header.Set("Authorization", "Bearer "+access.Token)
			}
			return nil
		},
	})
	if err != nil {
		return nil, err
	}
	return &Adapter{name: name, owner: access.Owner, caps: caps, api: api}, nil
}

// SettingsFor returns settings that state the given rules.
func SettingsFor(endpoint string, c providers.Capabilities) Settings {
	d := func(d time.Duration) *simapi.Duration { return new(simapi.Duration(d)) }
	return Settings{
		Endpoint: endpoint, BillingUnit: d(c.Billing.Unit), BillingMinimum: d(c.Billing.Minimum), BillsBoot: c.BillsBoot,
		Notice: d(c.Notice), ListLag: d(c.ListLag), StopTime: d(c.StopTime), BootTime: d(c.BootTime),
		SelfEnd: c.SelfEnd, EndAction: c.EndAction,
	}
}

func (s Settings) capabilities() (providers.Capabilities, error) {
	or := func(d *simapi.Duration, def time.Duration) time.Duration {
		if d == nil {
			return def
		}
		return d.D()
	}
	c := providers.Capabilities{
		Kinds:        []providers.Kind{providers.Spot, providers.OnDemand},
		Notice:       or(s.Notice, defaultNotice),
		NoticeSource: providers.NoticeMetadata,
		Billing: money.Billing{
			Unit:    or(s.BillingUnit, defaultUnit),
			Minimum: or(s.BillingMinimum, defaultMinimum),
		},
		BillsBoot:     s.BillsBoot,
		PriceBound:    true,
		TagsAtLaunch:  true,
		LaunchToken:   true,
		ListLag:       or(s.ListLag, defaultListLag),
		SelfEnd:       cmp.Or(s.SelfEnd, defaultSelfEnd),
		EndAction:     cmp.Or(s.EndAction, defaultEndAction),
		StopTime:      or(s.StopTime, defaultStopTime),
		BootTime:      or(s.BootTime, defaultBootTime),
		UserDataLimit: userDataLimit,
		Metadata:      providers.MetadataSimcloud,
		Reach:         providers.Network{Private: true}.Reach(s.Endpoint), // its machines are processes where it runs
	}
	if c.Notice == 0 {
		c.NoticeSource = providers.NoticeNone
	}
	if !slices.Contains([]providers.SelfEnd{providers.EndRolling, providers.EndFixed, providers.EndGuest, providers.EndNone}, c.SelfEnd) {
		return c, fmt.Errorf("self_end %q: want rolling, fixed, guest or none", c.SelfEnd)
	}
	if !slices.Contains([]providers.EndAction{providers.EndStopTasks, providers.EndPoweroff, providers.EndAPI}, c.EndAction) {
		return c, fmt.Errorf("end_action %q: want stop-tasks, poweroff or api", c.EndAction)
	}
	return c, nil
}
