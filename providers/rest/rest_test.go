package rest_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/internal/simcloud/simtest"
	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// script answers call after call.
type script struct {
	answers []func(http.ResponseWriter, *http.Request)
	calls   []string
}

func (s *script) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	n := len(s.calls)
	s.calls = append(s.calls, r.Method+" "+r.URL.String()+" "+r.Header.Get("Authorization"))
	s.answers[min(n, len(s.answers)-1)](rw, r)
}

func status(code int, header ...string) func(http.ResponseWriter, *http.Request) {
	return func(rw http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(header); i += 2 {
			rw.Header().Set(header[i], header[i+1])
		}
		rw.WriteHeader(code)
		_, _ = io.WriteString(rw, `{"n": 1}`)
	}
}

func drop(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

const token = "s3cret-token"

func client(t *testing.T, s *script) *rest.Client {
	t.Helper()
	network := simtest.NewNet(t)
	network.Serve("api.example.org", s)
	c, err := rest.New(rest.Options{
		Provider: "acme", Base: "http://api.example.org/v1/", Client: network.Client(), Judge: rest.ByStatus, Secrets: []string{token},
		Authorize: func(_ context.Context, r *http.Request) error {
			r.Header.Set("Authorization", "Bearer "+token)
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestOneCallIsOneRequest: whatever goes wrong, the scheduler hears of it at once.
func TestOneCallIsOneRequest(t *testing.T) {
	for name, c := range map[string]struct {
		answer  func(http.ResponseWriter, *http.Request)
		code    providers.Code
		outcome providers.Outcome
		after   time.Duration
	}{
		"throttled":         {status(429, "Retry-After", "7"), providers.RateLimited, providers.NotCreated, 7 * time.Second},
		"throttled, silent": {status(429), providers.RateLimited, providers.NotCreated, 0},
		"unavailable":       {status(503, "Retry-After", "86400"), providers.Unavailable, providers.OutcomeUnknown, time.Hour},
		"dropped":           {drop, providers.Unavailable, providers.OutcomeUnknown, 0},
		"credentials":       {status(401), providers.Unauthorized, providers.NotCreated, 0},
		"no money":          {status(402), providers.NoFunds, providers.NotCreated, 0},
		"refused":           {status(422), providers.InvalidRequest, providers.NotCreated, 0},
		"a bare 404":        {status(404), providers.Unknown, providers.OutcomeUnknown, 0},
		"a redirect":        {status(302, "Location", "http://elsewhere.example.org/"), providers.Unknown, providers.OutcomeUnknown, 0},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{answers: []func(http.ResponseWriter, *http.Request){c.answer}}
				for _, op := range []string{"launch", "list"} {
					s.calls = nil
					err := client(t, s).Do(t.Context(), rest.Call{Op: op, Target: "m", Method: http.MethodPost, Path: "/machines", In: struct{}{}})
					e, ok := errors.AsType[*providers.Error](err)
					if !ok {
						t.Fatalf("got %v", err)
					}
					want := c.outcome
					if op == "list" {
						want = ""
					}
					if e.Code != c.code || e.Outcome != want || e.RetryAfter != c.after || e.Provider != "acme" || e.Op != op || e.Target != "m" {
						t.Errorf("%s: got %+v", op, e)
					}
					if len(s.calls) != 1 {
						t.Errorf("%s: %d requests", op, len(s.calls))
					}
					if strings.Contains(err.Error(), token) {
						t.Errorf("%s: the error shows the credential: %v", op, err)
					}
				}
			})
		})
	}
}

// TestALaterPageIsReadAgain: a throttled page of a catalog does not cost the
// pages before it, and the cloud's wish to wait has a bound.
func TestALaterPageIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{answers: []func(http.ResponseWriter, *http.Request){status(429, "Retry-After", "3600"), drop, status(200)}}
		var got struct{ N int }
		begun := time.Now()
		if err := client(t, s).Do(t.Context(), rest.Call{Op: "offers", Path: "/prices", Query: url.Values{"page": {"2"}}, Out: &got, Page: true}); err != nil {
			t.Fatal(err)
		}
		if got.N != 1 || len(s.calls) != 3 || s.calls[2] != "GET /v1/prices?page=2 Bearer "+token {
			t.Errorf("got %+v after %q", got, s.calls)
		}
		if waited := time.Since(begun); waited > 30*time.Second {
			t.Errorf("waited %v", waited)
		}
	})
}

// TestAPageThatStaysAwayIsAnError: a part of a list is not a list.
func TestAPageThatStaysAwayIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{answers: []func(http.ResponseWriter, *http.Request){status(500)}}
		err := client(t, s).Do(t.Context(), rest.Call{Op: "offers", Path: "/prices", Page: true})
		if providers.CodeOf(err) != providers.Unavailable || len(s.calls) != 4 {
			t.Errorf("%v after %d requests", err, len(s.calls))
		}
	})
}

// TestLinksStayAtTheHost: the credential goes with every request.
func TestLinksStayAtTheHost(t *testing.T) {
	for link, ok := range map[string]bool{
		"http://api.example.org/v1/prices?page=2":    true,
		"http://api.example.org:80/v1/prices?page=2": true,
		"https://api.example.org/v1/prices?page=2":   false,
		"http://api.example.org.evil.test/v1/prices": false,
		"http://api.example.org:8080/v1/prices":      false,
		"http://user@evil.test/v1/prices":            false,
	} {
		s := &script{answers: []func(http.ResponseWriter, *http.Request){status(200)}}
		err := client(t, s).Do(t.Context(), rest.Call{Op: "offers", Path: link})
		if (err == nil) != ok || (len(s.calls) == 1) != ok {
			t.Errorf("%s: %v, %d requests", link, err, len(s.calls))
		}
	}
}

func TestAnswersThatCannotBeUsed(t *testing.T) {
	endless := func(rw http.ResponseWriter, _ *http.Request) {
		block := make([]byte, 1<<20)
		for range 80 {
			if _, err := rw.Write(block); err != nil {
				return
			}
		}
	}
	for name, answer := range map[string]func(http.ResponseWriter, *http.Request){
		"no JSON": func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "<html>") },
		"endless": endless,
		"cut off": func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(rw, `{"n":`)
			panic(http.ErrAbortHandler)
		},
	} {
		var got struct{ N int }
		s := &script{answers: []func(http.ResponseWriter, *http.Request){answer}}
		err := client(t, s).Do(t.Context(), rest.Call{Op: "launch", Out: &got})
		if providers.OutcomeOf(err) != providers.OutcomeUnknown || providers.CodeOf(err) != providers.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNoSecretIsCutInTwo: what others know to hide, such as a word of a machine's user
// data that the cloud repeats, stands whole in the cloud's words or not at all.
func TestNoSecretIsCutInTwo(t *testing.T) {
	c := client(t, &script{})
	for n := range 80 {
		words := strings.Repeat("x", 240+n) + " join-token-of-a-machine " + strings.Repeat("y ", 40)
		line := c.Line(words)
		if strings.Contains(line, "join") && !strings.Contains(line, "join-token-of-a-machine") || len(line) > 310 {
			t.Fatalf("%d: %q", n, line)
		}
	}
	if line := c.Line("\x1b[2Ja\u009bb\nc"); line != "[2Ja b c" {
		t.Errorf("%q", line)
	}
}

func TestAContextThatHasEndedSendsNothing(t *testing.T) {
	s := &script{answers: []func(http.ResponseWriter, *http.Request){status(200)}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := client(t, s).Do(ctx, rest.Call{Op: "launch"})
	if providers.CodeOf(err) != providers.Canceled || providers.OutcomeOf(err) != providers.NotCreated || len(s.calls) != 0 {
		t.Errorf("%v, %d requests", err, len(s.calls))
	}
}

// TestNobodyThere: a connection that was never made has certainly done nothing.
func TestNobodyThere(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	base := srv.URL
	srv.Close()
	c, err := rest.New(rest.Options{Provider: "acme", Base: base, Judge: rest.ByStatus})
	if err != nil {
		t.Fatal(err)
	}
	err = c.Do(t.Context(), rest.Call{Op: "launch", Method: http.MethodPost, Path: "/x?api_key=" + token})
	if providers.CodeOf(err) != providers.Unavailable || providers.OutcomeOf(err) != providers.NotCreated {
		t.Errorf("%v", err)
	}
	if strings.Contains(err.Error(), token) {
		t.Errorf("the error shows a key in the address: %v", err)
	}
}

func TestEndpoints(t *testing.T) {
	for base, ok := range map[string]bool{
		"https://api.example.org/v1": true, "http://127.0.0.1:80": true,
		"api.example.org": false, "ftp://x": false, "": false, "https://u:p@x": false, "https://x?key=1": false, "https://\x00": false,
	} {
		if _, err := rest.New(rest.Options{Provider: "acme", Base: base}); (err == nil) != ok {
			t.Errorf("%q: %v", base, err)
		} else if err != nil && strings.Contains(err.Error(), "u:p") {
			t.Errorf("%q: the error shows a password: %v", base, err)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 0, "5": 5 * time.Second, " 5 ": 5 * time.Second, "-1": 0, "soon": 0, strconv.Itoa(1 << 40): time.Hour} {
		if got := rest.RetryAfter(http.Header{"Retry-After": {text}}); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	at := time.Now().Add(time.Minute).UTC().Format(http.TimeFormat)
	if got := rest.RetryAfter(http.Header{"Retry-After": {at}}); got < 50*time.Second || got > time.Minute {
		t.Errorf("a date in a minute: %v", got)
	}
}
