// Package discovery holds HTTP calls against Google's discovery documents: that a
// method with this path and these parameters exists, and that the bodies of
// requests and answers have the properties, types and enumerated words of their
// schemas. The documents stand in the module google.golang.org/api.
//
// It is for tests alone. It does not know which properties an answer must have:
// the documents do not say.
package discovery

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// APIs are discovery documents, together.
type APIs struct{ methods map[shape][]*method }

// shape narrows the methods that a call may be.
type shape struct {
	verb  string
	parts int // of the path
}

func shapeOf(verb, path string) shape { return shape{verb, strings.Count(path, "/")} }

type method struct {
	id       string
	path     *regexp.Regexp
	names    []string // of the path's parameters
	params   map[string]parameter
	request  string
	response string
	schemas  map[string]*schema
}

type parameter struct {
	Location string   `json:"location"`
	Pattern  string   `json:"pattern"`
	Required bool     `json:"required"`
	Type     string   `json:"type"`
	Enum     []string `json:"enum"`
}

type schema struct {
	Type       string             `json:"type"`
	Format     string             `json:"format"`
	Ref        string             `json:"$ref"`
	Enum       []string           `json:"enum"`
	Properties map[string]*schema `json:"properties"`
	Additional *schema            `json:"additionalProperties"`
	Items      *schema            `json:"items"`
}

type document struct {
	ServicePath string               `json:"servicePath"`
	Parameters  map[string]parameter `json:"parameters"`
	Schemas     map[string]*schema   `json:"schemas"`
	Resources   map[string]resource  `json:"resources"`
}

type resource struct {
	Methods   map[string]methodJSON `json:"methods"`
	Resources map[string]resource   `json:"resources"`
}

type methodJSON struct {
	ID         string               `json:"id"`
	Verb       string               `json:"httpMethod"`
	Path       string               `json:"path"`
	FlatPath   string               `json:"flatPath"`
	Parameters map[string]parameter `json:"parameters"`
	Request    struct {
		Ref string `json:"$ref"`
	} `json:"request"`
	Response struct {
		Ref string `json:"$ref"`
	} `json:"response"`
}

// Google returns the documents of Compute Engine, Cloud Billing and Resource
// Manager. They are read once.
var Google = sync.OnceValues(func() (*APIs, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "google.golang.org/api").Output()
	if err != nil {
		return nil, fmt.Errorf("discovery: where the module google.golang.org/api is: %w", err)
	}
	return Load(strings.TrimSpace(string(out)), "compute/v1/compute-api.json", "cloudbilling/v1/cloudbilling-api.json", "cloudresourcemanager/v1/cloudresourcemanager-api.json")
})

// Load reads documents from a folder.
func Load(dir string, files ...string) (*APIs, error) {
	a := &APIs{methods: map[shape][]*method{}}
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(dir, f))
		if err != nil {
			return nil, fmt.Errorf("discovery: %w", err)
		}
		var d document
		if err := json.Unmarshal(data, &d); err != nil {
			return nil, fmt.Errorf("discovery: %s: %w", f, err)
		}
		for _, r := range d.Resources {
			a.add(&d, r)
		}
	}
	return a, nil
}

var templated = regexp.MustCompile(`\{\+?([A-Za-z]+)\}`)

func (a *APIs) add(d *document, r resource) {
	for _, m := range r.Methods {
		path := m.Path
		if strings.Contains(path, "{+") {
			path = m.FlatPath // its parameters have other names, and no patterns
		}
		path = "/" + d.ServicePath + path
		var names []string
		var pattern strings.Builder
		at := 0
		for _, span := range templated.FindAllStringSubmatchIndex(path, -1) {
			pattern.WriteString(regexp.QuoteMeta(path[at:span[0]]) + `([^/]+?)`)
			names = append(names, path[span[2]:span[3]])
			at = span[1]
		}
		pattern.WriteString(regexp.QuoteMeta(path[at:]))
		params := maps.Clone(d.Parameters)
		maps.Copy(params, m.Parameters)
		key := shapeOf(m.Verb, path)
		a.methods[key] = append(a.methods[key], &method{
			id: m.ID, path: regexp.MustCompile("^" + pattern.String() + "$"), names: names, params: params,
			request: m.Request.Ref, response: m.Response.Ref, schemas: d.Schemas,
		})
	}
	for _, sub := range r.Resources {
		a.add(d, sub)
	}
}

// Check returns what is wrong with a call and its answer. Of answers that failed
// only the error body's form is looked at.
func (a *APIs) Check(verb string, u *url.URL, request []byte, status int, answer []byte) []string {
	var m *method
	var values []string
	for _, candidate := range a.methods[shapeOf(verb, u.EscapedPath())] {
		// A fixed word goes before a parameter: …/instances/bulkInsert.
		found := candidate.path.FindStringSubmatch(u.EscapedPath())
		if found != nil && (m == nil || len(candidate.names) < len(m.names)) {
			m, values = candidate, found[1:]
		}
	}
	if m == nil {
		return []string{fmt.Sprintf("no method is %s %s", verb, u.EscapedPath())}
	}
	c := &check{m: m}
	for i, name := range m.names {
		value, err := url.PathUnescape(values[i])
		if p, ok := m.params[name]; ok && p.Pattern != "" && (err != nil || !regexp.MustCompile("^(?:"+p.Pattern+")$").MatchString(value)) {
			c.wrong("path", "%s is %q, not %s", name, value, p.Pattern)
		}
	}
	query := u.Query()
	for name := range query {
		p, ok := m.params[name]
		switch {
		case !ok || p.Location != "query":
			c.wrong("query", "%s is no parameter", name)
		case p.Type == "integer":
			if _, err := strconv.ParseInt(query.Get(name), 10, 64); err != nil {
				c.wrong("query", "%s is no integer", name)
			}
		case len(p.Enum) > 0 && !slices.Contains(p.Enum, query.Get(name)):
			c.wrong("query", "%s is %q", name, query.Get(name))
		}
	}
	for name, p := range m.params {
		if p.Required && p.Location == "query" && !query.Has(name) {
			c.wrong("query", "%s is missing", name)
		}
	}
	switch {
	case m.request != "" && len(request) > 0:
		c.body("request", m.request, request)
	case m.request == "" && len(bytes.TrimSpace(request)) > 0:
		c.wrong("request", "the method takes no body")
	}
	var failed struct {
		Error struct {
			Code    int              `json:"code"`
			Message string           `json:"message"`
			Errors  []map[string]any `json:"errors"`
		} `json:"error"`
	}
	isError := json.Unmarshal(answer, &failed) == nil && failed.Error.Code != 0
	switch {
	case status >= 400 && !isError:
		c.wrong("answer", "status %d without an error body", status)
	case isError && (failed.Error.Message == "" || len(failed.Error.Errors) == 0 || failed.Error.Errors[0]["reason"] == nil):
		c.wrong("answer", "an error body without message or reason: %s", answer)
	case !isError && m.response != "":
		c.body("answer", m.response, answer)
	}
	return c.problems
}

type check struct {
	m        *method
	problems []string
}

func (c *check) wrong(where, format string, args ...any) {
	c.problems = append(c.problems, c.m.id+": "+where+": "+fmt.Sprintf(format, args...))
}

func (c *check) body(where, ref string, data []byte) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		c.wrong(where, "no JSON: %v", err)
		return
	}
	c.value(where, &schema{Ref: ref}, v)
}

var (
	signed   = regexp.MustCompile(`^-?[0-9]+$`)
	unsigned = regexp.MustCompile(`^[0-9]+$`)
)

func (c *check) value(where string, s *schema, v any) {
	if s.Ref != "" {
		known, ok := c.m.schemas[s.Ref]
		if !ok {
			c.wrong(where, "no schema %s", s.Ref)
			return
		}
		s = known
	}
	if v == nil {
		c.wrong(where, "null")
		return
	}
	bad := func() { c.wrong(where, "%v is no %s %s", v, s.Type, s.Format) }
	switch s.Type {
	case "object":
		m, ok := v.(map[string]any)
		if !ok {
			bad()
			return
		}
		for _, key := range slices.Sorted(maps.Keys(m)) {
			switch p := s.Properties[key]; {
			case p != nil:
				c.value(where+"."+key, p, m[key])
			case s.Additional != nil:
				c.value(where+"."+key, s.Additional, m[key])
			default:
				c.wrong(where, "no property %s", key)
			}
		}
	case "array":
		list, ok := v.([]any)
		if !ok {
			bad()
			return
		}
		for i, item := range list {
			c.value(where+"["+strconv.Itoa(i)+"]", s.Items, item)
		}
	case "string":
		text, ok := v.(string)
		switch {
		case !ok, s.Format == "int64" && !signed.MatchString(text), s.Format == "uint64" && !unsigned.MatchString(text):
			bad()
		case len(s.Enum) > 0 && !slices.Contains(s.Enum, text):
			c.wrong(where, "%q is none of the enumerated words", text)
		}
	case "integer":
		if n, ok := v.(json.Number); !ok || !signed.MatchString(n.String()) {
			bad()
		}
	case "number":
		if _, ok := v.(json.Number); !ok {
			bad()
		}
	case "boolean":
		if _, ok := v.(bool); !ok {
			bad()
		}
	case "any":
	default:
		c.wrong(where, "a type %q", s.Type)
	}
}

// Watch stands before an API and reports what is wrong with the calls that pass,
// those to other paths excepted. It holds answers back until they are whole.
func (a *APIs) Watch(next http.Handler, report func(problem string)) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/compute/") && !strings.HasPrefix(r.URL.Path, "/v1/") {
			next.ServeHTTP(rw, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		seen := &recorder{ResponseWriter: rw, status: http.StatusOK}
		next.ServeHTTP(seen, r)
		if strings.Contains(rw.Header().Get("Content-Type"), "json") {
			for _, p := range a.Check(r.Method, r.URL, body, seen.status, seen.body.Bytes()) {
				report(p)
			}
		}
	})
}

// recorder keeps a copy of what it writes.
type recorder struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	r.body.Write(b)
	return r.ResponseWriter.Write(b)
}

// Flush sends what is written so far.
func (r *recorder) Flush() {
	_ = http.NewResponseController(r.ResponseWriter).Flush() // a writer that cannot is no failure
}

// Unwrap lets http.ResponseController reach the writer below.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
