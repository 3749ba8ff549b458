package main_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/rig"
	"gpubroker/queue"
)

// join starts the agent on a machine that somebody owns.
func (s *site) join(host, token string) *rig.Process {
	s.t.Helper()
	cmd := exec.Command(filepath.Join(filepath.Dir(s.Program), "gpubroker-agent"), "join", "--url", s.Broker.URL(), "--name", host, "--dir", s.Path(host))
	cmd.Env = append(s.Env, "GPUBROKER_TOKEN="+token, "GPUBROKER_POWEROFF=touch "+s.Path("powered-off"), "GPUBROKER_END=touch "+s.Path("powered-off"))
	p, err := rig.Start(cmd, s.Path(host+".log"))
	s.must(err)
	s.t.Cleanup(func() { p.Stop(5 * time.Second) })
	return p
}

// token makes a token with the command line.
func (s *site) token(role string) string {
	s.t.Helper()
	out, stderr, code, err := s.Run(s.ctx, "token", "create", "test", "--role", role)
	s.must(err)
	if code != 0 {
		s.t.Fatalf("token create: exit code %d: %s", code, stderr)
	}
	return strings.TrimSpace(out)
}

// Two machines that somebody owns run jobs, one after another, and are never
// turned off.
func TestOwnedMachines(t *testing.T) {
	t.Parallel()
	s := newSite(t, 4*time.Minute)
	s.write("broker.yaml", s.plain(fmt.Sprintf(`providers:
  - name: lab
    type: hosts
    allow_guest_end: true
    settings:
      state: %s
      hosts:
        - {name: rack-1, vcpu: 8, memory: 16GiB, disk: 50GiB, arch: amd64, price: 0.10 USD}
        - {name: rack-2, vcpu: 8, memory: 16GiB, disk: 50GiB, arch: amd64, price: 0.10 USD}
`, s.Path("lab.json"))))
	s.start()

	// Who has no token of the role host is told so, and gives up.
	intruder := s.join("rack-2", s.token("submit"))
	select {
	case <-intruder.Ended():
	case <-s.ctx.Done():
		t.Fatal("an agent without the right token goes on")
	}
	if intruder.ExitCode() != 3 || !strings.Contains(intruder.Log(), "--role host") {
		t.Errorf("without the right token: exit code %d, %s", intruder.ExitCode(), intruder.Log())
	}
	host := s.token("host")
	stranger := s.join("rack-9", host)
	select {
	case <-stranger.Ended():
	case <-s.ctx.Done():
		t.Fatal("an agent of an unknown host goes on")
	}
	if stranger.ExitCode() != 3 || !strings.Contains(stranger.Log(), "rack-9") {
		t.Errorf("an unknown host: exit code %d, %s", stranger.ExitCode(), stranger.Log())
	}

	agents := []*rig.Process{s.join("rack-1", host), s.join("rack-2", host)}
	// Wide enough for one host each, so that both work.
	both := s.submit(s.gated("both", 2, 8, ""))
	on := s.running(both, 2)
	if on[0].Instance == on[1].Instance {
		t.Errorf("both tasks run on one host")
	}
	again := s.submit(s.gated("again", 2, 8, ""))
	s.open()
	s.ended(both)
	s.ended(again)
	s.onceEach(both)
	s.onceEach(again)
	reused := false
	for _, a := range s.attempts(again) {
		reused = reused || a.Instance == on[0].Instance || a.Instance == on[1].Instance
	}
	if !reused {
		t.Errorf("the second job ran on %s, the first on %s and %s", s.attempts(again)[0].Instance, on[0].Instance, on[1].Instance)
	}
	// Let go, the hosts wait for work again, and get it.
	s.await("idle hosts", func() error {
		list, err := s.Broker.Instances(s.ctx)
		if err == nil && len(list.Instances) > 0 {
			err = fmt.Errorf("%d are in use", len(list.Instances))
		}
		return err
	})
	later := s.submit(s.gated("later", 1, 8, ""))
	s.ended(later)
	s.onceEach(later)
	for _, a := range s.attempts(later) {
		if a.Outcome != queue.Succeeded || a.Instance == on[0].Instance || a.Instance == on[1].Instance {
			t.Errorf("the last job's attempt: %+v", a)
		}
	}
	for _, p := range agents {
		if !p.Running() {
			t.Errorf("an agent has ended with exit code %d: %s", p.ExitCode(), p.Log())
		}
	}
	s.Broker.Process.Stop(10 * time.Second)
	if found, err := filepath.Glob(s.Path("powered-off")); err != nil || len(found) > 0 {
		t.Errorf("a machine was turned off: %v", err)
	}
}
