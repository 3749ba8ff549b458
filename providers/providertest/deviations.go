package providertest

import (
	"encoding/json"
	"os"
	"testing"
)

// DeviationsFile is where an adapter keeps its deviations, from its own folder: a
// JSON object of reasons by the names of checks. docs/providers.md shows them.
const DeviationsFile = "testdata/deviations.json"

// Deviations reads the deviations of the adapter whose test runs.
func Deviations(t testing.TB) map[string]string {
	t.Helper()
	text, err := os.ReadFile(DeviationsFile)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]string
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatalf("%s: %v", DeviationsFile, err)
	}
	return out
}
