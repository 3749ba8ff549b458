package providertest

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/providers"
)

var update = flag.Bool("update", false, "write the generated parts of docs/add-a-provider.md")

// TestGuide keeps the tables of the guide equal to the code:
//
//	go test ./providers/providertest -run Guide -update
func TestGuide(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "add-a-provider.md")
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(old)
	for name, table := range map[string]string{"errors": errorTable(), "checks": checkTable()} {
		head, rest, ok := strings.Cut(text, "<!-- generated: "+name+" -->\n")
		_, tail, closed := strings.Cut(rest, "<!-- end -->")
		if !ok || !closed {
			t.Fatalf("the guide has no place for %s", name)
		}
		text = head + "<!-- generated: " + name + " -->\n" + table + "<!-- end -->" + tail
	}
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(old), text); diff != "" {
		t.Errorf("docs/add-a-provider.md is stale; run go test ./providers/providertest -run Guide -update\n%s", diff)
	}
}

func errorTable() string {
	var b strings.Builder
	b.WriteString("| code | what the broker does | cool-down | reaches | repeated by `managed` |\n| --- | --- | --- | --- | --- |\n")
	table := providers.Reactions()
	for _, code := range slices.Sorted(maps.Keys(table)) {
		r := table[code]
		cool := "none"
		if r.CoolDown > 0 {
			cool = span(r.CoolDown)
			if r.Longest > r.CoolDown {
				cool += ", doubling to " + span(r.Longest)
			}
		}
		again := "no"
		if r.Retry {
			again = "yes, a launch only when `not_created`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", code, r.Then, cool, r.Scope, again)
	}
	return b.String()
}

// span writes a duration without zero parts: 3m, 6h.
func span(d time.Duration) string {
	s := d.String()
	s = strings.Replace(s, "m0s", "m", 1)
	return strings.Replace(s, "h0m", "h", 1)
}

func checkTable() string {
	var b strings.Builder
	b.WriteString("| check | the contract's sentence |\n| --- | --- |\n")
	for _, c := range Checks() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", c.Name, c.Promise)
	}
	return b.String()
}
