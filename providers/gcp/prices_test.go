package gcp

import (
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpubroker/internal/money"
	"gpubroker/providers"
)

func TestReadDescription(t *testing.T) {
	for text, want := range map[string]struct {
		name  string
		kind  providers.Kind
		plain bool
	}{
		"A2 Instance Core running in Americas":                                               {"A2 Instance Core", providers.OnDemand, true},
		"Spot Preemptible A2 Instance Ram running in Netherlands":                            {"A2 Instance Ram", providers.Spot, true},
		"Nvidia Tesla T4 GPU attached to Spot Preemptible VMs running in Iowa":               {"Nvidia Tesla T4 GPU", providers.Spot, true},
		"Nvidia H100 80GB Plus GPU running in Americas":                                      {"Nvidia H100 80GB Plus GPU", providers.OnDemand, true},
		"Spot Preemptible A4 Nvidia B200 (1 gpu slice) running in Americas":                  {"A4 Nvidia B200 (1 gpu slice)", providers.Spot, true},
		"RTX 6000 96GB attached to Spot Preemptible VMs running in Iowa":                     {"RTX 6000 96GB", providers.Spot, true},
		"Balanced PD Capacity in Japan":                                                      {"Balanced PD Capacity", providers.OnDemand, true},
		"Balanced PD Capacity":                                                               {"Balanced PD Capacity", providers.OnDemand, true},
		"Regional Balanced PD Capacity in Japan":                                             {"Regional Balanced PD Capacity", providers.OnDemand, true},
		"SSD backed Local Storage attached to Spot Preemptible VMs in Iowa":                  {"SSD backed Local Storage", providers.Spot, true},
		"External IP Charge on a Standard VM":                                                {"External IP Charge on a Standard VM", providers.OnDemand, true},
		"External IP Charge on a Spot Preemptible VM":                                        {"External IP Charge on a Spot Preemptible VM", providers.OnDemand, true},
		"Commitment v1: Nvidia H100 80GB GPU running in Americas for 1 Year":                 {"Commitment v1: Nvidia H100 80GB GPU", providers.OnDemand, false},
		"Nvidia L4 GPU attached to DWS Defined Duration VMs running in Frankfurt":            {"Nvidia L4 GPU attached to DWS Defined Duration VMs", providers.OnDemand, false},
		"Reserved Nvidia H100 80GB Mega GPU in Americas in Calendar Mode":                    {"Reserved Nvidia H100 80GB Mega GPU", providers.OnDemand, false},
		"Nvidia L4 Virtual Workstation GPU running in Iowa":                                  {"Nvidia L4 Virtual Workstation GPU", providers.OnDemand, false},
		"Committed Use Discount Premium for E2 Custom Instance Core running in Johannesburg": {"Committed Use Discount Premium for E2 Custom Instance Core", providers.OnDemand, false},
	} {
		name, kind, plain := readDescription(text)
		if name != want.name || kind != want.kind || plain != want.plain {
			t.Errorf("%q: %q %s %t, want %q %s %t", text, name, kind, plain, want.name, want.kind, want.plain)
		}
	}
}

// TestRecordedPage prices a machine by a page of the real catalog of 2023: what
// offers.csv has for it, to the digit.
func TestRecordedPage(t *testing.T) {
	data, err := os.ReadFile(filepath.FromSlash("../../../shared/api-samples/gcp/cloudbilling-compute-skus.json"))
	if err != nil {
		t.Skipf("the recorded page is not here: %v", err)
	}
	var page skuPage
	if err := json.Unmarshal(data, &page); err != nil || len(page.SKUs) != 7 || page.Next == "" {
		t.Fatalf("%d SKUs, next %q, %v", len(page.SKUs), page.Next, err)
	}
	c := &catalog{prices: map[skuKey]unitPrice{}, gpus: map[string]bool{}}
	for _, s := range page.SKUs {
		c.add(s)
	}
	f, _ := familyOf("a2-highgpu-1g")
	sum := money.Rate(0)
	for _, part := range []struct {
		names       []string
		amount, per int64
	}{{f.core, 12, 1}, {f.ram, 85 * 1024, 1024}, {f.gpu, 1, 1}} {
		p, ok := c.find(part.names, "us-central1", providers.OnDemand)
		if !ok {
			t.Fatalf("no price of %v", part.names)
		}
		sum += p.times(part.amount, part.per)
	}
	if want, _ := money.RateOf("3.673385"); sum != want {
		t.Errorf("a2-highgpu-1g costs %s, want %s", sum, want)
	}
	// Another currency is no price of ours.
	if p, ok := c.find([]string{"T2D AMD Instance Core"}, "asia-southeast1", providers.OnDemand); ok {
		t.Errorf("rupiahs were read as %v", p)
	}
}

// TestFamiliesUseGooglesWords compares the table with a published mapping.
func TestFamiliesUseGooglesWords(t *testing.T) {
	f, err := os.Open(filepath.FromSlash("../../../shared/api-samples/gcp/sku-description-mapping.csv"))
	if err != nil {
		t.Skipf("the mapping is not here: %v", err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, r := range rows {
		known[r[4]] = true
	}
	// Of these the mapping has not got the words; the sources of the table have.
	newer := regexp.MustCompile(`^(A3Plus|A3Ultra|A4|H200|Nvidia H200|Nvidia H100 80GB Plus|Nvidia H100 Mega|Nvidia RTX 6000|Predefined|N1 Predefined Instance Ram)`)
	check := func(name string) {
		for pattern := range known {
			word := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(pattern, "%"), " running"), " running in")
			if word != "" && strings.HasPrefix(name, word) {
				return
			}
		}
		if !newer.MatchString(name) {
			t.Errorf("no SKU of the mapping begins like %q", name)
		}
	}
	for _, family := range tables().families {
		for _, names := range [][]string{family.core, family.ram, family.gpu} {
			for _, n := range names {
				check(n)
			}
		}
		if diskNames[family.disk] == "" {
			t.Errorf("%s: disk %q has no SKU", family.prefix, family.disk)
		}
	}
	for _, a := range tables().attachments {
		check(a.gpu)
	}
}

// TestMonthsAreAsLongAsTheCatalogSays: 100 GiB for 0.10 a month of 720 hours, rounded
// up once.
func TestMonthsAreAsLongAsTheCatalogSays(t *testing.T) {
	month := unitPrice{nanos: 100_000_000, hours: 2783138807808000.0 / (1 << 30) / 3600}
	if got := month.times(100, 1); got != 13_888_889 {
		t.Errorf("%d nano an hour", got)
	}
	if got := (unitPrice{nanos: 4_237_000, hours: 1}).times(87040, 1024); got != 360_145_000 {
		t.Errorf("85 GiB cost %d", got)
	}
}

func TestNames(t *testing.T) {
	valid := regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.String().Draw(t, "a"), rapid.String().Draw(t, "b")
		if n := nameOf(a); !valid.MatchString(n) {
			t.Fatalf("%q is called %q", a, n)
		}
		if a != b && nameOf(a) == nameOf(b) {
			t.Fatalf("%q and %q are both called %q", a, b, nameOf(a))
		}
		label, err := encode(a)
		if err != nil {
			return // too long
		}
		if !labelValue.MatchString(label) || decode(label) != a {
			t.Fatalf("%q is written %q and read %q", a, label, decode(label))
		}
	})
	if n := nameOf("i-01jd9z"); n != "gpubroker-i-01jd9z" {
		t.Errorf("a plain request is called %q", n)
	}
}

func FuzzParseMachine(f *testing.F) {
	for _, s := range []string{"g2-standard-8", "n1-standard-8+nvidia-tesla-t4x1", "n1+x", "+x1", "a+bx-1", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := parseMachine(s)
		if err != nil {
			return
		}
		again, err := parseMachine(m.String())
		if err != nil || again != m {
			t.Errorf("%q is %+v, written %q and read %+v, %v", s, m, m, again, err)
		}
	})
}
