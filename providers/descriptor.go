package providers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
)

// Descriptor is one type of provider: what the configuration calls it and how an
// account of it is opened. The built-in ones are a list in package all.
type Descriptor struct {
	Type  string // "aws", "simcloud", …
	Title string // for people
	// Open makes the adapter for one account. settings is the account's own part
	// of the configuration as JSON; unknown keys in it are an error.
	Open func(ctx context.Context, name string, settings json.RawMessage, env Env) (Provider, error)
	// Public opens the prices that the cloud publishes to everybody; nil where it
	// publishes none. They are for looking: nothing is rented through them.
	Public func(env Env) (Feed, error)
}

// Feed is a list of offers that needs no account.
type Feed interface {
	Offers(ctx context.Context, scope Scope) ([]Offer, error)
}

// Network is where the machines of an account stand: a part of the settings of
// every type whose cloud has networks.
type Network struct {
	Subnet  string `json:"subnet,omitempty"`  // in the cloud's own words; "" is the account's default
	Private bool   `json:"private,omitempty"` // machines have no public address
	Proxy   string `json:"proxy,omitempty"`   // through which machines reach the broker and the stores
}

// DecodeSettings reads an account's settings into a struct. Unknown keys are an
// error.
func DecodeSettings(account string, settings json.RawMessage, into any) error {
	d := json.NewDecoder(bytes.NewReader(settings))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("provider %s: settings: %w", account, err)
	}
	return nil
}

// Env is what an adapter is given from outside. A test hands an HTTP client to
// the adapter's own constructor: this package, and with it the scheduler, knows
// no network.
type Env struct {
	Log *slog.Logger
	// Owner is the broker's name: the owner tag of the machines that List returns.
	Owner string
	// Secret resolves a reference such as "env:TOKEN" or "file:/run/token".
	Secret func(ref string) (string, error)
}
