package verda_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// before answers the calls for which say returns a body; the others go on.
func before(say func(r *http.Request) (status int, body string)) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if status, body := say(r); status != 0 {
				rw.WriteHeader(status)
				_, _ = io.WriteString(rw, body)
				return
			}
			next.ServeHTTP(rw, r)
		})
	}
}

// after edits the answers to reads of a path.
func after(path, old, now string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet || r.URL.Path != path {
				next.ServeHTTP(rw, r)
				return
			}
			rec := httptest.NewRecorder()
			next.ServeHTTP(rec, r)
			rw.WriteHeader(rec.Code)
			_, _ = rw.Write(bytes.ReplaceAll(rec.Body.Bytes(), []byte(old), []byte(now)))
		})
	}
}

// Only Verda's word on the very thing says that it is gone: not that of a wrong
// endpoint, of a gateway, or of the place where tokens are made.
func TestOnlyAThingItselfIsGone(t *testing.T) {
	const gone, html = `{"code":"not_found","message":"Not found"}`, "<html>400 Bad Request</html>"
	token := func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/oauth2/token") }
	for name, say := range map[string]func(r *http.Request) (int, string){
		"every path": func(*http.Request) (int, string) { return 404, gone },
		"the token":  func(r *http.Request) (int, string) { return map[bool]int{true: 404}[token(r)], gone },
		"the lists": func(r *http.Request) (int, string) {
			return map[bool]int{true: 404}[strings.Count(r.URL.Path, "/") == 2], gone
		},
		"the gateway": func(r *http.Request) (int, string) { return map[bool]int{true: 400}[!token(r)], html },
		"the log-in":  func(r *http.Request) (int, string) { return map[bool]int{true: 200}[!token(r)], "<html>log in</html>" },
	} {
		t.Run(name, func(t *testing.T) {
			broken := false
			front := before(func(r *http.Request) (int, string) {
				if !broken {
					return 0, ""
				}
				return say(r)
			})
			in(t, front, func(t *testing.T, s *site) {
				i := s.launch("r1")
				time.Sleep(10 * time.Minute) // the token has not run out
				s.a, broken = s.adapter(), true
				for _, ref := range []providers.Ref{{Request: "r1"}, i.Ref} {
					if err := s.a.Terminate(t.Context(), ref); err == nil || providers.CodeOf(err) == providers.NotFound {
						t.Errorf("terminate %s: %v", ref, err)
					}
					if name == "the lists" && ref.ID != "" {
						broken = false // by its id it is found, and has been ended
						continue
					}
					if _, err := s.a.Describe(t.Context(), ref); err == nil || providers.CodeOf(err) == providers.NotFound {
						t.Errorf("describe %s: %v", ref, err)
					}
				}
				broken = true
				if _, err := s.a.List(t.Context()); err == nil || providers.CodeOf(err) == providers.NotFound {
					t.Errorf("list: %v", err)
				}
			})
		})
	}
}

// The lists of scripts that the vendor's SDKs know have no times: a new script is
// that of a launch under way, and an old one is left behind.
func TestAScriptWithoutATimeIsAsOldAsItsName(t *testing.T) {
	in(t, after("/v1/scripts", `"created_at"`, `"other"`), func(t *testing.T, s *site) {
		s.fault(simapi.Fault{Op: "launch", Effect: simapi.Drop})
		if _, err := s.a.Launch(t.Context(), request("r1")); providers.OutcomeOf(err) != providers.OutcomeUnknown {
			t.Fatal(err)
		}
		if all, err := s.a.List(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("at once: %+v, %v", all, err)
		}
		time.Sleep(20 * time.Minute)
		if all, err := s.a.List(t.Context()); err != nil || len(all) != 1 || all[0].Ref.Request != "r1" {
			t.Errorf("later: %+v, %v", all, err)
		}
	})
}

// A list of instances that comes back empty costs no machine its disk.
func TestAnEmptyListTakesNoDisk(t *testing.T) {
	empty := false
	front := before(func(r *http.Request) (int, string) {
		if empty && r.Method == http.MethodGet && r.URL.Path == "/v1/instances" {
			return 200, "[]"
		}
		return 0, ""
	})
	in(t, front, func(t *testing.T, s *site) {
		req := request("r1")
		req.UserData = ""
		if _, err := s.a.Launch(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		empty = true
		if all, err := s.a.List(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("listed as left behind: %+v, %v", all, err)
		}
		if err := s.a.Terminate(t.Context(), providers.Ref{Request: "r1"}); providers.CodeOf(err) != providers.Unavailable {
			t.Errorf("terminate: %v", err)
		}
		if n := s.count("/volumes"); n != 1 {
			t.Errorf("%d volumes", n)
		}
		empty = false
		if err := s.a.Terminate(t.Context(), providers.Ref{Request: "r1"}); err != nil {
			t.Error(err)
		}
	})
}

// The bound holds for what is made: with the disk that the request asks for, and
// not where there is no price to hold against it.
func TestABoundHoldsForTheWholeMachine(t *testing.T) {
	price := func(s *site) providers.LaunchRequest {
		req := request("r1")
		offers, err := s.a.Offers(s.t.Context(), providers.Scope{})
		if err != nil {
			s.t.Fatal(err)
		}
		for _, o := range offers {
			if o.Market == market {
				req.PriceMax = o.Price
			}
		}
		return req
	}
	in(t, nil, func(t *testing.T, s *site) {
		req := price(s)
		req.Disk = 4_000_000_000_000
		if _, err := s.a.Launch(t.Context(), req); providers.CodeOf(err) != providers.PriceTooLow {
			t.Errorf("with a larger disk: %v", err)
		}
		req.Disk = 0
		if _, err := s.a.Launch(t.Context(), req); err != nil {
			t.Error(err)
		}
	})
	in(t, after("/v1/instance-types", `"spot_price"`, `"other"`), func(t *testing.T, s *site) {
		req := request("r1")
		req.PriceMax = 1
		if _, err := s.a.Launch(t.Context(), req); providers.CodeOf(err) != providers.NoCapacity || providers.OutcomeOf(err) != providers.NotCreated || len(s.world.Truth()) != 0 {
			t.Errorf("without a price: %v", err)
		}
	})
}

// A token that was made for us is a secret, too.
func TestATokenStandsInNoError(t *testing.T) {
	var token string
	front := before(func(r *http.Request) (int, string) {
		if _, sent, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok {
			token = sent
			return 401, `{"code":"unauthorized_request","message":"token ` + sent + ` is not good any more"}`
		}
		return 0, ""
	})
	in(t, front, func(t *testing.T, s *site) {
		_, err := s.a.List(t.Context())
		if providers.CodeOf(err) != providers.Unauthorized || token == "" || strings.Contains(err.Error(), token) {
			t.Errorf("%v", err)
		}
	})
}
