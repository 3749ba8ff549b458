package yamlfile

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"gpubroker/internal/nearest"
)

// Decoder is a type that reads a node by itself, for example one that may be a
// word or a list.
type Decoder interface {
	DecodeYAML(c Cursor)
}

// Refuser is a struct that explains keys which people try and which are not
// read: the key and what to do instead.
type Refuser interface {
	RefusedKeys() map[string]string
}

// Sensitive marks a type whose text must never be shown, not even in the line
// that an error points to.
type Sensitive interface {
	Sensitive()
}

// Cursor is a node on its way into a value.
type Cursor struct {
	Node *Node
	Path string
	doc  *Doc
}

// Errorf records an error at the node.
func (c Cursor) Errorf(hint, format string, args ...any) {
	c.doc.errs = append(c.doc.errs, Error{pos: c.Node.Pos, Path: c.Path, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// KeyErrorf records an error at a key of the mapping.
func (c Cursor) KeyErrorf(e Entry, hint, format string, args ...any) {
	c.doc.errs = append(c.doc.errs, Error{pos: e.Pos, Path: join(c.Path, e.Key), Message: fmt.Sprintf(format, args...), Hint: hint})
}

// Hide keeps the node's text out of every excerpt: it may be a secret.
func (c Cursor) Hide() { c.Node.mask() }

// Item is the cursor of a list's item.
func (c Cursor) Item(i int) Cursor { return c.below(c.Node.Items[i], index(c.Path, i)) }

// Value is the cursor of a mapping's entry.
func (c Cursor) Value(e Entry) Cursor { return c.below(e.Value, join(c.Path, e.Key)) }

// below is the cursor of a node in c's; one that aliases have expanded to without
// end is cut off.
func (c Cursor) below(n *Node, path string) Cursor {
	c.doc.places[path] = n.Pos
	if c.doc.overBudget(n, path) {
		n = &Node{Kind: broken, Pos: n.Pos}
	}
	return Cursor{n, path, c.doc}
}

// Words reads a scalar, or a list of scalars, as texts.
func (c Cursor) Words() []string {
	switch c.Node.Kind {
	case Scalar:
		return []string{c.Node.Text}
	case List:
		var words []string
		for i, n := range c.Node.Items {
			if item := c.Item(i); n.Kind != Scalar {
				item.Errorf("", "expected a word, found %s", n.Kind)
			} else {
				words = append(words, n.Text)
			}
		}
		return words
	case broken: // it was reported
	case Null, Map:
		c.Errorf("", "expected a word or a list of words, found %s", c.Node.Kind)
	}
	return nil
}

// Decode fills out, a pointer to a struct, from the file. Errors are recorded.
func (d *Doc) Decode(out any) {
	if d.Root == nil {
		return
	}
	d.decode(d.Root, "", reflect.ValueOf(out).Elem(), "")
}

// overBudget bounds what aliases may expand to.
func (d *Doc) overBudget(n *Node, path string) bool {
	d.visits++
	limit := 10*d.nodes + 10_000
	if d.visits == limit+1 {
		d.errs = append(d.errs, Error{pos: n.Pos, Path: path, Message: "the aliases of this file expand without end"})
	}
	return d.visits > limit
}

func (d *Doc) decode(n *Node, path string, v reflect.Value, tag reflect.StructTag) {
	if n.Kind == broken || d.overBudget(n, path) {
		return
	}
	if _, ok := d.places[path]; !ok {
		d.places[path] = n.Pos
	}
	c := Cursor{n, path, d}
	if v.Kind() == reflect.Pointer {
		if n.Kind == Null {
			d.empty(c, v.Type().Elem())
			return
		}
		v.Set(reflect.New(v.Type().Elem()))
		d.decode(n, path, v.Elem(), tag)
		return
	}
	if _, ok := reflect.TypeAssert[Sensitive](v.Addr()); ok {
		defer func(before int) { // what is no reference may be the secret itself
			if len(d.errs) > before {
				n.mask()
			}
		}(len(d.errs))
	}
	if n.Kind == Null {
		d.empty(c, v.Type())
		return
	}
	switch t := v.Addr().Interface().(type) {
	case Decoder:
		t.DecodeYAML(c)
		return
	case encoding.TextUnmarshaler:
		if n.Kind != Scalar {
			c.Errorf("", "expected %s, found %s", describe(v.Type()), n.Kind)
			return
		}
		if err := t.UnmarshalText([]byte(n.Text)); err != nil {
			if p, ok := errors.AsType[*Problem](err); ok {
				c.Errorf(p.Hint, "%s", p.Message)
			} else {
				c.Errorf("", "%v", err)
			}
			return
		}
		if tag.Get("above") == "zero" && v.IsZero() {
			c.Errorf("leave it out if there is nothing to say", "expected more than zero, found %s", n.Text)
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.decodeStruct(c, v)
	case reflect.Slice:
		d.decodeSlice(c, v, tag)
	case reflect.Map:
		d.decodeMap(c, v)
	case reflect.String:
		d.decodeString(c, v, tag)
	case reflect.Bool:
		if n.Kind == Scalar && !n.Quoted && (n.Text == "true" || n.Text == "false") {
			v.SetBool(n.Text == "true")
			return
		}
		c.Errorf("", "expected true or false, found %s", found(n))
	case reflect.Int, reflect.Int64:
		i, err := strconv.ParseInt(n.Text, 10, 64)
		if n.Kind != Scalar || n.Quoted || err != nil {
			c.Errorf("", "expected a whole number, found %s", found(n))
			return
		}
		if inRange(c, float64(i), tag) {
			v.SetInt(i)
		}
	case reflect.Float64:
		f, err := strconv.ParseFloat(n.Text, 64)
		if n.Kind != Scalar || n.Quoted || err != nil || f != f || f > 1e300 || f < -1e300 {
			c.Errorf("", "expected a number, found %s", found(n))
			return
		}
		if inRange(c, f, tag) {
			v.SetFloat(f)
		}
	default:
		c.Errorf("", "cannot be given in a file")
	}
}

// empty reports a key without a value: what it means differs between readers of
// YAML, so it is never a default.
func (d *Doc) empty(c Cursor, t reflect.Type) {
	c.Errorf("expected "+describe(t), "this is empty; give it a value or leave the key out")
}

func (d *Doc) decodeStruct(c Cursor, v reflect.Value) {
	if c.Node.Kind != Map {
		fields := Fields(v.Type())
		names := make([]string, 0, len(fields))
		for _, f := range fields {
			names = append(names, f.Name)
		}
		c.Errorf("keys: "+strings.Join(names, ", "), "expected a mapping, found %s", found(c.Node))
		return
	}
	fields := Fields(v.Type())
	var refused map[string]string
	if r, ok := reflect.TypeAssert[Refuser](v.Addr()); ok {
		refused = r.RefusedKeys()
	}
	for _, e := range c.Node.Entries {
		i := slices.IndexFunc(fields, func(f Field) bool { return f.Name == e.Key })
		if i < 0 {
			if why, ok := refused[e.Key]; ok {
				c.KeyErrorf(e, why, "is not read here")
				continue
			}
			valid := make([]string, 0, len(fields))
			for _, f := range fields {
				valid = append(valid, f.Name)
			}
			d.unknownKey(c.Path, e, valid)
			continue
		}
		f := fields[i]
		p := join(c.Path, e.Key)
		d.places[p] = e.Value.Pos
		d.decode(e.Value, p, v.FieldByIndex(f.Index), f.Tag)
	}
	for _, f := range fields {
		if f.Required && c.Node.Get(f.Name) == nil {
			d.errs = append(d.errs, Error{pos: c.Node.Pos, Path: join(c.Path, f.Name), Message: "is missing", Hint: f.Doc})
		}
	}
}

func (d *Doc) decodeSlice(c Cursor, v reflect.Value, tag reflect.StructTag) {
	n := c.Node
	if n.Kind == Scalar && tag.Get("single") == "true" {
		n = &Node{Kind: List, Items: []*Node{n}, Pos: n.Pos}
		c.Node = n
	}
	if n.Kind != List {
		c.Errorf("", "expected a list, found %s", found(n))
		return
	}
	s := reflect.MakeSlice(v.Type(), len(n.Items), len(n.Items))
	for i, item := range n.Items {
		d.decode(item, index(c.Path, i), s.Index(i), tag)
	}
	v.Set(s)
}

func (d *Doc) decodeMap(c Cursor, v reflect.Value) {
	if c.Node.Kind != Map {
		c.Errorf("", "expected a mapping, found %s", found(c.Node))
		return
	}
	m := reflect.MakeMapWithSize(v.Type(), len(c.Node.Entries))
	for _, e := range c.Node.Entries {
		value := reflect.New(v.Type().Elem()).Elem()
		p := join(c.Path, e.Key)
		d.places[p] = e.Value.Pos
		d.decode(e.Value, p, value, "")
		m.SetMapIndex(reflect.ValueOf(e.Key), value)
	}
	v.Set(m)
}

func (d *Doc) decodeString(c Cursor, v reflect.Value, tag reflect.StructTag) {
	if c.Node.Kind != Scalar {
		c.Errorf("", "expected text, found %s", c.Node.Kind)
		return
	}
	if enum := tag.Get("enum"); enum != "" {
		allowed := strings.Split(enum, ",")
		if !slices.Contains(allowed, c.Node.Text) {
			hint := nearest.Ask(meant(tag.Get("meant"), c.Node.Text))
			if hint == "" {
				hint = nearest.Hint(c.Node.Text, allowed)
			}
			c.Errorf(hint, "expected %s, found %s", nearest.Or(allowed), found(c.Node))
			return
		}
	}
	v.SetString(c.Node.Text)
}

// meant finds a word in a list like "h265=hevc,avc=h264", of other names of
// what is allowed.
func meant(list, word string) []string {
	for pair := range strings.SplitSeq(list, ",") {
		if other, name, ok := strings.Cut(pair, "="); ok && strings.EqualFold(other, word) {
			return []string{name}
		}
	}
	return nil
}

func inRange(c Cursor, value float64, tag reflect.StructTag) bool {
	show := func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
	for _, limit := range []struct {
		tag, word string
		sign      float64
	}{{"min", "at least", 1}, {"max", "at most", -1}} {
		if s := tag.Get(limit.tag); s != "" {
			bound, err := strconv.ParseFloat(s, 64)
			if err == nil && limit.sign*value < limit.sign*bound {
				c.Errorf("", "expected %s %s, found %s", limit.word, show(bound), c.Node.Text)
				return false
			}
		}
	}
	return true
}

// found describes a node for "expected a, found b".
func found(n *Node) string {
	if n.Kind != Scalar {
		return string(n.Kind)
	}
	text := []rune(n.Text)
	if len(text) > 40 {
		text = append(text[:40], '…')
	}
	if n.Quoted {
		return fmt.Sprintf("the text %q", string(text))
	}
	return strconv.Quote(string(text))
}

// Described is a type that says what its text looks like: "a duration such as 5m".
type Described interface {
	Describe() string
}

func describe(t reflect.Type) string {
	if d, ok := reflect.TypeAssert[Described](reflect.New(t)); ok {
		return d.Describe()
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "a mapping"
	case reflect.Slice:
		return "a list"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64, reflect.Float64:
		return "a number"
	}
	return "text"
}

// Field is a key of a struct.
type Field struct {
	Name     string
	Doc      string
	Required bool
	Index    []int
	Tag      reflect.StructTag
	Type     reflect.Type
}

// Fields lists the keys of a struct type, in its order.
func Fields(t reflect.Type) []Field {
	var fields []Field
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "" || name == "-" {
			continue
		}
		fields = append(fields, Field{name, f.Tag.Get("doc"), f.Tag.Get("required") == "true", f.Index, f.Tag, f.Type})
	}
	return fields
}
