package hosts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

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
	Market   providers.Market `json:"market"` // Type is the host
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

// id is the machine's id: its host and its request, since a host serves many.
func (b binding) id() string { return b.Market.Type + ":" + b.Request }

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
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, err
	}
	f, err := os.CreateTemp(dir, ".hosts-*")
	if err != nil {
		return false, err
	}
	_, err = f.Write(append(text, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return false, errors.Join(err, os.Remove(f.Name()))
	}
	return true, syncDir(dir)
}

// syncDir makes a rename survive a power cut, where folders can be synced.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
