package azure_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	cloud "gpubroker/internal/simcloud"
	fake "gpubroker/internal/simcloud/dialects/azure"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/providers/azure"
)

// inAzure runs f in virtual time.
func inAzure(t *testing.T, f func(t *testing.T, r *rig), edits ...func(*cloud.Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newRig(t, edits...)) })
}

const vmPath = "/providers/Microsoft.Compute/virtualMachines/gpubroker-r1"

// TestLaunchIsRefused: each way, its code, whether a machine may exist, and that
// nothing is left of what was made before.
func TestLaunchIsRefused(t *testing.T) {
	arm := func(code, message string) string {
		return `{"error":{"code":"` + code + `","message":"` + message + `"}}`
	}
	tests := map[string]struct {
		edit    func(*cloud.Config)
		fault   *simapi.Fault
		status  int // answered to the machine's PUT
		body    string
		header  []string
		ask     func(*providers.LaunchRequest)
		code    providers.Code
		scope   providers.ErrScope
		outcome providers.Outcome
		after   time.Duration
	}{
		"spot capacity": {
			edit: func(c *cloud.Config) {
				for i := range c.Offers {
					if c.Offers[i].Kind == providers.Spot {
						c.Offers[i].Capacity = new(0)
					}
				}
			},
			code: providers.NoCapacity, scope: providers.ScopeOffer, outcome: providers.NotCreated,
		},
		"zonal capacity": {
			fault: &simapi.Fault{Op: "launch", Effect: simapi.NoCapacity},
			ask:   func(q *providers.LaunchRequest) { q.Market.Kind, q.PriceMax = providers.OnDemand, 0 },
			code:  providers.NoCapacity, scope: providers.ScopeOffer, outcome: providers.NotCreated,
		},
		"spot quota": {
			edit: func(c *cloud.Config) { limit(c, "lowPriorityCores", 3) },
			code: providers.QuotaExceeded, scope: providers.ScopeFamily, outcome: providers.NotCreated,
		},
		"family quota": {
			edit: func(c *cloud.Config) { limit(c, "Standard NCASv3_T4 Family", 3) },
			ask:  func(q *providers.LaunchRequest) { q.Market.Kind, q.PriceMax = providers.OnDemand, 0 },
			code: providers.QuotaExceeded, scope: providers.ScopeFamily, outcome: providers.NotCreated,
		},
		"price": {
			ask:  func(q *providers.LaunchRequest) { q.PriceMax = 50_000_000 },
			code: providers.PriceTooLow, scope: providers.ScopeOffer, outcome: providers.NotCreated,
		},
		"a price below disk and address": {
			ask:  func(q *providers.LaunchRequest) { q.PriceMax = 32_000_000 },
			code: providers.PriceTooLow, scope: providers.ScopeOffer, outcome: providers.NotCreated,
		},
		"throttled": {
			fault: &simapi.Fault{Op: "launch", Effect: simapi.Throttle, RetryAfter: simapi.Duration(7 * time.Second)},
			code:  providers.RateLimited, scope: providers.ScopeProvider, outcome: providers.NotCreated, after: 7 * time.Second,
		},
		"throttled, silent": {
			fault: &simapi.Fault{Op: "launch", Effect: simapi.Throttle},
			code:  providers.RateLimited, scope: providers.ScopeProvider, outcome: providers.NotCreated,
		},
		"credentials": {
			fault: &simapi.Fault{Op: "launch", Effect: simapi.Denied},
			code:  providers.Unauthorized, scope: providers.ScopeProvider, outcome: providers.NotCreated,
		},
		"no money": {
			fault: &simapi.Fault{Op: "launch", Effect: simapi.NoFunds},
			code:  providers.NoFunds, scope: providers.ScopeProvider, outcome: providers.NotCreated,
		},
		"no such size": {
			ask:  func(q *providers.LaunchRequest) { q.Market.Type = "Standard_NC1" },
			code: providers.InvalidRequest, scope: providers.ScopeFamily, outcome: providers.NotCreated,
		},
		"no such region": {
			ask:  func(q *providers.LaunchRequest) { q.Market.Region = "atlantis" },
			code: providers.Unsupported, scope: providers.ScopeRegion, outcome: providers.NotCreated,
		},
		"a larger disk": {
			ask:  func(q *providers.LaunchRequest) { q.Disk = 1 << 40 },
			code: providers.InvalidRequest, scope: providers.ScopeFamily, outcome: providers.NotCreated,
		},
		"unheard of": {
			status: 409, body: arm("WordOfTomorrow", "?"),
			code: providers.Unknown, scope: providers.ScopeOffer, outcome: providers.OutcomeUnknown,
		},
		"unheard of, and their fault": {
			status: 500, body: arm("WordOfTomorrow", "?"),
			code: providers.Unavailable, scope: providers.ScopeProvider, outcome: providers.OutcomeUnknown,
		},
		"wrapped": {
			status: 409, body: `{"error":{"code":"ResourceOperationFailure","message":"failed","details":[{"code":"OverconstrainedZonalAllocationRequest","message":"no"}]}}`,
			code: providers.NoCapacity, scope: providers.ScopeOffer, outcome: providers.NotCreated,
		},
		"an error in a success": {
			status: 200, body: arm("SkuNotAvailable", "no"),
			code: providers.NoCapacity, scope: providers.ScopeOffer, outcome: providers.NotCreated,
		},
		"an empty success": {
			status: 200, body: `{}`,
			code: providers.Unavailable, scope: providers.ScopeProvider, outcome: providers.OutcomeUnknown,
		},
		"a page of a proxy": {
			fault: &simapi.Fault{Op: "launch", Effect: simapi.Proxy},
			code:  providers.Unavailable, scope: providers.ScopeProvider, outcome: providers.OutcomeUnknown,
		},
		"a dropped call": {
			fault: &simapi.Fault{Op: "launch", Effect: simapi.Drop},
			code:  providers.Unavailable, scope: providers.ScopeProvider, outcome: providers.OutcomeUnknown,
		},
	}
	for name, test := range tests {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			edit := func(*cloud.Config) {}
			if test.edit != nil {
				edit = test.edit
			}
			inAzure(t, func(t *testing.T, r *rig) {
				if test.fault != nil {
					addFault(t, r.w, *test.fault)
				}
				if test.status != 0 {
					r.intercept("PUT", vmPath, 1, test.status, test.body, test.header...)
				}
				req := request("r1")
				if test.ask != nil {
					test.ask(&req)
				}
				_, err := r.a.Launch(t.Context(), req)
				e, ok := errors.AsType[*providers.Error](err)
				if !ok {
					t.Fatalf("error %v", err)
				}
				if e.Code != test.code || e.Scope != test.scope || e.Outcome != test.outcome || e.RetryAfter != test.after {
					t.Errorf("got %s, %s, %s, retry after %s: %v", e.Code, e.Scope, e.Outcome, e.RetryAfter, err)
				}
				if e.Provider != "azure" || e.Op != "launch" || e.Target != req.Market.String() || strings.ContainsAny(err.Error(), "\r\n") {
					t.Errorf("the error is %v", err)
				}
				if n := len(r.seen("PUT", vmPath)); n > 1 {
					t.Errorf("the machine was asked for %d times", n)
				}
				if left := r.fake.Groups(); len(left) > 0 || len(r.w.Truth()) > 0 {
					t.Errorf("left behind: %v, %d machines", left, len(r.w.Truth()))
				}
			}, edit)
		})
	}
}

func limit(c *cloud.Config, name string, to float64) {
	for i := range c.Quotas {
		if c.Quotas[i].Name == name {
			c.Quotas[i].Limit = to
		}
	}
}

// TestWhatIsAskedFor: the body of a spot machine, and what it costs at most.
func TestWhatIsAskedFor(t *testing.T) {
	inAzure(t, func(t *testing.T, r *rig) {
		i, err := r.a.Launch(t.Context(), request("r1"))
		if err != nil || i.State != providers.Pending || i.Ref.ID != "gpubroker-r1" {
			t.Fatalf("%+v, %v", i, err)
		}
		put := r.seen("PUT", vmPath)[0]
		if put.header.Get("If-None-Match") != "*" {
			t.Error("an existing machine would be changed")
		}
		var got struct {
			Location string
			Zones    []string
			Tags     map[string]string
			Identity struct{ Type string }
			Body     struct {
				Priority, EvictionPolicy string
				BillingProfile           struct{ MaxPrice json.Number }
				StorageProfile           struct {
					OSDisk struct {
						DeleteOption string
						DiskSizeGB   int
						ManagedDisk  struct{ StorageAccountType string }
					}
				}
				NetworkProfile struct {
					NetworkInterfaces []struct{ Properties struct{ DeleteOption string } }
				}
			} `json:"properties"`
		}
		if err := json.Unmarshal(put.body, &got); err != nil {
			t.Fatal(err)
		}
		p := got.Body
		if p.Priority != "Spot" || p.EvictionPolicy != "Delete" || got.Identity.Type != "SystemAssigned" || got.Location != "eastus" || !slices.Equal(got.Zones, []string{"1"}) {
			t.Errorf("%s", put.body)
		}
		// 1.00 without the disk's 0.027 and the address's 0.005.
		if p.BillingProfile.MaxPrice != "0.968" {
			t.Errorf("maximum price %s", p.BillingProfile.MaxPrice)
		}
		if p.StorageProfile.OSDisk.DeleteOption != "Delete" || p.StorageProfile.OSDisk.DiskSizeGB != 128 || p.StorageProfile.OSDisk.ManagedDisk.StorageAccountType != "Premium_LRS" || p.NetworkProfile.NetworkInterfaces[0].Properties.DeleteOption != "Delete" {
			t.Errorf("%s", put.body)
		}
		groups := r.seen("PUT", "/resourcegroups/gpubroker-r1")
		if len(groups) != 2 || !strings.Contains(string(groups[0].body), `"gpubroker-owner":"broker"`) {
			t.Errorf("the group was not tagged when it was made: %d calls", len(groups))
		}
		if m := r.w.Truth()[0]; m.PriceMax != 1_000_000_000 || m.Request != "r1" {
			t.Errorf("%+v", m)
		}
		for _, kind := range []string{"virtualNetworks/network", "networkSecurityGroups/no-inbound", "publicIPAddresses/address", "networkInterfaces/nic"} {
			calls := r.seen("PUT", "/providers/Microsoft.Network/"+kind)
			if len(calls) != 1 || !strings.Contains(string(calls[0].body), `"gpubroker-request":"r1"`) {
				t.Errorf("%s: %d calls", kind, len(calls))
			}
		}
	})
}

// TestOwnSubnet: with a subnet of the account's own and no address, an interface is
// all that is made, and the price has no address in it.
func TestOwnSubnet(t *testing.T) {
	inAzure(t, func(t *testing.T, r *rig) {
		s := settings()
		s.Network = providers.Network{Subnet: "/subscriptions/" + fake.Subscription + "/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/v/subnets/s", Private: true, Proxy: "http://proxy:3128"}
		s.SelfEnd, s.Tags, s.Disk = new(false), map[string]string{"cost-center": "42"}, 60<<30
		a := r.open(t, s)
		offers, err := a.Offers(t.Context(), providers.Scope{Region: "eastus"})
		if err != nil || len(offers[0].Parts) != 2 || offers[0].Disk != 64<<30 {
			t.Fatalf("%+v, %v", offers[0], err)
		}
		if !strings.Contains(offers[0].Source, "upper bound") {
			t.Errorf("a disk that the list does not have is from %q", offers[0].Source)
		}
		if _, err := a.Launch(t.Context(), request("r1")); err != nil {
			t.Fatal(err)
		}
		for _, c := range r.calls {
			if c.method == "PUT" && strings.Contains(c.path, "Microsoft.Network") && !strings.HasSuffix(c.path, "/networkInterfaces/nic") {
				t.Errorf("made %s", c.path)
			}
			if c.method == "PUT" && !strings.Contains(string(c.body), `"cost-center":"42"`) {
				t.Errorf("%s lacks the account's tag", c.path)
			}
		}
		if body := string(r.seen("PUT", vmPath)[0].body); strings.Contains(body, "identity") {
			t.Error("a machine that may not end itself has an identity")
		}
		if caps := a.Capabilities(); caps.SelfEnd != providers.EndNone || caps.EndScript != "" || caps.Reach != providers.ReachPrivate {
			t.Errorf("%+v", caps)
		}
	})
}

// TestSlowNetwork: what a machine needs is waited for as Azure says, and the
// machine itself is not.
func TestSlowNetwork(t *testing.T) {
	inAzure(t, func(t *testing.T, r *rig) {
		r.fake.NetworkTime = 3 * time.Second
		start := time.Now()
		i, err := r.a.Launch(t.Context(), request("r1"))
		if took := time.Since(start); err != nil || took < 6*time.Second || took > 8*time.Second || i.State != providers.Pending {
			t.Errorf("%s after %s, %v", i.State, took, err)
		}
		// Cut off before the machine was asked for, it certainly is not there.
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err = r.a.Launch(ctx, request("r2"))
		if providers.CodeOf(err) != providers.DeadlineExceed || providers.OutcomeOf(err) != providers.NotCreated {
			t.Errorf("%v, %s", err, providers.OutcomeOf(err))
		}
		// What it left shows as a machine that may yet come, and then as what is to go.
		time.Sleep(time.Second)
		if got := states(t, r); !slices.Contains(got, "gpubroker-r2 pending") {
			t.Errorf("%v", got)
		}
		time.Sleep(5 * time.Minute)
		got := states(t, r)
		if !slices.Contains(got, "gpubroker-r2 terminated error") || !slices.Contains(got, "gpubroker-r2:remains stopping") {
			t.Errorf("%v", got)
		}
	})
}

// states are the machines that List shows.
func states(t testing.TB, r *rig) []string {
	t.Helper()
	all, err := r.a.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, i := range all {
		out = append(out, strings.TrimSpace(i.Ref.ID+" "+string(i.State)+" "+string(i.Cause)))
	}
	return out
}

// TestLostAnswer: a machine whose answer was lost is found, can end itself, and is
// not made twice.
func TestLostAnswer(t *testing.T) {
	for _, effect := range []string{simapi.DropAfter, simapi.UnavailableAfter, simapi.InternalAfter, simapi.Truncate} {
		t.Run(effect, func(t *testing.T) {
			inAzure(t, func(t *testing.T, r *rig) {
				addFault(t, r.w, simapi.Fault{Op: "launch", Effect: effect})
				_, err := r.a.Launch(t.Context(), request("r1"))
				if providers.CodeOf(err) != providers.Unavailable || providers.OutcomeOf(err) != providers.OutcomeUnknown {
					t.Fatalf("%v, %s", err, providers.OutcomeOf(err))
				}
				if n := len(r.seen("PUT", vmPath)); n != 1 {
					t.Errorf("asked for %d times", n)
				}
				roles := 0
				for _, c := range r.calls {
					if c.method == "PUT" && strings.Contains(c.path, "/roleAssignments/") {
						roles++
					}
				}
				if roles != 1 {
					t.Errorf("the machine can end itself through %d roles", roles)
				}
				again, err := r.a.Launch(t.Context(), request("r1"))
				if err != nil || again.Ref.ID != "gpubroker-r1" || len(r.w.Truth()) != 1 {
					t.Errorf("%+v, %v, %d machines", again, err, len(r.w.Truth()))
				}
			})
		})
	}
}

// TestSelfEndIsNotPermitted: a machine that could not end itself is not kept.
func TestSelfEndIsNotPermitted(t *testing.T) {
	inAzure(t, func(t *testing.T, r *rig) {
		r.fake.Deny("Microsoft.Authorization/roleAssignments/write")
		_, err := r.a.Launch(t.Context(), request("r1"))
		if providers.CodeOf(err) != providers.Unauthorized || providers.OutcomeOf(err) != providers.OutcomeUnknown || !strings.Contains(err.Error(), "self_end: false") {
			t.Errorf("%v, %s", err, providers.OutcomeOf(err))
		}
		time.Sleep(time.Second)
		if left := r.fake.Groups(); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
		err = r.a.Preflight(t.Context())
		if providers.CodeOf(err) != providers.Unauthorized || !strings.Contains(err.Error(), "missing permissions") || !strings.Contains(err.Error(), "Microsoft.Authorization/roleAssignments/write") {
			t.Errorf("%v", err)
		}
	})
}

// TestWhatIsNotOurs: a group that bears our name and not our tags is left alone.
func TestWhatIsNotOurs(t *testing.T) {
	inAzure(t, func(t *testing.T, r *rig) {
		other, err := azure.New("azure", settings(), azure.Access{Secret: secret, Owner: "somebody-else", Client: r.net.Client()})
		if err != nil {
			t.Fatal(err)
		}
		req := request("r1")
		req.Tags.Owner = "somebody-else"
		if _, err := other.Launch(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		ref := providers.Ref{Request: "r1"}
		if err := r.a.Terminate(t.Context(), ref); providers.CodeOf(err) != providers.NotFound {
			t.Errorf("terminate: %v", err)
		}
		if _, err := r.a.Describe(t.Context(), ref); providers.CodeOf(err) != providers.NotFound {
			t.Errorf("describe: %v", err)
		}
		if _, err := r.a.Launch(t.Context(), request("r1")); providers.CodeOf(err) != providers.InvalidRequest || providers.OutcomeOf(err) != providers.NotCreated {
			t.Errorf("launch: %v", err)
		}
		if len(r.fake.Groups()) != 1 || len(r.w.Truth()) != 1 {
			t.Errorf("%v, %d machines", r.fake.Groups(), len(r.w.Truth()))
		}
		// A request that has its machine elsewhere.
		if _, err := r.a.Launch(t.Context(), request("r2")); err != nil {
			t.Fatal(err)
		}
		elsewhere := request("r2")
		elsewhere.Market.Region = "westeurope"
		if _, err := r.a.Launch(t.Context(), elsewhere); providers.CodeOf(err) != providers.Conflict {
			t.Errorf("elsewhere: %v", err)
		}
	})
}

// TestPages: lists of many pages are whole, a fault on a later one is an error, and
// a link to another host is not followed.
func TestPages(t *testing.T) {
	inAzure(t, func(t *testing.T, r *rig) {
		for n := range 7 {
			if _, err := r.a.Launch(t.Context(), request("r"+string(rune('a'+n)))); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(states(t, r)); n != 0 {
			t.Errorf("%d machines before the list lag has passed", n)
		}
		time.Sleep(2 * time.Second)
		r.calls = nil
		if n := len(states(t, r)); n != 7 {
			t.Errorf("%d machines of 7", n)
		}
		if n := len(r.seen("GET", "/resourcegroups")); n != 4 {
			t.Errorf("%d pages of groups", n)
		}
		addFault(t, r.w, simapi.Fault{Op: "list", Effect: simapi.Internal, Nth: 3})
		if all, err := r.a.List(t.Context()); providers.CodeOf(err) != providers.Unavailable || all != nil {
			t.Errorf("%d machines, %v", len(all), err)
		}
		r.calls = nil
		offers, err := r.a.Offers(t.Context(), providers.Scope{Region: "eastus"})
		if err != nil || len(offers) == 0 {
			t.Fatal(err)
		}
		if prices, skus := len(r.seen("GET", "/prices")), len(r.seen("GET", "/skus")); prices < 3 || skus < 3 {
			t.Errorf("%d pages of prices, %d of sizes", prices, skus)
		}
		r.intercept("GET", "/resourcegroups", 1, 200, `{"value":[],"nextLink":"https://evil.test/subscriptions"}`)
		if _, err := r.a.List(t.Context()); providers.CodeOf(err) != providers.Unavailable || !strings.Contains(err.Error(), "another host") {
			t.Errorf("%v", err)
		}
		r.intercept("GET", "/prices", 1, 200, `{"Items":[],"NextPageLink":"https://evil.test:443/api/retail/prices"}`)
		if _, err := r.a.Offers(t.Context(), providers.Scope{}); providers.CodeOf(err) != providers.Unavailable || !strings.Contains(err.Error(), "another host") {
			t.Errorf("%v", err)
		}
	}, func(c *cloud.Config) { c.PageSize = 2 })
}

// TestExpiredCredentials: tokens that Azure no longer takes, and a secret that it
// never took, are unauthorized, and no error shows the secret.
func TestExpiredCredentials(t *testing.T) {
	inAzure(t, func(t *testing.T, r *rig) {
		if _, err := r.a.List(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.fake.Revoke()
		_, err := r.a.List(t.Context())
		if providers.CodeOf(err) != providers.Unauthorized || !strings.Contains(err.Error(), "ExpiredAuthenticationToken") {
			t.Errorf("%v", err)
		}
		wrong, err := azure.New("azure", settings(), azure.Access{Secret: "hunter2", Owner: "broker", Client: r.net.Client()})
		if err != nil {
			t.Fatal(err)
		}
		for name, call := range map[string]func() error{
			"list":      func() error { _, err := wrong.List(t.Context()); return err },
			"launch":    func() error { _, err := wrong.Launch(t.Context(), request("r1")); return err },
			"preflight": func() error { return wrong.Preflight(t.Context()) },
		} {
			err := call()
			if providers.CodeOf(err) != providers.Unauthorized || strings.Contains(err.Error(), "hunter2") || strings.ContainsAny(err.Error(), "\r\n") || !strings.Contains(err.Error(), "invalid_client") {
				t.Errorf("%s: %v", name, err)
			}
			if name == "launch" && providers.OutcomeOf(err) != providers.NotCreated {
				t.Errorf("%s: %s", name, providers.OutcomeOf(err))
			}
		}
		// Nobody at the address of the sign-in.
		away := settings()
		away.Login = "https://nobody.test"
		lost, err := azure.New("azure", away, azure.Access{Secret: secret, Client: r.net.Client()})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := lost.List(t.Context()); providers.CodeOf(err) != providers.Unavailable {
			t.Errorf("%v", err)
		}
	})
}

// TestNotFoundMeansOurMachine: a 404 for another reason is not a machine that is gone.
func TestNotFoundMeansOurMachine(t *testing.T) {
	for body, want := range map[string]providers.Code{
		`{"error":{"code":"ResourceGroupNotFound","message":"no"}}`: providers.NotFound,
		`{"error":{"code":"SubscriptionNotFound","message":"no"}}`:  providers.Unauthorized,
		`{"error":{"code":"InvalidResourceType","message":"no"}}`:   providers.Unknown,
		`<html>404</html>`: providers.Unknown,
		``:                 providers.Unknown,
	} {
		inAzure(t, func(t *testing.T, r *rig) {
			r.intercept("GET", "/resourcegroups/gpubroker-r1", 2, http.StatusNotFound, body)
			ref := providers.Ref{ID: "gpubroker-r1", Request: "r1"}
			if err := r.a.Terminate(t.Context(), ref); providers.CodeOf(err) != want {
				t.Errorf("%s: terminate: %v", body, err)
			}
			if _, err := r.a.Describe(t.Context(), ref); providers.CodeOf(err) != want {
				t.Errorf("%s: describe: %v", body, err)
			}
		})
	}
}

// TestThinnerAnswers: what other servers of this API leave out is not missed.
func TestThinnerAnswers(t *testing.T) {
	inAzure(t, func(t *testing.T, r *rig) {
		// A machine whose identity, and whose operation's address, come later.
		first := true
		r.front = func(rw http.ResponseWriter, req *http.Request) bool {
			if req.Method != http.MethodPut || !strings.HasSuffix(req.URL.Path, vmPath) || !first {
				return false
			}
			first = false
			rec := httptest.NewRecorder()
			r.api.ServeHTTP(rec, req)
			var vm map[string]any
			if err := json.Unmarshal(rec.Body.Bytes(), &vm); err != nil {
				t.Error(err)
			}
			delete(vm, "identity")
			rw.Header().Set("Content-Type", "application/json")
			rw.WriteHeader(rec.Code)
			_ = json.NewEncoder(rw).Encode(vm)
			return true
		}
		i, err := r.a.Launch(t.Context(), request("r1"))
		if err != nil || len(r.w.Truth()) != 1 {
			t.Fatal(err)
		}
		// An end that is accepted and leads nowhere.
		r.intercept("DELETE", "/resourcegroups/gpubroker-r1", 1, http.StatusAccepted, "")
		if err := r.a.Terminate(t.Context(), i.Ref); err != nil {
			t.Error(err)
		}
		if q := r.seen("DELETE", "/resourcegroups/gpubroker-r1")[0].query; !strings.Contains(q, "forceDeletionTypes=Microsoft.Compute%2FvirtualMachines") {
			t.Errorf("the machine is waited for: %s", q)
		}
	})
}
