package agent

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/internal/agentapi"
)

// pretend is an executor without processes, for virtual time. A command's first
// argument says what it does.
type pretend struct {
	mu      sync.Mutex
	started []Command
	alive   int
}

type pretended struct {
	p    *pretend
	sigs chan syscall.Signal
	kill chan struct{}
	once sync.Once
	c    Command
}

func (p *pretend) Start(c Command) (Process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started = append(p.started, c)
	p.alive++
	return &pretended{p: p, c: c, sigs: make(chan syscall.Signal, 10), kill: make(chan struct{})}, nil
}

func (p *pretend) Clean(context.Context, string) error { return nil }
func (p *pretend) Close()                              {}
func (p *pretend) Limits() []string                    { return nil }

func (p *pretend) running() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.alive
}

func (r *pretended) Signal(s syscall.Signal) error { r.sigs <- s; return nil }
func (r *pretended) Kill()                         { r.once.Do(func() { close(r.kill) }) }

// Wait plays "obeys" (ends 1 s after a signal), "ignores", or "chatty" (writes a
// line a second).
func (r *pretended) Wait() Exit {
	defer func() {
		r.p.mu.Lock()
		r.p.alive--
		r.p.mu.Unlock()
	}()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-r.kill:
			return Exit{Code: -1, Signal: syscall.SIGKILL}
		case s := <-r.sigs:
			if r.c.Args[0] != "ignores" {
				time.Sleep(time.Second)
				return Exit{Code: -1, Signal: s}
			}
		case <-tick.C:
			if r.c.Args[0] == "chatty" {
				r.c.Output.Write([]byte("step 1\n"))
			}
		}
	}
}

// virtual runs a test with an agent in virtual time.
func virtual(t *testing.T, alter func(*Settings, *Parts), test func(t *testing.T, b *fakeBroker, p *pretend, a *testAgent)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b, p := newFakeBroker(t), &pretend{}
		a := startAgent(t, b, t.TempDir(), func(set *Settings, parts *Parts) {
			parts.Executor = p
			if alter != nil {
				alter(set, parts)
			}
		})
		test(t, b, p, a)
		a.stop()
	})
}

func TestTasksAreStoppedBeforeTheLeaseEnds(t *testing.T) {
	virtual(t, nil, func(t *testing.T, b *fakeBroker, p *pretend, _ *testAgent) {
		b.add("obeys", agentapi.Task{Command: []string{"obeys"}, StopGrace: agentapi.Of(30 * time.Second)})
		b.add("ignores", agentapi.Task{Command: []string{"ignores"}, StopGrace: agentapi.Of(30 * time.Second)})
		time.Sleep(time.Minute)
		if p.running() != 2 {
			t.Fatalf("%d run", p.running())
		}
		b.change(func() { b.down = true })
		synctest.Wait()
		down := time.Now()
		for p.running() == 2 {
			time.Sleep(100 * time.Millisecond)
		}
		first := time.Since(down)
		for p.running() > 0 {
			time.Sleep(100 * time.Millisecond)
		}
		all := time.Since(down)
		// The last call before was at most 20 s ago.
		if first < 18*time.Minute || first > 19*time.Minute+20*time.Second {
			t.Errorf("the obedient ended after %s without the broker", first)
		}
		if all < 19*time.Minute || all > 20*time.Minute {
			t.Errorf("the last ended after %s without the broker, the lease is 20m", all)
		}
		b.change(func() { b.down = false })
		end := b.end("ignores")
		if end.Ended.Reason.Code != "lease_ended" || end.Ended.Layer != layerMachine {
			t.Errorf("ended: %+v", end.Ended)
		}
	})
}

func TestBrokerOutageUnderHalfALeaseGoesUnnoticed(t *testing.T) {
	virtual(t, nil, func(t *testing.T, b *fakeBroker, p *pretend, _ *testAgent) {
		b.add("a", agentapi.Task{Command: []string{"obeys"}})
		for range 5 {
			time.Sleep(time.Minute)
			b.change(func() { b.down = true })
			time.Sleep(10 * time.Minute)
			b.change(func() { b.down = false })
		}
		time.Sleep(time.Minute)
		running := p.running()
		b.mu.Lock()
		defer b.mu.Unlock()
		if running != 1 || len(p.started) != 1 || len(b.joins) != 1 {
			t.Errorf("%d run, %d started, %d joins", running, len(p.started), len(b.joins))
		}
	})
}

func TestSuspensionCountsAgainstTheLeaseButNotAsWork(t *testing.T) {
	clock := newTestClock()
	virtual(t, func(_ *Settings, p *Parts) { clock.start = time.Now(); p.Clock = clock }, func(t *testing.T, b *fakeBroker, p *pretend, _ *testAgent) {
		b.add("a", agentapi.Task{Command: []string{"ignores"}})
		time.Sleep(time.Minute)
		b.change(func() { b.down = true })
		clock.suspend(30 * time.Minute) // the timers stood still meanwhile
		time.Sleep(2 * time.Second)
		if p.running() != 0 {
			t.Error("it runs beyond the lease")
		}
		b.change(func() { b.down = false })
		if end := b.end("a"); end.Busy.Std() > 2*time.Minute {
			t.Errorf("busy for %s", end.Busy.Std())
		}
	})
}

func TestGrantCountsFromTheSendTime(t *testing.T) {
	dir := t.TempDir()
	clock := newTestClock()
	l, err := openLease(dir, clock, time.Hour, nil)
	if err != nil {
		t.Fatal(err)
	}
	sent := clock.Now()
	clock.suspend(90 * time.Second) // the answer was on its way for long
	if err := l.grant(sent, agentapi.Grant{For: agentapi.Of(2 * time.Minute), Action: "poweroff", CloudID: "c"}); err != nil {
		t.Fatal(err)
	}
	left, rec := l.left()
	if left > 30*time.Second || left < 29*time.Second || rec.Action != "poweroff" || rec.CloudID != "c" {
		t.Errorf("left %s, %+v", left, rec)
	}
	deadline, err := os.ReadFile(filepath.Join(dir, "deadline"))
	if err != nil {
		t.Fatal(err)
	}
	seconds, err := strconv.Atoi(strings.TrimSpace(string(deadline)))
	if end := time.Duration(rec.End); err != nil || time.Duration(seconds)*time.Second < end || time.Duration(seconds)*time.Second > end+time.Second {
		t.Errorf("deadline %q, end %s", deadline, end)
	}

	again, err := openLease(dir, clock, time.Hour, nil)
	if err != nil {
		t.Fatal(err)
	}
	if kept, _ := again.left(); (kept - left).Abs() > time.Second {
		t.Errorf("a restarted agent has %s left, the one before %s", kept, left)
	}
	if err := again.grant(clock.Now(), agentapi.Grant{}); err != nil {
		t.Fatal(err)
	}
	if kept, _ := again.left(); (kept - left).Abs() > time.Second {
		t.Errorf("a grant of nothing left %s", kept)
	}

	clock.boot = "boot-2"
	booted, err := openLease(dir, clock, time.Hour, nil)
	if err != nil {
		t.Fatal(err)
	}
	if after, _ := booted.left(); after > 2*time.Minute {
		t.Errorf("after a restart of the machine %s are left", after)
	}
}

func TestMachineIsPoweredOffOnlyUnderItsOwnName(t *testing.T) {
	for _, c := range []struct {
		name, action, granted, have, end string
		want                             []string
	}{
		{"rented", "poweroff", "c-1", "c-1", "", []string{"poweroff"}},
		{"another machine", "poweroff", "c-1", "c-2", "", nil},
		{"no metadata", "poweroff", "c-1", "", "", nil},
		{"nothing granted", "poweroff", "", "", "", nil},
		{"laptop", "stop-tasks", "c-1", "c-1", "", nil},
		{"default", "", "c-1", "c-1", "", nil},
		{"marketplace", "api", "c-1", "c-1", "delete-me", []string{"delete-me"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var mu sync.Mutex
			var ran []string
			virtual(t, func(set *Settings, p *Parts) {
				set.End = c.end
				p.Metadata = &fakeMetadata{id: c.have}
				p.Command = func(_ context.Context, command string, _ ...string) error {
					mu.Lock()
					defer mu.Unlock()
					ran = append(ran, command)
					return nil
				}
			}, func(t *testing.T, b *fakeBroker, p *pretend, _ *testAgent) {
				b.change(func() { b.lease.Action, b.lease.CloudID = c.action, c.granted })
				b.add("a", agentapi.Task{Command: []string{"obeys"}})
				time.Sleep(time.Minute)
				b.change(func() { b.down = true })
				time.Sleep(18 * time.Minute)
				mu.Lock()
				if len(ran) > 0 {
					t.Errorf("ran %q before the end", ran)
				}
				mu.Unlock()
				time.Sleep(2*time.Minute + 10*time.Second)
				if p.running() > 0 {
					t.Error("a task still runs")
				}
			})
			if strings.Join(ran, ",") != strings.Join(c.want, ",") {
				t.Errorf("ran %q, want %q", ran, c.want)
			}
		})
	}
}

func TestEachGrantRearmsTheMachinesOwnEnd(t *testing.T) {
	var mu sync.Mutex
	var left []int
	virtual(t, func(set *Settings, p *Parts) {
		set.Rearm = "rearm"
		p.Command = func(_ context.Context, command string, env ...string) error {
			mu.Lock()
			defer mu.Unlock()
			for _, kv := range env {
				if v, ok := strings.CutPrefix(kv, "GPUBROKER_SECONDS="); ok && command == "rearm" {
					n, _ := strconv.Atoi(v)
					left = append(left, n)
				}
			}
			return nil
		}
	}, func(_ *testing.T, _ *fakeBroker, _ *pretend, _ *testAgent) { time.Sleep(5 * time.Minute) })
	if len(left) < 5 {
		t.Fatalf("rearmed %d times", len(left))
	}
	for _, n := range left {
		if n < 19*60 || n > 20*60 {
			t.Errorf("%d seconds left", n)
		}
	}
}

func TestNeverTwoCallsAndEveryChangeIsToldAtOnce(t *testing.T) {
	virtual(t, func(set *Settings, _ *Parts) { set.Report = time.Second }, func(t *testing.T, b *fakeBroker, _ *pretend, a *testAgent) {
		b.add("a", agentapi.Task{Command: []string{"chatty"}, ProgressLog: `step (\d+)`})
		time.Sleep(10 * time.Second)
		b.mu.Lock()
		before := len(b.calls)
		b.mu.Unlock()
		time.Sleep(time.Hour)
		b.mu.Lock()
		quiet := len(b.calls) - before
		b.mu.Unlock()
		// The number never changes: held calls, their answers, and the log's chunks.
		if quiet > 3600/20+5*70 {
			t.Errorf("%d calls in an hour without news", quiet)
		}
		for range 200 { // faster than the calls go
			a.poke()
			time.Sleep(3 * time.Millisecond)
		}
		began := time.Now()
		b.stop("a", agentapi.Stop{})
		b.end("a")
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("told after %s", took)
		}
	})
}

func TestStaleTokenAndStaleCredentialKill(t *testing.T) {
	virtual(t, nil, func(t *testing.T, b *fakeBroker, p *pretend, a *testAgent) {
		b.add("a", agentapi.Task{Command: []string{"ignores"}})
		b.add("b", agentapi.Task{Command: []string{"ignores"}})
		b.add("c", agentapi.Task{Command: []string{"ignores"}})
		time.Sleep(time.Second)
		// Another attempt owns a's task; b's token was replaced.
		b.change(func() { delete(b.attempts, "a"); b.attempts["b"].Token = "another" })
		time.Sleep(time.Second)
		if p.running() != 2 || len(p.started) != 4 {
			t.Errorf("%d run of %d started: a and the old b must be gone, c and the new b run", p.running(), len(p.started))
		}
		b.change(func() { b.refuse, b.stale = true, true })
		time.Sleep(time.Second)
		if p.running() != 0 {
			t.Errorf("%d run with a stale credential", p.running())
		}
		if err := <-a.err; err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("the agent ended with %v", err)
		} else {
			a.err <- err
		}
	})
}

func TestLetGoMachineJoinsAgain(t *testing.T) {
	virtual(t, nil, func(t *testing.T, b *fakeBroker, p *pretend, _ *testAgent) {
		b.add("a", agentapi.Task{Command: []string{"ignores"}})
		time.Sleep(time.Second)
		b.change(func() { b.leave = true; b.attempts = map[string]*agentapi.DesiredAttempt{} })
		time.Sleep(10 * time.Millisecond)
		b.change(func() { b.leave = false })
		time.Sleep(2 * time.Second)
		if p.running() != 0 {
			t.Error("its task runs on")
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if n := len(b.joins); n < 2 || b.joins[0].Nonce != b.joins[n-1].Nonce {
			t.Errorf("%d joins with nonces %v", n, b.joins)
		}
	})
}

// An end that comes nearer in small steps reaches the disk too.
func TestLeaseOnDiskIsNeverMuchLater(t *testing.T) {
	dir := t.TempDir()
	l, err := openLease(dir, newTestClock(), 20*time.Minute, nil)
	if err != nil {
		t.Fatal(err)
	}
	sent := agentapi.Ticks(time.Minute)
	for n := range 10 {
		length := 10*time.Minute - time.Duration(n)*600*time.Millisecond
		if err := l.grant(sent, agentapi.Grant{For: agentapi.Of(length)}); err != nil {
			t.Fatal(err)
		}
		var kept leaseRecord
		if known, err := readJSON(l.path(), &kept); !known || err != nil {
			t.Fatal(known, err)
		}
		if late := time.Duration(kept.End - (sent + agentapi.Ticks(length))); late < 0 || late >= time.Second {
			t.Errorf("grant %d: the disk's end is %s later", n, late)
		}
	}
}
