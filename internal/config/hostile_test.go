package config_test

import (
	"strings"
	"testing"

	"gpubroker/internal/config"
)

// The first commitment that covers a machine counts it: one that comes after it for
// the same machines would never be used, and nobody would see that.
func TestACommitmentThatWouldNeverCountIsRefused(t *testing.T) {
	for text, fine := range map[string]bool{
		"[{type: t, machines: 4}, {type: t, machines: 2}]":                                                false,
		"[{type: t, machines: 4}, {type: t, machines: 2, kind: on-demand, until: 2027-05-31}]":            false,
		"[{type: t, machines: 4}, {type: t, machines: 2, region: r}]":                                     false,
		"[{type: t, machines: 4, region: r}, {type: t, machines: 2, region: r, zone: a}]":                 false,
		"[{type: t, machines: 2, region: r, zone: a}, {type: t, machines: 4, region: r}]":                 true,
		"[{type: t, machines: 4, region: r}, {type: t, machines: 2, region: s}]":                          true,
		"[{type: t, machines: 4}, {type: u, machines: 2}, {type: t, machines: 2, kind: spot}]":            true,
		"[{type: t, machines: 2, region: r}, {type: t, machines: 2}, {type: t, machines: 1, kind: spot}]": true,
	} {
		_, err := config.Parse("c.yaml", []byte("providers:\n  - name: a\n    type: simcloud\n    commitments: "+text+"\n"), nil)
		if (err == nil) != fine || err != nil && !strings.Contains(err.Error(), "never count") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
