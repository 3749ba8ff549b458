package gcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	cloud "gpubroker/internal/simcloud"
	fake "gpubroker/internal/simcloud/dialects/gcp"
	"gpubroker/internal/simcloud/dialects/gcp/discovery"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/providers/gcp"
)

// inProject runs a test in virtual time.
func inProject(t *testing.T, edit func(*cloud.Config), wrap func(http.Handler) http.Handler, f func(t *testing.T, p *project)) {
	t.Helper()
	keyFile()
	if _, err := discovery.Google(); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) { f(t, newProject(t, edit, wrap)) })
}

func (p *project) fault(t *testing.T, f simapi.Fault) {
	t.Helper()
	if err := p.world.AddFault(f); err != nil {
		t.Fatal(err)
	}
}

// TestPricesAreTheWorlds finds in the sums of the catalog's parts the price of
// every offer of the world, to the nano-dollar.
func TestPricesAreTheWorlds(t *testing.T) {
	inProject(t, nil, nil, func(t *testing.T, p *project) {
		a := p.open(t, nil)
		offers, err := a.Offers(t.Context(), providers.Scope{})
		if err != nil {
			t.Fatal(err)
		}
		world := map[string]simapi.Offer{}
		for _, o := range p.world.Offers("", 0) {
			world["gcp/"+o.Place.String()] = o
		}
		for _, o := range offers {
			w, ok := world[o.Market.String()]
			delete(world, o.Market.String())
			if !ok || o.Price != w.Price || o.Currency != "USD" || len(o.Parts) != 3 || o.Parts[0].Name != "compute" || o.Parts[1].Name != "disk" || o.Parts[2].Name != "address" {
				t.Errorf("%s costs %s in parts %v, in the world %s", o.Market, o.Price, o.Parts, w.Price)
			}
			if o.GPU != w.GPU || o.GPUs != w.GPUs || o.VCPU != w.VCPU || o.Memory != w.Memory || o.GPUs > 0 && o.GPUMemory != w.GPUMemory {
				t.Errorf("%s is %+v, in the world %+v", o.Market, o.Shape, w.Shape)
			}
			if time.Since(o.Seen) != 0 || !strings.Contains(o.Source, "Cloud Billing") {
				t.Errorf("%s was seen %s ago in %q", o.Market, time.Since(o.Seen), o.Source)
			}
		}
		for market := range world {
			t.Errorf("%s is not offered", market)
		}
		if got := a.Unmatched(); !slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, "Nvidia Tesla K80 GPU") }) {
			t.Errorf("unmatched: %q", got)
		}
		private, err := p.open(t, func(s *gcp.Settings) { s.Network.Private, s.Regions = true, []string{"europe-west4"} }).Offers(t.Context(), providers.Scope{})
		if err != nil || len(private) != len(offers)/2 || len(private[0].Parts) != 2 {
			t.Errorf("without addresses, in one region: %d of %d offers, %v", len(private), len(offers), err)
		}
	})
}

func TestFaultsOfLaunches(t *testing.T) {
	for _, c := range []struct {
		effect  string
		code    providers.Code
		outcome providers.Outcome
		made    bool
	}{
		{simapi.NoCapacity, providers.NoCapacity, providers.NotCreated, false},
		{simapi.Quota, providers.QuotaExceeded, providers.NotCreated, false},
		{simapi.Throttle, providers.RateLimited, providers.NotCreated, false},
		{simapi.Denied, providers.Unauthorized, providers.NotCreated, false},
		{simapi.NoFunds, providers.NoFunds, providers.NotCreated, false},
		{simapi.Invalid, providers.InvalidRequest, providers.NotCreated, false},
		{simapi.Unavailable, providers.Unavailable, providers.OutcomeUnknown, false},
		{simapi.Internal, providers.Unavailable, providers.OutcomeUnknown, false},
		{simapi.Proxy, providers.Unavailable, providers.OutcomeUnknown, false},
		{simapi.ErrorIn200, providers.Unavailable, providers.OutcomeUnknown, false},
		{simapi.Drop, providers.Unavailable, providers.OutcomeUnknown, false},
		{simapi.UnavailableAfter, providers.Unavailable, providers.OutcomeUnknown, true},
		{simapi.InternalAfter, providers.Unavailable, providers.OutcomeUnknown, true},
		{simapi.DropAfter, providers.Unavailable, providers.OutcomeUnknown, true},
		{simapi.Truncate, providers.Unavailable, providers.OutcomeUnknown, true},
	} {
		t.Run(c.effect, func(t *testing.T) {
			inProject(t, nil, nil, func(t *testing.T, p *project) {
				a := p.open(t, nil)
				req := launch("r1", "us-central1-a", "g2-standard-8", providers.Spot)
				p.fault(t, simapi.Fault{Op: "launch", Effect: c.effect, RetryAfter: simapi.Duration(7 * time.Second)})
				_, err := a.Launch(t.Context(), req)
				if providers.CodeOf(err) != c.code || providers.OutcomeOf(err) != c.outcome {
					t.Errorf("%v (%s), want %s (%s)", err, providers.OutcomeOf(err), c.code, c.outcome)
				}
				if n := len(p.world.Truth()); (n == 1) != c.made {
					t.Errorf("%d machines", n)
				}
				// Whatever was known, asking again gives the one machine.
				i, err := a.Launch(t.Context(), req)
				if err != nil || len(p.world.Truth()) != 1 || i.Market != req.Market {
					t.Errorf("again: %+v, %v; %d machines", i, err, len(p.world.Truth()))
				}
			})
		})
	}
}

// TestWorldRefuses reaches each limit of the world itself, rather than a fault.
func TestWorldRefuses(t *testing.T) {
	inProject(t, nil, nil, func(t *testing.T, p *project) {
		a := p.open(t, nil)
		first, err := a.Launch(t.Context(), launch("h1", "us-central1-a", "a3-highgpu-8g", providers.Spot))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Launch(t.Context(), launch("h2", "us-central1-b", "a3-highgpu-8g", providers.Spot)); providers.CodeOf(err) != providers.QuotaExceeded {
			t.Errorf("over the region's quota: %v", err)
		}
		if _, err := a.Launch(t.Context(), launch("h3", "europe-west4-a", "a3-highgpu-8g", providers.Spot)); err != nil {
			t.Errorf("in the other region: %v", err)
		}
		if err := a.Terminate(t.Context(), first.Ref); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if _, err := p.world.Do(simapi.Action{Capacity: &simapi.Capacity{Match: simapi.Place{Zone: "us-central1-b"}, Machines: new(0)}}); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Launch(t.Context(), launch("h4", "us-central1-b", "a3-highgpu-8g", providers.Spot)); providers.CodeOf(err) != providers.NoCapacity {
			t.Errorf("no capacity: %v", err)
		}
		// What a machine that never was is described as.
		if i, err := a.Describe(t.Context(), providers.Ref{Request: "h4"}); err != nil || i.State != providers.Terminated || i.Cause != providers.CauseError || !strings.Contains(i.Message, "ZONE_RESOURCE_POOL_EXHAUSTED") {
			t.Errorf("a failed insert: %+v, %v", i, err)
		}
		quotas, err := a.Quotas(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n := slices.IndexFunc(quotas, func(q providers.Quota) bool {
			return q.Name == "PREEMPTIBLE_NVIDIA_H100_GPUS" && q.Region == "europe-west4"
		})
		if n < 0 || quotas[n].Used != 8 || quotas[n].Limit != 8 || quotas[n].Kind != providers.Spot || !slices.Contains(quotas[n].Types, "a3-highgpu-8g") {
			t.Errorf("quotas: %+v", quotas)
		}
		n = slices.IndexFunc(quotas, func(q providers.Quota) bool { return q.Name == "NVIDIA_T4_GPUS" })
		if n < 0 || quotas[n].Kind != providers.OnDemand || !slices.Contains(quotas[n].Types, "n1-standard-8+nvidia-tesla-t4x1") {
			t.Errorf("quotas: %+v", quotas)
		}
	})
}

// TestRefusalComesLate has an insert fail after the launch has stopped looking.
func TestRefusalComesLate(t *testing.T) {
	slow := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/wait") {
				<-r.Context().Done()
				return
			}
			next.ServeHTTP(rw, r)
		})
	}
	inProject(t, nil, slow, func(t *testing.T, p *project) {
		a := p.open(t, nil)
		p.fault(t, simapi.Fault{Op: "launch", Effect: simapi.NoCapacity})
		start := time.Now()
		i, err := a.Launch(t.Context(), launch("r1", "us-central1-a", "g2-standard-8", providers.Spot))
		if err != nil || i.State != providers.Pending || time.Since(start) > 30*time.Second {
			t.Fatalf("%+v, %v after %s", i, err, time.Since(start))
		}
		i, err = a.Describe(t.Context(), i.Ref)
		if err != nil || i.State != providers.Terminated || i.Cause != providers.CauseError {
			t.Errorf("%+v, %v", i, err)
		}
	})
}

func TestExpiredCredentials(t *testing.T) {
	var mu sync.Mutex
	tokens, refuse := 0, false
	count := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			if r.URL.Path == "/token" {
				tokens++
				if refuse {
					rw.WriteHeader(http.StatusBadRequest)
					_, _ = io.WriteString(rw, `{"error": "invalid_grant", "error_description": "Invalid JWT Signature."}`)
					return
				}
			}
			next.ServeHTTP(rw, r)
		})
	}
	inProject(t, nil, count, func(t *testing.T, p *project) {
		a := p.open(t, nil)
		for range 3 {
			if _, err := a.List(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if tokens != 1 {
			t.Errorf("%d tokens for three lists", tokens)
		}
		time.Sleep(2 * time.Hour)
		if _, err := a.List(t.Context()); err != nil || tokens != 2 {
			t.Errorf("two hours later: %v, %d tokens", err, tokens)
		}
		time.Sleep(2 * time.Hour)
		mu.Lock()
		refuse = true
		mu.Unlock()
		_, err := a.Launch(t.Context(), launch("r1", "us-central1-a", "g2-standard-8", providers.Spot))
		if providers.CodeOf(err) != providers.Unauthorized || providers.OutcomeOf(err) != providers.NotCreated || strings.Contains(err.Error(), "Signature") {
			t.Errorf("a key that is refused: %v", err)
		}
	})
}

func TestEndsOfMachines(t *testing.T) {
	inProject(t, nil, nil, func(t *testing.T, p *project) {
		a := p.open(t, nil)
		req := launch("r1", "us-central1-a", "g2-standard-8", providers.Spot)
		i, err := a.Launch(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		p.fault(t, simapi.Fault{Op: "terminate", Effect: simapi.Internal})
		p.fault(t, simapi.Fault{Op: "terminate", Effect: simapi.Refuse})
		for _, want := range []providers.Code{providers.Unavailable, providers.Unavailable, ""} {
			if err := a.Terminate(t.Context(), i.Ref); providers.CodeOf(err) != want {
				t.Errorf("terminate: %v, want %q", err, want)
			}
		}
		time.Sleep(time.Second)
		if err := a.Terminate(t.Context(), i.Ref); providers.CodeOf(err) != providers.NotFound {
			t.Errorf("a machine that is gone: %v", err)
		}
		time.Sleep(2 * time.Second) // lists lag
		// Another process knows it by its operations alone.
		other := p.open(t, nil)
		got, err := other.Describe(t.Context(), providers.Ref{Request: "r1"})
		if err != nil || got.State != providers.Terminated || got.Cause != providers.CauseUser || got.Ref.Zone != "us-central1-a" || got.Tags.Owner != "broker" || got.Launched.IsZero() || !got.Ended.After(got.Launched) {
			t.Errorf("after a restart: %+v, %v", got, err)
		}
		// The same request has had its machine.
		if _, err := a.Launch(t.Context(), req); providers.CodeOf(err) != providers.Conflict || len(p.world.Truth()) != 1 {
			t.Errorf("launched again: %v, %d machines", err, len(p.world.Truth()))
		}
	})
}

// TestYoungMachineIsDenied has Google deny a machine that it has just made.
func TestYoungMachineIsDenied(t *testing.T) {
	inProject(t, nil, nil, func(t *testing.T, p *project) {
		a := p.open(t, nil)
		i, err := a.Launch(t.Context(), launch("r1", "us-central1-a", "g2-standard-8", providers.Spot))
		if err != nil {
			t.Fatal(err)
		}
		p.fault(t, simapi.Fault{Op: "describe", Effect: simapi.NotFound, Delay: simapi.Duration(time.Minute), Times: -1})
		got, err := a.Describe(t.Context(), i.Ref)
		if err != nil || !got.Live() && got.Cause != "" {
			t.Errorf("%+v, %v", got, err)
		}
		if _, err := a.Launch(t.Context(), launch("r1", "europe-west4-a", "g2-standard-8", providers.Spot)); providers.CodeOf(err) != providers.Conflict {
			t.Errorf("in another market: %v", err)
		}
		if len(p.world.Truth()) != 1 {
			t.Errorf("%d machines", len(p.world.Truth()))
		}
	})
}

func TestDiskLeftByAFailedInsert(t *testing.T) {
	inProject(t, nil, nil, func(t *testing.T, p *project) {
		a := p.open(t, nil)
		labels := map[string]string{"gpubroker-owner": "broker", "gpubroker-request": "r9"}
		p.server.LeaveDisk("europe-west4-b", "gpubroker-r9", labels, time.Now())
		p.server.LeaveDisk("europe-west4-b", "gpubroker-r8", map[string]string{"gpubroker-owner": "somebody", "gpubroker-request": "r8"}, time.Now().Add(-time.Hour))
		if all, err := a.List(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("a young disk: %+v, %v", all, err)
		}
		time.Sleep(11 * time.Minute)
		all, err := a.List(t.Context())
		if err != nil || len(all) != 1 || !all[0].Live() || all[0].Ref.Request != "r9" || all[0].Ref.Zone != "europe-west4-b" {
			t.Fatalf("%+v, %v", all, err)
		}
		if err := a.Terminate(t.Context(), all[0].Ref); err != nil {
			t.Errorf("terminate: %v", err)
		}
		if err := a.Terminate(t.Context(), all[0].Ref); providers.CodeOf(err) != providers.NotFound {
			t.Errorf("terminate again: %v", err)
		}
		if left := p.server.Dialect().Left(p.world); len(left) != 1 || !strings.Contains(left[0], "r8") {
			t.Errorf("left: %v", left)
		}
	})
}

func TestGroup(t *testing.T) {
	inProject(t, nil, nil, func(t *testing.T, p *project) {
		a := p.open(t, nil)
		var refs []providers.Ref
		for n := range 2 {
			req := launch(fmt.Sprintf("r%d", n), "us-central1-a", "g2-standard-8", providers.Spot)
			req.Group = "job-7/0"
			i, err := a.Launch(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			refs = append(refs, i.Ref)
		}
		left := func() int { return len(p.server.Dialect().Left(p.world)) }
		if left() != 1 {
			t.Errorf("policies: %v", p.server.Dialect().Left(p.world))
		}
		// Another process, which has only listed them, cleans up as well.
		a = p.open(t, nil)
		time.Sleep(2 * time.Second)
		if all, err := a.List(t.Context()); err != nil || len(all) != 2 {
			t.Fatalf("%v, %v", all, err)
		}
		for n, ref := range refs {
			if err := a.Terminate(t.Context(), ref); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			if err := a.Terminate(t.Context(), ref); providers.CodeOf(err) != providers.NotFound {
				t.Errorf("%v", err)
			}
			if want := 1 - n; left() != want {
				t.Errorf("after %d ends: %v", n+1, p.server.Dialect().Left(p.world))
			}
		}
	})
}

// TestPartialListsAreErrors has Google miss a zone.
func TestPartialListsAreErrors(t *testing.T) {
	inProject(t, nil, nil, func(t *testing.T, p *project) {
		a := p.open(t, nil)
		p.server.Unreachable("us-central1-b", true)
		if l, err := a.List(t.Context()); providers.CodeOf(err) != providers.Unavailable || l != nil {
			t.Errorf("list: %v, %v", l, err)
		}
		if o, err := a.Offers(t.Context(), providers.Scope{}); providers.CodeOf(err) != providers.Unavailable || o != nil {
			t.Errorf("offers: %d, %v", len(o), err)
		}
		p.server.Unreachable("us-central1-b", false)
		for _, effect := range []string{simapi.Truncate, simapi.Drop, simapi.ErrorIn200, simapi.Proxy} {
			p.fault(t, simapi.Fault{Op: "list", Effect: effect})
			if l, err := a.List(t.Context()); providers.CodeOf(err) != providers.Unavailable || l != nil {
				t.Errorf("list with %s: %v, %v", effect, l, err)
			}
			p.fault(t, simapi.Fault{Op: "offers", Effect: effect})
			if o, err := a.Offers(t.Context(), providers.Scope{}); providers.CodeOf(err) != providers.Unavailable || o != nil {
				t.Errorf("offers with %s: %d, %v", effect, len(o), err)
			}
		}
	})
}

// TestPreflightNamesWhatIsMissing takes permissions away.
func TestPreflightNamesWhatIsMissing(t *testing.T) {
	take := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, ":testIamPermissions") {
				next.ServeHTTP(rw, r)
				return
			}
			var body map[string][]string
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
				t.Error(err)
			}
			body["permissions"] = slices.DeleteFunc(body["permissions"], func(p string) bool { return strings.HasSuffix(p, ".delete") })
			rw.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(rw).Encode(body)
		})
	}
	inProject(t, nil, take, func(t *testing.T, p *project) {
		err := p.open(t, nil).Preflight(t.Context())
		if providers.CodeOf(err) != providers.Unauthorized || !strings.Contains(err.Error(), "compute.disks.delete, compute.instances.delete, compute.resourcePolicies.delete") {
			t.Errorf("%v", err)
		}
		other := p.open(t, func(s *gcp.Settings) { s.Project = "other-project" }).Preflight(t.Context())
		if providers.CodeOf(other) != providers.InvalidRequest {
			t.Errorf("another project: %v", other)
		}
	})
}

// TestWhatIsSent looks at the resource of an insert.
func TestWhatIsSent(t *testing.T) {
	var mu sync.Mutex
	var sent []map[string]any
	keep := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/instances") {
				data, _ := io.ReadAll(r.Body)
				r.Body = io.NopCloser(strings.NewReader(string(data)))
				var v map[string]any
				if err := json.Unmarshal(data, &v); err != nil {
					t.Error(err)
				}
				mu.Lock()
				sent = append(sent, v)
				mu.Unlock()
			}
			next.ServeHTTP(rw, r)
		})
	}
	inProject(t, nil, keep, func(t *testing.T, p *project) {
		a := p.open(t, func(s *gcp.Settings) {
			s.Network = providers.Network{Subnet: "gpus", Private: true, Proxy: "http://proxy:3128"}
			s.Tags = map[string]string{"cost-center": "42"}
			s.ServiceAccount = "vm@x.iam.gserviceaccount.com"
		})
		req := launch("r1", "us-central1-a", "n1-standard-8+nvidia-tesla-t4x1", providers.OnDemand)
		req.Disk, req.End = 200<<30, time.Now().Add(time.Hour)
		if _, err := a.Launch(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		v := sent[0]
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			`"name":"gpubroker-r1"`, `"gpubroker-project":"_54eam_20_41"`, `"cost-center":"42"`, `"maxRunDuration":{"seconds":"3600"}`,
			`"instanceTerminationAction":"DELETE"`, `"provisioningModel":"STANDARD"`, `"onHostMaintenance":"TERMINATE"`, `"automaticRestart":false`,
			`"acceleratorType":"zones/us-central1-a/acceleratorTypes/nvidia-tesla-t4"`, `"diskSizeGb":"200"`, `"autoDelete":true`,
			`"subnetwork":"projects/sim-project/regions/us-central1/subnetworks/gpus"`, `export $v='http://proxy:3128'`, `"email":"vm@x.iam.gserviceaccount.com"`,
		} {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s is not in %s", want, text)
			}
		}
		if strings.Contains(string(text), "accessConfigs") {
			t.Errorf("a private machine has an address: %s", text)
		}
		c := a.Capabilities()
		if c.EndAction != providers.EndAPI || !strings.Contains(c.EndScript, base+"/compute/v1/projects/sim-project/zones/") {
			t.Errorf("end action %s by %s", c.EndAction, c.EndScript)
		}
		if all, err := a.List(t.Context()); err != nil || len(all) > 0 && all[0].Tags != req.Tags {
			t.Errorf("%+v, %v", all, err)
		}
		bad := launch("r2", "us-central1-a", "g2-standard-8", providers.Spot)
		bad.End = time.Now().Add(time.Second)
		if _, err := a.Launch(t.Context(), bad); providers.CodeOf(err) != providers.InvalidRequest || providers.OutcomeOf(err) != providers.NotCreated || len(sent) != 1 {
			t.Errorf("an end that is too near: %v", err)
		}
	})
}

// TestOtherEmulators has a server that knows instances alone.
func TestOtherEmulators(t *testing.T) {
	bare := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			for _, there := range []string{"/instances", "/aggregated/machineTypes", "/aggregated/disks", "/token"} {
				if strings.Contains(r.URL.Path, there) {
					next.ServeHTTP(rw, r)
					return
				}
			}
			http.Error(rw, "404 page not found", http.StatusNotFound)
		})
	}
	inProject(t, nil, bare, func(t *testing.T, p *project) {
		a := p.open(t, nil)
		i, err := a.Launch(t.Context(), launch("r1", "us-central1-a", "g2-standard-8", providers.Spot))
		if err != nil || i.State != providers.Pending {
			t.Fatalf("launch: %+v, %v", i, err)
		}
		if err := a.Terminate(t.Context(), i.Ref); err != nil {
			t.Errorf("terminate: %v", err)
		}
		time.Sleep(time.Second)
		if _, err := a.Describe(t.Context(), i.Ref); providers.CodeOf(err) != providers.NotFound {
			t.Errorf("describe: %v", err)
		}
		if err := a.Terminate(t.Context(), i.Ref); providers.CodeOf(err) != providers.NotFound {
			t.Errorf("terminate again: %v", err)
		}
	})
}

func TestSettings(t *testing.T) {
	secret := func(string) (string, error) { return keyFile(), nil }
	for settings, want := range map[string]string{
		`{"project": "my-project", "credentials": "file:/k"}`: "",
		`{"project": "my-project", "credentials": "file:/k", "disk": "200GiB", "max_run": "7d", "families": ["g2"], "regions": ["us-central1"], "image": "i", "network": {"subnet": "s", "private": true}, "tags": {"team": "a"}, "service_account": "x@y"}`: "",
		`{"project": "my-project", "endpoint": "http://127.0.0.1:1", "anonymous": true}`: "",
		`{"project": "My Project"}`:                                                      "project",
		`{"project": "my-project", "zone": "x"}`:                                         "zone",
		`{"project": "my-project", "anonymous": true}`:                                   "endpoint",
		`{"project": "my-project", "credentials": "file:/k", "tags": {"Team": "a"}}`:     "Team",
		`{"project": "my-project", "credentials": "file:/k", "disk": "1GiB"}`:            "10GiB",
		`{"project": "my-project", "credentials": "file:/k", "max_run": "200d"}`:         "max_run",
		`{"project": "my-project", "credentials": "file:/k", "families": ["g2-.*"]}`:     "families",
		`{"project": "my-project", "credentials": "file:/k", "endpoint": "u:p@nowhere"}`: "endpoint",
	} {
		p, err := gcp.Descriptor().Open(context.Background(), "g", json.RawMessage(settings), providers.Env{Secret: secret})
		switch {
		case want == "" && (err != nil || p.Name() != "g"):
			t.Errorf("%s: %v", settings, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "PRIVATE KEY")):
			t.Errorf("%s: %v, want %q", settings, err, want)
		}
	}
	bad := func(string) (string, error) {
		return `{"type": "external_account", "credential_source": {"executable": {"command": "rm"}}}`, nil
	}
	if _, err := gcp.Descriptor().Open(context.Background(), "g", json.RawMessage(`{"project": "my-project", "credentials": "file:/k"}`), providers.Env{Secret: bad}); err == nil {
		t.Error("a key file that starts programs is taken")
	}
}

// TestMachineEndsItself runs the end script as a machine does, against the fake's
// metadata server and API.
func TestMachineEndsItself(t *testing.T) {
	for _, program := range []string{"sh", "curl", "sed"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not here", program)
		}
	}
	server := fake.New()
	cfg := fake.Default(1)
	cfg.Dialect, cfg.Boot, cfg.BootSpan = server.Dialect(), simapi.Duration(time.Millisecond), 0
	guests := make(chan cloud.Guest, 1)
	w, err := cloud.New(cfg, &cloud.Null{Boot: func(_ context.Context, g cloud.Guest) { guests <- g }}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	api := httptest.NewServer(cloud.Dialected(w))
	t.Cleanup(api.Close)
	a, err := gcp.New("gcp", gcp.Settings{Project: fake.Project, Endpoint: api.URL, ServiceAccount: "vm@x.iam.gserviceaccount.com"}, gcp.Access{Credentials: strings.ReplaceAll(keyFile(), base, api.URL), Owner: "broker"})
	if err != nil {
		t.Fatal(err)
	}
	i, err := a.Launch(t.Context(), launch("r1", "us-central1-a", "g2-standard-8", providers.Spot))
	if err != nil {
		t.Fatal(err)
	}
	inside := httptest.NewServer((<-guests).Metadata)
	t.Cleanup(inside.Close)
	cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", a.Capabilities().EndScript)
	cmd.Env = append(os.Environ(), "GPUBROKER_METADATA_URL="+inside.URL, "NO_PROXY=*")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got, err := a.Describe(t.Context(), i.Ref); err != nil || got.State != providers.Stopping && got.State != providers.Terminated {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestPoweredOffMachineIsStillPaidFor has a guest shut itself down.
func TestPoweredOffMachineIsStillPaidFor(t *testing.T) {
	inProject(t, nil, nil, func(t *testing.T, p *project) {
		a := p.open(t, nil)
		i, err := a.Launch(t.Context(), launch("r1", "us-central1-a", "g2-standard-8", providers.OnDemand))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if err := p.world.PowerOff(p.server.WorldID(i.Ref.ID)); err != nil {
			t.Fatal(err)
		}
		got, err := a.Describe(t.Context(), i.Ref)
		if err != nil || !got.Live() || got.State != providers.Stopping || got.Cause != providers.CauseGuest {
			t.Errorf("%+v, %v", got, err)
		}
		if err := a.Terminate(t.Context(), i.Ref); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if err := a.Terminate(t.Context(), i.Ref); providers.CodeOf(err) != providers.NotFound {
			t.Errorf("terminate again: %v", err)
		}
	})
}
