package config

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/internal/budget"
	"gpubroker/internal/yamlfile"
)

var update = flag.Bool("update", false, "write golden files anew")

var types = []string{"simcloud", "hosts", "aws", "gcp", "azure", "vast"}

const example = "../../config.example.yaml"

func TestExampleIsValid(t *testing.T) {
	c, err := Read(example, types)
	if err != nil {
		t.Fatal(err)
	}
	if c.Budgets[0].Rule() != (budget.Budget{Name: "company", Scope: budget.Org, Capped: true, Cap: 20_000e9, Guard: budget.Normal, Period: budget.Rule{Length: budget.Month, Anchor: 17, Zone: "America/New_York"}}) {
		t.Errorf("%+v", c.Budgets[0].Rule())
	}
	var settings map[string]any
	if err := json.Unmarshal(c.Providers[1].Settings.JSON, &settings); err != nil {
		t.Fatal(err)
	}
	host := settings["hosts"].([]any)[0].(map[string]any)
	if host["gpus"] != 2.0 || host["price"] != "0.40 USD" || host["memory"] != "128GiB" {
		t.Errorf("%v", host)
	}
	if p, ok := c.Project("research"); !ok || p.Lease.Std() != 20*time.Minute {
		t.Errorf("%+v", p)
	}
	if _, ok := c.Project("other"); ok {
		t.Error("a project that is not listed exists")
	}
	if q, ok := c.Queue("overnight"); !ok || *q.Priority != 40 {
		t.Errorf("%+v", q)
	}
	if _, ok := c.Queue("other"); ok {
		t.Error("a queue that is not listed exists")
	}
	if q, ok := c.Queue(""); !ok || *q.Priority != 50 {
		t.Errorf("%+v", q)
	}
}

// Every key stands in the example, with a comment beside or above it where it
// first appears.
func TestExampleDocumentsEveryKey(t *testing.T) {
	text, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	var check func(path string, v reflect.Type, nodes []*yamlfile.Node)
	check = func(path string, v reflect.Type, nodes []*yamlfile.Node) {
		for _, f := range yamlfile.Fields(v) {
			at := path + f.Name
			var below []*yamlfile.Node
			line := 0
			for _, n := range nodes {
				for _, e := range n.Entries {
					if e.Key == f.Name {
						below = append(below, e.Value)
						if line == 0 {
							line = e.Pos.Line
						}
					}
				}
			}
			if line == 0 {
				t.Errorf("%s is not in %s", at, example)
				continue
			}
			if commented := strings.Contains(lines[line-1], "#") || line > 1 && strings.HasPrefix(strings.TrimSpace(lines[line-2]), "#"); !commented {
				t.Errorf("line %d: %s has no comment", line, at)
			}
			if f.Doc == "" {
				t.Errorf("%s has no documentation", at)
			}
			ft := f.Type
			if ft.Kind() == reflect.Pointer {
				ft = ft.Elem()
			}
			if ft.Kind() == reflect.Slice && ft.Elem().Kind() == reflect.Struct {
				ft = ft.Elem()
				var items []*yamlfile.Node
				for _, n := range below {
					items = append(items, n.Items...)
				}
				below = items
			}
			if ft.Kind() == reflect.Struct && ft.PkgPath() == reflect.TypeFor[Config]().PkgPath() && ft != reflect.TypeFor[Settings]() {
				check(at+".", ft, below)
			}
		}
	}
	check("", reflect.TypeFor[Config](), []*yamlfile.Node{yamlfile.Parse(example, text).Root})
}

func TestGolden(t *testing.T) {
	text, err := os.ReadFile("testdata/wrong.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, err = Parse("wrong.yaml", text, types)
	es, ok := errors.AsType[Errors](err)
	if !ok {
		t.Fatalf("%#v", err)
	}
	got := es.Text()
	if strings.Contains(got, "hunter2") {
		t.Errorf("a secret is shown:\n%s", got)
	}
	if *update {
		if err := os.WriteFile("testdata/wrong.golden", []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/wrong.golden")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("go test ./internal/config -update writes it anew:\n%s", diff)
	}
}

func TestAddressRules(t *testing.T) {
	for _, c := range []struct{ text, fault string }{
		{"owner: x", ""},
		{"listen: 127.0.0.1:80", ""},
		{`listen: "[::1]:80"`, ""},
		{"listen: localhost:80", ""},
		{"listen: :80", "reached by other machines"},
		{"listen: 10.0.0.1:80", "reached by other machines"},
		{"listen: 10.0.0.1:80\ninsecure: true", ""},
		{"listen: 10.0.0.1:80\ntls: {names: b.example.org}", ""},
		{"listen: 10.0.0.1", "with a port"},
		{"tls: {cert: a}", "go together"},
		{"tls: {cert: a, key: b}\ninsecure: true", "exclude"},
		{"public_url: http://b.example.org", "without TLS"},
		{"public_url: http://127.0.0.1:7743", ""},
		{"public_url: b.example.org:1", "expected a URL"},
		{"store: sqlite:/x/y.db", ""},
		{"store: y.db", ""},
		{"store: mysql://h/d", "no store of the kind"},
		{"store_password: env:X", "only a PostgreSQL"},
		{"store: postgres://u@h/d\nstore_password: env:X", ""},
		{"objects: {url: /data/objects}", ""},
		{"objects: {url: /data/objects, region: x}", "a folder is in no region"},
		{"objects: {url: s3://b, access_key: env:A}", "go together"},
		{"objects: {url: gs://b/p, credentials: env:G, endpoint: 'http://127.0.0.1:1'}", ""},
		{"objects: {url: gs://b, region: x}", ""},
		{"objects: {url: azblob://c/p, account: a, account_key: env:K}", ""},
		{"objects: {url: azblob://c, account_key: env:K}", "no account"},
		{"objects: {url: azblob://}", "the bucket is missing"},
		{"objects: {url: /data/objects, endpoint: 'http://127.0.0.1:1'}", "a folder has no endpoint"},
		{"objects: {url: 'ftp://b'}", "no object store of the kind"},
		{"providers: [{name: a, type: hosts, settings: {x: 1}}]\nqueues: [{name: q, projects: any}]", ""},
	} {
		_, err := Parse("c.yaml", []byte(c.text), types)
		if (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%q: %v, want %q", c.text, err, c.fault)
		}
	}
	if c := Default(); c.Listen != "127.0.0.1:7743" || c.Leases.Length.Std() != 20*time.Minute {
		t.Errorf("%+v", c)
	}
}

func TestSettingsKeepTheirTypes(t *testing.T) {
	c, err := Parse("c.yaml", []byte("providers:\n- name: a\n  type: hosts\n  settings: {n: 2, f: 1.50, t: true, s: 'true', q: \"5\", d: 06:00, m: 5m, x: null, e: \"\", l: [1, a, {b: -3}], v: 010, w: 1.2.3}\n"), types)
	if err != nil {
		t.Fatal(err)
	}
	var got any
	if err := json.Unmarshal(c.Providers[0].Settings.JSON, &got); err != nil {
		t.Fatalf("%v: %s", err, c.Providers[0].Settings.JSON)
	}
	want := map[string]any{
		"n": 2.0, "f": 1.5, "t": true, "s": "true", "q": "5", "d": "06:00", "m": "5m", "x": nil, "e": "",
		"l": []any{1.0, "a", map[string]any{"b": -3.0}}, "v": "010", "w": "1.2.3",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func FuzzParse(f *testing.F) {
	for _, path := range []string{example, "testdata/wrong.yaml"} {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Parse("f.yaml", text, nil)
		if err != nil {
			if es, ok := errors.AsType[Errors](err); !ok || len(es) == 0 {
				t.Fatalf("%#v", err)
			}
			return
		}
		for _, p := range c.Providers {
			if p.Settings.JSON != nil && !json.Valid(p.Settings.JSON) {
				t.Fatalf("%s", p.Settings.JSON)
			}
		}
		if c.Listen == "" || c.Leases.Length == 0 {
			t.Fatal("no defaults")
		}
	})
}

// Settings are handed on as they are, but not expanded without end.
func TestSettingsOfAliasesWithoutEnd(t *testing.T) {
	text := "providers:\n- name: a\n  type: t\n  settings:\n    l0: &l0 [x, x]\n"
	for i := range 40 {
		text += fmt.Sprintf("    l%d: &l%d [*l%d, *l%d]\n", i+1, i+1, i, i)
	}
	if _, err := Parse("c.yaml", []byte(text), nil); err == nil || !strings.Contains(err.Error(), "expand without end") {
		t.Errorf("%v", err)
	}
}
