package gcp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/compute/metadata"

	"gpubroker/internal/agent"
	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/dialects/gcp"
	"gpubroker/internal/simcloud/dialects/gcp/discovery"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/internal/simcloud/simtest"
	"gpubroker/providers"
)

const token = "ya29.of-the-test"

// site is a world behind Google's API. Each answer is held against the discovery
// documents.
type site struct {
	t      *testing.T
	server *gcp.Server
	world  *simcloud.World
	client *http.Client
}

func inSite(t *testing.T, edit func(*simcloud.Config), f func(s *site)) {
	t.Helper()
	apis, err := discovery.Google() // before the bubble: it starts a program
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		s := &site{t: t, server: gcp.New()}
		cfg := gcp.Default(1)
		cfg.Dialect, cfg.Tokens.API = s.server.Dialect(), token
		if edit != nil {
			edit(&cfg)
		}
		var err error
		if s.world, err = simcloud.New(cfg, nil, nil); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.world.Close)
		network := simtest.NewNet(t)
		network.Serve("google.test", apis.Watch(simcloud.Dialected(s.world), func(p string) { t.Errorf("against the discovery documents: %s", p) }))
		s.client = network.Client()
		f(s)
	})
}

// call makes a call and returns its status and decoded answer.
func (s *site) call(method, path string, body any) (int, map[string]any) {
	s.t.Helper()
	var in io.Reader
	if text, ok := body.(string); ok {
		in = strings.NewReader(text)
	} else if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			s.t.Fatal(err)
		}
		in = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(s.t.Context(), method, "http://google.test"+path, in)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := s.client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(data, &out); err != nil {
		s.t.Fatalf("%s %s: %v in %.200s", method, path, err, data)
	}
	return res.StatusCode, out
}

func (s *site) ok(method, path string, body any) map[string]any {
	s.t.Helper()
	status, out := s.call(method, path, body)
	if status != http.StatusOK {
		s.t.Fatalf("%s %s: %d %v", method, path, status, out)
	}
	return out
}

const (
	project = "/compute/v1/projects/" + gcp.Project
	zone    = project + "/zones/us-central1-a"
)

func body(name, typ, model string) map[string]any {
	return map[string]any{
		"name": name, "machineType": "zones/us-central1-a/machineTypes/" + typ, "labels": map[string]string{"owner": "me"},
		"metadata":          map[string]any{"items": []any{map[string]string{"key": "startup-script", "value": "#!/bin/sh\n"}}},
		"disks":             []any{map[string]any{"boot": true, "autoDelete": true, "initializeParams": map[string]any{"diskSizeGb": "100"}}},
		"networkInterfaces": []any{map[string]any{"network": "global/networks/default", "accessConfigs": []any{map[string]string{"type": "ONE_TO_ONE_NAT"}}}},
		"scheduling": map[string]any{
			"provisioningModel": model, "instanceTerminationAction": "DELETE", "onHostMaintenance": "TERMINATE", "maxRunDuration": map[string]string{"seconds": "3600"},
		},
	}
}

const (
	uuid1 = "11111111-1111-4111-8111-111111111111"
	uuid2 = "22222222-2222-4222-8222-222222222222"
)

func at(v any, path ...any) any {
	for _, p := range path {
		switch key := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[key]
		case int:
			l, _ := v.([]any)
			if key >= len(l) {
				return nil
			}
			v = l[key]
		}
	}
	return v
}

func TestLifeOfAnInstance(t *testing.T) {
	inSite(t, nil, func(s *site) {
		op := s.ok("POST", zone+"/instances?requestId="+uuid1, body("vm-1", "g2-standard-8", "SPOT"))
		if op["status"] != "PENDING" || op["operationType"] != "insert" || op["clientOperationId"] != uuid1 {
			t.Errorf("insert: %v", op)
		}
		name := op["name"].(string)
		again := s.ok("POST", zone+"/instances?requestId="+uuid1, body("vm-1", "g2-standard-8", "SPOT"))
		if again["name"] != name || len(s.world.Truth()) != 1 {
			t.Errorf("the same requestId gives %v and %d machines", again["name"], len(s.world.Truth()))
		}
		if status, e := s.call("POST", zone+"/instances?requestId="+uuid2, body("vm-1", "g2-standard-8", "SPOT")); status != 409 || at(e, "error", "errors", 0, "reason") != "alreadyExists" {
			t.Errorf("the same name: %d %v", status, e)
		}
		time.Sleep(150 * time.Millisecond)
		if got := s.ok("GET", zone+"/operations/"+name, nil); got["status"] != "RUNNING" {
			t.Errorf("after 150 ms: %v", got["status"])
		}
		start := time.Now()
		if got := s.ok("POST", zone+"/operations/"+name+"/wait", nil); got["status"] != "DONE" || got["error"] != nil || time.Since(start) > time.Second {
			t.Errorf("wait: %v after %s", got, time.Since(start))
		}
		vm := s.ok("GET", zone+"/instances/vm-1", nil)
		if vm["status"] != "STAGING" || at(vm, "scheduling", "provisioningModel") != "SPOT" || at(vm, "guestAccelerators", 0, "acceleratorCount") != 1.0 || at(vm, "labels", "owner") != "me" {
			t.Errorf("instance: %v", vm)
		}
		time.Sleep(2 * time.Second)
		vm = s.ok("GET", zone+"/instances/vm-1", nil)
		end, err := time.Parse(time.RFC3339, fmt.Sprint(at(vm, "resourceStatus", "scheduling", "terminationTimestamp")))
		if vm["status"] != "RUNNING" || err != nil || time.Until(end) < 59*time.Minute {
			t.Errorf("two seconds later: %s until %s, %v", vm["status"], end, err)
		}
		// The preemption shows in the state and in an operation of the system.
		if _, err := s.world.Do(simapi.Action{Preempt: &simapi.Preempt{}}); err != nil {
			t.Fatal(err)
		}
		if vm = s.ok("GET", zone+"/instances/vm-1", nil); vm["status"] != "STOPPING" {
			t.Errorf("while it is taken: %s", vm["status"])
		}
		time.Sleep(31 * time.Second)
		if status, _ := s.call("GET", zone+"/instances/vm-1", nil); status != 404 {
			t.Errorf("after it was taken: %d", status)
		}
		ops := s.ok("GET", zone+"/operations?filter="+url.QueryEscape(`operationType="compute.instances.preempted"`), nil)
		if at(ops, "items", 0, "status") != "DONE" || at(ops, "items", 0, "user") != "system" || at(ops, "items", 0, "targetId") != vm["id"] {
			t.Errorf("operations: %v", ops)
		}
		// A name may be used again.
		s.ok("POST", zone+"/instances?requestId="+uuid2, body("vm-1", "n1-standard-8", "STANDARD"))
		time.Sleep(time.Hour + 3*time.Second)
		ops = s.ok("GET", zone+"/operations?filter="+url.QueryEscape(`(targetLink eq ".*/instances/vm-1") (operationType eq "compute.instances.deferred.*")`), nil)
		if at(ops, "items", 0, "status") != "DONE" {
			t.Errorf("after an hour: %v", ops)
		}
	})
}

func TestFailuresShowInTheOperation(t *testing.T) {
	for effect, want := range map[string]struct {
		code   string
		status float64
	}{
		simapi.NoCapacity: {"ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", 503},
		simapi.Quota:      {"QUOTA_EXCEEDED", 403},
	} {
		inSite(t, nil, func(s *site) {
			if err := s.world.AddFault(simapi.Fault{Op: "launch", Effect: effect}); err != nil {
				t.Fatal(err)
			}
			op := s.ok("POST", zone+"/instances?requestId="+uuid1, body("vm-1", "g2-standard-8", "SPOT"))
			if op["status"] != "PENDING" || op["error"] != nil {
				t.Errorf("at first: %v", op)
			}
			op = s.ok("POST", zone+"/operations/"+op["name"].(string)+"/wait", nil)
			if at(op, "error", "errors", 0, "code") != want.code || op["httpErrorStatusCode"] != want.status || op["status"] != "DONE" {
				t.Errorf("at last: %v", op)
			}
			if status, _ := s.call("GET", zone+"/instances/vm-1", nil); status != 404 || len(s.world.Truth()) != 0 {
				t.Errorf("status %d, %d machines", status, len(s.world.Truth()))
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	edit := func(f func(map[string]any)) map[string]any {
		b := body("vm-1", "g2-standard-8", "SPOT")
		f(b)
		return b
	}
	for name, c := range map[string]struct {
		path   string
		body   any
		status int
		reason string
	}{
		"no such type":    {zone + "/instances", body("vm-1", "x9-standard-8", "SPOT"), 400, "invalid"},
		"no such zone":    {project + "/zones/mars-1-a/instances", body("vm-1", "g2-standard-8", "SPOT"), 404, "notFound"},
		"no such project": {"/compute/v1/projects/other-project/zones/us-central1-a/instances", body("vm-1", "g2-standard-8", "SPOT"), 404, "notFound"},
		"a bad name":      {zone + "/instances", body("VM_1", "g2-standard-8", "SPOT"), 400, "invalid"},
		"a bad label":     {zone + "/instances", edit(func(b map[string]any) { b["labels"] = map[string]string{"owner": "Me"} }), 400, "invalid"},
		"no disk":         {zone + "/instances", edit(func(b map[string]any) { b["disks"] = []any{} }), 400, "invalid"},
		"a bad requestId": {zone + "/instances?requestId=1", body("vm-1", "g2-standard-8", "SPOT"), 400, "invalid"},
		"no such policy":  {zone + "/instances", edit(func(b map[string]any) { b["resourcePolicies"] = []string{"regions/us-central1/resourcePolicies/p"} }), 400, "invalid"},
		"too long a life": {zone + "/instances", edit(func(b map[string]any) {
			at(b, "scheduling").(map[string]any)["maxRunDuration"] = map[string]string{"seconds": "99999999"}
		}), 400, "invalid"},
		"too much user data": {zone + "/instances", edit(func(b map[string]any) {
			b["metadata"] = map[string]any{"items": []any{map[string]string{"key": "startup-script", "value": strings.Repeat("x", 256<<10+1)}}}
		}), 400, "invalid"},
	} {
		inSite(t, nil, func(s *site) {
			status, e := s.call("POST", c.path, c.body)
			if status != c.status || at(e, "error", "errors", 0, "reason") != c.reason || at(e, "error", "code") != float64(c.status) {
				t.Errorf("%s: %d %v", name, status, e)
			}
			if n := len(s.world.Truth()); n != 0 {
				t.Errorf("%s: %d machines", name, n)
			}
		})
	}
}

func TestListsAndTheRest(t *testing.T) {
	inSite(t, func(c *simcloud.Config) { c.PageSize = 3 }, func(s *site) {
		for i := range 4 {
			s.ok("POST", zone+"/instances", body(fmt.Sprintf("vm-%d", i), "g2-standard-8", "STANDARD"))
		}
		s.ok("POST", project+"/regions/us-central1/resourcePolicies", map[string]any{"name": "near", "groupPlacementPolicy": map[string]string{"collocation": "COLLOCATED"}})
		near := body("vm-near", "g2-standard-8", "STANDARD")
		near["resourcePolicies"] = []string{"projects/" + gcp.Project + "/regions/us-central1/resourcePolicies/near"}
		s.ok("POST", zone+"/instances", near)
		s.server.LeaveDisk("us-central1-a", "left", nil, time.Now())
		time.Sleep(3 * time.Second)
		for _, path := range []string{
			project, project + "/regions", project + "/regions/us-central1", project + "/zones", zone + "/instances", zone + "/operations",
			project + "/aggregated/operations", project + "/aggregated/disks", project + "/aggregated/resourcePolicies", project + "/aggregated/acceleratorTypes",
			project + "/regions/us-central1/resourcePolicies/near", zone + "/instances/vm-1/serialPort",
		} {
			s.ok("GET", path, nil)
		}
		for path, want := range map[string]struct{ pages, items int }{
			project + "/aggregated/machineTypes":                                             {8, 4 * 6},
			project + "/aggregated/instances":                                                {2, 5},
			project + "/aggregated/machineTypes?filter=" + url.QueryEscape(`name eq "g2.*"`): {2, 4},
			zone + "/instances":                                                              {2, 5},
			"/v1/services/6F81-5844-456A/skus":                                               {20, 0},
		} {
			pages, items, next := 0, 0, ""
			for {
				p := path
				if next != "" {
					p += map[bool]string{true: "&", false: "?"}[strings.Contains(p, "?")] + "pageToken=" + next
				}
				got := s.ok("GET", p, nil)
				pages++
				items += count(got)
				if next, _ = got["nextPageToken"].(string); next == "" {
					break
				}
			}
			if pages < want.pages || want.items > 0 && items != want.items {
				t.Errorf("%s: %d pages with %d items, want %d with %d", path, pages, items, want.pages, want.items)
			}
		}
		if status, e := s.call("DELETE", project+"/regions/us-central1/resourcePolicies/near", nil); status != 400 || at(e, "error", "errors", 0, "reason") != "resourceInUseByAnotherResource" {
			t.Errorf("a policy in use: %d %v", status, e)
		}
		s.ok("DELETE", zone+"/instances/vm-near", nil)
		time.Sleep(time.Second)
		s.ok("DELETE", project+"/regions/us-central1/resourcePolicies/near", nil)
		s.ok("DELETE", zone+"/disks/left", nil)
		if left := s.server.Dialect().Left(s.world); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
		s.server.Unreachable("us-central1-a", true)
		if got := s.ok("GET", project+"/aggregated/instances", nil); at(got, "items", "zones/us-central1-a", "warning", "code") != "UNREACHABLE" || at(got, "unreachables", 0) != "zones/us-central1-a" {
			t.Errorf("a zone that is not reached: %v", got)
		}
		want := []any{"compute.instances.create"}
		if got := s.ok("POST", "/v1/projects/"+gcp.Project+":testIamPermissions", map[string]any{"permissions": want}); fmt.Sprint(got["permissions"]) != fmt.Sprint(want) {
			t.Errorf("permissions: %v", got)
		}
	})
}

// count is the number of resources on a page of any kind.
func count(page map[string]any) int {
	if list, ok := page["skus"].([]any); ok {
		return len(list)
	}
	if list, ok := page["items"].([]any); ok {
		return len(list)
	}
	n := 0
	scopes, _ := page["items"].(map[string]any)
	for _, s := range scopes {
		for _, v := range s.(map[string]any) {
			if list, ok := v.([]any); ok {
				n += len(list)
			}
		}
	}
	return n
}

func TestCredentials(t *testing.T) {
	inSite(t, nil, func(s *site) {
		get := func(header string) (int, string) {
			req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://google.test"+project, nil)
			if err != nil {
				t.Fatal(err)
			}
			if header != "" {
				req.Header.Set("Authorization", header)
			}
			res, err := s.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			var e map[string]any
			if err := json.NewDecoder(res.Body).Decode(&e); err != nil {
				t.Fatal(err)
			}
			return res.StatusCode, fmt.Sprint(at(e, "error", "errors", 0, "reason"))
		}
		for header, want := range map[string]string{"": "401 required", "Bearer other": "401 authError", "Bearer " + token: "200 <nil>"} {
			if status, reason := get(header); fmt.Sprint(status, " ", reason) != want {
				t.Errorf("%q: %d %s, want %s", header, status, reason, want)
			}
		}
		for form, want := range map[string]int{
			"grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion=a.b.c": 200,
			"grant_type=password": 400,
		} {
			res, err := s.client.Post("http://google.test/token", "application/x-www-form-urlencoded", strings.NewReader(form))
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			if res.StatusCode != want {
				t.Errorf("token for %s: %d", form, res.StatusCode)
			}
		}
	})
}

// TestMetadata reads a machine's metadata server with Google's own library and
// with the broker's agent.
func TestMetadata(t *testing.T) {
	server := gcp.New()
	cfg := gcp.Default(1)
	cfg.Dialect, cfg.Boot, cfg.BootSpan, cfg.Notice = server.Dialect(), simapi.Duration(time.Millisecond), 0, simapi.Duration(time.Minute)
	started := make(chan simcloud.Guest, 1)
	w, err := simcloud.New(cfg, &simcloud.Null{Boot: func(_ context.Context, g simcloud.Guest) { started <- g }}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	api := httptest.NewServer(simcloud.Dialected(w))
	t.Cleanup(api.Close)
	b := body("vm-1", "g2-standard-8", "SPOT")
	b["serviceAccounts"] = []any{map[string]any{"email": "vm@x.iam.gserviceaccount.com", "scopes": []string{"https://www.googleapis.com/auth/cloud-platform"}}}
	data, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	do := func(method, address, auth string, body []byte) int {
		req, err := http.NewRequestWithContext(t.Context(), method, address, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", auth)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode
	}
	if got := do("POST", api.URL+zone+"/instances", "Bearer x", data); got != 200 {
		t.Fatal(got)
	}
	guest := <-started
	inside := httptest.NewServer(guest.Metadata)
	t.Cleanup(inside.Close)
	t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(inside.URL, "http://"))
	m := metadata.NewClient(http.DefaultClient)
	ctx := t.Context()
	for what, read := range map[string]func() (string, error){
		"vm-1":                         func() (string, error) { return m.InstanceNameWithContext(ctx) },
		"us-central1-a":                func() (string, error) { return m.ZoneWithContext(ctx) },
		gcp.Project:                    func() (string, error) { return m.ProjectIDWithContext(ctx) },
		"#!/bin/sh":                    func() (string, error) { return m.InstanceAttributeValueWithContext(ctx, "startup-script") },
		"vm@x.iam.gserviceaccount.com": func() (string, error) { return m.EmailWithContext(ctx, "default") },
		"FALSE":                        func() (string, error) { return m.GetWithContext(ctx, "instance/preempted") },
		"NONE":                         func() (string, error) { return m.GetWithContext(ctx, "instance/maintenance-event") },
	} {
		if got, err := read(); err != nil || strings.TrimSpace(got) != what {
			t.Errorf("%q, %v; want %q", got, err, what)
		}
	}
	if got := do("GET", inside.URL+"/computeMetadata/v1/instance/name", "", nil); got != http.StatusForbidden {
		t.Errorf("without Metadata-Flavor: %d", got)
	}
	own, err := agent.NewMetadata(agent.Settings{Metadata: "gce", MetadataURL: inside.URL})
	if err != nil {
		t.Fatal(err)
	}
	if id, err := own.CloudID(ctx); id != "vm-1" || err != nil {
		t.Errorf("the agent sees %q, %v", id, err)
	}
	if n, err := own.Notice(ctx); n != nil || err != nil {
		t.Errorf("the agent is warned early: %v, %v", n, err)
	}
	values := make(chan string, 8)
	go func() {
		_ = m.SubscribeWithContext(ctx, "instance/preempted", func(_ context.Context, v string, _ bool) error {
			values <- v
			if v == "TRUE" {
				return errors.New("seen")
			}
			return nil
		})
		close(values)
	}()
	if got := <-values; got != "FALSE" {
		t.Errorf("the subscription begins with %s", got)
	}
	if _, err := w.Do(simapi.Action{Preempt: &simapi.Preempt{}}); err != nil {
		t.Fatal(err)
	}
	if got := <-values; got != "TRUE" {
		t.Errorf("the subscription goes on with %s", got)
	}
	<-values // closed: its goroutine has ended
	if n, err := own.Notice(ctx); n == nil || n.Kind != "preempt" || err != nil {
		t.Errorf("the agent sees %v, %v", n, err)
	}
	// The machine deletes itself with the token of its service account.
	var cred struct {
		Token string `json:"access_token"`
	}
	text, err := m.GetWithContext(ctx, "instance/service-accounts/default/token")
	if err != nil || json.Unmarshal([]byte(text), &cred) != nil {
		t.Fatalf("%q, %v", text, err)
	}
	if got := do("DELETE", api.URL+zone+"/instances/vm-1", "Bearer "+cred.Token+"x", nil); got != 401 {
		t.Errorf("another machine's token: %d", got)
	}
	if got := do("DELETE", api.URL+zone+"/instances/vm-1", "Bearer "+cred.Token, nil); got != 200 {
		t.Errorf("its own token: %d", got)
	}
	if s := w.Truth()[0].State; s != providers.Stopping && s != providers.Terminated {
		t.Errorf("the machine is %s", s)
	}
}

// TestDiscoveryFinds makes sure that the documents find what is wrong.
func TestDiscoveryFinds(t *testing.T) {
	apis, err := discovery.Google()
	if err != nil {
		t.Fatal(err)
	}
	const get = "GET " + zone + "/instances/vm-1"
	for call, c := range map[string]struct{ request, answer, want string }{
		get:                                    {"", `{"name": "vm-1", "status": "RUNNING", "id": "1"}`, ""},
		get + "?":                              {"", `{"nam": "vm-1"}`, "no property nam"},
		get + "?fields=name":                   {"", `{"id": 1}`, "no string uint64"},
		get + "?alt=json":                      {"", `{"status": "ASLEEP"}`, "enumerated"},
		get + "?verbose=1":                     {"", `{}`, "verbose is no parameter"},
		get + "?prettyPrint=true":              {"", `{"disks": {}}`, "array"},
		get + "/nothing":                       {"", `{}`, "no method"},
		"GET " + zone + "/instances/VM":        {"", `{}`, "path"},
		"POST " + zone + "/instances":          {`{"scheduling": {"preemptible": "yes"}}`, `{}`, "boolean"},
		"POST " + zone + "/instances?a=":       {`{"labels": {"x": 1}}`, `{}`, "labels.x"},
		"GET /v1/services/6F81-5844-456A/skus": {"", `{"skus": [{"pricingInfo": [{"pricingExpression": {"tieredRates": [{"unitPrice": {"nanos": 1.5}}]}}]}]}`, "nanos"},
	} {
		verb, address, _ := strings.Cut(call, " ")
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(apis.Check(verb, u, []byte(c.request), 200, []byte(c.answer)), "; ")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", call, got, c.want)
		}
	}
	u := &url.URL{Path: zone + "/instances/vm-1"}
	if got := apis.Check("GET", u, nil, 404, []byte(`{"error": {"code": 404}}`)); len(got) != 1 {
		t.Errorf("an error without a reason: %v", got)
	}
}

// TestSampleHasOurForm compares the catalog's form with a recorded page of it.
func TestSampleHasOurForm(t *testing.T) {
	data, err := os.ReadFile(filepath.FromSlash("../../../../../shared/api-samples/gcp/cloudbilling-compute-skus.json"))
	if err != nil {
		t.Skipf("the recorded page is not here: %v", err)
	}
	var sample map[string]any
	if err := json.Unmarshal(data, &sample); err != nil {
		t.Fatal(err)
	}
	inSite(t, func(c *simcloud.Config) { c.PageSize = 100 }, func(s *site) {
		ours := s.ok("GET", "/v1/services/6F81-5844-456A/skus", nil)
		recorded := at(sample, "skus", 0)
		for _, sku := range ours["skus"].([]any) {
			if !regexp.MustCompile(`^Nvidia .* GPU running in `).MatchString(fmt.Sprint(at(sku, "description"))) {
				continue
			}
			if have, want := keys("", sku), keys("", recorded); have != want {
				t.Errorf("a GPU's SKU has\n%s\nrecorded was\n%s", have, want)
			}
			return
		}
		t.Error("no GPU in the catalog")
	})
}

// keys are the properties of a value, nested, in order; of lists the first item.
func keys(prefix string, v any) string {
	var out []string
	switch v := v.(type) {
	case map[string]any:
		for key, inner := range v {
			out = append(out, keys(prefix+"."+key, inner))
		}
	case []any:
		if len(v) > 0 {
			return keys(prefix+"[]", v[0])
		}
	default:
		return prefix
	}
	return strings.Join(slices.Sorted(slices.Values(out)), "\n")
}
