package gcp_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/providers/gcp"
)

// edited is a cloud whose answers to GETs are changed on their way.
func edited(edit func(r *http.Request, body string) string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			rec := httptest.NewRecorder()
			next.ServeHTTP(rec, r)
			for k, v := range rec.Header() {
				if k != "Content-Length" {
					rw.Header()[k] = v
				}
			}
			rw.WriteHeader(rec.Code)
			_, _ = io.WriteString(rw, edit(r, rec.Body.String()))
		})
	}
}

// leave takes a field out of everything in a JSON text.
func leave(body string, fields ...string) string {
	var v any
	if json.Unmarshal([]byte(body), &v) != nil {
		return body
	}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for _, f := range fields {
				delete(v, f)
			}
			for _, inner := range v {
				walk(inner)
			}
		case []any:
			for _, inner := range v {
				walk(inner)
			}
		}
	}
	walk(v)
	out, _ := json.Marshal(v)
	return string(out)
}

// Instances and machine types without a zone stand in that of their list.
func TestZoneIsThatOfTheList(t *testing.T) {
	inProject(t, nil, edited(func(r *http.Request, body string) string {
		if strings.Contains(r.URL.Path, "/aggregated/") || strings.Contains(r.URL.Path, "/instances/") {
			return leave(body, "zone", "scheduling", "resourceStatus", "selfLink")
		}
		return body
	}), func(t *testing.T, p *project) {
		a := p.open(t, nil)
		made, err := a.Launch(t.Context(), launch("r1", "us-central1-a", "g2-standard-8", providers.OnDemand))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		all, err := a.List(t.Context())
		if err != nil || len(all) != 1 || all[0].Ref != made.Ref || all[0].Market != made.Market {
			t.Fatalf("%+v, %v; want %+v", all, err, made)
		}
		for _, ref := range []providers.Ref{made.Ref, {Request: "r1"}} {
			if i, err := a.Describe(t.Context(), ref); err != nil || i.Ref != made.Ref {
				t.Errorf("%+v, %v", i, err)
			}
		}
		if err := p.open(t, nil).Terminate(t.Context(), providers.Ref{Request: "r1"}); err != nil {
			t.Error(err)
		}
	})
}

// A server that does not filter shows nobody else's machines and disks as ours.
func TestFiltersAreNotBelieved(t *testing.T) {
	inProject(t, nil, edited(func(r *http.Request, body string) string {
		if strings.Contains(r.URL.Path, "/aggregated/") {
			return regexp.MustCompile(`"gpubroker-owner": *"broker"`).ReplaceAllString(body, `"gpubroker-owner":"somebody-else"`)
		}
		return body
	}), func(t *testing.T, p *project) {
		a := p.open(t, nil)
		if _, err := a.Launch(t.Context(), launch("r1", "us-central1-a", "g2-standard-8", providers.OnDemand)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if all, err := a.List(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("%+v, %v", all, err)
		}
	})
}

// Not found is said of a project or a zone, too; that is no machine's end.
func TestUnknownProjectIsNoEnd(t *testing.T) {
	away := false
	inProject(t, nil, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if !away {
				next.ServeHTTP(rw, r)
				return
			}
			rw.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(rw, `{"error":{"code":404,"message":"The resource 'projects/my-project' was not found","errors":[{"message":"no","domain":"global","reason":"notFound"}]}}`)
		})
	}, func(t *testing.T, p *project) {
		a := p.open(t, nil)
		made, err := a.Launch(t.Context(), launch("r1", "us-central1-a", "g2-standard-8", providers.Spot))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		away = true
		for _, ref := range []providers.Ref{made.Ref, {Request: "r1"}} {
			if _, err := a.Describe(t.Context(), ref); err == nil || providers.CodeOf(err) == providers.NotFound {
				t.Errorf("describe: %v", err)
			}
			if err := a.Terminate(t.Context(), ref); err == nil || providers.CodeOf(err) == providers.NotFound {
				t.Errorf("terminate: %v", err)
			}
		}
		away = false
		wrong := made.Ref
		wrong.Zone = "us-central1-z"
		if i, err := a.Describe(t.Context(), wrong); err != nil || i.Ref != made.Ref {
			t.Errorf("in another zone than was thought: %+v, %v", i, err)
		}
		if err := a.Terminate(t.Context(), wrong); err != nil {
			t.Errorf("in another zone than was thought: %v", err)
		}
	})
}

// Errors as the newer of Google's APIs, and servers after them, write them.
func TestErrorsWithoutReasons(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
		code   providers.Code
	}{
		"a canonical code":  {404, `{"error":{"code":404,"message":"not there","status":"NOT_FOUND"}}`, providers.NotFound},
		"a status alone":    {404, `{"error":{"code":404,"message":"not there"}}`, providers.NotFound},
		"a page":            {404, `<html>no such page</html>`, providers.Unknown},
		"another's message": {404, `{"message":"no such route"}`, providers.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			client := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
				res := &http.Response{StatusCode: c.status, Header: http.Header{}, Request: r, ContentLength: -1, ProtoMajor: 1, ProtoMinor: 1, Body: io.NopCloser(strings.NewReader(c.body))}
				if strings.Contains(r.URL.Path, "/aggregated/") {
					res.StatusCode, res.Body = 200, io.NopCloser(strings.NewReader(`{}`))
				}
				return res, nil
			})}
			a, err := gcp.New("gcp", gcp.Settings{Project: "my-project", Endpoint: "http://cloud.test", Anonymous: true}, gcp.Access{Owner: "broker", Client: client})
			if err != nil {
				t.Fatal(err)
			}
			ref := providers.Ref{Request: "r1", Region: "us-central1", Zone: "us-central1-a"}
			if err := a.Terminate(t.Context(), ref); providers.CodeOf(err) != c.code {
				t.Errorf("terminate: %v", err)
			}
			if _, err := a.Describe(t.Context(), ref); providers.CodeOf(err) != c.code {
				t.Errorf("describe: %v", err)
			}
		})
	}
}

// A catalog of machines alone leaves the price of a disk unknown, not the
// machine's: the dearest disk stands in for it, and the offer says so.
func TestCatalogWithoutDisksOrAddresses(t *testing.T) {
	away := false
	inProject(t, nil, edited(func(r *http.Request, body string) string {
		if away && strings.HasSuffix(r.URL.Path, "/skus") {
			for _, name := range []string{"Balanced PD Capacity", "Hyperdisk Balanced Capacity", "External IP Charge"} {
				body = strings.ReplaceAll(body, name, "Something Else")
			}
		}
		return body
	}), func(t *testing.T, p *project) {
		a := p.open(t, nil)
		whole, err := a.Offers(t.Context(), providers.Scope{})
		if err != nil {
			t.Fatal(err)
		}
		away = true
		spare, err := a.Offers(t.Context(), providers.Scope{})
		if err != nil || len(spare) != len(whole) {
			t.Fatalf("%d offers, %v; want %d", len(spare), err, len(whole))
		}
		for i, o := range spare {
			w := whole[i]
			if o.Market != w.Market || o.Parts[0] != w.Parts[0] || o.Parts[1].Price < w.Parts[1].Price || o.Parts[2].Price < w.Parts[2].Price || !strings.Contains(o.Source, "bound") || strings.Contains(w.Source, "bound") {
				t.Fatalf("%+v, want no less than %+v", o, w)
			}
		}
	})
}

// What was asked for a moment ago and is not there yet is not gone.
func TestNewMachineIsNotGone(t *testing.T) {
	inProject(t, nil, nil, func(t *testing.T, p *project) {
		a := p.open(t, nil)
		p.fault(t, simapi.Fault{Op: "launch", Effect: simapi.Drop})
		req := launch("r1", "us-central1-a", "g2-standard-8", providers.Spot)
		if _, err := a.Launch(t.Context(), req); providers.OutcomeOf(err) != providers.OutcomeUnknown {
			t.Fatal(err)
		}
		ref := providers.Ref{Request: "r1", Region: req.Market.Region, Zone: req.Market.Zone}
		if err := a.Terminate(t.Context(), ref); providers.CodeOf(err) != providers.Unavailable {
			t.Errorf("at once: %v", err)
		}
		time.Sleep(2 * time.Minute)
		if err := a.Terminate(t.Context(), ref); providers.CodeOf(err) != providers.NotFound {
			t.Errorf("later: %v", err)
		}
	})
}

// A machine that was taken and left standing was preempted; it did not shut itself
// down.
func TestWhyAMachineIsOff(t *testing.T) {
	for kind, cause := range map[string]providers.Cause{"compute.instances.preempted": providers.CausePreempted, "compute.instances.hostError": providers.CauseError, "": providers.CauseGuest} {
		off := false
		inProject(t, nil, edited(func(r *http.Request, body string) string {
			switch {
			case !off || r.Method != http.MethodGet:
			case strings.HasSuffix(r.URL.Path, "/operations"):
				if kind == "" {
					return `{"kind":"compute#operationList"}`
				}
				return `{"kind":"compute#operationList","items":[{"name":"op1","operationType":"` + kind + `","status":"DONE","targetLink":"https://www.googleapis.com/compute/v1/projects/p/zones/us-central1-a/instances/gpubroker-r1","endTime":"2000-01-01T00:30:00.000-00:00"}]}`
			case strings.Contains(r.URL.Path, "/instances/"):
				return strings.ReplaceAll(body, `"RUNNING"`, `"TERMINATED"`)
			}
			return body
		}), func(t *testing.T, p *project) {
			a := p.open(t, nil)
			made, err := a.Launch(t.Context(), launch("r1", "us-central1-a", "g2-standard-8", providers.Spot))
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
			off = true
			i, err := a.Describe(t.Context(), made.Ref)
			if err != nil || i.State != providers.Stopping || i.Cause != cause {
				t.Errorf("%q: %s by %q, %v; want %q", kind, i.State, i.Cause, err, cause)
			}
		})
	}
}

// Whichever call of a launch or an end fails, before or after its effect, at most
// one machine is made, and a later end leaves nothing.
func TestEachCallFailsOnce(t *testing.T) {
	for _, after := range []bool{false, true} {
		for n := 0; ; n++ {
			hit, left := false, n
			var mu sync.Mutex // calls may overlap
			failing := func() bool {
				mu.Lock()
				defer mu.Unlock()
				left--
				fail := left < 0 && !hit
				hit = hit || fail
				return fail
			}
			inProject(t, nil, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
					if strings.Contains(r.URL.Path, "token") || !failing() {
						next.ServeHTTP(rw, r)
						return
					}
					if after {
						next.ServeHTTP(httptest.NewRecorder(), r)
					}
					rw.Header().Set("Content-Type", "application/json")
					rw.WriteHeader(http.StatusInternalServerError)
					_, _ = io.WriteString(rw, `{"error":{"code":500,"message":"x","errors":[{"message":"x","domain":"global","reason":"backendError"}]}}`)
				})
			}, func(t *testing.T, p *project) {
				a := p.open(t, nil)
				req := launch("r1", "us-central1-a", "g2-standard-8", providers.Spot)
				req.Group = "j1"
				made, err := a.Launch(t.Context(), req)
				if live := len(p.world.Truth()); err == nil && live != 1 || err != nil && providers.OutcomeOf(err) == providers.NotCreated && live != 0 {
					t.Errorf("call %d, after %v: %v (%s) with %d machines", n, after, err, providers.OutcomeOf(err), live)
				}
				if err != nil && providers.OutcomeOf(err) == providers.OutcomeUnknown {
					if made, err = a.Launch(t.Context(), req); err != nil || len(p.world.Truth()) != 1 {
						t.Errorf("call %d, after %v, again: %v, %d machines", n, after, err, len(p.world.Truth()))
					}
				}
				ref := made.Ref
				if err != nil {
					ref = providers.Ref{Request: "r1"}
				}
				for try := 0; providers.CodeOf(a.Terminate(t.Context(), ref)) != providers.NotFound; try++ {
					if try > 5 {
						t.Fatal("it does not end")
					}
					time.Sleep(time.Minute)
				}
				if left := p.world.About().Left; len(left) != 0 {
					t.Errorf("call %d, after %v: not found, and there are %v", n, after, left)
				}
			})
			if !hit {
				break
			}
		}
	}
}

// The placement policy of a gang that was refused does not stay.
func TestPolicyOfARefusedLaunch(t *testing.T) {
	for _, effect := range []string{simapi.NoCapacity, simapi.Denied} {
		inProject(t, nil, nil, func(t *testing.T, p *project) {
			a := p.open(t, nil)
			p.fault(t, simapi.Fault{Op: "launch", Effect: effect})
			req := launch("r1", "us-central1-a", "g2-standard-8", providers.Spot)
			req.Group = "j1"
			if _, err := a.Launch(t.Context(), req); providers.OutcomeOf(err) != providers.NotCreated {
				t.Fatal(err)
			}
			if left := p.world.About().Left; len(left) != 0 {
				t.Errorf("%s: left: %v", effect, left)
			}
			if _, err := a.Launch(t.Context(), req); err != nil {
				t.Errorf("again: %v", err)
			}
		})
	}
}
