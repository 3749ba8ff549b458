package all_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/providers"
	"gpubroker/providers/all"
	"gpubroker/providers/managed"
	"gpubroker/providers/providertest"
)

var update = flag.Bool("update", false, "write the generated parts of docs/providers.md")

const document = "../../docs/providers.md"

// TestDocument keeps what docs/providers.md says of each type of provider equal to
// the code: the comment of its package, its capabilities with the settings of
// testdata/samples, its settings with their comments, and its deviations with their
// reasons.
//
//	go test ./providers/all -run Document -update
func TestDocument(t *testing.T) {
	old, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	text := string(old)
	parts := map[string]string{"overview": overview(t)}
	for _, d := range all.Descriptors() {
		parts[d.Type] = packageDoc(t, d.Type) + "\n### " + d.Type + ": facts\n\n" + facts(t, d) + settingsTable(t, d.Type) + deviationTable(t, d.Type)
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		mark := "<!-- generated: " + name + " -->\n"
		head, rest, ok := strings.Cut(text, mark)
		_, tail, closed := strings.Cut(rest, "<!-- end -->")
		if !ok || !closed {
			t.Fatalf("docs/providers.md has no place for %s: add\n\n## %s\n\n%s<!-- end -->", name, name, mark)
		}
		text = head + mark + parts[name] + "<!-- end -->" + tail
	}
	if *update {
		if err := os.WriteFile(document, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(old), text); diff != "" {
		t.Errorf("docs/providers.md is stale; run go test ./providers/all -run Document -update\n%s", diff)
	}
}

// sample opens an account of a type with the settings of testdata/samples.
func sample(t *testing.T, d providers.Descriptor) providers.Provider {
	t.Helper()
	file := filepath.Join("testdata", "samples", d.Type+".json")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v: it holds settings with which an account of type %s opens, without calls", err, d.Type)
	}
	p, err := d.Open(t.Context(), "account", text, providers.Env{Owner: "broker", Secret: func(string) (string, error) { return "a-secret-of-the-test", nil }})
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return p
}

func overview(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("| type | what | kinds | billed | who ends a machine | price bound | its machines call from |\n|---|---|---|---|---|---|---|\n")
	for _, d := range all.Descriptors() {
		c := sample(t, d).Capabilities()
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s | %s | %s | %s | %s | %s |\n", d.Type, d.Type, d.Title, kinds(c), billed(c), ends[endOf(c)].who, bound(c), reach(c))
	}
	return b.String()
}

// end is who ends a machine, and what that is worth.
type end struct{ who, cap, strict string }

// endOf is the SelfEnd, or "shared" for machines that stay their owners'.
func endOf(c providers.Capabilities) string {
	if c.Shared {
		return "shared"
	}
	return string(c.SelfEnd)
}

var ends = map[string]end{
	string(providers.EndRolling): {
		"the provider, at a time that moves with the lease",
		"A machine outlives its lease by the stop time at most, whatever happens to broker and agent.", "accepted; reserves to the end of the lease",
	},
	string(providers.EndFixed): {
		"the provider, at a time that is set at launch",
		"Broker and agent end it with its lease. If both fail it lives until the end that was set at launch, and no longer.", "accepted; reserves to that end",
	},
	string(providers.EndGuest): {
		"the machine itself",
		"A timer of root on the machine ends it with its lease, also while the broker is away. Nothing outside ends it if the machine hangs.", "refused",
	},
	string(providers.EndNone): {
		"nobody but the broker",
		"If the broker is away a machine runs on, and is paid, until the broker or `gpubroker sweep --expired` ends it: needs `allow_guest_end: true`.", "refused",
	},
	"shared": {
		"nobody: it stays its owner's",
		"Tasks end with their lease. The machine is neither powered off nor deleted.", "accepted",
	},
}

func kinds(c providers.Capabilities) string {
	var out []string
	for _, k := range c.Kinds {
		out = append(out, string(k))
	}
	return strings.Join(out, ", ")
}

func billed(c providers.Capabilities) string {
	out := "by " + span(c.Billing.Unit)
	if c.Billing.Unit <= 0 {
		out = "by the instant"
	}
	if c.Billing.Minimum > c.Billing.Unit {
		out += ", " + span(c.Billing.Minimum) + " at least"
	}
	if c.BillsBoot {
		out += ", the boot too"
	}
	return out
}

func bound(c providers.Capabilities) string {
	if c.PriceBound {
		return "kept by the provider"
	}
	return "compared by us"
}

func reach(c providers.Capabilities) string {
	switch c.Reach {
	case providers.ReachInternet:
		return "the internet"
	case providers.ReachPrivate:
		return "a private network"
	case providers.ReachHost:
	}
	return "the broker's machine, or one of yours"
}

// span writes a duration without zero parts.
func span(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func facts(t *testing.T, d providers.Descriptor) string {
	t.Helper()
	p := sample(t, d)
	c := p.Capabilities()
	var b strings.Builder
	b.WriteString("| with " + keys(t, d.Type) + " | |\n|---|---|\n")
	row := func(name, text string) {
		if text != "" {
			fmt.Fprintf(&b, "| %s | %s |\n", name, text)
		}
	}
	row("capacity", kinds(c))
	row("billed", billed(c))
	e, ok := ends[endOf(c)]
	if !ok {
		t.Errorf("%s: SelfEnd %q has no words", d.Type, c.SelfEnd)
	}
	row("who ends a machine", e.who)
	row("so that", e.cap)
	row("budgets with `guard: strict`", e.strict)
	row("the agent at the end of a lease", map[providers.EndAction]string{
		providers.EndPoweroff: "stops the tasks and powers the machine off", providers.EndAPI: "stops the tasks and has the machine delete itself",
		providers.EndStopTasks: "stops the tasks", "": "stops the tasks",
	}[c.EndAction])
	row("price bound", bound(c))
	notice := "none"
	if c.NoticeSource != providers.NoticeNone && c.NoticeSource != "" {
		notice = span(c.Notice) + ", by " + map[providers.NoticeSource]string{providers.NoticeMetadata: "the machine's metadata", providers.NoticeEvents: "the provider's events"}[c.NoticeSource]
	}
	row("notice before a preemption", notice)
	row("a launch whose answer was lost", map[bool]string{true: "is repeated under the provider's own token", false: "is looked for by our label before another try"}[c.LaunchToken])
	row("labels", map[bool]string{true: "set in the launch itself", false: "set after the launch"}[c.TagsAtLaunch])
	row("new machines are listed within", span(c.ListLag))
	row("billing stops after an end within", span(c.StopTime))
	row("boots in about", span(c.BootTime))
	if c.LongestLife > 0 {
		row("a machine lives at most", span(c.LongestLife))
	}
	if c.UserDataLimit > 0 {
		row("user data", fmt.Sprintf("%d bytes", c.UserDataLimit))
	}
	row("abilities", strings.Join(abilities(p), ", "))
	return b.String()
}

// keys names the settings of the sample: the facts may depend on them.
func keys(t *testing.T, typ string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "samples", typ+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var set map[string]any
	if err := json.Unmarshal(text, &set); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, key := range slices.Sorted(maps.Keys(set)) {
		out = append(out, "`"+key+"`")
	}
	if len(out) == 0 {
		return "no settings"
	}
	return strings.Join(out, ", ")
}

func abilities(p providers.Provider) []string {
	m := managed.New(p, managed.Options{})
	out := []string{}
	for _, a := range []struct {
		has  bool
		name string
	}{
		{m.Preflight != nil, "preflight"},
		{m.Quotas != nil, "quotas"},
		{m.Balance != nil, "balance"},
		{m.Bill != nil, "bill"},
		{m.Interruptions != nil, "interruption events"},
		{m.Scores != nil, "capacity scores"},
		{m.LaunchMany != nil, "many machines in one call"},
		{m.MoveEnd != nil, "ends that move"},
		{m.Console != nil, "console"},
	} {
		if a.has {
			out = append(out, a.name)
		}
	}
	if len(out) == 0 {
		out = []string{"none"}
	}
	return out
}

// autolink is an address whose text is the address, escaped.
var autolink = regexp.MustCompile(`\[https?://[^\]]+\]\((https?://[^)]+)\)`)

// inline are deviations that stand in a test and not in their file.
var inline = regexp.MustCompile(`Deviations:\s*map\[string\]string\{\s*"`)

// packageDoc is the comment of an adapter's package as Markdown.
func packageDoc(t *testing.T, typ string) string {
	t.Helper()
	for _, file := range sources(t, typ) {
		if file.Doc == nil {
			continue
		}
		p := comment.Parser{LookupPackage: func(name string) (string, bool) { return name, name == "providers" }}
		doc := p.Parse(strings.Replace(file.Doc.Text(), "Package "+typ+" is the adapter ", "The adapter ", 1))
		printer := comment.Printer{HeadingLevel: 3, HeadingID: func(*comment.Heading) string { return "" }, DocLinkURL: func(*comment.DocLink) string { return "" }}
		var b strings.Builder
		for _, part := range doc.Content {
			switch x := part.(type) {
			case *comment.Code:
				fmt.Fprintf(&b, "```%s\n%s\n```\n\n", language(x.Text), strings.TrimRight(x.Text, "\n"))
			case *comment.Heading:
				// Headings of one name are told apart by the type.
				fmt.Fprintf(&b, "### %s: %s\n\n", typ, lowerFirst(plain(x.Text)))
			default:
				text := string(printer.Markdown(&comment.Doc{Content: []comment.Block{part}, Links: doc.Links}))
				b.WriteString(autolink.ReplaceAllString(text, "<$1>"))
				b.WriteString("\n")
			}
		}
		return strings.TrimRight(b.String(), "\n") + "\n"
	}
	t.Fatalf("package %s has no comment", typ)
	return ""
}

func plain(texts []comment.Text) string {
	var b strings.Builder
	for _, x := range texts {
		if s, ok := x.(comment.Plain); ok {
			b.WriteString(string(s))
		}
	}
	return b.String()
}

// lowerFirst begins a heading in lower case, names of two capitals excepted.
func lowerFirst(s string) string {
	if len(s) > 1 && strings.ToUpper(s[:2]) == s[:2] {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}

// language names a piece of code, so that it is drawn as such and configurations
// are checked.
func language(code string) string {
	switch {
	case strings.HasPrefix(code, "providers:"):
		return "yaml"
	case strings.HasPrefix(code, "{"):
		return "json"
	}
	return "text"
}

// sources are the parsed files of an adapter's package, doc.go first.
func sources(t *testing.T, typ string) []*ast.File {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("..", typ, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	slices.SortStableFunc(names, func(a, b string) int {
		return cmpBool(filepath.Base(b) == "doc.go", filepath.Base(a) == "doc.go")
	})
	var out []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, file)
	}
	return out
}

func cmpBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// settingsTable shows the fields of an adapter's type Settings with their
// comments.
func settingsTable(t *testing.T, typ string) string {
	t.Helper()
	for _, file := range sources(t, typ) {
		for _, decl := range file.Decls {
			g, ok := decl.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range g.Specs {
				if ts, ok := spec.(*ast.TypeSpec); ok && ts.Name.Name == "Settings" {
					return rows(t, typ, ts)
				}
			}
		}
	}
	t.Fatalf("package %s has no type Settings", typ)
	return ""
}

func rows(t *testing.T, typ string, ts *ast.TypeSpec) string {
	t.Helper()
	s, ok := ts.Type.(*ast.StructType)
	if !ok {
		t.Fatalf("%s: Settings is no struct", typ)
	}
	var b strings.Builder
	b.WriteString("\n| key under `settings` | |\n|---|---|\n")
	for _, f := range s.Fields.List {
		if f.Tag == nil {
			t.Fatalf("%s: a field of Settings has no tag", typ)
		}
		key, _, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
		words := strings.Join(strings.Fields(f.Doc.Text()+" "+f.Comment.Text()), " ")
		words = strings.TrimPrefix(words, f.Names[0].Name+" is ")
		switch {
		case key == "network" && words == "":
			words = "subnet, private, proxy"
		case words == "":
			words = "see the text"
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", key, strings.ReplaceAll(words, "|", `\|`))
	}
	return b.String()
}

// deviationTable shows what of the contract an adapter does not keep.
func deviationTable(t *testing.T, typ string) string {
	t.Helper()
	tests, err := filepath.Glob(filepath.Join("..", typ, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	conforms := false
	for _, name := range tests {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if inline.Match(text) {
			t.Errorf("%s states deviations: write them into %s and read them with providertest.Deviations", name, providertest.DeviationsFile)
		}
		conforms = conforms || strings.Contains(string(text), "providertest.Run(")
	}
	if !conforms {
		t.Errorf("no test of %s runs the conformance suite", typ)
	}
	text, err := os.ReadFile(filepath.Join("..", typ, providertest.DeviationsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "\nThe conformance suite passes without a deviation.\n"
	}
	if err != nil {
		t.Fatal(err)
	}
	var stated map[string]string
	if err := json.Unmarshal(text, &stated); err != nil {
		t.Fatalf("%s: %v", typ, err)
	}
	var b strings.Builder
	b.WriteString("\n| deviates from | the contract says | reason |\n|---|---|---|\n")
	for _, c := range providertest.Checks() {
		if why, ok := stated[c.Name]; ok {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", c.Name, c.Promise, why)
			delete(stated, c.Name)
		}
	}
	for name := range stated {
		t.Errorf("%s: deviation %q names no check", typ, name)
	}
	return b.String()
}
