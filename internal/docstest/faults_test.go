package docstest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every test that docs/faults.md names is there.
func TestFaultsNameRealTests(t *testing.T) {
	text, err := os.ReadFile("../../docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`([a-z][a-z0-9/-]*) (Test[A-Za-z0-9]+)`).FindAllStringSubmatch(string(text), -1)
	if len(named) < 50 {
		t.Fatalf("%d tests are named; has the table changed its form?", len(named))
	}
	sources := map[string]string{}
	for _, n := range named {
		dir, name := n[1], n[2]
		if _, read := sources[dir]; !read {
			files, err := filepath.Glob(filepath.Join("../..", dir, "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			var all strings.Builder
			for _, f := range files {
				data, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				all.Write(data)
			}
			sources[dir] = all.String()
		}
		if !strings.Contains(sources[dir], "func "+name+"(") {
			t.Errorf("docs/faults.md names %s in %s: there is no such test", name, dir)
		}
	}
}
