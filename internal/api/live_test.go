package api_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/internal/api"
	"gpubroker/internal/api/client"
	"gpubroker/queue"
)

func sleep(t *testing.T) error {
	select {
	case <-t.Context().Done():
		return t.Context().Err()
	case <-time.After(time.Second):
		return nil
	}
}

// A stream that breaks goes on where it ended, without a gap or a repetition.
func TestWatchGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, true)
		c := s.client(s.token(api.Submit))
		var got []api.Event
		stop := errors.New("stop")
		job := s.submit(c, small)
		last := int64(0)
		first, err := c.Events(t.Context(), client.EventQuery{Limit: 1})
		must(t, err)
		got, last = append(got, first.Events...), first.Events[0].Seq
		for done := false; !done; {
			n := 0
			last, err = c.Watch(t.Context(), client.EventQuery{Job: job.ID, After: last}, func(e api.Event) error {
				got = append(got, e)
				if n++; n == 2 {
					last = e.Seq
					return stop
				}
				done = e.Kind == "job.succeeded"
				if done {
					return stop
				}
				return nil
			})
			if !errors.Is(err, stop) {
				t.Fatal(err)
			}
			last = got[len(got)-1].Seq
			done = done || got[len(got)-1].Kind == "job.succeeded"
		}
		all, err := c.Events(t.Context(), client.EventQuery{Job: job.ID, Limit: 1000})
		must(t, err)
		var want []int64
		for _, e := range all.Events {
			want = append(want, e.Seq)
		}
		var have []int64
		for _, e := range got {
			have = append(have, e.Seq)
		}
		if len(have) != len(want) {
			t.Fatalf("streamed %v, listed %v", have, want)
		}
		for i := range want {
			if have[i] != want[i] {
				t.Errorf("event %d: streamed %d, listed %d", i, have[i], want[i])
			}
		}
		if got[0].Kind != "job.accepted" || got[0].Text == "" {
			t.Errorf("first event %+v", got[0])
		}
	})
}

func TestWatchIsQuietButAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, false)
		c := s.client(s.token(api.View))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err := c.Watch(ctx, client.EventQuery{}, func(e api.Event) error { t.Errorf("event %+v", e); return nil })
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the stream ended with %v", err)
		}
	})
}

func TestLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, true)
		c := s.client(s.token(api.Submit))
		job := s.submit(c, "name: talks\nproject: media\nresources: {gpu: none}\nrun: {command: [work, 30s]}\n")
		if _, err := c.Log(t.Context(), client.LogQuery{Job: job.ID}); err == nil || !strings.Contains(err.Error(), "has not been placed yet") {
			t.Errorf("before it was placed: %v", err)
		}
		for {
			j, err := c.Job(t.Context(), job.ID)
			must(t, err)
			if j.Counts.Running == 1 {
				break
			}
			must(t, sleep(t))
		}
		began := time.Now()
		follow, err := c.Log(t.Context(), client.LogQuery{Job: job.ID, Follow: true})
		must(t, err)
		defer follow.Close()
		one := make([]byte, 1)
		if _, err := io.ReadFull(follow, one); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited > 15*time.Second {
			t.Errorf("the first live byte came after %v", waited)
		}
		rest, err := io.ReadAll(follow)
		must(t, err)
		j := s.await(c, job.ID)
		if j.State != queue.JobSucceeded {
			t.Fatalf("ended %s", j.State)
		}
		whole, err := c.Log(t.Context(), client.LogQuery{Job: job.ID})
		must(t, err)
		defer whole.Close()
		text, err := io.ReadAll(whole)
		must(t, err)
		if live := string(one) + string(rest); live != string(text) || !strings.Contains(live, "second 29") {
			t.Errorf("followed\n%q\nkept\n%q", live, text)
		}
		tail, err := c.Log(t.Context(), client.LogQuery{Job: job.ID, From: int64(len(text)) - 10, Attempt: 1})
		must(t, err)
		defer tail.Close()
		end, err := io.ReadAll(tail)
		must(t, err)
		if string(end) != string(text[len(text)-10:]) {
			t.Errorf("from an offset: %q", end)
		}
		if _, err := c.Log(t.Context(), client.LogQuery{Job: job.ID, Attempt: 9}); err == nil || !strings.Contains(err.Error(), "has attempts 1 to 1") {
			t.Errorf("an attempt that was not: %v", err)
		}
	})
}

// Pages of one caller are whole although others' rows lie between.
func TestPagesSkipWhatIsNotSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, false)
		admin := s.client(s.token(api.Admin))
		mine := 0
		for i := range 30 {
			project := "other"
			if i%7 == 0 {
				project = "media"
				mine++
			}
			s.submit(admin, "name: n\nproject: "+project+"\nresources: {gpu: none}\nrun: {command: [x]}\n")
		}
		c := s.client(s.token(api.View, "media"))
		n, pages := 0, 0
		for q := (client.JobQuery{Limit: 2}); ; pages++ {
			page, err := c.Jobs(t.Context(), q)
			must(t, err)
			for _, j := range page.Jobs {
				n++
				if j.Project != "media" {
					t.Errorf("saw a job of %s", j.Project)
				}
			}
			if q.After = page.Next; q.After == "" {
				break
			}
			if pages > 30 {
				t.Fatal("pages without end")
			}
		}
		if n != mine {
			t.Errorf("saw %d jobs of %d", n, mine)
		}
		events, err := c.Events(t.Context(), client.EventQuery{Last: true, Limit: 3})
		must(t, err)
		if len(events.Events) != 3 {
			t.Errorf("%d of the newest three events", len(events.Events))
		}
	})
}
