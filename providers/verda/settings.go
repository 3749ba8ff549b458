package verda

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"gpubroker/internal/quantity"
	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// Settings are an account's part of the configuration. Everything may be left
// out where the credentials stand in the variables that Verda's own tools read.
type Settings struct {
	ClientID     string `json:"client_id,omitempty"`     // itself or a reference; default "env:VERDA_CLIENT_ID"
	ClientSecret string `json:"client_secret,omitempty"` // reference; default "env:VERDA_CLIENT_SECRET"
	Endpoint     string `json:"endpoint,omitempty"`      // default "https://api.verda.com/v1"

	Regions []string          `json:"regions,omitempty"`  // location codes; default all
	Image   string            `json:"image,omitempty"`    // image_type, or the id of an OS volume; default one with CUDA and Docker
	Disk    *quantity.Size    `json:"disk,omitempty"`     // OS volume of each machine, whole GB; default 100GB
	SSHKeys []string          `json:"ssh_keys,omitempty"` // ids; default all of the account, since Verda wants one at least
	Tags    map[string]string `json:"tags,omitempty"`     // on every instance; at most five
	Network providers.Network `json:"network,omitzero"`   // subnet takes "network/subnet" ids; private asks for no public address
}

const (
	defaultEndpoint = "https://api.verda.com/v1"
	defaultID       = "env:VERDA_CLIENT_ID"
	defaultSecret   = "env:VERDA_CLIENT_SECRET"
	gb              = 1_000_000_000
	defaultDisk     = 100 * gb
	smallestDisk    = 50 * gb // verda-cli, "Volume Guidance"
)

// The images used where none is set. V100 and A6000 machines refuse the newer
// one (dstackai/dstack issue 3067).
const (
	imageNew = "ubuntu-24.04-cuda-12.8-open-docker"
	imageOld = "ubuntu-22.04-cuda-12.0-docker"
)

// The limits of tags (verdacloud-sdk-go, tags_types.go).
const (
	maxTags     = 10
	maxTagKey   = 63
	maxTagValue = 127
	ownTags     = 5 // of providers.Tags
)

// Descriptor is Verda's entry in the list of built-in adapters.
func Descriptor() providers.Descriptor {
	return providers.Descriptor{Type: "verda", Title: "Verda (formerly DataCrunch)", Open: open}
}

func open(_ context.Context, name string, raw json.RawMessage, env providers.Env) (providers.Provider, error) {
	var s Settings
	if err := providers.DecodeSettings(name, raw, &s); err != nil {
		return nil, err
	}
	access := Access{Owner: env.Owner, Log: env.Log}
	for _, key := range []struct {
		name, ref string
		into      *string
	}{
		{"client_id", cmp.Or(s.ClientID, defaultID), &access.ClientID},
		{"client_secret", cmp.Or(s.ClientSecret, defaultSecret), &access.ClientSecret},
	} {
		if key.name == "client_id" && !strings.HasPrefix(key.ref, "env:") && !strings.HasPrefix(key.ref, "file:") {
			*key.into = key.ref // an id is no secret
			continue
		}
		value, err := env.Read(name, key.name, key.ref)
		if err != nil {
			return nil, err
		}
		*key.into = value
	}
	return New(name, s, access)
}

// Access is what is not in the settings' text.
type Access struct {
	ClientID     string
	ClientSecret string
	Owner        string       // List shows this owner's machines alone; "" shows every owner's
	Client       *http.Client // nil means one of the adapter's own
	Log          *slog.Logger // nil discards
}

// New returns the adapter of one account. It makes no call.
func New(name string, s Settings, access Access) (*Adapter, error) {
	if name == "" {
		return nil, errors.New("provider: the name is missing")
	}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("provider %s: %w", name, err)
	}
	if access.Log == nil {
		access.Log = slog.New(slog.DiscardHandler)
	}
	s.Endpoint = cmp.Or(s.Endpoint, defaultEndpoint)
	opts := rest.Options{
		Provider: name, Base: s.Endpoint, Client: access.Client, Judge: judge, Secrets: []string{access.ClientSecret},
	}
	oauth, err := rest.New(opts)
	if err != nil {
		return nil, err
	}
	a := &Adapter{
		name: name, owner: access.Owner, set: s, log: access.Log, once: rest.NewOnce(listLag),
		tokens: &tokens{api: oauth, id: access.ClientID, secret: access.ClientSecret, turn: make(chan struct{}, 1)},
	}
	opts.Authorize = a.tokens.authorize
	if a.api, err = rest.New(opts); err != nil {
		return nil, err
	}
	return a, nil
}

func (s Settings) check() error {
	switch size := s.disk(); {
	case size < smallestDisk || size%gb != 0:
		return fmt.Errorf("disk %s: want whole GB, 50GB at least", quantity.Size(size))
	case len(s.Tags) > maxTags-ownTags:
		return fmt.Errorf("tags: %d are given; Verda takes %d and five are the broker's, so at most %d", len(s.Tags), maxTags, maxTags-ownTags)
	case s.Network.Subnet != "" && strings.Count(s.Network.Subnet, "/") != 1:
		return fmt.Errorf("network.subnet %q: want the ids of a network and of a subnet, \"network/subnet\"", s.Network.Subnet)
	case s.Network.Private && s.Network.Subnet == "":
		return errors.New("network.private: needs network.subnet, which gives machines their one address")
	}
	for key, value := range s.Tags {
		if key == "" || len(key) > maxTagKey || len(value) > maxTagValue || strings.ToLower(key) != key {
			return fmt.Errorf("tag %q: Verda takes lower-case keys of 1 to %d bytes and values of at most %d", key, maxTagKey, maxTagValue)
		}
	}
	return nil
}

func (s Settings) disk() int64 {
	if s.Disk == nil {
		return defaultDisk
	}
	return s.Disk.Bytes()
}

// image is what a machine of a type is made of.
func (s Settings) image(instanceType string) string {
	switch {
	case s.Image != "":
		return s.Image
	case strings.Contains(instanceType, "V100"), strings.Contains(instanceType, "A6000"):
		return imageOld
	}
	return imageNew
}

// wants reports whether the settings have the account use a location.
func (s Settings) wants(location string) bool {
	return len(s.Regions) == 0 || slices.Contains(s.Regions, location)
}
