package lambda

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// Settings are an account's part of the configuration.
type Settings struct {
	Key      string            `json:"key"`                // reference to the API key: "env:LAMBDA_API_KEY"
	SSHKey   string            `json:"ssh_key"`            // name of the one key that every instance has
	Regions  []string          `json:"regions,omitempty"`  // default: all
	Image    string            `json:"image,omitempty"`    // family or id; default: Lambda's own choice
	Tags     map[string]string `json:"tags,omitempty"`     // on every instance
	Network  providers.Network `json:"network,omitzero"`   // proxy alone: there are no subnets
	Endpoint string            `json:"endpoint,omitempty"` // default: https://cloud.lambda.ai/api/v1
	Labels   string            `json:"labels,omitempty"`   // tags (default), or name
}

const defaultEndpoint = "https://cloud.lambda.ai/api/v1"

// Where labels are kept.
const (
	labelTags = "tags"
	labelName = "name"
)

// Access is what is not in the settings' text.
type Access struct {
	Key    string       // the secret itself
	Owner  string       // List shows this owner's machines alone; "" shows every owner's
	Client *http.Client // nil means one of the adapter's own
	Log    *slog.Logger // nil discards
}

// Descriptor is the entry in the list of built-in adapters.
func Descriptor() providers.Descriptor {
	return providers.Descriptor{Type: "lambda", Title: "Lambda Cloud", Open: open}
}

func open(_ context.Context, name string, raw json.RawMessage, env providers.Env) (providers.Provider, error) {
	var s Settings
	if err := providers.DecodeSettings(name, raw, &s); err != nil {
		return nil, err
	}
	if s.Key == "" {
		return nil, fmt.Errorf("provider %s: key is missing: give a reference such as env:LAMBDA_API_KEY", name)
	}
	key, err := env.Read(name, "key", s.Key)
	if err != nil {
		return nil, err
	}
	return New(name, s, Access{Key: key, Owner: env.Owner, Log: env.Log})
}

// tagKey and the lengths are RequestedTagEntry's, document 1.10.0.
var tagKey = regexp.MustCompile(`^[a-z][a-z0-9-:]{1,54}$`)

const longestTag = 128

// New returns the adapter of one account. It makes no call.
func New(name string, s Settings, access Access) (*Adapter, error) {
	bad := func(format string, args ...any) (*Adapter, error) {
		return nil, fmt.Errorf("provider %s: "+format, append([]any{name}, args...)...)
	}
	switch {
	case name == "":
		return nil, errors.New("provider: the name is missing")
	case access.Key == "":
		return bad("the API key is empty")
	case s.SSHKey == "":
		return bad("ssh_key is missing: a launch names exactly one key of your account")
	case s.Network.Subnet != "" || s.Network.Private:
		return bad("network: Lambda has no subnets and gives every instance a public address; only proxy can be set")
	case s.Labels != "" && s.Labels != labelTags && s.Labels != labelName:
		return bad("labels %q: want tags or name", s.Labels)
	case s.Labels == labelName && len(s.Tags) > 0:
		return bad("tags need an endpoint that has them (labels: tags)")
	}
	for key, value := range s.Tags {
		if !tagKey.MatchString(key) || strings.HasPrefix(key, "gpubroker-") || len(value) > longestTag {
			return bad("tag %q: a key is 2 to 55 lower-case letters, digits, dashes and colons without gpubroker- in front, a value has at most %d bytes", key, longestTag)
		}
	}
	log := access.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	api, err := rest.New(rest.Options{
		Provider: name, Base: cmp.Or(s.Endpoint, defaultEndpoint), Client: access.Client, Judge: judge, Secrets: []string{access.Key},
		Authorize: func(_ context.Context, r *http.Request) error {
			r.Header.Set("Authorization", "Bearer "+access.Key)
			r.Header.Set("User-Agent", "gpubroker") // the edge refuses the names of some libraries
			return nil
		},
	})
	if err != nil {
		return nil, err
	}
	s.Regions = slices.Clone(s.Regions)
	s.Labels = cmp.Or(s.Labels, labelTags)
	return &Adapter{name: name, owner: access.Owner, set: s, api: api, once: rest.NewOnce(listLag), log: log}, nil
}

// listLag is assumed: the API promises nothing on when a new instance is listed.
const listLag = 15 * time.Second

// userDataLimit is of InstanceLaunchRequest.user_data, document 1.6.0: "cannot
// exceed 1MB".
const userDataLimit = 1_000_000

// Capabilities are the facts of Lambda's public cloud.
func (a *Adapter) Capabilities() providers.Capabilities {
	return providers.Capabilities{
		Kinds:        []providers.Kind{providers.OnDemand}, // the API has no other
		NoticeSource: providers.NoticeNone,
		// "bills in one-minute increments. Billing begins the moment you launch an
		// instance and the instance passes health checks, and ends the moment you
		// terminate the instance" (docs.lambda.ai/public-cloud/billing).
		Billing:      money.Billing{Unit: time.Minute},
		BillsBoot:    false,
		TagsAtLaunch: true,
		LaunchToken:  false, // document 1.10.0 has none
		ListLag:      listLag,
		SelfEnd:      providers.EndNone,
		EndAction:    providers.EndStopTasks,
		// At once, says the page above; a minute covers a status that is still
		// "terminating".
		StopTime: time.Minute,
		// Four to six minutes were measured from launch to a machine that answers
		// for one GPU; Lambda's FAQ says up to 15 for eight.
		BootTime:      6 * time.Minute,
		UserDataLimit: userDataLimit,
		Metadata:      providers.MetadataNone, // none is documented
		Reach:         a.set.Network.Reach(a.set.Endpoint),
	}
}
