package vast

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"

	"gpubroker/internal/quantity"
	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// Settings are an account's part of the configuration. Everything may be left
// out where the key stands in the variable that Vast's own tools read.
type Settings struct {
	APIKey   string `json:"api_key,omitempty"`  // reference; default "env:VAST_API_KEY"
	Endpoint string `json:"endpoint,omitempty"` // default "https://console.vast.ai"

	Regions []string       `json:"regions,omitempty"` // codes of countries; default all
	Image   string         `json:"image,omitempty"`   // container image with sh, and curl or wget; default Vast's own base image
	Disk    *quantity.Size `json:"disk,omitempty"`    // of each container, whole GB; default 50GB
	// Filters choose among the machines of the marketplace in the words of its
	// search, such as {"reliability": {"gte": 0.99}}. They go over the defaults
	// (verified machines, reliability 0.95, a day of stay at least); null takes a
	// default away.
	Filters map[string]json.RawMessage `json:"filters,omitempty"`
	Network providers.Network          `json:"network,omitzero"` // proxy only
}

const (
	defaultEndpoint = "https://console.vast.ai"
	defaultKey      = "env:VAST_API_KEY"
	// defaultImage is Vast's own, in the version that suits a machine's driver.
	defaultImage = "vastai/base-image:@vastai-automatic-tag"
	gb           = 1_000_000_000
	defaultDisk  = 50 * gb
	smallestDisk = 8 * gb // vast-ai/docs, create_instance.yaml
)

// Descriptor is Vast's entry in the list of built-in adapters.
func Descriptor() providers.Descriptor {
	return providers.Descriptor{Type: "vast", Title: "Vast.ai", Open: open, Public: public}
}

func open(_ context.Context, name string, raw json.RawMessage, env providers.Env) (providers.Provider, error) {
	var s Settings
	if err := providers.DecodeSettings(name, raw, &s); err != nil {
		return nil, err
	}
	key, err := env.Read(name, "api_key", cmp.Or(s.APIKey, defaultKey))
	if err != nil {
		return nil, err
	}
	return New(name, s, Access{Key: key, Owner: env.Owner, Log: env.Log})
}

// public opens the search, which needs no account
// (https://docs.vast.ai/api-reference/search/search-offers).
func public(env providers.Env) (providers.Feed, error) {
	return New("vast", Settings{}, Access{Log: env.Log})
}

// Access is what is not in the settings' text.
type Access struct {
	Key    string       // "" reads offers and nothing else
	Owner  string       // List shows this owner's machines alone; "" shows every owner's
	Client *http.Client // nil means one of the adapter's own
	Log    *slog.Logger // nil discards
}

// New returns the adapter of one account. It makes no call.
func New(name string, s Settings, access Access) (*Adapter, error) {
	if name == "" {
		return nil, errors.New("provider: the name is missing")
	}
	filters, err := s.check()
	if err != nil {
		return nil, fmt.Errorf("provider %s: %w", name, err)
	}
	if access.Log == nil {
		access.Log = slog.New(slog.DiscardHandler)
	}
	s.Endpoint = cmp.Or(s.Endpoint, defaultEndpoint)
	a := &Adapter{
		name: name, owner: access.Owner, set: s, filters: filters, log: access.Log,
		once: rest.NewOnce(listLag + listFresh), board: newBoard(),
	}
	opts := rest.Options{Provider: name, Base: s.Endpoint, Client: access.Client, Judge: judge, Secrets: []string{access.Key}}
	if access.Key != "" {
		opts.Authorize = func(_ context.Context, r *http.Request) error {
			r.Header.Set("Authorization", "Bearer "+access.Key)
			return nil
		}
	}
	a.api, err = rest.New(opts)
	return a, err
}

// check returns the filters of every search.
func (s Settings) check() (map[string]any, error) {
	switch size := s.disk(); {
	case size < smallestDisk || size%gb != 0:
		return nil, fmt.Errorf("disk %s: want whole GB, 8GB at least", quantity.Size(size))
	case s.Network.Subnet != "" || s.Network.Private:
		return nil, errors.New("network: Vast has no networks; only network.proxy means something")
	}
	for _, r := range s.Regions {
		if !country(r) {
			return nil, fmt.Errorf("region %q: want the code of a country, such as SE", r)
		}
	}
	// A machine that leaves the market within a day would be taken in the middle of
	// a task; docs.vast.ai has the other words.
	filters := map[string]any{
		"verified": map[string]any{"eq": true}, "rentable": map[string]any{"eq": true},
		"reliability": map[string]any{"gte": 0.95}, "duration": map[string]any{"gte": 24 * 3600},
	}
	for name, raw := range s.Filters {
		var filter map[string]any
		switch err := json.Unmarshal(raw, &filter); {
		case slices.Contains(ownWords, name):
			return nil, fmt.Errorf("filters.%s is set by the adapter", name)
		case err != nil:
			return nil, fmt.Errorf(`filters.%s: want operators and values such as {"gte": 0.99}, or null`, name)
		case filter == nil:
			delete(filters, name)
		default:
			filters[name] = filter
		}
	}
	return filters, nil
}

// ownWords are the keys of a search that the adapter fills itself.
var ownWords = []string{"type", "limit", "order", "allocated_storage", "disk_space", "dph_total", "geolocation"}

func (s Settings) disk() int64 {
	if s.Disk == nil {
		return defaultDisk
	}
	return s.Disk.Bytes()
}

// wants reports whether the settings have the account use a country.
func (s Settings) wants(region string) bool {
	return len(s.Regions) == 0 || slices.Contains(s.Regions, region)
}

func country(code string) bool {
	return len(code) == 2 && code[0] >= 'A' && code[0] <= 'Z' && code[1] >= 'A' && code[1] <= 'Z'
}
