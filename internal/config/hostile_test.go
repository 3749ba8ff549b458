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

// A limit of nothing reads like a ban, and would be none: it is refused, like every
// limit that is no number of things.
func TestALimitOfNothingIsRefused(t *testing.T) {
	for _, where := range []string{
		"limits: {%s}\n",
		"providers:\n  - name: a\n    type: simcloud\n    limits: {%s}\n",
		"projects:\n  - name: a\n    limits: {%s}\n",
		"queues:\n  - name: a\n    limits: {%s}\n",
	} {
		for _, limit := range []string{"tasks: 0", "machines: 0", "machines: -1", "gpus: 0", "gpus: -2", "gpus: .nan", "gpus: 1e30", "per_hour: 0 USD", "per_hour: -1 USD", "per_hour: 1e99 USD", "per_hour: .nan"} {
			if _, err := config.Parse("c.yaml", []byte(strings.ReplaceAll(where, "%s", limit)), nil); err == nil || !strings.Contains(err.Error(), strings.Split(limit, ":")[0]) {
				t.Errorf("%q in %q: %v", limit, where, err)
			}
		}
	}
}

// Rules that allow nothing would allow all.
func TestRulesOfNothingAreRefused(t *testing.T) {
	for _, list := range []string{"gpu", "kinds", "providers", "regions"} {
		for _, where := range []string{"projects", "queues"} {
			_, err := config.Parse("c.yaml", []byte(where+":\n  - name: a\n    rules: {"+list+": []}\n"), nil)
			if err == nil || !strings.Contains(err.Error(), "rules."+list) {
				t.Errorf("%s of %s: %v", list, where, err)
			}
		}
	}
}
