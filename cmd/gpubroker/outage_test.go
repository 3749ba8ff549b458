package main_test

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"gpubroker/internal/api/client"
	"gpubroker/queue"
)

// gated is a job whose tasks run until open is called.
func (s *site) gated(name string, count, vcpu int, more string) string {
	return fmt.Sprintf(`name: %s
project: p
tasks: {count: %d}
resources: {gpu: none, vcpu: %d, memory: 1GiB}
work: {time: 1h}
outputs: {to: "%s/%[1]s-{{index}}"}
%[5]srun:
  shell: |
    while [ ! -e %[4]s/open ]; do sleep 0.2; done
    echo "task $GPUBROKER_INDEX" >"{{output}}"
`, name, count, vcpu, s.Path("done"), more)
}

func (s *site) open() {
	s.t.Helper()
	s.must(os.MkdirAll(s.Path("done"), 0o755))
	s.write("done/open", "")
}

// onceEach checks that every task of a job succeeded in its first attempt.
func (s *site) onceEach(id string) {
	s.t.Helper()
	for _, a := range s.attempts(id) {
		if a.Number != 1 || a.Outcome != queue.Succeeded {
			s.t.Errorf("task %d, attempt %d: %s %s (%s)", a.Index, a.Number, a.State, a.Outcome, a.Reason)
		}
	}
}

// during waits for a length of time that is the test's matter, and fails when a
// process ends meanwhile.
func (s *site) during(d time.Duration) {
	s.t.Helper()
	select {
	case <-time.After(d):
	case <-s.Broker.Process.Ended():
		s.t.Fatalf("the broker ended by itself, with exit code %d", s.Broker.Process.ExitCode())
	case <-s.ctx.Done():
		s.t.Fatal("the test's time is over")
	}
}

// A broker that stood still for longer than an agent may be silent has heard
// nobody, and that is its own fault: no machine is given up for it.
func TestStoppedBrokerGivesNoMachineUp(t *testing.T) {
	t.Parallel()
	s := newSite(t, 4*time.Minute)
	s.up(quick(1), "")
	id := s.submit(s.gated("stopped", 2, 4, ""))
	s.running(id, 2)
	s.must(s.Broker.Process.Signal(syscall.SIGSTOP))
	s.during(65 * time.Second)
	s.must(s.Broker.Process.Signal(syscall.SIGCONT))
	s.during(5 * time.Second) // it would be rash at once
	s.open()
	s.ended(id)
	s.onceEach(id)
	s.empty()
	s.settled()
}

// An agent that stands still is silent: its work goes to another machine, and its
// own is ended.
func TestStoppedAgentLosesItsWork(t *testing.T) {
	t.Parallel()
	s := newSite(t, 4*time.Minute)
	s.up(quick(1), "")
	id := s.submit(s.gated("lost", 1, 4, ""))
	first := s.running(id, 1)[0]
	s.must(s.agentOf(s.cloudID(first)).Signal(syscall.SIGSTOP))
	since := time.Now()
	s.await("another attempt", func() error {
		for _, a := range s.attempts(id) {
			if a.Number == 2 {
				return nil
			}
		}
		return fmt.Errorf("none yet")
	})
	if took := time.Since(since); took > 45*time.Second {
		t.Errorf("silence was noticed after %s", took)
	}
	s.open()
	s.ended(id)
	for _, a := range s.attempts(id) {
		want := queue.Lost
		if a.Number == 2 {
			want = queue.Succeeded
		}
		if a.Outcome != want || a.Number > 2 {
			t.Errorf("attempt %d ended as %s (%s)", a.Number, a.Outcome, a.Reason)
		}
	}
	s.empty()
	s.settled()
}

// A network that is away from all machines at once says nothing of the machines:
// their work goes on, and what ends meanwhile is told after it.
func TestCutNetworkLosesNoWork(t *testing.T) {
	t.Parallel()
	s := newSite(t, 5*time.Minute)
	p := newProxy(t, s.listen)
	s.up(quick(1), fmt.Sprintf("public_url: http://%s\n", p.Addr()))
	s.direct()
	id := s.submit(s.gated("cut", 5, 8, ""))
	on := s.running(id, 5)
	p.set(stalled, "")
	s.during(40 * time.Second) // longer than a single machine may be silent
	p.set(whole, "")
	back := time.Now()
	s.await("all agents", func() error {
		list, err := s.Broker.Instances(s.ctx)
		if err != nil {
			return err
		}
		heard := 0
		for _, i := range list.Instances {
			if i.Seen.After(back) {
				heard++
			}
		}
		if heard < len(on) {
			return fmt.Errorf("%d are heard again", heard)
		}
		return nil
	})
	p.set(cut, "")
	s.open()
	s.during(5 * time.Second)
	p.set(whole, "")
	s.ended(id)
	s.onceEach(id)
	s.empty()
	s.settled()
}

// direct goes around the network that agents take.
func (s *site) direct() {
	s.t.Helper()
	set := s.Broker.Settings
	set.URL = "http://" + s.listen
	c, err := client.New(set)
	s.must(err)
	s.Broker.Client = c
	s.Env = append(s.Env, "GPUBROKER_URL="+set.URL, "GPUBROKER_TOKEN="+set.Token)
}
