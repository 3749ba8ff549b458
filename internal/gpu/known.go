package gpu

import (
	"encoding/json"
	"fmt"
)

// Known is a value that may be unknown. The zero value is unknown, and an
// unknown value never reads as zero by accident: it has to be asked for.
type Known[T comparable] struct {
	value T
	known bool
}

// Of returns a known value.
func Of[T comparable](v T) Known[T] { return Known[T]{v, true} }

// Get returns the value and whether it is known.
func (k Known[T]) Get() (T, bool) { return k.value, k.known }

// Or returns the value, or otherwise when it is unknown.
func (k Known[T]) Or(otherwise T) T {
	if k.known {
		return k.value
	}
	return otherwise
}

// Equal says that both are unknown, or known and the same.
func (k Known[T]) Equal(o Known[T]) bool { return k == o }

// IsZero says that the value is unknown; with it `omitzero` leaves it out.
func (k Known[T]) IsZero() bool { return !k.known }

// String shows the value, or "unknown".
func (k Known[T]) String() string {
	if !k.known {
		return "unknown"
	}
	return fmt.Sprint(k.value)
}

// MarshalJSON writes the value, or null when it is unknown.
func (k Known[T]) MarshalJSON() ([]byte, error) {
	if !k.known {
		return []byte("null"), nil
	}
	return json.Marshal(k.value)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (k *Known[T]) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*k = Known[T]{}
		return nil
	}
	k.known = true
	return json.Unmarshal(b, &k.value)
}
