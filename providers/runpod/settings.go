package runpod

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/quantity"
	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// Settings are an account's part of the configuration.
type Settings struct {
	Key      string   `json:"key"`                // reference to the API key: "env:RUNPOD_API_KEY"
	Clouds   []string `json:"clouds,omitempty"`   // secure (default), community
	Regions  []string `json:"regions,omitempty"`  // data centers; default: all
	Counts   []int    `json:"counts,omitempty"`   // GPUs of a pod; default 1, 2, 4, 8
	VCPUs    []int    `json:"vcpus,omitempty"`    // vCPUs of pods without GPUs; default: none are offered
	Image    string   `json:"image,omitempty"`    // container image; default: RunPod's PyTorch
	Registry string   `json:"registry,omitempty"` // id of the credentials for a private image
	CUDA     string   `json:"cuda,omitempty"`     // least version of the host, "12.8"

	Disk         quantity.Size `json:"disk,omitempty"`           // container disk; default 50GB
	VCPUPerGPU   int           `json:"vcpu_per_gpu,omitempty"`   // least of the host; default 4
	MemoryPerGPU quantity.Size `json:"memory_per_gpu,omitempty"` // least of the host; default 16GB

	Network  providers.Network `json:"network,omitzero"`   // proxy alone: there are no subnets
	Endpoint string            `json:"endpoint,omitempty"` // default: https://api.runpod.io/v2
	SelfEnd  providers.SelfEnd `json:"self_end,omitempty"` // guest (default), or none

	// GraphQL is being retired; each of these alone uses it.
	Spot    string `json:"spot,omitempty"`             // off (default), or graphql
	Balance string `json:"balance,omitempty"`          // off (default), or graphql
	GraphQL string `json:"graphql_endpoint,omitempty"` // default: https://api.runpod.io/graphql
}

const (
	defaultEndpoint = "https://api.runpod.io/v2"
	defaultGraphQL  = "https://api.runpod.io/graphql"

	// The vendor's own example (OpenAPI document 2.0.0); it wants CUDA 12.8.
	defaultImage = "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404"
	defaultCUDA  = "12.8"

	viaGraphQL = "graphql"
	off        = "off"
)

// gb is RunPod's unit of disk and memory. Whether it means a power of ten or of
// two is not said; the smaller one is what we promise.
const gb = 1_000_000_000

// Access is what is not in the settings' text.
type Access struct {
	Key    string       // the secret itself
	Owner  string       // List shows this owner's pods alone; "" shows every owner's
	Client *http.Client // nil means one of the adapter's own
	Log    *slog.Logger // nil discards
}

// Descriptor is the entry in the list of built-in adapters.
func Descriptor() providers.Descriptor {
	return providers.Descriptor{Type: "runpod", Title: "RunPod", Open: open}
}

func open(ctx context.Context, name string, raw json.RawMessage, env providers.Env) (providers.Provider, error) {
	var s Settings
	if err := providers.DecodeSettings(name, raw, &s); err != nil {
		return nil, err
	}
	if s.Key == "" {
		return nil, fmt.Errorf("provider %s: key is missing: give a reference such as env:RUNPOD_API_KEY", name)
	}
	key, err := env.Read(name, "key", s.Key)
	if err != nil {
		return nil, err
	}
	p, err := New(name, s, Access{Key: key, Owner: env.Owner, Log: env.Log})
	if err == nil && env.Log != nil && (s.Spot == viaGraphQL || s.Balance == viaGraphQL) {
		env.Log.WarnContext(ctx, "RunPod retires its GraphQL API in early 2027: spot pods and the balance end with it", "provider", name)
	}
	return p, err
}

var version = regexp.MustCompile(`^\d+\.\d+$`)

func (s Settings) check() error {
	for _, c := range s.Clouds {
		if c != "secure" && c != "community" {
			return fmt.Errorf("clouds: %q: want secure or community", c)
		}
	}
	for _, n := range slices.Concat(s.Counts, s.VCPUs) {
		if n < 1 {
			return fmt.Errorf("counts and vcpus: %d: want at least 1", n)
		}
	}
	for _, n := range s.VCPUs {
		if n < 2 || n&(n-1) != 0 {
			return fmt.Errorf("vcpus: %d: want a power of two from 2 on", n)
		}
	}
	switch {
	case s.CUDA != "" && !version.MatchString(s.CUDA):
		return fmt.Errorf("cuda %q: want a version such as 12.8", s.CUDA)
	case s.VCPUPerGPU < 0:
		return errors.New("vcpu_per_gpu is negative")
	case s.Network.Subnet != "" || s.Network.Private:
		return errors.New("network: pods stand in no subnet; only proxy can be set")
	case s.SelfEnd != "" && s.SelfEnd != providers.EndGuest && s.SelfEnd != providers.EndNone:
		return fmt.Errorf("self_end %q: want guest or none", s.SelfEnd)
	case !slices.Contains([]string{"", off, viaGraphQL}, s.Spot):
		return fmt.Errorf("spot %q: want off or graphql", s.Spot)
	case !slices.Contains([]string{"", off, viaGraphQL}, s.Balance):
		return fmt.Errorf("balance %q: want off or graphql", s.Balance)
	}
	for _, address := range []string{s.Endpoint, s.GraphQL} {
		if u, err := url.Parse(address); err != nil || strings.ContainsAny(u.String(), `'"$`+"`\\") {
			return fmt.Errorf("endpoint %q is no plain URL", address)
		}
	}
	return nil
}

func (s Settings) withDefaults() Settings {
	if len(s.Clouds) == 0 {
		s.Clouds = []string{"secure"}
	}
	if len(s.Counts) == 0 {
		s.Counts = []int{1, 2, 4, 8}
	}
	if s.Image == "" {
		s.Image, s.CUDA = defaultImage, cmp.Or(s.CUDA, defaultCUDA)
	}
	s.Disk = cmp.Or(s.Disk, 50*gb)
	s.VCPUPerGPU = cmp.Or(s.VCPUPerGPU, 4)
	s.MemoryPerGPU = cmp.Or(s.MemoryPerGPU, 16*gb)
	s.Endpoint = strings.TrimRight(cmp.Or(s.Endpoint, defaultEndpoint), "/")
	s.GraphQL = strings.TrimRight(cmp.Or(s.GraphQL, defaultGraphQL), "/")
	s.SelfEnd = cmp.Or(s.SelfEnd, providers.EndGuest)
	return s
}

// New returns the adapter of one account: an [*Adapter], with the abilities that
// the settings switch on. It makes no call.
func New(name string, s Settings, access Access) (providers.Provider, error) {
	switch {
	case name == "":
		return nil, errors.New("provider: the name is missing")
	case access.Key == "":
		return nil, fmt.Errorf("provider %s: the API key is empty", name)
	}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("provider %s: %w", name, err)
	}
	own := s.Endpoint // "" is RunPod itself
	s = s.withDefaults()
	log := access.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	client := func(base string, judge rest.Judge) (*rest.Client, error) {
		return rest.New(rest.Options{
			Provider: name, Base: base, Client: access.Client, Judge: judge, Secrets: []string{access.Key},
			Authorize: func(_ context.Context, r *http.Request) error {
				r.Header.Set("Authorization", "Bearer "+access.Key)
				r.Header.Set("User-Agent", "gpubroker") // the edge answers 403 without one
				return nil
			},
		})
	}
	api, err := client(s.Endpoint, judge)
	if err != nil {
		return nil, err
	}
	graph, err := client(s.GraphQL, judgeGraph)
	if err != nil {
		return nil, err
	}
	a := &Adapter{name: name, owner: access.Owner, set: s, api: api, graph: graph, once: rest.NewOnce(listLag), log: log}
	a.caps = a.capabilities(s.Network.Reach(own))
	switch {
	case s.Spot == viaGraphQL:
		return &spotAdapter{&balanceAdapter{a}}, nil
	case s.Balance == viaGraphQL:
		return &balanceAdapter{a}, nil
	}
	return a, nil
}

// listLag is assumed: nothing is promised on when a new pod is listed.
const listLag = 15 * time.Second

// userDataLimit keeps the start command, in which the script stands in base64,
// below what Linux takes as one argument: 128 KiB (execve(2)).
const userDataLimit = 64 << 10

func (a *Adapter) capabilities(reach providers.Reach) providers.Capabilities {
	c := providers.Capabilities{
		Kinds:        []providers.Kind{providers.OnDemand},
		NoticeSource: providers.NoticeNone,
		// "All Pods are billed by the second for compute and storage"
		// (docs.runpod.io/pods/pricing).
		Billing: money.Billing{Unit: time.Second},
		// "You'll start paying for the Pod as soon as it's built" (RunPod's docs,
		// Manage Pods): the time in which the image is fetched is paid.
		BillsBoot:    true,
		TagsAtLaunch: true, // as variables of the container
		LaunchToken:  false,
		ListLag:      listLag,
		SelfEnd:      a.set.SelfEnd,
		EndAction:    providers.EndStopTasks,
		// A delete is answered with 204 and the pod is gone; a minute is kept since
		// nothing is promised.
		StopTime:      time.Minute,
		BootTime:      3 * time.Minute, // most of it fetches the image
		UserDataLimit: userDataLimit,
		Metadata:      providers.MetadataNone,
		Reach:         reach,
	}
	if c.SelfEnd == providers.EndGuest {
		c.EndAction, c.EndScript = providers.EndAPI, endScript(a.set.Endpoint, a.set.GraphQL)
	}
	if a.set.Spot == viaGraphQL {
		c.Kinds = []providers.Kind{providers.Spot, providers.OnDemand}
		c.PriceBound = true // a spot pod pays its bid, as long as it lives
		// What is heard is that a pod has been taken. The five seconds of SIGTERM
		// before it are known within the container alone.
		c.NoticeSource = providers.NoticeEvents
	}
	return c
}

// endScript deletes the pod that it runs in with the key that RunPod gives to
// each: by REST, else by GraphQL, which such keys were let into where REST refused
// them, else by RunPod's own tool. Emulators set GPUBROKER_METADATA_URL.
func endScript(endpoint, graph string) string {
	return `[ -n "${RUNPOD_API_KEY:-}" ] || eval "$(tr '\0' '\n' </proc/1/environ | grep -E '^RUNPOD_(POD_ID|API_KEY)=[A-Za-z0-9_.-]+$' | sed 's/^/export /')"
M="${GPUBROKER_METADATA_URL:-}"
R='` + endpoint + `'; G='` + graph + `'; [ -n "$M" ] && { R="$M/v2"; G="$M/graphql"; }
Q="{\"query\":\"mutation { podTerminate(input: {podId: \\\"$RUNPOD_POD_ID\\\"}) }\"}"
if command -v curl >/dev/null; then
  curl -fsS -m 20 -A gpubroker -X DELETE -H "Authorization: Bearer $RUNPOD_API_KEY" "$R/pods/$RUNPOD_POD_ID" ||
  curl -fsS -m 20 -A gpubroker -H "Authorization: Bearer $RUNPOD_API_KEY" -H "Content-Type: application/json" -d "$Q" "$G" | grep -v errors | grep podTerminate
else
  wget -q -T 20 -U gpubroker -O- --method=DELETE --header="Authorization: Bearer $RUNPOD_API_KEY" "$R/pods/$RUNPOD_POD_ID" ||
  wget -q -T 20 -U gpubroker -O- --header="Authorization: Bearer $RUNPOD_API_KEY" --header="Content-Type: application/json" --post-data="$Q" "$G" | grep -v errors | grep podTerminate
fi || runpodctl remove pod "$RUNPOD_POD_ID"`
}
