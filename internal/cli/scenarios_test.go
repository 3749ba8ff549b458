package cli

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"gpubroker/internal/scenario"
)

const scenariosDocument = "../../docs/scenarios.md"

// generated stands before what the profiles say of themselves.
const generated = "<!-- What follows is made from the profiles: go test ./internal/cli -run TestScenariosDocument -update -->\n"

// The page about scenarios has what the profiles say.
func TestScenariosDocument(t *testing.T) {
	kept, err := os.ReadFile(scenariosDocument)
	if err != nil {
		t.Fatal(err)
	}
	intro, _, ok := bytes.Cut(kept, []byte(generated))
	if !ok {
		t.Fatalf("%s lacks the line\n%s", scenariosDocument, generated)
	}
	var b bytes.Buffer
	b.Write(intro)
	b.WriteString(generated)
	asked := map[string][]string{}
	for _, p := range scenario.Builtin().All() {
		for _, alias := range p.Aliases {
			if shared(alias) {
				asked[alias] = append(asked[alias], "`"+p.Name+"`")
			}
		}
	}
	b.WriteString("\n## Names that are asked back\n\n| written | which one? |\n| --- | --- |\n")
	for _, alias := range sorted(asked) {
		fmt.Fprintf(&b, "| `%s` | %s |\n", alias, strings.Join(asked[alias], ", "))
	}
	for _, p := range scenario.Builtin().All() {
		fmt.Fprintf(&b, "\n## `%s`\n\n%s. %s\n\n", p.Name, p.Title, p.Doc)
		if own := slices.DeleteFunc(slices.Clone(p.Aliases), shared); len(own) > 0 {
			fmt.Fprintf(&b, "Also called `%s`. ", strings.Join(own, "`, `"))
		}
		fmt.Fprintf(&b, "Example: [%s](../examples/%s).\n\n| | |\n| --- | --- |\n", p.Example, p.Example)
		for _, f := range scenarioFacts(&p) {
			fmt.Fprintf(&b, "| %s | %s |\n", f.name, strings.ReplaceAll(strings.TrimSuffix(f.text, " (docs/spec.md)"), "|", "\\|"))
		}
	}
	if slices.Contains(os.Args, "-update") {
		if err := os.WriteFile(scenariosDocument, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(kept, b.Bytes()) {
		t.Errorf("%s is not what the profiles say: go test ./internal/cli -run TestScenariosDocument -update writes it anew", scenariosDocument)
	}
}
