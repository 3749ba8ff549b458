package archtest

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
)

// rule says what some packages may not import.
type rule struct {
	name  string
	from  []string // whom it binds
	not   []string // except these
	only  []string // of this module, they import nothing but these
	deny  []string // they import none of these
	deep  bool     // deny holds for all that they need, not only for direct imports
	tests bool     // deny holds for their tests as well
	why   string
}

var (
	databases = []string{
		"database/sql", "modernc.org/sqlite/...", "github.com/jackc/pgx/...", "github.com/pressly/goose/...",
	}
	sdks = []string{
		"github.com/aws/aws-sdk-go-v2/...", "github.com/Azure/azure-sdk-for-go/...",
		"cloud.google.com/go/...", "google.golang.org/api/...",
	}
	// What a decision may never reach: the outside world.
	outside = []string{"net", "net/http", "os/exec", "os/signal", "database/sql"}
	// The machinery around the decision.
	machinery = []string{
		"./internal/state/...", "./internal/store/...", "./internal/control/...", "./internal/agent/...",
		"./internal/checkpoint/...", "./internal/objects/...", "./internal/simcloud/...",
		"./internal/api/...", "./internal/cli/...", "./internal/config/...",
	}
	surfaces = []string{"./internal/api/...", "./internal/cli/..."}
	vocab    = []string{"./internal/money", "./internal/gpu", "./internal/reason"}
)

var rules = []rule{
	{
		name: "money and gpu are words",
		from: []string{"./internal/money", "./internal/gpu"},
		only: []string{"./internal/money", "./internal/nearest"},
		deny: append([]string{otherModules}, outside...),
		why:  "everything is counted and named in them: they stand on Go alone",
	},
	{
		name: "providers is a contract",
		from: []string{"./providers"},
		only: append([]string{"./internal/nearest"}, vocab...),
		deny: append([]string{otherModules}, outside...),
		deep: true,
		why:  "whoever writes an adapter or a decision reads it without a client library",
	},
	{
		name: "queue is a contract",
		from: []string{"./queue"},
		only: append([]string{"./internal/budget"}, vocab...),
		deny: append([]string{otherModules, "./providers/..."}, outside...),
		deep: true,
		why:  "jobs and their life do not depend on where they run, nor on how rows are kept",
	},
	{
		name: "the scheduler is pure",
		from: []string{"./scheduler/..."},
		deny: slices.Concat(outside, machinery),
		deep: true,
		why:  "serve, plan and backtest run the same decision, which sees only its snapshot",
	},
	{
		name: "the scheduler reads no files",
		from: []string{"./scheduler/..."},
		deny: []string{"os", "crypto/rand"},
		why:  "the same snapshot gives the same plan",
	},
	{
		name: "pure packages stay pure",
		from: []string{"./internal/budget", "./internal/geo", "./internal/reason", "./internal/scenario", "./internal/rates", "./internal/rightsize"},
		deny: slices.Concat(outside, machinery),
		deep: true,
		why:  "the scheduler and the queue stand on them",
	},
	{
		name: "adapters know the contract only",
		from: []string{"./providers/..."},
		not:  []string{"./providers/all"},
		deny: []string{
			"./queue/...", "./scheduler/...", "./internal/control/...", "./internal/state/...",
			"./internal/store/...", "./internal/budget", "./internal/agent/...",
			"./internal/api/...", "./internal/cli/...",
		},
		deep: true,
		why:  "a cloud is added without reading the broker",
	},
	{
		name: "the list of adapters is for programs",
		from: []string{"./..."},
		not:  []string{"./cmd/gpubroker/...", "./providers/all"},
		deny: []string{"./providers/all"},
		why:  "only the program wires adapters, so that no other package and no test links their SDKs",
	},
	{
		name: "the store is wired by the program",
		from: []string{"./..."},
		not:  []string{"./cmd/gpubroker/...", "./internal/store/..."},
		deny: []string{"./internal/store/..."},
		why:  "everybody else knows the queue's interfaces, not SQL",
	},
	{
		name: "SQL is the store's",
		from: []string{"./..."},
		not:  []string{"./cmd/gpubroker/...", "./internal/store/...", "./internal/pgtest"},
		deny: databases,
		why:  "one set of queries in one place runs on both engines",
	},
	{
		name: "the store decides nothing",
		from: []string{"./internal/store/..."},
		deny: slices.Concat(surfaces, []string{
			"./scheduler/...", "./providers/...", "./internal/state/...", "./internal/control/...",
		}),
		why: "it writes batches and reads them back",
	},
	{
		name: "state stands below the loops",
		from: []string{"./internal/state/..."},
		deny: slices.Concat(databases, surfaces, []string{
			"./internal/control/...", "./internal/store/...", "./internal/agent/...",
		}),
		deep: true,
		why:  "the tables in memory are written through an interface of the queue's",
	},
	{
		name: "the loops know interfaces",
		from: []string{"./internal/control/..."},
		deny: slices.Concat(databases, sdks, surfaces, []string{
			"./internal/store/...", "./internal/agent/...",
		}),
		deep: true,
		why:  "every loop runs in a test over a simulated cloud in virtual time",
	},
	{
		name: "surfaces hold no SQL and no cloud",
		from: surfaces,
		deny: slices.Concat(databases, sdks, []string{"./internal/store/...", "./internal/agent/..."}),
		deep: true,
		why:  "they show and ask; what they show comes from the state and the loops",
	},
	{
		name: "the agent's code is the agent's",
		from: []string{"./..."},
		not:  []string{"./cmd/gpubroker-agent/...", "./internal/agent/..."},
		deny: []string{"./internal/agent/..."},
		why:  "broker and agent speak through internal/agentapi only",
	},
	{
		name: "the agent is light",
		from: []string{"./cmd/gpubroker-agent/...", "./internal/agent/..."},
		deny: slices.Concat(databases, sdks, surfaces, []string{
			"gocloud.dev/...", "google.golang.org/grpc/...", "text/template", "html/template",
			"./scheduler/...", "./providers/...", "./internal/control/...", "./internal/state/...", "./internal/store/...",
		}),
		deep: true,
		why:  "it is downloaded by every machine while the machine is paid for, and holds no cloud's keys",
	},
	{
		name: "tests of the core link no SDK",
		from: []string{
			"./scheduler/...", "./queue/...", "./providers", "./providers/managed",
			"./internal/money", "./internal/gpu", "./internal/budget", "./internal/reason", "./internal/scenario",
			"./internal/spec", "./internal/state/...", "./internal/control/...", "./internal/market",
			"./internal/api/...", "./internal/cli", "./internal/simcloud", "./internal/simcloud/simapi", "./internal/simcloud/simtest",
		},
		deny:  sdks,
		deep:  true,
		tests: true,
		why:   "an SDK costs each test binary seconds of linking",
	},
	{
		name: "a dialect is built to the API",
		from: []string{"./internal/simcloud/dialects/..."},
		deny: slices.Concat(sdks, []string{"./providers/managed", "./providers/rest"}),
		deep: true,
		why:  "what an adapter is tried against must not share its reading of the cloud's documents",
	},
	{
		name: "no Envoy, no old Docker client",
		from: []string{"./..."},
		deny: []string{
			"github.com/envoyproxy/...", "github.com/cncf/xds/...", "github.com/docker/docker/...",
		},
		deep: true,
		why:  "the build tags keep the first out (8 MB); github.com/moby/moby/client replaces the last",
	},
}

func TestImports(t *testing.T) {
	all := packages(t)
	for _, r := range rules {
		t.Run(strings.ReplaceAll(r.name, " ", "-"), func(t *testing.T) {
			for _, p := range all.own(r.from...) {
				if all.matchAny(r.not, p.ImportPath) {
					continue
				}
				for _, broken := range r.check(all, p) {
					t.Errorf("%s: %s", broken, r.why)
				}
			}
		})
	}
}

// check returns how p breaks the rule, sorted.
func (r rule) check(all listing, p *pkg) []string {
	var broken []string
	if r.only != nil {
		for _, path := range p.Imports {
			if q, ok := all[path]; ok && q.ours() && !all.matchAny(r.only, path) {
				broken = append(broken, fmt.Sprintf("%s → %s (of this module only %s)",
					p.ImportPath, path, strings.Join(r.only, " ")))
			}
		}
	}
	via := map[string]string{}
	if r.deep {
		via = all.tree(p, r.tests)
	} else {
		for _, path := range p.imports(r.tests) {
			via[path] = p.ImportPath
		}
	}
	for path, from := range via {
		// One line for each way in, not for each package behind it.
		if all.matchAny(r.deny, path) && (from == p.ImportPath || !all.matchAny(r.deny, from)) {
			broken = append(broken, chain(via, p.ImportPath, path))
		}
	}
	slices.Sort(broken)
	return broken
}

// TestAdaptersKeepApart checks that no adapter needs another, not even in its
// tests: each can be read, tested and removed alone.
func TestAdaptersKeepApart(t *testing.T) {
	all := packages(t)
	shared := []string{"all", "managed", "providertest", "rest"}
	adapter := func(path string) string {
		rest, ok := strings.CutPrefix(path, module+"/providers/")
		if !ok {
			return ""
		}
		name, _, _ := strings.Cut(rest, "/")
		if slices.Contains(shared, name) {
			return ""
		}
		return name
	}
	for _, p := range all.own("./providers/...") {
		mine := adapter(p.ImportPath)
		if p.ImportPath == module+"/providers/all" {
			continue
		}
		// What is shared may use an adapter in its tests only.
		via := all.tree(p, mine != "")
		for path := range via {
			if other := adapter(path); other != "" && other != mine {
				t.Errorf("%s: adapters know the contract only, never each other", chain(via, p.ImportPath, path))
			}
		}
	}
	for _, p := range all.own("./...") {
		if all.matchAny([]string{"./providers/...", "./cmd/gpubroker/..."}, p.ImportPath) {
			continue
		}
		for _, path := range p.Imports {
			if adapter(path) != "" {
				t.Errorf("%s → %s: only the program wires adapters", p.ImportPath, path)
			}
		}
	}
}

// TestRulesNamePackages keeps the table from going stale.
func TestRulesNamePackages(t *testing.T) {
	all := packages(t)
	for _, r := range rules {
		for _, pattern := range slices.Concat(r.from, r.not, r.only, r.deny) {
			if strings.HasPrefix(pattern, "./") && len(all.own(pattern)) == 0 {
				t.Errorf("rule %q names %s, which is no package: has it moved?", r.name, pattern)
			}
		}
	}
}

// TestRulesBite breaks each kind of rule on a made-up listing.
func TestRulesBite(t *testing.T) {
	ours := &struct{ Path string }{module}
	other := &struct{ Path string }{"example.org/sdk"}
	all := listing{
		"gpubroker/a":         {ImportPath: "gpubroker/a", Module: ours, Imports: []string{"gpubroker/b", "fmt"}, TestImports: []string{"testing"}},
		"gpubroker/b":         {ImportPath: "gpubroker/b", Module: ours, Imports: []string{"example.org/sdk/x"}},
		"example.org/sdk/x":   {ImportPath: "example.org/sdk/x", Module: other, Imports: []string{"net/http"}},
		"net/http":            {ImportPath: "net/http", Standard: true},
		"fmt":                 {ImportPath: "fmt", Standard: true},
		"testing":             {ImportPath: "testing", Standard: true},
		"gpubroker/ab/within": {ImportPath: "gpubroker/ab/within", Module: ours},
	}
	for _, c := range []struct {
		name string
		rule rule
		want string // "" when the rule is kept
	}{
		{"direct", rule{deny: []string{"./b"}}, "gpubroker/a → gpubroker/b"},
		{"not direct", rule{deny: []string{"net/http"}}, ""},
		{"deep", rule{deny: []string{"net/http"}, deep: true}, "gpubroker/a → gpubroker/b → example.org/sdk/x → net/http"},
		{"below", rule{deny: []string{"net/..."}, deep: true}, "gpubroker/a → gpubroker/b → example.org/sdk/x → net/http"},
		{"not beside", rule{deny: []string{"ne/...", "./ab/..."}, deep: true}, ""},
		{"other module", rule{deny: []string{otherModules}, deep: true}, "gpubroker/a → gpubroker/b → example.org/sdk/x"},
		{"tests left out", rule{deny: []string{"testing"}, deep: true}, ""},
		{"tests", rule{deny: []string{"testing"}, tests: true}, "gpubroker/a → testing"},
		{"only", rule{only: []string{"./c"}}, "gpubroker/a → gpubroker/b (of this module only ./c)"},
		{"only, kept", rule{only: []string{"./b"}}, ""},
	} {
		if got := strings.Join(c.rule.check(all, all["gpubroker/a"]), "\n"); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// TestLayout holds the tree to its fixed top level and keeps catch-all names
// out: a package is named for what it gives.
func TestLayout(t *testing.T) {
	catchAll := []string{"util", "utils", "common", "types", "models", "helpers", "misc", "shared", "base"}
	for _, p := range packages(t).own("./...") {
		rel := strings.TrimPrefix(p.ImportPath, module+"/")
		if first, _, _ := strings.Cut(rel, "/"); !slices.Contains(topLevel, first) {
			t.Errorf("%s: the top level is fixed to %s", p.ImportPath, strings.Join(topLevel, " "))
		}
		if slices.Contains(catchAll, path.Base(rel)) {
			t.Errorf("%s: name the package for what it gives", p.ImportPath)
		}
	}
}
