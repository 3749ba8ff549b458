package control_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/internal/control"
	"gpubroker/internal/rates"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/internal/spec"
	"gpubroker/queue"
)

// learned is what the broker's store holds of a job's class.
func (s *site) learned(text string) rates.Class {
	s.t.Helper()
	j, err := spec.Parse("job.yaml", []byte(text))
	if err != nil {
		s.t.Fatal(err)
	}
	image, err := s.st.Load(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, row := range image.Settings {
		if !strings.HasPrefix(row.Key, "rates/") {
			continue
		}
		var shelf rates.Shelf
		if err := json.Unmarshal(row.Value, &shelf); err != nil {
			s.t.Fatal(err)
		}
		if c := shelf.Find(j.Class()); c != nil {
			return *c
		}
	}
	return rates.Class{}
}

// times are the best options of a job that is planned now, as text.
func (s *site) times(text string) (out []string) {
	s.t.Helper()
	j, err := spec.Parse("job.yaml", []byte(text))
	if err != nil {
		s.t.Fatal(err)
	}
	e, _, err := s.up().ExplainPlan(context.Background(), control.Submission{Spec: j, Anywhere: true}, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, o := range e.Options {
		if one := fmt.Sprintf("%s %s %s", o.Shape.GPU, o.Rate, o.RateOn); !seen[one] {
			seen[one] = true
			out = append(out, fmt.Sprintf("%s %s", strings.TrimSpace(one), o.Time.Round(time.Minute)))
		}
	}
	return out
}

// clips is a job of n tasks that says ten minutes and, where the machine is slower,
// takes longer.
func clips(n int, more string) string {
	return fmt.Sprintf("name: clips\nproject: media\ntasks: {count: %d}\nresources: {gpu: l4}\nwork: {time: 10m, on: l4}\nrun: {command: [work, 10m]}\n%s", n, more)
}

// What a job's tasks took is what the next run of it is planned with, also by a broker
// that starts anew.
func TestRatesAreLearned(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		s.rig(func() { s.pace = func(string) float64 { return 1.8 } })
		offers := func() {
			s.until("offers", time.Minute, func([]*queue.Instance, []*queue.Attempt) bool { return s.up().Market().Catalog().Offers > 0 })
		}
		offers()
		if got := s.times(clips(8, "")); !cmp.Equal(got, []string{"l4 given 10m0s"}) {
			t.Errorf("before: %v", got)
		}
		for _, a := range s.succeeded(s.submit(clips(8, ""))) {
			if a.Done != 1 {
				t.Errorf("attempt %s did %v of its task", a.ID, a.Done)
			}
		}
		next := clips(3, "deadline: \"23:00 UTC\"\n")
		other := strings.Replace(next, "gpu: l4", "gpu: t4", 1)
		after := func(when string) {
			t.Helper()
			got := append(s.times(next), s.times(other)...)
			if !cmp.Equal(got, []string{"l4 measured 18m0s", "t4 scaled l4 1h7m0s"}) {
				t.Errorf("%s: %v", when, got)
			}
		}
		after("after")
		c := s.learned(clips(8, ""))
		if len(c.Rows) != 1 || c.Rows[0].Type != "sim/l4x1" || c.Rows[0].Weight < 7.9 || c.Rows[0].Weight > 8 {
			t.Errorf("%+v", c)
		}
		s.stop()
		s.start()
		offers()
		after("after a restart")
	})
}

// An attempt that is taken away tells of the part that it did, one that failed by
// itself tells nothing.
func TestPartsAndFailures(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		text := task(time.Hour, saves)
		j := s.submit(text)
		s.until("work", time.Hour, func(_ []*queue.Instance, as []*queue.Attempt) bool {
			return len(as) == 1 && as[0].Busy > 25*time.Minute
		})
		s.do(simapi.Action{Preempt: &simapi.Preempt{Notice: new(simapi.Duration(0))}})
		attempts := s.succeeded(j)
		if len(attempts) != 2 || attempts[0].Done < 0.3 || attempts[0].Done > 0.6 || attempts[1].Done+attempts[0].Done < 0.999 || attempts[1].Done+attempts[0].Done > 1.2 {
			t.Fatalf("%+v", attempts)
		}
		c := s.learned(text)
		e, _ := c.Pool(func(*rates.Row) bool { return true })
		if n := c.Rows[0].Weight; len(c.Rows) == 1 && n < 1.99 || e.Time < 57*time.Minute || e.Time > 63*time.Minute {
			t.Errorf("%s from %+v", e.Time, c.Rows)
		}
		fails := "name: fails\nproject: media\nresources: {gpu: l4}\nmax_duration: 1h\nrun: {command: [work, 1m, fail]}\n"
		s.await(s.submit(fails).ID, time.Hour)
		if c := s.learned(fails); len(c.Rows) > 0 {
			t.Errorf("a task that failed taught %+v", c)
		}
	})
}

// A trial is a job of the class, with a name and tasks of its own: what it measures is
// what the job is planned with.
func TestATrialTeaches(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		sp, err := spec.Parse("job.yaml", []byte(clips(50, "")), "name=other", "budget.max=5 USD", "resources.gpu=t4")
		if err != nil {
			t.Fatal(err)
		}
		s.rig(func() { s.pace = func(string) float64 { return 3 } })
		trial := control.Submission{Spec: sp, Anywhere: true, Key: "once", Trial: &control.Trial{Name: "clips.trial-t4", First: 2}}
		j, err := s.up().Submit(context.Background(), trial, nil)
		if err != nil {
			t.Fatal(err)
		}
		if j.Name != "clips.trial-t4" || j.Count != 2 {
			t.Errorf("%s with %d tasks", j.Name, j.Count)
		}
		trial.Trial = &control.Trial{Name: "clips.trial-t4", First: 3}
		if _, err := s.up().Submit(context.Background(), trial, nil); !errors.Is(err, control.ErrConflict) {
			t.Errorf("another sample under the same key: %v", err)
		}
		attempts := s.succeeded(j)
		if len(attempts) != 2 {
			t.Errorf("%d attempts", len(attempts))
		}
		machines, err := s.up().AttemptMachines(context.Background(), attempts)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range attempts {
			if m := machines[a.Instance]; m.Shape.GPU != "t4" || !m.Ready.After(m.Requested) || m.Price <= 0 {
				t.Errorf("machine %+v", m)
			}
		}
		if got := s.times(strings.Replace(clips(50, ""), "gpu: l4", "gpu: t4", 1)); !cmp.Equal(got, []string{"t4 measured 30m0s"}) {
			t.Errorf("after it: %v", got)
		}
		list, err := spec.Parse("job.yaml", []byte("name: films\nproject: media\nresources: {gpu: l4}\ntasks: {list: [a, b, c]}\nrun: {command: [work, 1m, '{{input}}']}\n"))
		if err != nil {
			t.Fatal(err)
		}
		for first, want := range map[int]int{0: 3, 1: 1, 2: 2, 3: 3, 9: 3} {
			j, err := s.up().Submit(context.Background(), control.Submission{Spec: list, Anywhere: true, Trial: &control.Trial{Name: "x", First: first}}, nil)
			if err != nil || j.Count != want {
				t.Errorf("the first %d of 3: %+v, %v", first, j, err)
			}
			if _, err := s.up().Cancel(context.Background(), j.ID, "test"); err != nil {
				t.Error(err)
			}
		}
	})
}

// However often the broker dies, before a commit or after it, each attempt counts
// once.
func TestNoAttemptTeachesTwice(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		n := 0
		s.rig(func() {
			s.point = func(what string) bool {
				if !strings.HasPrefix(what, "commit") {
					return false
				}
				n++
				return n%23 == 0
			}
		})
		ctx, cancel := context.WithCancel(context.Background())
		risen := make(chan struct{})
		go func() { defer close(risen); s.rise(ctx) }()
		j := s.submit(clips(12, ""))
		s.await(j.ID, 12*time.Hour)
		s.rig(func() { s.point = nil })
		cancel()
		<-risen
		if s.up() == nil {
			s.stop()
			s.start()
		}
		told := 0
		for _, a := range s.attempts(j.ID) {
			if a.Done > 0 {
				told++
			}
		}
		var weight float64
		for _, r := range s.learned(clips(12, "")).Rows {
			weight += r.Weight
		}
		if n < 23*3 || told < 12 || weight > float64(told) || weight < float64(told)-0.2 {
			t.Errorf("%d commits; %d attempts told of their rate, and count %.3f", n, told, weight)
		}
	})
}
