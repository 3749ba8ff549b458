package yamlfile

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
)

// Schemer is a type that gives its own part of a JSON Schema.
type Schemer interface {
	JSONSchema() map[string]any
}

// Schema returns the JSON Schema (draft 2020-12) of a struct, for editors.
func Schema(v any, id, title string) ([]byte, error) {
	t := reflect.TypeOf(v)
	s := schemaOf(t, "")
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["$id"] = id
	s["title"] = title
	b, err := json.MarshalIndent(s, "", "  ")
	return append(b, '\n'), err
}

func schemaOf(t reflect.Type, tag reflect.StructTag) map[string]any {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	s := map[string]any{}
	ptr := reflect.New(t).Interface()
	own, isSchemer := ptr.(Schemer)
	_, isText := ptr.(encoding.TextUnmarshaler)
	switch {
	case isSchemer:
		s = own.JSONSchema()
	case isText:
		s["type"] = "string"
	case t.Kind() == reflect.Struct:
		properties, required := map[string]any{}, []string{}
		for _, f := range Fields(t) {
			properties[f.Name] = schemaOf(f.Type, f.Tag)
			if f.Required {
				required = append(required, f.Name)
			}
		}
		s["type"], s["properties"], s["additionalProperties"] = "object", properties, false
		if len(required) > 0 {
			s["required"] = required
		}
	case t.Kind() == reflect.Slice:
		items := schemaOf(t.Elem(), stripDoc(tag))
		s["type"], s["items"] = "array", items
		if tag.Get("single") == "true" {
			s = map[string]any{"anyOf": []any{items, map[string]any{"type": "array", "items": items}}}
		}
	case t.Kind() == reflect.Map:
		s["type"], s["additionalProperties"] = "object", schemaOf(t.Elem(), "")
	case t.Kind() == reflect.Bool:
		s["type"] = "boolean"
	case t.Kind() == reflect.Int || t.Kind() == reflect.Int64:
		s["type"] = "integer"
	case t.Kind() == reflect.Float64:
		s["type"] = "number"
	case t.Kind() == reflect.String:
		s["type"] = []string{"string", "number", "boolean"} // the file's text is taken as it stands
		if enum := tag.Get("enum"); enum != "" {
			s["type"], s["enum"] = "string", strings.Split(enum, ",")
		}
	}
	if t.Kind() != reflect.Slice {
		for key, name := range map[string]string{"min": "minimum", "max": "maximum"} {
			if f, err := strconv.ParseFloat(tag.Get(key), 64); err == nil {
				s[name] = f
			}
		}
	}
	if d, ok := ptr.(Described); ok && s["description"] == nil {
		s["description"] = d.Describe()
	}
	if doc := tag.Get("doc"); doc != "" {
		s["description"] = doc
	}
	return s
}

// stripDoc keeps a list's documentation from being repeated at its items.
func stripDoc(tag reflect.StructTag) reflect.StructTag {
	if doc := tag.Get("doc"); doc != "" {
		return reflect.StructTag(strings.Replace(string(tag), `doc:`+strconv.Quote(doc), "", 1))
	}
	return tag
}
