package backtest

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"gpubroker/scheduler/policy"
)

const (
	sharedTraces = "../../../shared/traces"
	shippedFile  = "../../scheduler/policy/knowledge.json"
)

// TestShipped: what is shipped is what is fitted to the recorded markets.
func TestShipped(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	k, ok, err := FitTo(sharedTraces)
	if err != nil {
		t.Fatal(err)
	}
	if !ok {
		t.Skip("the recorded markets are not beside this checkout")
	}
	if *update {
		b, err := json.MarshalIndent(k, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(shippedFile, append(b, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(policy.Shipped(), k, cmpopts.EquateApprox(1e-4, 1e-6)); diff != "" {
		t.Errorf("scheduler/policy/knowledge.json is not what is fitted (-shipped +fitted; go test -run TestShipped -update):\n%s", diff)
	}
}
