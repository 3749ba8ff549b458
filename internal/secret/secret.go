// Package secret holds references to secrets. A file names where a secret is
// (env:NAME or file:/path), never the secret itself; the value is read when it
// is used, and neither logs, errors, JSON nor %v ever show it.
package secret

import (
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"

	"gpubroker/internal/yamlfile"
)

// Ref says where a secret is. The zero value is no secret.
type Ref struct{ ref string }

// Describe says how a reference is written.
func (Ref) Describe() string { return "a reference to a secret: env:NAME or file:/path" }

// Sensitive keeps a secret that was written inline out of error messages.
func (Ref) Sensitive() {}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// UnmarshalText reads a reference. The error does not repeat the text, which is
// a secret if it was given inline.
func (r *Ref) UnmarshalText(b []byte) error {
	s := string(b)
	name, isEnv := strings.CutPrefix(s, "env:")
	path, isFile := strings.CutPrefix(s, "file:")
	switch {
	case isEnv && envName.MatchString(name), isFile && strings.HasPrefix(path, "/"):
		*r = Ref{s}
		return nil
	case isEnv:
		return &yamlfile.Problem{Message: "this is no name of an environment variable", Hint: "write for example env:HF_TOKEN"}
	case isFile:
		return &yamlfile.Problem{Message: "the file of a secret needs an absolute path", Hint: "write for example file:/run/secrets/token"}
	}
	return &yamlfile.Problem{Message: "a secret does not stand in a file; name where it is", Hint: "write env:NAME or file:/path (and change the secret, if this was one)"}
}

// MarshalText writes the reference, which is no secret.
func (r Ref) MarshalText() ([]byte, error) { return []byte(r.ref), nil }

func (r Ref) String() string { return r.ref }

// IsZero says that there is no secret.
func (r Ref) IsZero() bool { return r.ref == "" }

// Equal says that both name the same place.
func (r Ref) Equal(o Ref) bool { return r == o }

// Read returns the secret. One newline at the end of a file is dropped. An
// empty or missing secret is an error.
func (r Ref) Read() (Value, error) {
	if name, ok := strings.CutPrefix(r.ref, "env:"); ok {
		if v := os.Getenv(name); v != "" {
			return Value{v}, nil
		}
		return Value{}, fmt.Errorf("secret %s: the environment variable is not set; set it where the program runs", r.ref)
	}
	path, _ := strings.CutPrefix(r.ref, "file:")
	b, err := os.ReadFile(path)
	if err != nil {
		return Value{}, fmt.Errorf("secret %s: %w", r.ref, err)
	}
	v := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	if v == "" {
		return Value{}, fmt.Errorf("secret %s: the file is empty", r.ref)
	}
	return Value{v}, nil
}

// Value is a secret in memory. Only Reveal gives it out.
type Value struct{ text string }

const redacted = "[secret]"

// Reveal returns the secret.
func (v Value) Reveal() string { return v.text }

// String, GoString, MarshalText and LogValue show that there is a secret, not which.
func (Value) String() string { return redacted }

// GoString serves %#v.
func (Value) GoString() string { return redacted }

// MarshalText serves JSON.
func (Value) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue serves slog.
func (Value) LogValue() slog.Value { return slog.StringValue(redacted) }
