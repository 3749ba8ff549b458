package control_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	cloud "gpubroker/internal/simcloud"
	"gpubroker/queue"
)

const arrayJob = `
name: night
project: media
scenario: transcode
tasks: {count: 40}
work: {time: 10m, on: l4}
resources: {gpu: [l4, t4], slots: 2}
run: {command: [work, 10m]}
retry: {failures: 1}
`

const longJob = `
name: train
project: media
resources: {gpu: l4}
work: {time: 3h, on: l4}
checkpoint: {dir: ckpt, interval: 10m}
run: {command: [work, 3h]}
`

const steadyJob = `
name: steady
project: media
resources: {gpu: none, vcpu: 2}
spot: {policy: never}
max_duration: 2h
run: {command: [work, 30m]}
`

// A quiet night: everything finishes, the machines are gone, and the ledger is
// the cloud's own invoice.
func TestQuietNight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, cloud.Default(1))
		s.start()
		defer s.close()
		for _, text := range []string{arrayJob, longJob, steadyJob} {
			j := s.submit(text)
			if done := s.await(j.ID, 12*time.Hour); done.State() != queue.JobSucceeded {
				t.Errorf("%s: %s, %+v", j.Name, done.State(), done.Counts)
			}
		}
		s.quiet(2 * time.Hour)
		s.squared()
	})
}

// outcome is what must be the same however often the broker is killed.
type outcome struct {
	State queue.TaskState
	Exit  int
}

const crashArray = `
name: night
project: media
scenario: transcode
tasks: {count: 37}
work: {time: 2m, on: l4}
resources: {gpu: [l4, t4], slots: 2}
run: {command: [work, 2m]}
`

const crashLong = `
name: train
project: media
resources: {gpu: l4}
work: {time: 20m, on: l4}
checkpoint: {dir: ckpt, interval: 2m}
run: {command: [work, 20m]}
`

const crashFailing = `
name: broken
project: media
resources: {gpu: none}
spot: {policy: always}
work: {time: 1m}
run: {command: [work, 1m, fail]}
retry: {failures: 1}
`

const crashSteady = `
name: steady
project: media
resources: {gpu: none, vcpu: 2}
spot: {policy: never}
max_duration: 1h
run: {command: [work, 5m]}
`

// crashNight runs the same forty tasks with the broker killed wherever point says,
// and checks what must hold whatever happens.
func crashNight(t *testing.T, point func(what string) bool) map[queue.TaskID]outcome {
	t.Helper()
	return crashSite(t, newSite(t, cloud.Default(1)), []string{crashArray, crashLong, crashFailing, crashSteady}, point)
}

func crashSite(t *testing.T, s *site, texts []string, point func(what string) bool) map[queue.TaskID]outcome {
	t.Helper()
	s.start()
	defer s.close()
	var jobs []*queue.Job
	for _, text := range texts {
		jobs = append(jobs, s.submit(text))
	}
	ctx, cancel := context.WithCancel(context.Background())
	risen := make(chan struct{})
	s.mu.Lock()
	s.point = point
	s.mu.Unlock()
	go func() { defer close(risen); s.rise(ctx) }()
	names := map[string]string{}
	for _, j := range jobs {
		s.await(j.ID, 12*time.Hour)
		names[j.ID] = j.Name
	}
	s.quiet(2 * time.Hour)
	s.mu.Lock()
	s.point = nil
	s.mu.Unlock()
	cancel()
	<-risen
	out := map[queue.TaskID]outcome{}
	for _, j := range jobs {
		rows, err := s.st.Tasks(context.Background(), queue.TaskQuery{Job: j.ID, Page: queue.Page{Limit: 1000}})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			o := outcome{State: r.State, Exit: -1}
			if r.ExitCode != nil {
				o.Exit = *r.ExitCode
			}
			out[queue.TaskID{Job: names[j.ID], Index: r.Index}] = o
		}
	}
	s.squared()
	return out
}

// Every write to the store and every call of the cloud is a place where the
// broker dies once: the tasks end as they would have.
func TestKillEverywhere(t *testing.T) { killEverywhere(t, 40, 61, crashNight) }

// killEverywhere dies in each run at every stride-th point, beginning with
// another one: all runs together die at all of them.
func killEverywhere(t *testing.T, tasks, stride int, night func(*testing.T, func(string) bool) map[queue.TaskID]outcome) {
	t.Helper()
	var want map[queue.TaskID]outcome
	points := 0
	synctest.Test(t, func(t *testing.T) {
		want = night(t, func(string) bool { points++; return false })
	})
	if len(want) != tasks {
		t.Fatalf("%d tasks in the undisturbed run", len(want))
	}
	runs := stride
	if testing.Short() {
		runs = 3
	}
	t.Logf("%d points in the undisturbed run", points)
	for first := range runs {
		t.Run(fmt.Sprintf("from %d", first), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := -first * stride / runs
				if runs == stride {
					n = -first
				}
				deaths := 0
				got := night(t, func(string) bool {
					n++
					if n%stride == 0 && n > 0 {
						deaths++
						return true
					}
					return false
				})
				t.Logf("killed %d times", deaths)
				for id, w := range want {
					if got[id] != w {
						t.Errorf("%v ended as %+v, undisturbed as %+v", id, got[id], w)
					}
				}
			})
		})
	}
}
