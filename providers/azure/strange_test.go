package azure_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"gpubroker/providers"
)

// edit has what the cloud answers to a method at paths with a part changed on its
// way.
func (r *rig) edit(method, part string, change func(rec *httptest.ResponseRecorder, doc map[string]any)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.front = func(rw http.ResponseWriter, req *http.Request) bool {
		if req.Method != method || !strings.Contains(strings.ToLower(req.URL.Path), strings.ToLower(part)) {
			return false
		}
		rec := httptest.NewRecorder()
		r.api.ServeHTTP(rec, req)
		doc := map[string]any{}
		_ = json.Unmarshal(rec.Body.Bytes(), &doc)
		if rec.Code < 300 {
			rec.Header().Set("X-Self", "https://"+host+req.URL.Path+"?"+req.URL.RawQuery)
			change(rec, doc)
		}
		for k, v := range rec.Header() {
			if k != "Content-Length" {
				rw.Header()[k] = v
			}
		}
		rw.WriteHeader(rec.Code)
		if doc != nil && rec.Code != http.StatusAccepted {
			_ = json.NewEncoder(rw).Encode(doc)
		}
		return true
	}
}

// onlyLocation answers as a server whose long operations have a Location alone.
func onlyLocation(rec *httptest.ResponseRecorder, _ map[string]any) {
	rec.Code = http.StatusAccepted
	rec.Header().Del("Azure-AsyncOperation")
	rec.Header().Set("Location", rec.Header().Get("X-Self"))
}

// Long operations as other servers have them, and answers that say less.
func TestOperationsOfOtherServers(t *testing.T) {
	for name, c := range map[string]struct {
		part   string
		change func(rec *httptest.ResponseRecorder, doc map[string]any)
	}{
		"a machine with a Location alone": {vmPath, onlyLocation},
		"a network with a Location alone": {"Microsoft.Network", func(rec *httptest.ResponseRecorder, doc map[string]any) {
			onlyLocation(rec, doc)
			rec.Code = http.StatusCreated // the one code that is documented beside 200
			clear(doc)
		}},
		"a network without ids":        {"Microsoft.Network", func(_ *httptest.ResponseRecorder, doc map[string]any) { delete(doc, "id") }},
		"a machine without properties": {vmPath, func(_ *httptest.ResponseRecorder, doc map[string]any) { delete(doc, "properties") }},
		"a machine without a state": {vmPath, func(_ *httptest.ResponseRecorder, doc map[string]any) {
			delete(doc["properties"].(map[string]any), "provisioningState")
			delete(doc["properties"].(map[string]any), "timeCreated")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inAzure(t, func(t *testing.T, r *rig) {
				r.edit(http.MethodPut, c.part, c.change)
				i, err := r.a.Launch(t.Context(), request("r1"))
				if err != nil || i.Ref.ID != "gpubroker-r1" || i.Market != request("r1").Market || len(r.w.Truth()) != 1 {
					t.Fatalf("%+v, %v", i, err)
				}
				for _, c := range r.seen(http.MethodPut, "/networkInterfaces/nic") {
					if !strings.Contains(string(c.body), "/publicIPAddresses/address") || !strings.Contains(string(c.body), "/virtualNetworks/network/subnets/machines") || !strings.Contains(string(c.body), "/networkSecurityGroups/no-inbound") {
						t.Errorf("the interface lacks its parts: %s", c.body)
					}
				}
			})
		})
	}
}

// A machine whose power alone is told runs.
func TestPowerWithoutState(t *testing.T) {
	inAzure(t, func(t *testing.T, r *rig) {
		made, err := r.a.Launch(t.Context(), request("r1"))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		r.edit(http.MethodGet, vmPath, func(_ *httptest.ResponseRecorder, doc map[string]any) {
			delete(doc["properties"].(map[string]any), "provisioningState")
		})
		if i, err := r.a.Describe(t.Context(), made.Ref); err != nil || i.State != providers.Running {
			t.Errorf("%s, %v", i.State, err)
		}
	})
}

// Whoever replaces a group's tags does not hide the machine that is paid for.
func TestLostTagsAreNoEnd(t *testing.T) {
	inAzure(t, func(t *testing.T, r *rig) {
		made, err := r.a.Launch(t.Context(), request("r1"))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		r.edit(http.MethodGet, "/gpubroker-r1", func(_ *httptest.ResponseRecorder, doc map[string]any) {
			doc["tags"] = map[string]any{"cost-centre": "42"}
		})
		if err := r.a.Terminate(t.Context(), made.Ref); err == nil || providers.CodeOf(err) == providers.NotFound {
			t.Errorf("nothing of it is known to be ours: %v", err)
		}
		if _, err := r.a.Describe(t.Context(), made.Ref); err == nil || providers.CodeOf(err) == providers.NotFound {
			t.Errorf("nothing of it is known to be ours: %v", err)
		}
		r.edit(http.MethodGet, "/gpubroker-r1", func(_ *httptest.ResponseRecorder, doc map[string]any) {
			if doc["type"] == "Microsoft.Resources/resourceGroups" {
				doc["tags"] = map[string]any{}
			}
		})
		if err := r.a.Terminate(t.Context(), made.Ref); err != nil {
			t.Errorf("the machine bears our tags: %v", err)
		}
		time.Sleep(10 * time.Minute)
		if n := r.fake.Groups(); len(n) != 0 {
			t.Errorf("left: %v", n)
		}
	})
}

// Price lists and lists of sizes that say less, or more.
func TestSpareLists(t *testing.T) {
	row := func(price float64, more string) map[string]any {
		var out map[string]any
		text := fmt.Sprintf(`{"currencyCode":"USD","tierMinimumUnits":0,"retailPrice":%v,"armRegionName":"eastus","meterName":"NC4as T4 v3","productName":"Virtual Machines NCasT4 v3 Series","skuName":"NC4as T4 v3","unitOfMeasure":"1 Hour","type":"Consumption","armSkuName":"Standard_NC4as_T4_v3"%s}`, price, more)
		if err := json.Unmarshal([]byte(text), &out); err != nil {
			panic(err)
		}
		return out
	}
	now := func(doc map[string]any) { // the tests' time
		for _, item := range doc["Items"].([]any) {
			item.(map[string]any)["effectiveStartDate"] = "1999-06-01T00:00:00Z"
		}
	}
	sizes := func(each func(size map[string]any)) func(*httptest.ResponseRecorder, map[string]any) {
		return func(_ *httptest.ResponseRecorder, doc map[string]any) {
			for _, s := range doc["value"].([]any) {
				each(s.(map[string]any))
			}
		}
	}
	for name, c := range map[string]struct {
		part   string
		change func(rec *httptest.ResponseRecorder, doc map[string]any)
	}{
		"no items are null": {"/retail/prices", func(_ *httptest.ResponseRecorder, doc map[string]any) {
			if items, _ := doc["Items"].([]any); len(items) == 0 || strings.Contains(fmt.Sprint(items), "IP Addresses") {
				doc["Items"] = nil
			}
		}},
		"another currency": {"/retail/prices", func(_ *httptest.ResponseRecorder, doc map[string]any) {
			doc["Items"] = append(doc["Items"].([]any), row(9, `,"currencyCode":"EUR"`))
		}},
		"a price of last year": {"/retail/prices", func(_ *httptest.ResponseRecorder, doc map[string]any) {
			now(doc)
			doc["Items"] = append(doc["Items"].([]any), row(9, `,"effectiveStartDate":"1998-01-01T00:00:00Z","effectiveEndDate":"1999-01-01T00:00:00Z"`))
		}},
		"a price of next year": {"/retail/prices", func(_ *httptest.ResponseRecorder, doc map[string]any) {
			now(doc)
			doc["Items"] = append(doc["Items"].([]any), row(9, `,"effectiveStartDate":"2098-01-01T00:00:00Z"`))
		}},
		"sizes without LowPriorityCapable": {"/skus", sizes(func(s map[string]any) {
			var kept []any
			all, _ := s["capabilities"].([]any)
			for _, c := range all {
				if c.(map[string]any)["name"] != "LowPriorityCapable" {
					kept = append(kept, c)
				}
			}
			s["capabilities"] = kept
		})},
		"types in capitals": {"/skus", sizes(func(s map[string]any) { s["resourceType"] = "VirtualMachines" })},
	} {
		t.Run(name, func(t *testing.T) {
			inAzure(t, func(t *testing.T, r *rig) {
				whole, err := r.a.Offers(t.Context(), providers.Scope{Region: "eastus"})
				if err != nil {
					t.Fatal(err)
				}
				r.edit(http.MethodGet, c.part, c.change)
				spare, err := r.a.Offers(t.Context(), providers.Scope{Region: "eastus"})
				if err != nil || len(spare) != len(whole) {
					t.Fatalf("%d offers, %v; want %d", len(spare), err, len(whole))
				}
				for i := range spare {
					if spare[i].Market != whole[i].Market || spare[i].Parts[0] != whole[i].Parts[0] {
						t.Errorf("%+v, want %+v", spare[i], whole[i])
					}
				}
			})
		})
	}
	inAzure(t, func(t *testing.T, r *rig) {
		r.edit(http.MethodGet, "/skus", sizes(func(s map[string]any) {
			s["locations"] = []any{"EastUS"}
			delete(s, "locationInfo")
			delete(s, "capabilities")
		}))
		all, err := r.a.Offers(t.Context(), providers.Scope{Region: "eastus"})
		if err != nil || len(all) == 0 {
			t.Errorf("sizes without places and capabilities: %d offers, %v", len(all), err)
		}
	})
}

// Whichever call of a launch or an end fails, before or after its effect, a later
// end leaves nothing, and until then the list shows what there is.
func TestEachCallFailsOnce(t *testing.T) {
	for _, after := range []bool{false, true} {
		for n := 0; ; n++ {
			hit := false
			t.Run(fmt.Sprintf("call %d, after its effect %v", n, after), func(t *testing.T) {
				inAzure(t, func(t *testing.T, r *rig) {
					left := n
					r.front = func(rw http.ResponseWriter, req *http.Request) bool {
						if strings.Contains(req.URL.Path, "oauth2") || strings.Contains(req.URL.Path, "openid") {
							return false
						}
						r.mu.Lock()
						left--
						fail := left < 0 && !hit
						hit = hit || fail
						r.mu.Unlock()
						if !fail {
							return false
						}
						if after {
							r.api.ServeHTTP(httptest.NewRecorder(), req)
						}
						rw.Header().Set("Content-Type", "application/json")
						rw.WriteHeader(http.StatusInternalServerError)
						_, _ = io.WriteString(rw, `{"error":{"code":"InternalServerError","message":"x"}}`)
						return true
					}
					_, err := r.a.Launch(t.Context(), request("r1"))
					live := len(r.w.Truth())
					if err == nil && live != 1 || err != nil && providers.OutcomeOf(err) == providers.NotCreated && live != 0 {
						t.Errorf("%v (%s) with %d machines", err, providers.OutcomeOf(err), live)
					}
					time.Sleep(2 * time.Minute)
					all, listErr := r.a.List(t.Context())
					if groups := r.fake.Groups(); listErr == nil && len(groups) > 0 && len(all) == 0 {
						t.Errorf("the list does not show %v", groups)
					}
					ref := providers.Ref{Request: "r1"}
					for try := 0; providers.CodeOf(r.a.Terminate(t.Context(), ref)) != providers.NotFound; try++ {
						if try > 5 {
							t.Fatal("it does not end")
						}
						time.Sleep(5 * time.Minute)
					}
					if groups := r.fake.Groups(); len(groups) > 0 {
						t.Errorf("not found, and there are %v", groups)
					}
				})
			})
			if !hit {
				break
			}
		}
	}
}
