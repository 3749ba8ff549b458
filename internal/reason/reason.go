// Package reason holds the broker's answers to "why": stable codes with
// numbers, rendered to text only at the edge, so that the same value serves a
// table, the API, a metric's label and a translation.
package reason

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Code is one kind of reason. Codes are stable, lower-case, and few.
type Code string

// Reason is a code with the numbers and names that fill its sentence.
type Reason struct {
	Code Code
	Args map[string]string
}

// New makes a reason from alternating names and values:
// New("over_budget", "budget", "media", "short", "1.25").
func New(code Code, args ...any) Reason {
	r := Reason{Code: code}
	for i := 0; i+1 < len(args); i += 2 {
		if r.Args == nil {
			r.Args = make(map[string]string, len(args)/2)
		}
		r.Args[fmt.Sprint(args[i])] = fmt.Sprint(args[i+1])
	}
	return r
}

// IsZero reports whether there is no reason.
func (r Reason) IsZero() bool { return r.Code == "" }

// String renders the reason with the sentence registered for its code in
// [Sentences]; an argument that the sentence does not name is appended, so that
// nothing known is hidden.
func (r Reason) String() string {
	if r.IsZero() {
		return ""
	}
	text, known := Sentences[r.Code]
	if !known {
		text = strings.ReplaceAll(string(r.Code), "_", " ")
	}
	text, used := r.fill(text)
	var rest []string
	for _, name := range slices.Sorted(maps.Keys(r.Args)) {
		if !used[name] && r.Args[name] != "" {
			rest = append(rest, name+" "+r.Args[name])
		}
	}
	if len(rest) > 0 {
		text += " (" + strings.Join(rest, ", ") + ")"
	}
	return text
}

type wire struct {
	Code Code              `json:"code"`
	Args map[string]string `json:"args,omitempty"`
	Text string            `json:"text"`
}

// MarshalJSON writes the code, its arguments and the rendered sentence.
func (r Reason) MarshalJSON() ([]byte, error) {
	return json.Marshal(wire{r.Code, r.Args, r.String()})
}

// UnmarshalJSON reads the code and its arguments; the sentence is derived.
func (r *Reason) UnmarshalJSON(b []byte) error {
	var w wire
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	r.Code, r.Args = w.Code, w.Args
	return nil
}
