package api

import (
	"strings"
	"testing"
	"time"

	"gpubroker/internal/market"
	"gpubroker/internal/scenario"
)

// The example on the page of an owner's scenario names that scenario, and not the one
// that it extends.
func TestTheExampleIsOfItsScenario(t *testing.T) {
	p, ok := scenario.Builtin().Find("lora")
	if !ok {
		t.Fatal("there is no lora")
	}
	view := market.New().View()
	if page := PageOf(p, view, time.Now()); !strings.Contains(page.Spec, "\nscenario: lora\n") {
		t.Errorf("the example of lora: %s", page.Spec)
	}
	p.Name = "house-lora"
	if page := PageOf(p, view, time.Now()); !strings.Contains(page.Spec, "\nscenario: house-lora\n") || strings.Contains(page.Spec, "scenario: lora\n") {
		t.Errorf("the example of house-lora: %s", page.Spec)
	}
}
