package api_test

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"gpubroker/internal/api"
)

var update = flag.Bool("update", false, "write golden files anew")

const document = "../../docs/openapi.yaml"

// The document that is checked in is the one that the code gives.
func TestDocument(t *testing.T) {
	got, err := api.New(nil, api.Options{}).Document()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(document, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what the code gives: go test ./internal/api -run TestDocument -update writes it anew", document)
	}
}
