package main_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/api/client"
	"gpubroker/internal/rig"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/queue"
)

const small = "project: p\nresources: {gpu: none, vcpu: 2, memory: 1GiB}\nwork: {time: 1h}\n"

// A line of 10 MB is carried whole, and what follows it too.
func TestTaskWithAnEndlessLine(t *testing.T) {
	t.Parallel()
	s := newSite(t, 3*time.Minute)
	s.up(quick(1), "")
	id := s.submit("name: line\n" + small + `progress: {log: "part (\\d+)"}
run: {shell: "head -c 10485760 /dev/zero | tr '\\0' x; echo; echo part 7 after it"}
`)
	if j := s.ended(id); j.Counts.Succeeded != 1 {
		t.Errorf("the task did not succeed: %+v", j.Counts)
	}
	out, stderr, code, err := s.Run(s.ctx, "logs", id)
	s.must(err)
	if code != 0 || strings.Count(out, "x") != 10<<20 || !strings.HasSuffix(out, "x\npart 7 after it\n") {
		t.Errorf("exit code %d, a log of %d bytes with %d x, ending %q; %s", code, len(out), strings.Count(out, "x"), out[max(0, len(out)-40):], stderr)
	}
	s.empty()
}

// A task that ignores SIGTERM is killed: before its machine is taken away, and
// when its job is cancelled.
func TestTaskThatIgnoresItsSignal(t *testing.T) {
	t.Parallel()
	s := newSite(t, 5*time.Minute)
	s.up(quick(1), "")
	id := s.submit("name: stubborn\n" + small + `checkpoint: {dir: saves, interval: 1m}
run: {shell: "trap '' TERM INT HUP; while :; do sleep 0.2; done"}
`)
	first := s.running(id, 1)[0]
	_, err := s.Cloud.Do(s.ctx, simapi.Action{Preempt: &simapi.Preempt{Pick: simapi.Pick{Machine: s.cloudID(first)}}})
	s.must(err)
	var second *queue.Attempt
	s.await("the second attempt", func() error {
		for _, a := range s.running(id, 1) {
			if a.Number == 2 {
				second = a
				return nil
			}
		}
		return fmt.Errorf("none")
	})
	if a := s.attempts(id)[0]; a.Outcome != queue.Preempted {
		t.Errorf("the first attempt ended as %s (%s)", a.Outcome, a.Reason)
	}
	_, err = s.Broker.Act(s.ctx, id, client.Cancel)
	s.must(err)
	if j := s.ended(id); j.State != queue.JobCancelled {
		t.Errorf("the job ended as %s", j.State)
	}
	for _, a := range s.attempts(id) {
		if a.ID == second.ID && a.Outcome != queue.CancelledOut {
			t.Errorf("the second attempt ended as %s (%s)", a.Outcome, a.Reason)
		}
	}
	s.empty()
	s.settled()
}

// A process that forks away from its task ends with it, though the machine stays.
func TestTaskThatForksAway(t *testing.T) {
	t.Parallel()
	s := newSite(t, 3*time.Minute)
	s.up(quick(1), "leases: {length: 5m, idle: 20s}\n")
	const mark = "86391.4242"
	id := s.submit("name: runaway\n" + small + fmt.Sprintf(`run:
  shell: |
    setsid sh -c 'trap "" TERM HUP; touch away; exec sleep %s' </dev/null >/dev/null 2>&1 &
    while [ ! -e away ]; do sleep 0.1; done
`, mark))
	if j := s.ended(id); j.Counts.Succeeded != 1 {
		t.Errorf("the task did not succeed: %+v", j.Counts)
	}
	if left := rig.Left(mark); len(left) > 0 {
		t.Errorf("it left %v", left)
	}
	machines, err := s.Cloud.Machines(s.ctx)
	s.must(err)
	if len(live(machines)) != 1 {
		t.Errorf("the machine is gone, so that its end proves nothing")
	}
	s.empty()
}
