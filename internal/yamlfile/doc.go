// Package yamlfile reads strict YAML files into structs and says what is wrong
// with them in a way that a person can act on.
//
// Every error of a file is reported at once, each with its file, line and
// column, the line itself, what was expected and the nearest valid key. The
// same struct that is filled gives the keys, their documentation, their limits
// (struct tags) and the JSON Schema for editors, so the three cannot differ.
//
// Struct tags: `json` names the key; `doc` documents it; `required`, `enum`,
// `min` and `max` limit it. A type reads a scalar by encoding.TextUnmarshaler,
// and anything else by [Decoder]. Scalars keep the text that stands in the
// file, so 06:00 and 1.10 mean what they look like.
//
// YAML's merge keys, tags and further documents are refused; anchors and
// aliases work, with a bound on what they may expand to.
package yamlfile

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"gpubroker/internal/nearest"
)

// Limits that keep a hostile file from taking the program down.
const (
	MaxBytes = 8 << 20
	maxDepth = 100
)

// Kind is the shape of a node.
type Kind string

// The shapes of a node.
const (
	Null   Kind = "nothing"
	Scalar Kind = "a single value"
	List   Kind = "a list"
	Map    Kind = "a mapping"
	broken Kind = "" // reported when it was parsed
)

// Node is a value in a file.
type Node struct {
	Kind    Kind
	Text    string // of a scalar, as written (quotes and escapes undone)
	Quoted  bool   // the scalar cannot be a number, true, false or null
	Items   []*Node
	Entries []Entry
	Pos     Pos
}

// Entry is a key with its value, in the file's order.
type Entry struct {
	Key   string
	Pos   Pos
	Value *Node
}

// Get returns the value of a key of a mapping, or nil.
func (n *Node) Get(key string) *Node {
	for _, e := range n.Entries {
		if e.Key == key {
			return e.Value
		}
	}
	return nil
}

// Pos is a place in a source; Line and Column count from 1.
type Pos struct {
	source       *source
	Line, Column int
}

// source is one text that errors can point into: the file, or a --set.
type source struct {
	name  string
	lines []string
	// masked hides what stands from a column on, by line.
	masked map[int]int
	broken bool // not parsed, so that secrets cannot be told by type
}

// Doc is a file while it is read. The errors found so far are in Err.
type Doc struct {
	Root *Node
	errs Errors
	file *source
	// places are where the paths seen by Decode stand.
	places map[string]Pos
	nodes  int // parsed, to bound what aliases expand to
	visits int
}

// Parse reads a file's text. name is how errors call the file. A text that is
// no YAML gives a Doc with an error and no Root.
func Parse(name string, text []byte) *Doc {
	d := &Doc{file: newSource(name, string(text)), places: map[string]Pos{}}
	d.Root = d.parse(d.file, text)
	return d
}

// New returns a Doc around values that were built by hand, for a command line
// that takes the place of a file.
func New(name, text string, root *Node) *Doc {
	d := &Doc{file: newSource(name, text), places: map[string]Pos{}, nodes: 1000}
	var place func(*Node)
	place = func(n *Node) {
		n.Pos = Pos{d.file, 1, 1}
		for _, item := range n.Items {
			place(item)
		}
		for i := range n.Entries {
			n.Entries[i].Pos = n.Pos
			place(n.Entries[i].Value)
		}
	}
	place(root)
	d.Root = root
	return d
}

func newSource(name, text string) *source {
	if len(text) > MaxBytes { // it is refused, and only its beginning shown
		text = text[:1<<10]
	}
	return &source{name: name, lines: strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n"), masked: map[int]int{}}
}

func (d *Doc) parse(s *source, text []byte) *Node {
	fail := func(line, column int, message, hint string) *Node {
		d.errs = append(d.errs, Error{pos: Pos{s, line, column}, Message: message, Hint: hint})
		return nil
	}
	s.broken = true
	switch {
	case len(text) > MaxBytes:
		return fail(1, 1, fmt.Sprintf("the file has %d bytes, the limit is %d", len(text), MaxBytes), "put long lists into a file of their own")
	case !utf8.Valid(text):
		return fail(1, 1, "the file is no UTF-8 text", "")
	case bytes.IndexByte(text, 0) >= 0:
		line := 1 + bytes.Count(text[:bytes.IndexByte(text, 0)], []byte("\n"))
		return fail(line, 1, "the file holds a zero byte", "expected UTF-8 text")
	}
	if line := tooDeep(text); line > 0 {
		return fail(line, 1, "nested too deeply", "")
	}
	file, err := parseSafely(text)
	if err != nil {
		line, column, message := 1, 1, err.Error()
		if e, ok := errors.AsType[yaml.Error](err); ok {
			message = e.GetMessage()
			if t := e.GetToken(); t != nil && t.Position != nil {
				line, column = t.Position.Line, t.Position.Column
			}
		}
		return fail(line, column, "this is no valid YAML: "+message, syntaxHint(s, line))
	}
	s.broken = false
	var docs []*ast.DocumentNode
	for _, doc := range file.Docs {
		if doc.Body != nil && doc.Body.Type() != ast.DirectiveType {
			docs = append(docs, doc)
		}
	}
	if len(docs) == 0 {
		return fail(1, 1, "the file is empty", "")
	}
	if len(docs) > 1 {
		p := docs[1].Body.GetToken().Position
		return fail(p.Line, p.Column, "a second document begins here", "put it into a file of its own")
	}
	c := converter{doc: d, source: s, anchors: map[string]*Node{}}
	return c.convert(docs[0].Body, 0)
}

// parseSafely turns a panic of the YAML library into an error: the text comes
// from outside, and a library's fault must not end the broker.
func parseSafely(text []byte) (f *ast.File, err error) {
	defer func() {
		if p := recover(); p != nil {
			f, err = nil, fmt.Errorf("the YAML reader cannot read it (%v)", p)
		}
	}()
	return parser.ParseBytes(text, 0, parser.AllowDuplicateMapKey())
}

// tooDeep returns the line in which nesting passes what the recursive parser
// should be given, or 0.
func tooDeep(text []byte) int {
	const most = 10 * maxDepth
	depth, line := 0, 0
	for l := range bytes.Lines(text) {
		line++
		if lead := bytes.TrimLeft(l, "-? \t"); bytes.Count(l[:len(l)-len(lead)], []byte("- "))+bytes.Count(l[:len(l)-len(lead)], []byte("? ")) > most {
			return line
		}
		for _, b := range l {
			switch b {
			case '[', '{':
				depth++
			case ']', '}':
				depth--
			}
			if depth > most {
				return line
			}
		}
	}
	return 0
}

func syntaxHint(s *source, line int) string {
	if line < 1 || line > len(s.lines) {
		return ""
	}
	text := strings.TrimSpace(s.lines[line-1])
	switch {
	case strings.HasPrefix(s.lines[line-1], "\t") || strings.Contains(s.lines[line-1], "\t"):
		return "YAML is indented with spaces; this line has a tab"
	case text != "" && isKey(strings.Fields(text)[0]) && !strings.ContainsAny(text, ":#-[]{}|>&*"):
		return fmt.Sprintf("expected %q", strings.Fields(text)[0]+": …")
	case strings.Contains(text, "{{") && !strings.ContainsAny(text, `"'`):
		return `text with {{ }} needs quotes: "{{input}}"`
	}
	return ""
}

// isKey reports whether a word may be the key that its line lacks a colon after.
func isKey(word string) bool {
	return strings.IndexFunc(word, func(c rune) bool { return c != '_' && !unicode.IsLetter(c) && !unicode.IsDigit(c) }) < 0
}

type converter struct {
	doc     *Doc
	source  *source
	anchors map[string]*Node
}

func (c *converter) pos(t *token.Token) Pos {
	if t == nil || t.Position == nil {
		return Pos{c.source, 1, 1}
	}
	return Pos{c.source, t.Position.Line, max(t.Position.Column, 1)}
}

func (c *converter) fail(p Pos, message, hint string) {
	c.doc.errs = append(c.doc.errs, Error{pos: p, Message: message, Hint: hint})
}

// convert turns the library's tree into ours. It never returns nil.
func (c *converter) convert(n ast.Node, depth int) *Node {
	if n == nil {
		return &Node{Kind: Null, Pos: Pos{c.source, 1, 1}}
	}
	c.doc.nodes++
	p := c.pos(n.GetToken())
	if depth > maxDepth {
		c.fail(p, "nested too deeply", "")
		return &Node{Kind: broken, Pos: p}
	}
	scalar := func(text string, quoted bool) *Node {
		return &Node{Kind: Scalar, Text: text, Quoted: quoted, Pos: p}
	}
	switch n := n.(type) {
	case *ast.NullNode:
		return &Node{Kind: Null, Pos: p}
	case *ast.StringNode:
		return scalar(n.Value, n.Token.Type == token.DoubleQuoteType || n.Token.Type == token.SingleQuoteType)
	case *ast.LiteralNode:
		return scalar(n.Value.Value, true)
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return scalar(n.GetToken().Value, false)
	case *ast.SequenceNode:
		list := &Node{Kind: List, Pos: p}
		for _, v := range n.Values {
			list.Items = append(list.Items, c.convert(v, depth+1))
		}
		return list
	case *ast.MappingNode:
		return c.mapping(n.Values, p, depth)
	case *ast.MappingValueNode:
		return c.mapping([]*ast.MappingValueNode{n}, p, depth)
	case *ast.AnchorNode:
		v := c.convert(n.Value, depth+1)
		c.anchors[n.Name.GetToken().Value] = v
		return v
	case *ast.AliasNode:
		name := n.Value.GetToken().Value
		if v, ok := c.anchors[name]; ok {
			return v
		}
		c.fail(p, fmt.Sprintf("there is no anchor &%s before this alias", name), `a text that begins with * needs quotes`)
	case *ast.TagNode:
		c.fail(p, "YAML tags such as "+n.Start.Value+" are not read here", "write the plain value")
	case *ast.MergeKeyNode:
		c.fail(p, "merge keys (<<) are not read here", "write the keys out")
	default:
		c.fail(p, fmt.Sprintf("this form of YAML (%s) is not read here", n.Type()), "")
	}
	return &Node{Kind: broken, Pos: p}
}

func (c *converter) mapping(values []*ast.MappingValueNode, p Pos, depth int) *Node {
	m := &Node{Kind: Map, Pos: p}
	if len(values) > 0 {
		m.Pos = c.pos(values[0].Key.GetToken())
	}
	seen := make(map[string]Pos, len(values))
	for _, v := range values {
		at := c.pos(v.Key.GetToken())
		key, ok := v.Key.(ast.ScalarNode)
		if !ok || v.Key.Type() == ast.MergeKeyType {
			c.fail(at, "merge keys (<<) and keys that are no plain words are not read here", "write the keys out")
			continue
		}
		name := v.Key.GetToken().Value
		if s, ok := key.(*ast.StringNode); ok {
			name = s.Value
		}
		if first, ok := seen[name]; ok {
			c.fail(at, fmt.Sprintf("%s is given twice", name), fmt.Sprintf("the first is in line %d", first.Line))
			continue
		}
		seen[name] = at
		value := c.convert(v.Value, depth+1)
		if value.Kind == Null {
			value.Pos = at
		}
		m.Entries = append(m.Entries, Entry{Key: name, Pos: at, Value: value})
	}
	return m
}

// Set overrides a value as --set does: "resources.slots=4". The value is YAML,
// so [l4, t4] is a list; null takes the key away. flag is how errors call it.
func (d *Doc) Set(flag, assignment string) {
	s := newSource(flag+" "+assignment, assignment)
	fail := func(column int, message, hint string) {
		d.errs = append(d.errs, Error{pos: Pos{s, 1, column}, Message: message, Hint: hint})
	}
	path, text, ok := strings.Cut(assignment, "=")
	path = strings.TrimSpace(path)
	keys := strings.Split(path, ".")
	if !ok || path == "" || slices.Contains(keys, "") {
		fail(1, "this is no assignment", `expected key=value, for example "resources.slots=2"`)
		return
	}
	var value *Node
	if strings.TrimSpace(text) == "" {
		value = &Node{Kind: Scalar, Quoted: true, Pos: Pos{s, 1, len(assignment) + 1}}
	} else {
		before := len(d.errs)
		value = d.parse(s, []byte(text))
		for i := range d.errs[before:] { // columns count in the whole flag
			d.errs[before+i].pos.Column += len(assignment) - len(text)
		}
		if value == nil {
			return
		}
		shift(value, len(assignment)-len(text))
	}
	if d.Root == nil {
		return
	}
	at, column := d.Root, 1
	for i, k := range keys {
		if at.Kind != Map {
			fail(column, fmt.Sprintf("%s is no mapping", strings.Join(keys[:i], ".")), "")
			return
		}
		p := Pos{s, 1, column}
		column += len(k) + 1
		j := slices.IndexFunc(at.Entries, func(e Entry) bool { return e.Key == k })
		switch {
		case i == len(keys)-1 && value.Kind == Null:
			if j >= 0 {
				at.Entries = slices.Delete(at.Entries, j, j+1)
			}
			return
		case i == len(keys)-1 && j >= 0:
			at.Entries[j] = Entry{k, p, value}
			return
		case i == len(keys)-1:
			at.Entries = append(at.Entries, Entry{k, p, value})
			return
		case j < 0:
			next := &Node{Kind: Map, Pos: p}
			at.Entries = append(at.Entries, Entry{k, p, next})
			at = next
		default:
			if at.Entries[j].Value.Kind == Null {
				at.Entries[j].Value = &Node{Kind: Map, Pos: p}
			}
			at = at.Entries[j].Value
		}
	}
}

// shift moves a value to where it stands in the whole flag.
func shift(n *Node, by int) {
	n.Pos.Column += by
	for _, item := range n.Items {
		shift(item, by)
	}
	for i := range n.Entries {
		n.Entries[i].Pos.Column += by
		shift(n.Entries[i].Value, by)
	}
}

// Errorf records an error at a path such as "tasks.glob" or "inputs[2].from".
// A path that the file does not hold is reported at its nearest ancestor.
func (d *Doc) Errorf(path, hint, format string, args ...any) {
	p, at := path, Pos{d.file, 1, 1}
	for p != "" {
		if found, ok := d.places[p]; ok {
			at = found
			break
		}
		p = p[:max(strings.LastIndexAny(p, ".["), 0)]
	}
	d.errs = append(d.errs, Error{pos: at, Path: path, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// Faulty says whether an error was recorded at the path or below it, so that
// rules over several values need not report a wrong one again.
func (d *Doc) Faulty(path string) bool {
	for _, e := range d.errs {
		if rest, ok := strings.CutPrefix(e.Path, path); ok && (path == "" || rest == "" || rest[0] == '.' || rest[0] == '[') {
			return true
		}
	}
	return false
}

// Has says whether the file gives a value at the path.
func (d *Doc) Has(path string) bool {
	_, ok := d.places[path]
	return ok
}

// Err returns the errors found so far as [Errors], in the file's order, or nil.
func (d *Doc) Err() error {
	if len(d.errs) == 0 {
		return nil
	}
	return d.errs.finish(d.file)
}

// join builds the path of a key.
func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// unknownKey reports a key that nothing reads, with the nearest that is read.
func (d *Doc) unknownKey(path string, e Entry, valid []string) {
	hint := nearest.Hint(e.Key, valid)
	if hint == "" {
		hint = "valid keys here: " + strings.Join(valid, ", ")
	}
	d.errs = append(d.errs, Error{pos: e.Pos, Path: join(path, e.Key), Message: "unknown key", Hint: hint})
}
