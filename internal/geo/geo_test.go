package geo

import (
	"bytes"
	"encoding/csv"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func rows(t *testing.T) [][]string {
	t.Helper()
	r := csv.NewReader(bytes.NewReader(regionsCSV))
	r.Comment = '#'
	all, err := r.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return all[1:]
}

// TestANameIsOnePlace: a region of a cloud is one place, no other kind takes its
// name, and where clouds mean different places by one name it is listed here.
func TestANameIsOnePlace(t *testing.T) {
	kinds, places, byCloud := map[string]string{}, map[string][]string{}, map[string]string{}
	for _, row := range rows(t) {
		name, kind, place, source := strings.ToLower(row[0]), row[1], row[2], row[5]
		if was, ok := kinds[name]; ok && was != kind {
			t.Errorf("%s is a %s and a %s", name, was, kind)
		}
		kinds[name] = kind
		if !slices.Contains(places[name], place) {
			places[name] = append(places[name], place)
		}
		if kind == "region" {
			if was, twice := byCloud[source+"/"+name]; twice {
				t.Errorf("%s/%s is at %s and at %s", source, name, was, place)
			}
			byCloud[source+"/"+name] = place
		} else if kind != source {
			t.Errorf("%s: a %s has source %s", name, kind, source)
		}
	}
	var differ []string
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		if kinds[name] == "region" && len(places[name]) > 1 {
			differ = append(differ, name)
		}
	}
	if want := []string{"us-east-2", "us-west-2"}; !slices.Equal(differ, want) {
		t.Errorf("clouds differ in where %v are, expected %v: AWS and Lambda", differ, want)
	}
}

func TestOneCityHasOnePosition(t *testing.T) {
	at := map[string]string{}
	for _, row := range rows(t) {
		here := row[3] + ", " + row[4]
		if was, ok := at[row[2]]; ok && was != here {
			t.Errorf("%s is at %s and at %s", row[2], was, here)
		}
		at[row[2]] = here
	}
}

func TestKnown(t *testing.T) {
	for _, name := range []string{
		"eu-west", "us-east", "eu-west-1", "europe-west4", "westeurope", "FIN-01", "fin-01", "EU-RO-1", "US-TX-3", "SE", "se",
		"Paris", "new-york", "lambda/us-west-2", "aws/eu-west-1", "sim/paris",
	} {
		if !Known(name) {
			t.Errorf("%s is not known", name)
		}
	}
	for _, name := range []string{"", "/", "aws/", "atlantis", "eu-west-9"} {
		if Known(name) {
			t.Errorf("%q is known", name)
		}
		if _, ok := RTT("paris", name); ok {
			t.Errorf("a round trip to %q is known", name)
		}
	}
	names := Names()
	if !slices.IsSorted(names) || !slices.Contains(names, "eu-west") || !slices.Contains(names, "FIN-01") {
		t.Errorf("names: %v", names)
	}
}

// TestCloudsThatDiffer: a plain name is the farthest of its places, and a cloud's
// is its own.
func TestCloudsThatDiffer(t *testing.T) {
	far, _ := RTT("seattle", "us-west-2")
	aws, _ := RTT("seattle", "aws/us-west-2")
	lambda, _ := RTT("seattle", "lambda/us-west-2")
	if !(aws < 11*time.Millisecond && lambda > 35*time.Millisecond && far == lambda) {
		t.Errorf("Seattle to us-west-2 takes %s, AWS's %s, Lambda's %s", far, aws, lambda)
	}
}

// TestAreas: the regions that are named after an area are near to it.
func TestAreas(t *testing.T) {
	for _, c := range []struct {
		from, to string
		most     time.Duration
	}{
		{"eu-west", "eu-west-1", 20 * time.Millisecond},
		{"eu-west", "europe-west2", 15 * time.Millisecond},
		{"eu-west", "westeurope", 20 * time.Millisecond},
		{"eu-central", "eu-central-1", 13 * time.Millisecond},
		{"eu-north", "eu-north-1", 15 * time.Millisecond},
		{"us-east", "us-east-1", 12 * time.Millisecond},
		{"us-west", "us-west-1", 30 * time.Millisecond},
		{"europe", "eu-central-1", 33 * time.Millisecond},
	} {
		if d, ok := RTT(c.from, c.to); !ok || d > c.most {
			t.Errorf("users in %s are %s from %s, expected %s at most", c.from, d, c.to, c.most)
		}
	}
}

// published is round trips in milliseconds that operators publish.
var published = []struct {
	from, to string
	ms       float64
	p95      bool
}{
	// Azure, network round-trip latency statistics, 95th percentile of the 30 days to 2026-07-30:
	// learn.microsoft.com/azure/networking/azure-network-latency (CC BY 4.0).
	{"uksouth", "francecentral", 12, true},
	{"uksouth", "westeurope", 13, true},
	{"uksouth", "northeurope", 14, true},
	{"uksouth", "germanywestcentral", 19, true},
	{"uksouth", "switzerlandnorth", 25, true},
	{"uksouth", "norwayeast", 26, true},
	{"uksouth", "spaincentral", 27, true},
	{"uksouth", "polandcentral", 34, true},
	{"northeurope", "westeurope", 20, true},
	{"westeurope", "germanywestcentral", 14, true},
	{"germanywestcentral", "switzerlandnorth", 12, true},
	{"germanywestcentral", "austriaeast", 17, true},
	{"germanywestcentral", "swedencentral", 34, true},
	{"germanywestcentral", "italynorth", 21, true},
	{"eastus", "canadacentral", 22, true},
	{"eastus", "centralus", 35, true},
	{"eastus", "westus", 74, true},
	{"eastus", "uksouth", 80, true},
	{"eastus", "brazilsouth", 119, true},
	{"westus2", "westus", 26, true},
	{"japaneast", "koreacentral", 35, true},
	{"japaneast", "southeastasia", 74, true},
	{"australiaeast", "southeastasia", 98, true},
	{"centralindia", "uaenorth", 34, true},
	{"southafricanorth", "southafricawest", 24, true},
	// IBM Cloud VPC, inter-region latency, mean of the 30 days to 2024-08-25:
	// github.com/ibm-cloud-docs/vpc, network-latency.
	{"london", "frankfurt", 13, false},
	{"london", "madrid", 27, false},
	{"frankfurt", "madrid", 29, false},
	{"washington", "toronto", 19, false},
	{"dallas", "washington", 31, false},
	{"dallas", "toronto", 34, false},
	{"london", "washington", 75, false},
	{"frankfurt", "washington", 91, false},
	{"osaka", "tokyo", 9, false},
	{"sydney", "tokyo", 115, false},
	{"sao-paulo", "washington", 118, false},
}

// TestModelAgainstPublished: no published mean is more than 4 ms above the model,
// no 95th percentile more than 8 ms, and the model is at most 1.6 times as long, plus
// 5 ms. Routes with detours are not among them: see [RTT].
func TestModelAgainstPublished(t *testing.T) {
	for _, p := range published {
		d, ok := RTT(p.from, p.to)
		if !ok {
			t.Errorf("%s or %s is not known", p.from, p.to)
			continue
		}
		model, below := float64(d)/1e6, 4.0
		if p.p95 {
			below = 8
		}
		t.Logf("%-20s %-20s published %4.0f ms, modelled %4.0f ms, %+4.0f", p.from, p.to, p.ms, model, model-p.ms)
		if model < p.ms-below || model > 1.6*p.ms+5 {
			t.Errorf("%s to %s is published as %.0f ms and modelled as %.0f ms", p.from, p.to, p.ms, model)
		}
	}
}

// TestRTTIsADistance: the way back takes as long, nothing is faster than light in
// fibre allows, and whole milliseconds are told.
func TestRTTIsADistance(t *testing.T) {
	names := Names()
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.SampledFrom(names).Draw(t, "a"), rapid.SampledFrom(names).Draw(t, "b")
		there, ok := RTT(a, b)
		back, _ := RTT(b, a)
		km := 0.0
		for _, p := range builtin().of(a) {
			for _, q := range builtin().of(b) {
				km = max(km, p.km(q))
			}
		}
		switch {
		case !ok || there != back:
			t.Fatalf("%s to %s takes %s, and back %s", a, b, there, back)
		case there%time.Millisecond != 0 || there < atEnds || there > 405*time.Millisecond:
			t.Fatalf("%s to %s takes %s", a, b, there)
		case float64(there) < km*float64(perKm):
			t.Fatalf("%s to %s takes %s for %.0f km", a, b, there, km)
		}
	})
}

func TestLoadRefuses(t *testing.T) {
	const head = "name,kind,place,lat,lon,source\n"
	for _, c := range []string{"", "a,b\n", head + "x,city,X,91,0,city\n", head + "x,city,X,,0,city\n", head + ",city,X,1,0,city\n", head + "a/b,city,X,1,0,city\n", head + "x,city\n"} {
		if _, err := load([]byte(c)); err == nil {
			t.Errorf("%q is taken", c)
		}
	}
}
