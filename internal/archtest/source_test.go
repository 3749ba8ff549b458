package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// clockUse is what reads or waits on the clock.
var clockUse = []string{
	"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTicker", "NewTimer",
}

// seededRand is what math/rand/v2 offers with a source of one's own; the rest
// draws from a global one.
var seededRand = []string{
	"New", "NewPCG", "NewChaCha8", "NewZipf", "Rand", "Source", "PCG", "ChaCha8", "Zipf",
}

// TestDecisionsAreDeterministic reads the source of the scheduler and of all of
// ours that it needs: no clock, no global randomness, and no goroutines in the
// scheduler itself. What time it is stands in the snapshot.
func TestDecisionsAreDeterministic(t *testing.T) {
	all := packages(t)
	sources := map[string]*pkg{}
	for _, p := range all.own("./scheduler/...") {
		sources[p.ImportPath] = p
		for dep := range all.tree(p, false) {
			if q, ok := all[dep]; ok && q.ours() {
				sources[dep] = q
			}
		}
	}
	for importPath, p := range sources {
		for _, name := range p.GoFiles {
			file := filepath.Join(p.Dir, name)
			for _, found := range impurities(t, file, nil, all.match("./scheduler/...", importPath)) {
				t.Error(found)
			}
		}
	}
}

// impurities lists what in a file makes its answers depend on more than its
// arguments. src is as in [parser.ParseFile].
func impurities(t *testing.T, file string, src any, pure bool) []string {
	t.Helper()
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, file, src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	report := func(n ast.Node, what string) {
		found = append(found, fset.Position(n.Pos()).String()+": "+what)
	}
	imported := map[string]string{} // local name → import path
	for _, spec := range parsed.Imports {
		importPath, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(path.Base(strings.TrimSuffix(importPath, "/v2")), ".")
		if spec.Name != nil {
			name = spec.Name.Name
		}
		if name == "." {
			report(spec, "a dot import hides where a name comes from")
		}
		imported[name] = importPath
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			if pure {
				report(n, "a goroutine: the decision is one straight computation")
			}
		case *ast.SelectorExpr:
			x, ok := n.X.(*ast.Ident)
			if !ok {
				break
			}
			use := x.Name + "." + n.Sel.Name
			switch imported[x.Name] {
			case "time":
				if slices.Contains(clockUse, n.Sel.Name) {
					report(n, use+": the time is an argument")
				}
			case "math/rand", "math/rand/v2":
				if !slices.Contains(seededRand, n.Sel.Name) {
					report(n, use+": draw from a source with a seed")
				}
			}
		}
		return true
	})
	return found
}

func TestImpuritiesAreFound(t *testing.T) {
	const src = `package p

import (
	"math/rand/v2"
	clock "time"
)

func f() clock.Duration {
	go f()
	r := rand.New(rand.NewPCG(1, 2))
	now := clock.Now
	return now().Sub(clock.Time{}) + clock.Duration(rand.IntN(3)+r.IntN(3))
}
`
	got := impurities(t, "f.go", src, true)
	want := []string{
		"f.go:9:2: a goroutine: the decision is one straight computation",
		"f.go:11:9: clock.Now: the time is an argument",
		"f.go:12:50: rand.IntN: draw from a source with a seed",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
