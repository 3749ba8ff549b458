package providers_test

import (
	"encoding/json"
	"strings"
	"testing"

	"gpubroker/internal/quantity"
	"gpubroker/providers"
)

func TestSettingsSayWhichKeyIsWrong(t *testing.T) {
	type settings struct {
		Regions []string          `json:"regions"`
		Disk    quantity.Size     `json:"disk"`
		Network providers.Network `json:"network"`
		Private bool              `json:"private"`
		Tags    map[string]string `json:"tags"`
	}
	for text, want := range map[string]string{
		`{"region": "x"}`:                              `unknown key "region"; did you mean "regions"?`,
		`{"colour": "x"}`:                              `unknown key "colour"; known: regions, disk, network, subnet, private, proxy, private, tags`,
		`{"network": {"subnets": "x"}}`:                `network: unknown key "subnets"; did you mean "subnet"?`,
		`{"regions": "x"}`:                             `regions: expected a list such as [a, b], found text`,
		`{"regions": [1]}`:                             `regions: expected text, found a number`,
		`{"private": "yes"}`:                           `private: expected true or false, found text`,
		`{"tags": ["x"]}`:                              `tags: expected keys and values, found a list`,
		`{"disk": "50GX"}`:                             `disk: expected a size such as`,
		`{"disk": "50GX", "region": "x", "tags": {}}`:  `provider a: settings: disk: `,
		`{"disk": "50GiB", "region": "x", "tags": {}}`: `provider a: settings: unknown key "region"`,
	} {
		err := providers.DecodeSettings("a", json.RawMessage(text), &settings{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want it to say %q", text, err, want)
		}
	}
	err := providers.DecodeSettings("a", json.RawMessage(`{"region": "x", "disk": "x"}`), &settings{})
	if err == nil || len(strings.Split(err.Error(), "\n")) != 2 {
		t.Errorf("two faults are told as %v", err)
	}
	if err := providers.DecodeSettings("a", json.RawMessage(`{"regions": ["x"], "disk": "50GiB"}`), &settings{}); err != nil {
		t.Error(err)
	}
}
