package api_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/internal/api"
	"gpubroker/internal/api/client"
	"gpubroker/internal/market"
	"gpubroker/queue"
)

func TestJobRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, true)
		c := s.client(s.token(api.Submit, "media"))
		job := s.submit(c, `
name: two
resources: {gpu: none, vcpu: 1}
tasks: {list: [a, b]}
run: {command: [work, 5s, "{{input}}"]}
`)
		if job.Project != "media" || job.Tasks != 2 || job.State != queue.JobQueued {
			t.Errorf("accepted %+v", job)
		}
		done := s.await(c, job.ID)
		// The agent of this test fails tasks that have a third word.
		if done.State != queue.JobFailed || done.Counts.Failed != 2 {
			t.Errorf("ended %s, %+v", done.State, done.Counts)
		}
		tasks, err := c.Tasks(t.Context(), job.ID, "", "", 1)
		must(t, err)
		if len(tasks.Tasks) != 1 || tasks.Tasks[0].Input != "a" || tasks.Next == "" {
			t.Errorf("first page of tasks %+v", tasks)
		}
		rest, err := c.Tasks(t.Context(), job.ID, queue.TaskFailed, tasks.Next, 10)
		must(t, err)
		if len(rest.Tasks) != 1 || rest.Tasks[0].Input != "b" || rest.Next != "" || *rest.Tasks[0].ExitCode != 3 {
			t.Errorf("rest of tasks %+v", rest)
		}
		attempts, err := c.Attempts(t.Context(), job.ID, 0, "", 10)
		must(t, err)
		if len(attempts.Attempts) != 1 || attempts.Attempts[0].Token != "" || attempts.Attempts[0].Outcome != queue.Failed {
			t.Errorf("attempts %+v", attempts.Attempts)
		}
		out, err := c.Retry(t.Context(), job.ID, api.RetryRequest{Failed: true})
		must(t, err)
		if out.Tasks != 2 {
			t.Errorf("retried %d", out.Tasks)
		}
		if again := s.await(c, job.ID); again.Counts.Failed != 2 {
			t.Errorf("after the retry %+v", again.Counts)
		}
		attempts, err = c.Attempts(t.Context(), job.ID, 1, "", 10)
		must(t, err)
		if len(attempts.Attempts) != 2 {
			t.Errorf("attempts of the second task: %d", len(attempts.Attempts))
		}
		for {
			left, err := c.Instances(t.Context())
			must(t, err)
			if len(left.Instances) == 0 {
				break // settled: the cost is in the books
			}
			must(t, sleep(t))
		}
		costs, err := c.Costs(t.Context(), client.CostQuery{Project: "media"})
		must(t, err)
		if costs.Spent <= 0 || costs.Attempts != 4 {
			t.Errorf("costs %+v", costs)
		}
		entries, err := s.client(s.token(api.Finance)).Ledger(t.Context(), client.EntryQuery{Limit: 1})
		must(t, err)
		if len(entries.Entries) != 1 || entries.Next == 0 {
			t.Errorf("ledger %+v", entries)
		}
	})
}

func TestCancelHoldRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, false)
		c := s.client(s.token(api.Submit))
		job := s.submit(c, small)
		held, err := c.Act(t.Context(), job.ID, client.Hold)
		must(t, err)
		if held.State != queue.JobHeld || held.Held != "held by tester-submit" {
			t.Errorf("held: %+v", held)
		}
		free, err := c.Act(t.Context(), job.ID, client.Release)
		must(t, err)
		if free.State != queue.JobQueued {
			t.Errorf("released: %+v", free)
		}
		gone, err := c.Act(t.Context(), job.ID, client.Cancel)
		must(t, err)
		if gone.State != queue.JobCancelled || gone.CancelledBy != "tester-submit" {
			t.Errorf("cancelled: %+v", gone)
		}
		_, err = c.Act(t.Context(), job.ID, client.Hold)
		if !client.Is(err, http.StatusConflict) || !strings.Contains(err.Error(), "cancelled already") {
			t.Errorf("hold of a job that is done: %v", err)
		}
		if _, err := c.Retry(t.Context(), job.ID, api.RetryRequest{}); !client.Is(err, http.StatusUnprocessableEntity) {
			t.Errorf("retry of nothing: %v", err)
		}
	})
}

func TestSubmitTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, false)
		c := s.client(s.token(api.Submit))
		r := request(t, "name: lines\nresources: {gpu: none}\ntasks: {file: lines.txt}\nrun: {command: [work, 1s]}\n")
		r.Key = "night-1"
		if _, err := c.Submit(t.Context(), r); !client.Is(err, http.StatusUnprocessableEntity) || !strings.Contains(err.Error(), "give its lines as inputs") {
			t.Errorf("a file of the caller's without its lines: %v", err)
		}
		for i := range 2500 {
			r.Inputs = append(r.Inputs, fmt.Sprintf("clip-%d", i))
		}
		first, err := c.Submit(t.Context(), r)
		must(t, err)
		if first.Tasks != 2500 {
			t.Errorf("%d tasks", first.Tasks)
		}
		again, err := c.Submit(t.Context(), r)
		must(t, err)
		if again.ID != first.ID {
			t.Errorf("the same key and content gave %s and %s", first.ID, again.ID)
		}
		r.Inputs[7] = "another"
		if _, err := c.Submit(t.Context(), r); !client.Is(err, http.StatusConflict) {
			t.Errorf("the same key with other inputs: %v", err)
		}
		r.Spec = json.RawMessage(strings.Replace(string(r.Spec), `"file":"lines.txt"`, `"count":3`, 1))
		if _, err := c.Submit(t.Context(), r); !client.Is(err, http.StatusUnprocessableEntity) {
			t.Errorf("inputs without tasks.file: %v", err)
		}
	})
}

func TestFaultsOfASpec(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, false)
		c := s.client(s.token(api.Submit))
		_, err := c.Submit(t.Context(), api.SubmitRequest{Spec: json.RawMessage(`{"name": "x", "resources": {"gpu": ["l44"]}, "run": {"comand": ["x"]}}`)})
		e, ok := errors.AsType[*client.Error](err)
		if !ok || e.Status != http.StatusUnprocessableEntity || len(e.Faults) < 2 {
			t.Fatalf("got %v", err)
		}
		if text := e.Error(); !strings.Contains(text, `did you mean "command"`) || !strings.Contains(text, "resources.gpu") {
			t.Errorf("got %s", text)
		}
		status, _, body := s.raw("POST", "/api/v1/jobs", s.token(api.Submit), "application/json", strings.NewReader("{"))
		if status != http.StatusBadRequest && status != http.StatusUnprocessableEntity {
			t.Errorf("half a body: %d %s", status, body)
		}
	})
}

func TestPlanAndWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, true)
		c := s.client(s.token(api.View))
		waitForOffers(t, c)
		p, err := c.Plan(t.Context(), request(t, "name: p\nresources: {gpu: l4}\nspot: {policy: always}\nwork: {time: 1h, on: l4}\nrun: {command: [work, 1h]}\n"))
		must(t, err)
		if p.Decision.Placed != 1 || len(p.Launches) != 1 || len(p.Options) == 0 || p.Considered == 0 {
			t.Errorf("plan %+v", p)
		}
		sum := p.Usable
		for _, r := range p.Reasons {
			sum += r.Offers
		}
		if sum != p.Considered {
			t.Errorf("%d usable and reasons sum to %d of %d", p.Usable, sum, p.Considered)
		}
		if list, err := c.Jobs(t.Context(), client.JobQuery{}); err != nil || len(list.Jobs) != 0 {
			t.Errorf("a plan left jobs %v, %v", list, err)
		}
		job := s.submit(s.client(s.token(api.Submit)), "name: q\nresources: {gpu: h200}\nrun: {command: [work, 1h]}\n")
		w, err := c.Why(t.Context(), job.ID)
		must(t, err)
		if !w.Waiting || w.Usable != 0 || w.Decision.Why.Code == "" {
			t.Errorf("why %+v", w)
		}
	})
}

func waitForOffers(t *testing.T, c *client.Client) {
	t.Helper()
	for range 60 {
		out, err := c.Offers(t.Context(), market.Query{GPU: "l4", Kind: "spot"}, false)
		must(t, err)
		if len(out.Offers) > 0 {
			time.Sleep(30 * time.Second) // until the machines of every provider were listed, too
			for i := 1; i < len(out.Offers); i++ {
				if out.Offers[i].Price < out.Offers[i-1].Price {
					t.Errorf("offers are not cheapest first: %v", out.Offers)
				}
			}
			return
		}
		must(t, sleep(t))
	}
	t.Fatal("no offers after a minute")
}

func TestWorkdirs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, false)
		token := s.token(api.Submit)
		c := s.client(token)
		archive := []byte("as good as any archive")
		sum := sha256.Sum256(archive)
		digest := hex.EncodeToString(sum[:])
		if w, err := c.Workdir(t.Context(), digest); err != nil || w.Have {
			t.Errorf("before: %+v, %v", w, err)
		}
		put, err := c.PutWorkdir(t.Context(), digest, bytes.NewReader(archive), int64(len(archive)))
		must(t, err)
		if put.Ref != "workdir:"+digest || put.Have {
			t.Errorf("put: %+v", put)
		}
		if w, err := c.Workdir(t.Context(), digest); err != nil || !w.Have || w.Ref != put.Ref {
			t.Errorf("after: %+v, %v", w, err)
		}
		wrong := strings.Repeat("a", 64)
		if _, err := c.PutWorkdir(t.Context(), wrong, bytes.NewReader(archive), int64(len(archive))); !client.Is(err, http.StatusUnprocessableEntity) {
			t.Errorf("another digest: %v", err)
		}
		if w, err := c.Workdir(t.Context(), wrong); err != nil || w.Have {
			t.Errorf("what bears a wrong name was kept: %+v, %v", w, err)
		}
		large := bytes.NewReader(make([]byte, s.maxWork+1))
		if _, err := c.PutWorkdir(t.Context(), wrong, large, s.maxWork+1); !client.Is(err, http.StatusRequestEntityTooLarge) || !strings.Contains(err.Error(), ".gpubrokerignore") {
			t.Errorf("too large: %v", err)
		}
		// A body that ends early is not kept.
		if _, err := c.PutWorkdir(t.Context(), digest, bytes.NewReader(archive[:3]), int64(len(archive))); err == nil {
			t.Error("half an archive was taken")
		}
	})
}
