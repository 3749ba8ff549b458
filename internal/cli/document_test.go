package cli

import (
	"bytes"
	"os"
	"slices"
	"testing"
)

const document = "../../docs/cli.md"

// The page about the command line is what the commands say of themselves.
func TestDocument(t *testing.T) {
	got := Document()
	if slices.Contains(os.Args, "-update") {
		if err := os.WriteFile(document, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what the commands say: go test ./internal/cli -run TestDocument -update writes it anew", document)
	}
}
