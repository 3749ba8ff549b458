package spec

import (
	"errors"
	"fmt"
	"strings"

	"gpubroker/internal/yamlfile"
)

// Complete is what makes a save complete. The zero value is a rename into
// place; otherwise it is a marker file.
type Complete struct{ Marker string }

const markerPrefix = "marker:"

func (c Complete) describe() string { return "rename, or {marker: NAME}" }

// UnmarshalText reads "rename" or "marker:NAME".
func (c *Complete) UnmarshalText(b []byte) error {
	s := string(b)
	name, isMarker := strings.CutPrefix(s, markerPrefix)
	switch {
	case s == "rename":
		*c = Complete{}
	case isMarker:
		name = strings.TrimSpace(name)
		if name == "" || strings.ContainsAny(name, "/\x00") || name == "." || name == ".." {
			return &yamlfile.Problem{Message: fmt.Sprintf("expected the name of a file, found %q", name), Hint: "the marker lies in the folder of the save"}
		}
		*c = Complete{Marker: name}
	default:
		return &yamlfile.Problem{Message: fmt.Sprintf("expected %s, found %q", c.describe(), s)}
	}
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (c Complete) MarshalText() ([]byte, error) {
	if c.Marker == "" {
		return []byte("rename"), nil
	}
	return []byte(markerPrefix + c.Marker), nil
}

// DecodeYAML reads the text form or {marker: NAME}.
func (c *Complete) DecodeYAML(cur yamlfile.Cursor) {
	n := cur.Node
	var text string
	switch {
	case n.Kind == yamlfile.Scalar:
		text = n.Text
	case n.Kind == yamlfile.Map && len(n.Entries) == 1 && n.Entries[0].Key == "marker" && n.Entries[0].Value.Kind == yamlfile.Scalar:
		text = markerPrefix + n.Entries[0].Value.Text
	default:
		cur.Errorf("", "expected %s, found %s", c.describe(), n.Kind)
		return
	}
	if err := c.UnmarshalText([]byte(text)); err != nil {
		if p, ok := errors.AsType[*yamlfile.Problem](err); ok {
			cur.Errorf(p.Hint, "%s", p.Message)
		}
	}
}

// JSONSchema describes both forms.
func (Complete) JSONSchema() map[string]any {
	return map[string]any{"anyOf": []any{
		map[string]any{"type": "string", "pattern": "^(rename|marker:.+)$"},
		map[string]any{"type": "object", "properties": map[string]any{"marker": map[string]any{"type": "string"}}, "required": []string{"marker"}, "additionalProperties": false},
	}}
}
