package agent

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/agentapi"
)

func TestRestartedAgentKeepsItsCredential(t *testing.T) {
	b, dir := newFakeBroker(t), t.TempDir()
	first := startAgent(t, b, dir, nil)
	b.until("a call", func() bool { return len(b.calls) > 0 })
	first.stop()
	info, err := os.Stat(filepath.Join(dir, "identity.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("identity: %v, %v", info, err)
	}
	startAgent(t, b, dir, func(_ *Settings, p *Parts) { p.Clock = first.Clock })
	b.mu.Lock()
	n := len(b.calls)
	b.mu.Unlock()
	b.until("another call", func() bool { return len(b.calls) > n })
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.joins) != 1 {
		t.Errorf("%d joins", len(b.joins))
	}
}

func TestLostJoinAnswerIsAskedForWithTheSameNonce(t *testing.T) {
	b, dir := newFakeBroker(t), t.TempDir()
	b.down = true
	first := startAgent(t, b, dir, nil)
	b.until("a join", func() bool { return len(b.joins) > 0 })
	first.stop()
	b.change(func() { b.down = false })
	startAgent(t, b, dir, nil)
	b.until("a call", func() bool { return len(b.calls) > 0 })
	if b.joins[0].Nonce == "" || b.joins[0].Nonce != b.joins[len(b.joins)-1].Nonce {
		t.Errorf("nonces: %+v", b.joins)
	}
}

func TestRefusedMachineStopsWithAClearMessage(t *testing.T) {
	b := newFakeBroker(t)
	b.nonce = "of-another"
	a := startAgent(t, b, t.TempDir(), nil)
	err := <-a.err
	a.err <- err
	if err == nil || !strings.Contains(err.Error(), "another machine has joined") {
		t.Errorf("ended with %v", err)
	}
}

func TestSecondAgentOnOneFolderIsRefused(t *testing.T) {
	b, dir := newFakeBroker(t), t.TempDir()
	startAgent(t, b, dir, nil)
	b.until("a call", func() bool { return len(b.calls) > 0 })
	second := startAgent(t, b, dir, nil)
	err := <-second.err
	second.err <- err
	if err == nil || !strings.Contains(err.Error(), "another agent") {
		t.Errorf("ended with %v", err)
	}
}

// TestKilledAgent runs the agent as a process of its own and kills it.
func TestKilledAgent(t *testing.T) {
	if dir := os.Getenv("AGENT_TEST_DIR"); dir != "" {
		log := testLog(t)
		e, err := NewProcesses(dir, nil, log)
		if err != nil {
			t.Fatal(err)
		}
		set := Settings{URL: os.Getenv("AGENT_TEST_URL"), Instance: "i-1", Token: "join", Dir: dir}
		if err := set.Check(); err != nil {
			t.Fatal(err)
		}
		clock, err := KernelClock()
		if err != nil {
			t.Fatal(err)
		}
		t.Log(New(set, Parts{
			Broker: HTTPBroker(set.URL, http.DefaultTransport), Store: http.DefaultTransport,
			Executor: e, Metadata: NoMetadata{}, Clock: clock, Log: log,
		}).Run(context.Background()))
		return
	}
	b, dir := newFakeBroker(t), t.TempDir()
	server := httptest.NewServer(b.handler())
	defer server.Close()
	b.store.base = server.URL + "/store/"
	run := func() *exec.Cmd {
		c := exec.Command(os.Args[0], "-test.run=^TestKilledAgent$", "-test.v")
		c.Env = append(os.Environ(), "AGENT_TEST_DIR="+dir, "AGENT_TEST_URL="+server.URL)
		if testing.Verbose() {
			c.Stderr = os.Stderr
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	mark := unusual(t)
	b.store.fails["done/out"] = http.StatusServiceUnavailable
	b.add("done", agentapi.Task{Shell: `echo result > {{output}}; echo finished`, Output: &agentapi.OutputSpec{Path: "result"}})
	b.add("runs", agentapi.Task{Shell: `setsid sleep ` + mark + ` & echo secret is $S; echo > up; sleep ` + mark, Secrets: map[string]string{"S": "hush-hush"}})
	agent := run()
	b.until("both", func() bool {
		return b.observed("done").Phase == agentapi.Uploading && b.observed("runs").Phase == agentapi.Running
	})
	waitFor(t, filepath.Join(dir, "attempts/runs/work/up"))
	for path, text := range files(t, filepath.Join(dir, "attempts/runs/record.json"), filepath.Join(dir, "identity.json"), filepath.Join(dir, "lease.json")) {
		if strings.Contains(text, "hush-hush") || strings.Contains(text, "sig=") {
			t.Errorf("%s holds a secret or a signed URL: %s", path, text)
		}
	}
	agent.Process.Kill()
	agent.Wait()
	for end := time.Now().Add(5 * time.Second); alive(mark) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("its task outlives a killed agent")
		}
	}
	b.store.set(func() { delete(b.store.fails, "done/out") })
	agent = run()
	defer func() { agent.Process.Kill(); agent.Wait() }()
	if end := b.end("done"); !succeeded(end.Ended) || b.store.get("done/out//1") != "result\n" {
		t.Errorf("ended: %+v, output %q", end.Ended, b.store.get("done/out//1"))
	}
	if got := b.store.log("done"); got != "finished\n" {
		t.Errorf("log %q", got)
	}
	end := b.end("runs")
	if end.Ended.Layer != layerAgent || end.Ended.Reason.Code != "agent_restarted" {
		t.Errorf("ended: %+v", end.Ended)
	}
	if got := b.store.log("runs"); !strings.HasPrefix(got, "secret is hush-hush\n") {
		t.Errorf("log %q", got)
	}
	if len(b.joins) != 1 {
		t.Errorf("%d joins", len(b.joins))
	}
}

func files(t *testing.T, paths ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[path] = string(data)
	}
	return all
}

func TestTenMegabyteLineNeitherBreaksNorFillsMemory(t *testing.T) {
	b := newFakeBroker(t)
	startAgent(t, b, t.TempDir(), nil)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	b.add("a1", agentapi.Task{Shell: `echo first; head -c 10000000 /dev/zero | tr '\0' y; echo; echo frame= 41; printf 'frame= 42\r'`, ProgressLog: `frame=\s*(\d+)`, ProgressOf: 84})
	end := b.end("a1")
	runtime.GC()
	runtime.ReadMemStats(&after)
	log := b.store.log("a1")
	if !strings.HasPrefix(log, "first\nyyy") || !strings.HasSuffix(log, "y\nframe= 41\nframe= 42\r") || len(log) != 6+10000000+1+10+10 {
		t.Errorf("log of %d bytes", len(log))
	}
	if end.Progress == nil || *end.Progress != 0.5 {
		t.Errorf("progress %v", end.Progress)
	}
	// The store of the test keeps all of it once.
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc) - int64(len(log)); grown > 8<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
}

func TestLogOverItsLimitKeepsBothEnds(t *testing.T) {
	l, err := openLog(filepath.Join(t.TempDir(), "log"), "")
	if err != nil {
		t.Fatal(err)
	}
	l.size = logLimit - 10
	fmt.Fprint(l, "0123456789over the limit")
	for range 10 {
		l.Write(make([]byte, logEnd/4))
	}
	fmt.Fprint(l, "the very end\n")
	l.finish()
	data := make([]byte, l.size-logLimit+10)
	if _, err := l.file.ReadAt(data, logLimit-10); err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(strings.NewReader(string(data)))
	s.Scan()
	if s.Text() != "0123456789" {
		t.Errorf("first %q", s.Text())
	}
	s.Scan()
	if !strings.Contains(s.Text(), "bytes of log are left out here") {
		t.Errorf("then %q", s.Text())
	}
	if !strings.HasSuffix(string(data), "the very end\n") || len(data) > logEnd+200 {
		t.Errorf("%d bytes kept beyond the limit", len(data))
	}
}

func TestLiveTailOnlyWhileWatched(t *testing.T) {
	b, dir := newFakeBroker(t), t.TempDir()
	startAgent(t, b, dir, nil)
	b.add("a1", agentapi.Task{Shell: `echo one; echo two; echo > up; while [ ! -f go ]; do sleep 0.05; done; echo three; sleep 60`})
	waitFor(t, filepath.Join(dir, "attempts/a1/work/up"))
	b.mu.Lock()
	for _, c := range b.calls {
		for _, a := range c.Attempts {
			if a.Tail != nil {
				t.Error("live log that nobody watches")
			}
		}
	}
	b.mu.Unlock()
	tail := func(off int64, want string) {
		b.change(func() { b.attempts["a1"].Watch = &off })
		b.until("live log", func() bool {
			tail := b.observed("a1").Tail
			return tail != nil && tail.Offset == off && string(tail.Data) == want
		})
	}
	tail(0, "one\ntwo\n")
	tail(4, "two\n")
	if err := os.WriteFile(filepath.Join(dir, "attempts/a1/work/go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	tail(8, "three\n")
}

func TestStallIsTold(t *testing.T) {
	b := newFakeBroker(t)
	startAgent(t, b, t.TempDir(), nil)
	b.add("a1", agentapi.Task{Shell: `echo once; sleep 60`, Stall: agentapi.Of(700 * time.Millisecond)})
	b.until("the stall", func() bool { return b.observed("a1").Idle.Std() >= 700*time.Millisecond })
}
