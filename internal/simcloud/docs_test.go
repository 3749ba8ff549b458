package simcloud

import (
	"os"
	"strings"
	"testing"

	"gpubroker/internal/simcloud/simapi"
)

// TestDocsAreTrue reads the configuration that the docs show, and looks for
// each effect, operation and code in them.
func TestDocsAreTrue(t *testing.T) {
	data, err := os.ReadFile("../../docs/simcloud.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(data)
	_, example, _ := strings.Cut(doc, "```yaml\n")
	example, _, _ = strings.Cut(example, "```")
	cfg, err := Parse([]byte(example))
	if err != nil {
		t.Error(err)
	}
	if len(cfg.Offers) != 3 || len(cfg.Faults) != 3 || len(cfg.Script) != 4 {
		t.Errorf("the example has %d offers, %d faults, %d actions", len(cfg.Offers), len(cfg.Faults), len(cfg.Script))
	}
	for _, effect := range simapi.Effects() {
		if !strings.Contains(doc, "`"+effect+"`") {
			t.Errorf("effect %s is not in the docs", effect)
		}
	}
	for _, op := range simapi.Ops() {
		if !strings.Contains(doc, op) {
			t.Errorf("operation %s is not in the docs", op)
		}
	}
	for _, code := range []string{
		simapi.CodeCapacity, simapi.CodeQuota, simapi.CodePrice, simapi.CodeThrottled, simapi.CodeUnauthorized, simapi.CodeNoFunds, simapi.CodeInvalid,
		simapi.CodeNoOffer, simapi.CodeNotFound, simapi.CodeMismatch, simapi.CodeRefused, simapi.CodeEndFixed, simapi.CodeUnavailable, simapi.CodeInternal,
	} {
		if !strings.Contains(doc, code) {
			t.Errorf("code %s is not in the docs", code)
		}
	}
}
