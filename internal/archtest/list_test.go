package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "gpubroker"

// root is the module's folder, seen from this package's.
var root = filepath.Join("..", "..")

// topLevel is where Go packages may be.
var topLevel = []string{"cmd", "examples", "internal", "providers", "queue", "scheduler"}

// pkg is what go list tells of one package.
type pkg struct {
	ImportPath   string
	Dir          string
	ForTest      string
	Standard     bool
	GoFiles      []string
	Imports      []string
	TestImports  []string
	XTestImports []string
	Module       *struct{ Path string }
}

// ours reports whether p belongs to this module.
func (p *pkg) ours() bool { return p.Module != nil && p.Module.Path == module }

// listing is every package that the module's packages and tests need, by import
// path.
type listing map[string]*pkg

// load lists the packages once for all tests. It looks at the files first: go
// test keeps a passed result until a file that the test itself has looked at
// changes, and does not see what go list reads.
var load = sync.OnceValues(func() (listing, error) {
	for _, top := range topLevel {
		err := filepath.WalkDir(filepath.Join(root, top), func(_ string, _ fs.DirEntry, err error) error { return err })
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	cmd := exec.Command("go", "list", "-deps", "-test",
		"-json=ImportPath,Dir,ForTest,Standard,GoFiles,Imports,TestImports,XTestImports,Module", "./...")
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, errors.New("go list: " + err.Error() + "\n" + stderr.String())
	}
	all := listing{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		p := new(pkg)
		if err := dec.Decode(p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		// The variants that go test compiles are the same packages once more.
		if p.ForTest == "" && !strings.HasSuffix(p.ImportPath, ".test") {
			all[p.ImportPath] = p
		}
	}
})

func packages(t *testing.T) listing {
	t.Helper()
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// own returns this module's packages that match one of the patterns, sorted.
func (l listing) own(patterns ...string) []*pkg {
	var found []*pkg
	for _, p := range l {
		if p.ours() && l.matchAny(patterns, p.ImportPath) {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(a, b *pkg) int { return strings.Compare(a.ImportPath, b.ImportPath) })
	return found
}

// imports returns what p imports directly, its tests' imports included if asked.
func (p *pkg) imports(tests bool) []string {
	if !tests {
		return p.Imports
	}
	return slices.Concat(p.Imports, p.TestImports, p.XTestImports)
}

// tree returns everything that p needs, each with the package that first led
// there. Tests' imports count for p alone.
func (l listing) tree(p *pkg, tests bool) map[string]string {
	via := map[string]string{}
	todo := []*pkg{p}
	for len(todo) > 0 {
		at := todo[0]
		todo = todo[1:]
		for _, path := range at.imports(tests && at == p) {
			if _, seen := via[path]; seen || path == p.ImportPath {
				continue
			}
			via[path] = at.ImportPath
			if next, ok := l[path]; ok {
				todo = append(todo, next)
			}
		}
	}
	return via
}

// chain writes how the tree of from reaches path.
func chain(via map[string]string, from, path string) string {
	steps := []string{path}
	for path != from {
		path = via[path]
		steps = append(steps, path)
	}
	slices.Reverse(steps)
	return strings.Join(steps, " → ")
}

// otherModules is the pattern of every package that is neither ours nor Go's.
const otherModules = "other modules"

// match tells whether an import path fits a pattern. "./x" is a package of this
// module, "net" one of Go's or of another module; a closing "/..." takes all
// below as well.
func (l listing) match(pattern, path string) bool {
	if pattern == otherModules {
		p, ok := l[path]
		return ok && !p.Standard && !p.ours()
	}
	if rest, ok := strings.CutPrefix(pattern, "./"); ok {
		pattern = module + "/" + rest
	}
	if top, ok := strings.CutSuffix(pattern, "/..."); ok {
		return path == top || strings.HasPrefix(path, top+"/")
	}
	return path == pattern
}

func (l listing) matchAny(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return l.match(p, path) })
}
