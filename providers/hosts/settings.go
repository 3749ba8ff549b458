package hosts

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"

	"gpubroker/internal/gpu"
	"gpubroker/internal/quantity"
	"gpubroker/providers"
)

// Settings are an account's part of the configuration.
type Settings struct {
	State string `json:"state"` // the file that keeps the bindings
	Hosts []Host `json:"hosts"`
}

// Host is one machine. What is left out is unknown.
type Host struct {
	Name      string         `json:"name"`          // as its agent joins: gpubroker-agent join --name NAME
	Type      string         `json:"type,omitzero"` // what machines are called that are alike in all else; default: the name
	Region    string         `json:"region,omitzero"`
	GPU       string         `json:"gpu,omitzero"`  // "" is a machine without one
	GPUs      int            `json:"gpus,omitzero"` // 0 means 1 where there is a GPU
	GPUMemory quantity.Size  `json:"gpu_memory,omitzero"`
	VCPU      float64        `json:"vcpu,omitzero"`
	Memory    quantity.Size  `json:"memory,omitzero"`
	Disk      quantity.Size  `json:"disk,omitzero"`
	Arch      string         `json:"arch,omitzero"` // amd64, arm64
	Price     quantity.Money `json:"price"`         // per hour
}

// Descriptor is this adapter's entry in the list of built-in ones.
func Descriptor() providers.Descriptor {
	return providers.Descriptor{Type: "hosts", Title: "machines that you own", Open: open}
}

func open(_ context.Context, name string, raw json.RawMessage, env providers.Env) (providers.Provider, error) {
	var s Settings
	if err := providers.DecodeSettings(name, raw, &s); err != nil {
		return nil, err
	}
	return New(name, s, env.Owner, env.Log)
}

// New opens an account. owner is the owner tag that List looks for; "" means
// every one. log may be nil.
func New(name string, s Settings, owner string, log *slog.Logger) (*Provider, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	listed, err := s.listed(name)
	if err != nil {
		return nil, fmt.Errorf("provider %s: %w", name, err)
	}
	if s.State == "" {
		return nil, fmt.Errorf("provider %s: state is missing: name the file that keeps which host is in use", name)
	}
	bindings, err := load(s.State, name)
	if err != nil {
		return nil, fmt.Errorf("provider %s: %w", name, err)
	}
	return &Provider{
		name: name, owner: owner, path: s.State, log: log.With("provider", name),
		hosts: listed, bindings: bindings, idle: map[string]moment{},
	}, nil
}

// hostName is what can stand in a market's key and in a file name.
var hostName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// owned is a host with what its machine is offered as.
type owned struct {
	name  string
	offer providers.Offer
}

// listed turns the list of hosts into offers, all errors at once.
func (s Settings) listed(provider string) ([]owned, error) {
	var errs []error
	if len(s.Hosts) == 0 {
		errs = append(errs, errors.New("hosts is empty: list the machines, each with name and price"))
	}
	var out []owned
	seen := map[string]bool{}
	for n, h := range s.Hosts {
		o, err := h.offer(provider)
		if err == nil && seen[h.Name] {
			err = errors.New("the name is listed twice")
		}
		seen[h.Name] = true
		if i := slices.IndexFunc(out, func(x owned) bool { return x.offer.Type == o.Type }); err == nil && i >= 0 {
			switch other := &out[i]; {
			case h.Type == "" || other.name == o.Type:
				err = fmt.Errorf("%s is a name and a type: call the type otherwise", o.Type)
			case other.offer.Shape != o.Shape || other.offer.Price != o.Price || other.offer.Currency != o.Currency || other.offer.Region != o.Region:
				err = fmt.Errorf("it is no %s: machines of one type are alike in region, size and price, and %s differs", o.Type, other.name)
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("host %d %q: %w", n+1, h.Name, err))
		}
		out = append(out, owned{h.Name, o})
	}
	return out, errors.Join(errs...)
}

func (h Host) offer(provider string) (providers.Offer, error) {
	o := providers.Offer{
		Market: providers.Market{Provider: provider, Region: h.Region, Type: cmp.Or(h.Type, h.Name), Kind: providers.OnDemand},
		Shape: providers.Shape{
			GPUName: h.GPU, GPUs: float64(h.GPUs), GPUMemory: h.GPUMemory.Bytes(), VCPU: h.VCPU,
			Memory: h.Memory.Bytes(), Disk: h.Disk.Bytes(), Arch: h.Arch,
		},
		Price: rate(h.Price), Currency: h.Price.Currency, Source: "config",
	}
	switch {
	case !hostName.MatchString(h.Name):
		return o, errors.New("a name has letters, digits, dots, hyphens and underscores")
	case h.Type != "" && !hostName.MatchString(h.Type):
		return o, errors.New("a type has letters, digits, dots, hyphens and underscores")
	case h.Price.Amount <= 0:
		return o, errors.New(`price is missing: say what an hour counts, for example "0.20 USD" for power and wear`)
	case h.GPUs < 0 || h.VCPU < 0 || h.GPUMemory < 0 || h.Memory < 0 || h.Disk < 0:
		return o, errors.New("a number is negative")
	case h.GPU == "" && (h.GPUs > 0 || h.GPUMemory > 0):
		return o, errors.New("gpus without gpu: name the model")
	case h.Arch != "" && !slices.Contains([]string{"amd64", "arm64"}, h.Arch):
		return o, fmt.Errorf("arch %q: want amd64 or arm64", h.Arch)
	case h.GPU == "":
		return o, nil
	}
	ids, err := gpu.Builtin().Resolve(h.GPU)
	if err != nil {
		return o, fmt.Errorf("gpu: %w", err)
	}
	if len(ids) != 1 {
		return o, fmt.Errorf("gpu %q may be any of %v: write which", h.GPU, ids)
	}
	o.GPU = ids[0]
	o.GPUs = max(o.GPUs, 1)
	return o, nil
}
