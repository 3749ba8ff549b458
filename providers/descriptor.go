package providers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"gpubroker/internal/nearest"
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
// error; all that is wrong is said at once, each with its key.
func DecodeSettings(account string, settings json.RawMessage, into any) error {
	whole := decodeStrict(settings, into)
	if whole == nil {
		return nil
	}
	shape := reflect.TypeOf(into).Elem()
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(settings, &parts); err != nil || shape.Kind() != reflect.Struct {
		return fmt.Errorf("provider %s: settings: %w", account, whole)
	}
	var faults []error
	for _, key := range slices.Sorted(maps.Keys(parts)) {
		one, err := json.Marshal(map[string]json.RawMessage{key: parts[key]})
		if err == nil {
			err = decodeStrict(one, reflect.New(shape).Interface())
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("provider %s: settings: %s", account, settingsFault(key, shape, err)))
		}
	}
	if len(faults) == 0 { // what is wrong is none of the keys
		return fmt.Errorf("provider %s: settings: %w", account, whole)
	}
	return errors.Join(faults...)
}

func decodeStrict(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// settingsFault says what is wrong with the value of a key.
func settingsFault(key string, shape reflect.Type, err error) string {
	if _, name, ok := strings.Cut(err.Error(), "unknown field "); ok {
		unknown, unquoted := strconv.Unquote(strings.TrimSpace(name))
		if unquoted != nil {
			unknown = name
		}
		text := fmt.Sprintf("unknown key %q", unknown)
		if unknown != key {
			text = fmt.Sprintf("%s: %s", key, text)
		}
		keys := settingsKeys(shape, nil)
		if hint := nearest.Hint(unknown, keys); hint != "" {
			return text + "; " + hint
		}
		return text + "; known: " + strings.Join(keys, ", ")
	}
	if kind, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Sprintf("%s: expected %s, found %s", key, kindName(kind.Type), foundName(kind.Value))
	}
	return fmt.Sprintf("%s: %v", key, err)
}

// settingsKeys are the keys of a struct, and of the structs in it.
func settingsKeys(shape reflect.Type, keys []string) []string {
	for f := range shape.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		keys = append(keys, name)
		inner := f.Type
		for inner.Kind() == reflect.Slice || inner.Kind() == reflect.Map || inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct {
			keys = settingsKeys(inner, keys)
		}
	}
	return keys
}

func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		return "a list such as [a, b]"
	case reflect.Map, reflect.Struct:
		return "keys and values"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "text"
	default:
		return "a number"
	}
}

// foundName is what encoding/json calls a value, in words of YAML.
func foundName(value string) string {
	switch word, _, _ := strings.Cut(value, " "); word {
	case "string":
		return "text"
	case "array":
		return "a list"
	case "object":
		return "keys and values"
	case "bool":
		return "true or false"
	case "number":
		return "a number"
	default:
		return value
	}
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

// Read resolves the reference that stands under a key of an account's settings.
func (e Env) Read(account, key, ref string) (string, error) {
	if e.Secret == nil {
		return "", fmt.Errorf("provider %s: %s: there is no source of secrets", account, key)
	}
	secret, err := e.Secret(ref)
	if err != nil {
		return "", fmt.Errorf("provider %s: %s: %w", account, key, err)
	}
	return secret, nil
}
