package hosts

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"gpubroker/internal/durable"
	"gpubroker/internal/money"
	"gpubroker/providers"
)

const (
	stateVersion = 1
	// stopTime is how long a stopping binding waits for its agent's word.
	stopTime = time.Minute
	// remembered is how long an ended binding can still be described and billed.
	remembered = 7 * 24 * time.Hour
)

// moment is a point in time.
type moment = time.Time

// binding is a host in use by one request. Its life follows from its times.
type binding struct {
	Request  string           `json:"request"`
	Host     string           `json:"host,omitzero"` // where it differs from the market's type
	Market   providers.Market `json:"market"`
	Tags     providers.Tags   `json:"tags"`
	Price    money.Rate       `json:"price"`
	Launched moment           `json:"launched"`
	Joined   moment           `json:"joined,omitzero"` // an agent was told
	Asked    moment           `json:"asked,omitzero"`  // Terminate was called
	Left     moment           `json:"left,omitzero"`   // the agent waits again, or never was there
}

// ended returns when the binding ended, or zero while it lives.
func (b binding) ended(now moment) moment {
	switch {
	case !b.Left.IsZero():
		return b.Left
	case !b.Asked.IsZero() && !now.Before(b.Asked.Add(stopTime)):
		return b.Asked.Add(stopTime)
	}
	return time.Time{}
}

// on is the host.
func (b binding) on() string { return cmp.Or(b.Host, b.Market.Type) }

// id is the machine's id: its host and its request, since a host serves many.
func (b binding) id() string { return b.on() + ":" + b.Request }

// file is the state on disk.
type file struct {
	Version  int       `json:"version"`
	Provider string    `json:"provider"`
	Bindings []binding `json:"bindings"`
}

// load reads the state; a file that is not there is an empty state.
func load(path, provider string) ([]binding, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	var f file
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return nil, fmt.Errorf("state %s cannot be read: %w; restore it, or remove it when no host is in use", path, err)
	}
	switch {
	case f.Version != stateVersion:
		return nil, fmt.Errorf("state %s has version %d, this program reads %d; use the program that wrote it", path, f.Version, stateVersion)
	case f.Provider != provider:
		return nil, fmt.Errorf("state %s belongs to provider %q; give each its own file", path, f.Provider)
	}
	return f.Bindings, nil
}

// save replaces the state on disk. renamed says that the new state is in place,
// even if err says that it may not survive a power cut.
func save(path, provider string, bindings []binding) (renamed bool, err error) {
	text, err := json.MarshalIndent(file{stateVersion, provider, bindings}, "", "  ")
	if err != nil {
		return false, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return false, err
	}
	return durable.WriteFile(path, append(text, '\n'))
}
