package azure_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/providers/azure"
)

// TestOffersAreTheWorlds: each market of the world, at its price to the last digit,
// now and after the prices have moved; and what the account may not rent, as full.
func TestOffersAreTheWorlds(t *testing.T) {
	inAzure(t, func(t *testing.T, r *rig) {
		for range 3 {
			offers, err := r.a.Offers(t.Context(), providers.Scope{})
			if err != nil {
				t.Fatal(err)
			}
			got := map[simapi.Place]money.Rate{}
			full := 0
			for _, o := range offers {
				if o.Available == providers.Full {
					full++
					if o.Type != "Standard_NC96ads_A100_v4" || o.Kind != providers.OnDemand {
						t.Errorf("full: %s", o.Market)
					}
					continue
				}
				got[simapi.Place{Region: o.Region, Zone: o.Zone, Type: o.Type, Kind: o.Kind}] = o.Price
				if !o.Seen.Equal(time.Now()) || o.Parts[1].Price != 27_000_000 || o.Parts[2].Price != 5_000_000 {
					t.Errorf("%+v", o)
				}
			}
			if full != 5 {
				t.Errorf("%d full offers, one for each zone is 5", full)
			}
			world := r.w.Offers("", 0)
			for _, o := range world {
				if got[o.Place] != o.Price {
					t.Errorf("%s: %s, the world has %s", o.Place, got[o.Place], o.Price)
				}
			}
			if len(got) != len(world) {
				t.Errorf("%d offers, the world has %d", len(got), len(world))
			}
			time.Sleep(10 * time.Minute)
		}
	})
}

// TestShapes: shares of a GPU are not one GPU, and an unknown GPU stays visible.
func TestShapes(t *testing.T) {
	inAzure(t, func(t *testing.T, r *rig) {
		body := `{"value":[` + strings.Join([]string{
			sku("Standard_NV6ads_A10_v5", `{"name":"GPUs","value":"1"},{"name":"vCPUs","value":"6"},{"name":"MemoryGB","value":"55"},{"name":"LowPriorityCapable","value":"False"}`),
			sku("Standard_NC4as_T4_v3", `{"name":"GPUs","value":"1"},{"name":"vCPUs","value":"4"},{"name":"MemoryGB","value":"28"},{"name":"LowPriorityCapable","value":"False"}`),
			sku("Standard_D4as_v5", `{"name":"vCPUs","value":"4"}`),
			sku("Standard_NC24ads_A100_v4", `{"name":"GPUs","value":"1"},{"name":"CpuArchitectureType","value":"Arm64"}`),
			`null`,
			`{"resourceType":"disks","name":"Premium_LRS","locationInfo":[{"location":"eastus"}]}`,
		}, ",") + `]}`
		s := settings()
		s.Regions = []string{"eastus"}
		a := r.open(t, s)
		r.intercept("GET", "/skus", 1, 200, body)
		offers, err := a.Offers(t.Context(), providers.Scope{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, o := range offers {
			data, _ := json.Marshal(struct {
				T string
				K providers.Kind
				Z string
				G string
				N float64
				M int64
				A providers.Availability
			}{o.Type, o.Kind, o.Zone, o.GPU, o.GPUs, o.GPUMemory >> 30, o.Available})
			got = append(got, string(data))
		}
		want := []string{
			`{"T":"Standard_NC4as_T4_v3","K":"on-demand","Z":"1","G":"t4","N":1,"M":16,"A":"full"}`,
			`{"T":"Standard_NC4as_T4_v3","K":"on-demand","Z":"3","G":"t4","N":1,"M":16,"A":""}`,
			`{"T":"Standard_NV6ads_A10_v5","K":"on-demand","Z":"1","G":"a10","N":0.1667,"M":4,"A":"full"}`,
			`{"T":"Standard_NV6ads_A10_v5","K":"on-demand","Z":"3","G":"a10","N":0.1667,"M":4,"A":""}`,
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// sku is a size that zone 1 is closed for.
func sku(name, caps string) string {
	return `{"resourceType":"virtualMachines","name":"` + name + `","family":"f","locations":["eastus"],"locationInfo":[{"location":"eastus","zones":["3","1"]}],
		"capabilities":[` + caps + `],"restrictions":[{"type":"Zone","values":["eastus"],"reasonCode":"NotAvailableForSubscription","restrictionInfo":{"locations":["eastus"],"zones":["1"]}}]}`
}

func TestQuotasAndScores(t *testing.T) {
	inAzure(t, func(t *testing.T, r *rig) {
		if _, err := r.a.Launch(t.Context(), request("r1")); err != nil {
			t.Fatal(err)
		}
		quotas, err := r.a.Quotas(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		find := func(name, region string) providers.Quota {
			i := slices.IndexFunc(quotas, func(q providers.Quota) bool { return q.Name == name && q.Region == region })
			if i < 0 {
				t.Fatalf("no quota %s in %s: %+v", name, region, quotas)
			}
			return quotas[i]
		}
		if q := find("lowPriorityCores", "eastus"); q.Kind != providers.Spot || q.Used != 4 || q.Limit != 512 || q.Unit != "vcpu" {
			t.Errorf("%+v", q)
		}
		if q := find("Standard NCASv3_T4 Family", "westeurope"); q.Kind != providers.OnDemand || !slices.Equal(q.Types, []string{"Standard_NC4as_T4_v3"}) {
			t.Errorf("%+v", q)
		}
		if q := find("virtualMachines", "eastus"); q.Unit != "machine" || q.Used != 1 {
			t.Errorf("%+v", q)
		}
		scores, err := r.a.Scores(t.Context(), "Standard_NC4as_T4_v3", []string{"eastus", "atlantis"}, 8)
		if err != nil || len(scores) != 3 || scores[0] != (providers.Score{Region: "eastus", Zone: "1", Of10: 5}) {
			t.Errorf("%+v, %v", scores, err)
		}
	})
}

func TestSettings(t *testing.T) {
	open := azure.Descriptor().Open
	env := providers.Env{Owner: "broker", Secret: func(ref string) (string, error) { return "value of " + ref, nil }}
	good := `"subscription":"s","tenant":"t","client_id":"c","client_secret":"env:S"`
	for settings, want := range map[string]string{
		`{` + good + `}`: "",
		`{` + good + `,"regions":["East US"],"disk":"100GiB","disk_type":"StandardSSD_LRS","image":"/subscriptions/x/images/y"}`: "",
		`{"subscription":"s"}`:                         "",
		`{"tenant":"t"}`:                               "subscription is missing",
		`{"subscription":"s","client_id":"c"}`:         "client_id needs client_secret",
		`{"subscription":"s","client_secret":"env:S"}`: "needs tenant and client_id",
		`{"subscription":"s","tenant":"t","client_id":"c","client_secret":"hunter2"}`: "write a reference",
		`{` + good + `,"subscripton":"x"}`:                                            "subscripton",
		`{` + good + `,"disk":"40TiB"}`:                                               "at most 32767GiB",
		`{` + good + `,"disk_type":"Slow"}`:                                           "disk_type",
		`{` + good + `,"image":"ubuntu"}`:                                             "publisher:offer:sku:version",
		`{` + good + `,"network":{"private":true}}`:                                   "needs network.subnet",
		`{` + good + `,"network":{"subnet":"default"}}`:                               "resource id",
		`{` + good + `,"endpoint":"management.azure.com"}`:                            "want a URL",
		`{` + good + `,"endpoint":"https://u:hunter2@h"}`:                             "no user",
		`{` + good + `,"login":"http://127.0.0.1"}`:                                   "https only",
		`{` + good + `,"tags":{"gpubroker-owner":"me"}}`:                              "not gpubroker's own",
	} {
		_, err := open(t.Context(), "azure", json.RawMessage(settings), env)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", settings, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", settings, err, want)
		case err != nil && strings.Contains(err.Error(), "hunter2"):
			t.Errorf("%s: a secret shows: %v", settings, err)
		}
	}
}
