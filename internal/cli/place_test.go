package cli

import "testing"

func TestAPlaceSaysRegionAndZone(t *testing.T) {
	for want, in := range map[string][3]string{
		"aws/us-east-1a":        {"aws", "us-east-1", "us-east-1a"},
		"azure/eastus/1":        {"azure", "eastus", "1"},
		"runpod/US-KS-2/secure": {"runpod", "US-KS-2", "secure"},
		"verda/FIN-01":          {"verda", "FIN-01", ""},
		"salad":                 {"salad", "", ""},
		"lab/shelf-2":           {"lab", "", "shelf-2"},
		"eastus/1":              {"", "eastus", "1"},
	} {
		if got := place(in[0], in[1], in[2]); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
