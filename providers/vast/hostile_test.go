package vast_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/internal/simcloud/dialects/vast"
	"gpubroker/providers"
)

// instead answers the calls for which say returns a body; the others go on.
func instead(say func(r *http.Request) (status int, body string)) func(http.Handler) http.Handler {
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

// Only {"instances": null} says that an instance is gone.
func TestAnAnswerAboutNothingIsNoEnd(t *testing.T) {
	for body, gone := range map[string]bool{
		`{"instances":null}`: true, `{"success":false,"error":"no_such_instance"}`: true,
		`{}`: false, `{"error":"maintenance","msg":"back soon"}`: false, `{"success":true}`: false, `{"instances":[]}`: false, `[]`: false, `null`: false, `<html>log in</html>`: false, ``: false,
	} {
		synctest.Test(t, func(t *testing.T) {
			s := open(t, vast.Default(1), instead(func(r *http.Request) (int, string) {
				if strings.HasPrefix(r.URL.Path, "/api/v0/instances/") {
					return 200, body + " "
				}
				return 0, ""
			}))
			_, err := s.a.Describe(t.Context(), providers.Ref{ID: "17", Request: "r1"})
			if (providers.CodeOf(err) == providers.NotFound) != gone || err == nil {
				t.Errorf("%s: %v", body, err)
			}
		})
	}
}

// A page in the place of an answer ends nothing, nor does an error with status 200.
func TestAnEndThatWasNotAccepted(t *testing.T) {
	for _, body := range []string{"<!doctype html><title>Log in</title>", `{"error":"maintenance"}`, `{"success":false}`, ""} {
		in(t, instead(func(r *http.Request) (int, string) {
			if r.Method == http.MethodDelete {
				return 200, body + "\n"
			}
			return 0, ""
		}), func(t *testing.T, s *site) {
			i, err := s.a.Launch(t.Context(), request("r1"))
			if err != nil {
				t.Fatal(err)
			}
			if err := s.a.Terminate(t.Context(), i.Ref); err == nil || providers.CodeOf(err) == providers.NotFound {
				t.Errorf("%q: %v", body, err)
			}
		})
	}
}

// An error that names an instance has left one, also where it does not say
// "success": it is ended at once, or the outcome is unknown.
func TestAnErrorThatLeavesAnInstance(t *testing.T) {
	for status, body := range map[int]string{
		400: `{"error":"bid_too_low","msg":"the bid is too low","new_contract":17}`,
		200: `{"error":"bid_too_low","msg":"the bid is too low","new_contract":17}`,
	} {
		ended := 0
		in(t, instead(func(r *http.Request) (int, string) {
			switch {
			case r.Method == http.MethodPut:
				return status, body
			case r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "/17/"):
				ended++
				return 200, `{"success":true}`
			}
			return 0, ""
		}), func(t *testing.T, s *site) {
			_, err := s.a.Launch(t.Context(), request("r1"))
			if providers.CodeOf(err) != providers.PriceTooLow || providers.OutcomeOf(err) != providers.NotCreated || ended != 1 {
				t.Errorf("%d: %v, ended %d times", status, err, ended)
			}
			time.Sleep(time.Minute)
		})
	}
}
