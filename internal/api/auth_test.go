package api_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/internal/api"
	"gpubroker/internal/api/client"
)

const small = `
name: small
project: media
resources: {gpu: none, vcpu: 1}
run: {command: [work, 5s]}
`

func TestWhoMayDoWhat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, false)
		admin := s.client(s.token(api.Admin))
		job := s.submit(admin, small)
		revoked := s.token(api.Admin)
		list, err := admin.Tokens(t.Context())
		must(t, err)
		for _, x := range list.Tokens {
			if strings.Contains(revoked, x.ID) {
				_, err := admin.RevokeToken(t.Context(), x.ID)
				must(t, err)
			}
		}
		short := s.tokenUntil(time.Now().Add(time.Hour), api.Admin)
		if _, err := s.client(short).Tokens(t.Context()); err != nil {
			t.Errorf("a token that has not expired: %v", err)
		}
		time.Sleep(time.Hour)
		tokens := map[string]string{
			"none": "", "garbage": "gpb_nothing_at_all", "revoked": revoked, "expired": short,
			"admin": s.token(api.Admin), "submit": s.token(api.Submit), "media": s.token(api.Submit, "media"),
			"other": s.token(api.Submit, "research"), "finance": s.token(api.Finance), "view": s.token(api.View), "host": s.token(api.Host),
		}
		spec := `{"spec": {"name": "x", "project": "media", "resources": {"gpu": ["none"]}, "run": {"command": ["true"]}}}`
		tests := []struct {
			method, path, body string
			want               map[string]int
		}{
			{"GET", "/healthz", "", map[string]int{"none": 200}},
			{"GET", "/api/v1/version", "", map[string]int{"none": 200}},
			{"GET", "/api/v1/jobs", "", map[string]int{"none": 401, "garbage": 401, "revoked": 401, "expired": 401, "view": 200, "host": 403}},
			{"GET", "/api/v1/jobs/" + job.ID, "", map[string]int{"none": 401, "view": 200, "media": 200, "other": 404}},
			{"GET", "/api/v1/jobs/" + job.ID + "/tasks", "", map[string]int{"media": 200, "other": 404}},
			{"GET", "/api/v1/jobs/" + job.ID + "/attempts", "", map[string]int{"media": 200, "other": 404}},
			{"GET", "/api/v1/jobs/" + job.ID + "/why", "", map[string]int{"media": 200, "other": 404}},
			{"GET", "/api/v1/jobs/" + job.ID + "/tasks/0/log", "", map[string]int{"media": 404, "other": 404}},
			{"GET", "/api/v1/costs?job=" + job.ID, "", map[string]int{"media": 200, "other": 404}},
			{"POST", "/api/v1/jobs", spec, map[string]int{"none": 401, "view": 403, "finance": 403, "other": 403, "media": 200, "submit": 200, "admin": 200}},
			{"POST", "/api/v1/plan", spec, map[string]int{"none": 401, "view": 200, "other": 403}},
			{"POST", "/api/v1/jobs/" + job.ID + "/hold", "", map[string]int{"view": 403, "other": 404, "media": 200}},
			{"POST", "/api/v1/jobs/" + job.ID + "/release", "", map[string]int{"view": 403, "other": 404, "media": 200}},
			{"POST", "/api/v1/jobs/" + job.ID + "/cancel", "", map[string]int{"view": 403, "other": 404}},
			{"POST", "/api/v1/jobs/" + job.ID + "/retry", `{"failed": true}`, map[string]int{"view": 403, "other": 404, "media": 200}},
			{"GET", "/api/v1/ledger", "", map[string]int{"view": 403, "submit": 403, "finance": 200, "admin": 200}},
			{"GET", "/api/v1/budgets", "", map[string]int{"view": 200, "other": 200}},
			{"GET", "/api/v1/offers", "", map[string]int{"view": 200}},
			{"GET", "/api/v1/providers", "", map[string]int{"view": 200}},
			{"POST", "/api/v1/providers/sim/check", "", map[string]int{"none": 401, "view": 403, "submit": 403, "finance": 403, "admin": 200}},
			{"POST", "/api/v1/providers/other/check", "", map[string]int{"admin": 404}},
			{"GET", "/api/v1/instances", "", map[string]int{"view": 200}},
			{"GET", "/api/v1/gpus", "", map[string]int{"view": 200}},
			{"GET", "/api/v1/scenarios", "", map[string]int{"view": 200}},
			{"GET", "/api/v1/events", "", map[string]int{"none": 401, "view": 200}},
			{"GET", "/api/v1/workdirs/" + strings.Repeat("0", 64), "", map[string]int{"view": 200, "none": 401}},
			{"PUT", "/api/v1/workdirs/" + strings.Repeat("0", 64), "x", map[string]int{"view": 403, "none": 401, "submit": 422}},
			{"POST", "/api/v1/tokens", `{"name": "n", "role": "view"}`, map[string]int{"submit": 403, "finance": 403, "view": 403, "admin": 200}},
			{"GET", "/api/v1/tokens", "", map[string]int{"submit": 403, "admin": 200}},
			{"DELETE", "/api/v1/tokens/none", "", map[string]int{"submit": 403, "admin": 404}},
			{"POST", "/api/v1/adopt", "", map[string]int{"submit": 403, "view": 403}},
			{"GET", "/api/v1/nothing", "", map[string]int{"admin": 404}},
		}
		for _, x := range tests {
			for who, want := range x.want {
				kind := ""
				if x.body != "" {
					kind = "application/json"
				}
				got, _, body := s.raw(x.method, x.path, tokens[who], kind, strings.NewReader(x.body))
				if got != want {
					t.Errorf("%s %s as %s: %d, want %d: %s", x.method, x.path, who, got, want, body)
				}
				if got >= 400 && strings.Count(strings.TrimSpace(body), "\n") > 0 && !strings.Contains(body, `"detail"`) {
					t.Errorf("%s %s as %s: the answer is no problem: %s", x.method, x.path, who, body)
				}
			}
		}
	})
}

// A job that may not be seen and one that is not there look the same.
func TestOthersJobsAreNotThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, false)
		job := s.submit(s.client(s.token(api.Admin)), small)
		other := s.client(s.token(api.Submit, "research"))
		_, hidden := other.Job(t.Context(), job.ID)
		_, absent := other.Job(t.Context(), "j000000000")
		if !client.Is(hidden, http.StatusNotFound) || !client.Is(absent, http.StatusNotFound) {
			t.Fatalf("got %v and %v", hidden, absent)
		}
		if got, want := strings.ReplaceAll(hidden.Error(), job.ID, "ID"), strings.ReplaceAll(absent.Error(), "j000000000", "ID"); got != want {
			t.Errorf("%q tells the job from one that is not there: %q", got, want)
		}
		_, err := other.Act(t.Context(), job.ID, client.Cancel)
		if !client.Is(err, http.StatusNotFound) || strings.ReplaceAll(err.Error(), job.ID, "ID") != strings.ReplaceAll(absent.Error(), "j000000000", "ID") {
			t.Errorf("cancel: %v", err)
		}
		jobs, err := other.Jobs(t.Context(), client.JobQuery{})
		must(t, err)
		if len(jobs.Jobs) != 0 || jobs.Next != "" {
			t.Errorf("the list shows %v", jobs)
		}
		events, err := other.Events(t.Context(), client.EventQuery{})
		must(t, err)
		if len(events.Events) != 0 {
			t.Errorf("events show %v", events.Events)
		}
	})
}

func TestErrorsOfTokensSayWhatToDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, false)
		expired := s.tokenUntil(time.Now().Add(time.Minute), api.View)
		time.Sleep(time.Minute)
		for token, want := range map[string]string{
			"":                "no token was given: give a valid one with --token or GPUBROKER_TOKEN; an admin makes one with gpubroker token create",
			"gpb_x_y":         "this broker does not know the token: ",
			"hunter2":         "this is no token of a broker: ",
			expired:           "the token expired on 2000-01-01T00:01:00Z: ",
			expired + "wrong": "this broker does not know the token: ",
		} {
			_, err := s.client(token).Jobs(t.Context(), client.JobQuery{})
			if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("token %q: %v, want %s…", token, err, want)
			}
		}
		status, header, _ := s.raw("GET", "/api/v1/jobs", "", "", nil)
		if status != 401 || header.Get("WWW-Authenticate") == "" {
			t.Errorf("got %d, %q", status, header.Get("WWW-Authenticate"))
		}
	})
}
