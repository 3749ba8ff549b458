package runpod_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/internal/simcloud/simapi"
	"gpubroker/internal/simcloud/simtest"
	"gpubroker/providers"
	"gpubroker/providers/runpod"
)

// answering is an adapter whose every call is answered by a function.
func answering(t *testing.T, edit func(*runpod.Settings), owner string, f http.HandlerFunc) providers.Provider {
	t.Helper()
	network := simtest.NewNet(t)
	network.ServeTLS(host, f)
	var s runpod.Settings
	if edit != nil {
		edit(&s)
	}
	a, err := runpod.New("runpod", s, runpod.Access{Key: key, Owner: owner, Client: network.Client()})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// A launch that could not look whether an earlier broker's create has made a pod
// does not promise that there is none.
func TestALaunchThatCouldNotLookPromisesNothing(t *testing.T) {
	inCloud(t, nil, func(t *testing.T, l *lab, a providers.Provider) {
		l.fault(t, simapi.Fault{Op: "launch", Effect: simapi.DropAfter})
		if _, err := a.Launch(t.Context(), request("r1", providers.OnDemand)); providers.OutcomeOf(err) != providers.OutcomeUnknown {
			t.Fatal(err)
		}
		l.fault(t, simapi.Fault{Op: "list", Effect: simapi.Unavailable})
		again := l.adapter(t, nil, key)
		if _, err := again.Launch(t.Context(), request("r1", providers.OnDemand)); err == nil || providers.OutcomeOf(err) != providers.OutcomeUnknown {
			t.Errorf("after a restart: %v, %s", err, providers.OutcomeOf(err))
		}
	})
}

// Cursors that lead in a circle end in an error, not in calls without end.
func TestPagesInACircle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		a := answering(t, nil, "broker", func(rw http.ResponseWriter, r *http.Request) {
			if calls++; calls > 50 {
				rw.WriteHeader(http.StatusTeapot)
				return
			}
			next := map[string]string{"": "a", "a": "b", "b": "c", "c": "a"}[r.URL.Query().Get("cursor")]
			_, _ = fmt.Fprintf(rw, `{"pods":[],"pagination":{"nextCursor":%q,"hasNextPage":true}}`, next)
		})
		if _, err := a.List(t.Context()); err == nil || calls > 4 {
			t.Errorf("%d calls, %v", calls, err)
		}
	})
}

// An owner may be called like the beginning of another one.
func TestAPodOfAnotherOwnerIsNotOurs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := `{"pods":[{"id":"p1","name":"acme.eu.r1","status":"RUNNING"},{"id":"p2","name":"acme.r1","status":"RUNNING"}],"pagination":{}}`
		for owner, want := range map[string]string{"acme": "p2", "acme.eu": "p1"} {
			a := answering(t, nil, owner, func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, pods) })
			list, err := a.List(t.Context())
			if err != nil || len(list) != 1 || list[0].Ref.ID != want || list[0].Ref.Request != "r1" {
				t.Errorf("%s: %+v, %v", owner, list, err)
			}
		}
	})
}

// GraphQL may answer in part: with a pod, and with an error about one of its fields.
func TestAnAnswerInPartLeavesTheOutcomeOpen(t *testing.T) {
	for data, want := range map[string]providers.Outcome{
		`{"podRentInterruptable":null}`:        providers.NotCreated,
		`null`:                                 providers.NotCreated,
		`{"podRentInterruptable":{"id":"p1"}}`: providers.OutcomeUnknown,
	} {
		synctest.Test(t, func(t *testing.T) {
			a := answering(t, spot, "broker", func(rw http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				switch {
				case r.Method == http.MethodGet:
					_, _ = io.WriteString(rw, `{"pods":[],"pagination":{}}`)
				case strings.Contains(string(body), "mutation"):
					_, _ = io.WriteString(rw, `{"data":`+data+`,"errors":[{"message":"There are no longer any instances available"}]}`)
				default:
					_, _ = io.WriteString(rw, `{"data":{"gpuTypes":[{"id":"NVIDIA L4","lowestPrice":{"minimumBidPrice":0.2}}]}}`)
				}
			})
			_, err := a.Launch(t.Context(), request("r1", providers.Spot))
			if providers.CodeOf(err) != providers.NoCapacity || providers.OutcomeOf(err) != want {
				t.Errorf("%s: %v, %s", data, err, providers.OutcomeOf(err))
			}
			time.Sleep(time.Minute)
		})
	}
}

// A price that no GPU has is none: multiplied it would come out small.
func TestAbsurdPrices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for price, offers := range map[string]int{`0.39`: 4, `2305843009.5`: 0, `4611686018.52`: 0, `1e30`: 0, `-1`: 0, `0`: 0, `null`: 0, `"0.39"`: 4} {
			a := answering(t, nil, "broker", func(rw http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(rw, `{"gpus":[{"id":"NVIDIA L4","name":"L4","memory":24,"secure":true,"price":{"secure":`+price+`},"maxCount":{"secure":8}}]}`)
			})
			list, err := a.Offers(t.Context(), providers.Scope{})
			if err != nil || len(list) != offers {
				t.Errorf("%s: %d offers, %v", price, len(list), err)
			}
		}
	})
}

// A page in the place of an answer ends nothing.
func TestAPageIsNoAnswerToAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := answering(t, nil, "broker", func(rw http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(rw, "<!doctype html><title>Log in</title>")
		})
		if err := a.Terminate(t.Context(), providers.Ref{ID: "p1", Request: "r1"}); err == nil || providers.CodeOf(err) == providers.NotFound {
			t.Error(err)
		}
	})
}
