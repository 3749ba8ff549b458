package agent

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/agentapi"
)

// counter counts in steps, each saved whole by a rename, goes on from the newest
// save, and on SIGTERM saves and exits with 75. Each step waits for its turn: a
// line in the file turns.
const counter = `
n=0; [ -f "$GPUBROKER_CHECKPOINT_DIR/n" ] && n=$(cat "$GPUBROKER_CHECKPOINT_DIR/n")
echo "begin at $n, resume $GPUBROKER_RESUME"
save() { echo $n > "$GPUBROKER_CHECKPOINT_DIR/n.tmp"; mv "$GPUBROKER_CHECKPOINT_DIR/n.tmp" "$GPUBROKER_CHECKPOINT_DIR/n"; }
trap 'n=$((n+100)); save; exit 75' TERM
echo > up
while :; do
	if [ -f step ]; then rm step; n=$((n+1)); save; echo "step $n"; fi
	if [ -f "$GPUBROKER_SAVE_NOW" ]; then rm "$GPUBROKER_SAVE_NOW"; n=$((n+1000)); save; fi
	sleep 0.02
done`

func counterTask() agentapi.Task {
	return agentapi.Task{
		Shell: counter, ProgressLog: `step (\d+)`, ProgressOf: 10,
		Checkpoint: &agentapi.CheckpointSpec{Dir: "ckpt", Interval: agentapi.Of(time.Second)},
		StopGrace:  agentapi.Of(10 * time.Second),
	}
}

// step lets the counter take a step and waits until it has.
func step(t *testing.T, dir, id string) {
	t.Helper()
	work := filepath.Join(dir, "attempts", id, "work")
	waitFor(t, filepath.Join(work, "up"))
	if err := os.WriteFile(filepath.Join(work, "step"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(work, "step")); err != nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func (b *fakeBroker) committed(n int64) {
	b.t.Helper()
	b.until(fmt.Sprintf("save %d", n), func() bool { return len(b.saves) > 0 && b.saves[len(b.saves)-1].Number >= n })
}

// resumeFrom offers the committed saves of another attempt.
func (b *fakeBroker) resumeFrom(from string, saves ...agentapi.Save) func(*agentapi.DesiredAttempt) {
	return func(d *agentapi.DesiredAttempt) {
		for _, s := range slices.Backward(saves) {
			d.Resume = append(d.Resume, agentapi.Resume{
				Number: s.Number, Digest: s.Digest, Manifest: b.store.sign(fmt.Sprintf("%s/save/%d/manifest", from, s.Number)),
			})
			d.Committed, d.Next = max(d.Committed, s.Number), max(d.Next, s.Number+1)
		}
	}
}

func TestSavesAreCommittedAndResumed(t *testing.T) {
	b, dir := newFakeBroker(t), t.TempDir()
	startAgent(t, b, dir, nil)
	b.add("a1", counterTask())
	for n := range int64(3) {
		step(t, dir, "a1")
		b.committed(n + 1)
	}
	b.until("the progress", func() bool { p := b.observed("a1").Progress; return p != nil && *p == 0.3 })
	b.stop("a1", agentapi.Stop{Save: true})
	end := b.end("a1")
	b.committed(4)
	if end.Ended.ExitCode == nil || *end.Ended.ExitCode != 75 || end.Ended.Layer != layerAgent {
		t.Errorf("ended: %+v", end.Ended)
	}
	b.change(func() { delete(b.attempts, "a1") })

	for _, c := range []struct {
		id     string
		spoil  func()
		resume int64
		log    string
	}{
		{"a2", func() {}, 4, "begin at 103, resume 4"},
		// Short by one byte: the one before is taken, and said so.
		{"a3", func() {
			part := b.store.objects["a1/save/4/1"]
			b.store.objects["a1/save/4/1"] = part[:len(part)-1]
		}, 3, "begin at 3, resume 3"},
		{"a4", func() { delete(b.store.objects, "a1/save/3/manifest") }, 2, "begin at 2, resume 2"},
	} {
		t.Run(c.id, func(t *testing.T) {
			b.store.set(c.spoil)
			b.mu.Lock()
			saves := b.saves[:4]
			b.mu.Unlock()
			b.add(c.id, counterTask(), b.resumeFrom("a1", saves...))
			waitFor(t, filepath.Join(dir, "attempts", c.id, "work", "up"))
			b.until("the attempt to run", func() bool { return b.observed(c.id).Resumed != nil && b.observed(c.id).Phase == agentapi.Running })
			b.mu.Lock()
			o := b.observed(c.id)
			b.mu.Unlock()
			if *o.Resumed != c.resume {
				t.Errorf("resumed from %d, want %d", *o.Resumed, c.resume)
			}
			if n := int(4 - c.resume); len(o.Broken) != n {
				t.Errorf("%d are said to be broken, want %d: %v", len(o.Broken), n, o.Broken)
			}
			b.stop(c.id, agentapi.Stop{})
			b.end(c.id)
			if got := b.store.log(c.id); !strings.HasPrefix(got, c.log+"\n") {
				t.Errorf("log %q", got)
			}
			b.change(func() { delete(b.attempts, c.id) })
		})
	}
}

func TestSavesWaitForABrokerThatIsAway(t *testing.T) {
	b, dir := newFakeBroker(t), t.TempDir()
	startAgent(t, b, dir, nil)
	b.add("a1", counterTask())
	step(t, dir, "a1")
	b.committed(1)
	b.change(func() { b.down = true })
	for range 5 { // only the newest of these is sent once it can be
		step(t, dir, "a1")
	}
	b.change(func() { b.down = false })
	b.until("the newest save", func() bool { return len(b.saves) > 1 })
	b.stop("a1", agentapi.Stop{Save: true})
	b.end("a1")
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.saves); n > 4 {
		t.Errorf("%d saves were sent; those that were overtaken should not be", n)
	}
}

func TestNoticeEndsACheckpointedTaskAtOnceWithASave(t *testing.T) {
	b, dir, meta := newFakeBroker(t), t.TempDir(), &fakeMetadata{id: "c-1"}
	startAgent(t, b, dir, func(_ *Settings, p *Parts) { p.Metadata = meta })
	b.add("saves", counterTask())
	b.add("short", agentapi.Task{Shell: `echo > up; sleep 2`})
	step(t, dir, "saves")
	b.committed(1)
	waitFor(t, filepath.Join(dir, "attempts/short/work/up"))
	began := time.Now()
	meta.warn(MetadataNotice{Kind: kindPreempt, At: time.Now().Add(30 * time.Second)})
	b.until("the notice", func() bool { return b.last.Notice != nil })
	if took := time.Since(began); took > 1500*time.Millisecond {
		t.Errorf("told after %s", took)
	}
	b.mu.Lock()
	n := *b.last.Notice
	b.mu.Unlock()
	if n.Kind != "preempt" || n.In.Std() < 27*time.Second || n.In.Std() > 30*time.Second {
		t.Errorf("notice: %+v", n)
	}
	end := b.end("saves")
	if end.Ended.Reason.Code != "preempted_notice" || end.Ended.Layer != layerMachine || *end.Ended.ExitCode != 75 {
		t.Errorf("ended: %+v", end.Ended)
	}
	b.committed(2)
	// What cannot save may finish if it can.
	if end := b.end("short"); !succeeded(end.Ended) {
		t.Errorf("ended: %+v", end.Ended)
	}
}

func TestSaveThatDoesNotFitTheNoticeIsLeftOut(t *testing.T) {
	b, dir, meta := newFakeBroker(t), t.TempDir(), &fakeMetadata{id: "c-1"}
	slow := &slowStore{next: b.store, perSecond: 100 << 10}
	startAgent(t, b, dir, func(_ *Settings, p *Parts) { p.Metadata, p.Store = meta, slow })
	b.add("a1", agentapi.Task{
		Shell: `cd ckpt; save() { head -c $1 /dev/urandom > t.tmp; mv t.tmp $2; }
			save 100000 a; echo > ../up; trap 'save 9000000 b; exit 75' TERM; while :; do sleep 0.05; done`,
		Checkpoint: &agentapi.CheckpointSpec{Dir: "ckpt"}, StopGrace: agentapi.Of(5 * time.Second),
	})
	b.committed(1)
	waitFor(t, filepath.Join(dir, "attempts/a1/work/up"))
	began := time.Now()
	meta.warn(MetadataNotice{Kind: kindPreempt, At: time.Now().Add(20 * time.Second)})
	b.end("a1")
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("ended after %s: it tried what cannot fit", took)
	}
	if !strings.Contains(b.store.log("a1"), "the last save was not sent") {
		t.Errorf("log %q", b.store.log("a1"))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.saves) != 1 {
		t.Errorf("saves: %v", b.saves)
	}
}

// slowStore takes uploads at a rate.
type slowStore struct {
	next      http.RoundTripper
	perSecond int64
}

func (s *slowStore) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := pause(r.Context(), time.Duration(r.ContentLength)*time.Second/time.Duration(s.perSecond)); err != nil {
		return nil, err
	}
	return s.next.RoundTrip(r)
}

func TestRebalanceAdviceMeansSaveNow(t *testing.T) {
	b, dir, meta := newFakeBroker(t), t.TempDir(), &fakeMetadata{id: "c-1"}
	startAgent(t, b, dir, func(_ *Settings, p *Parts) { p.Metadata = meta })
	b.add("a1", counterTask())
	waitFor(t, filepath.Join(dir, "attempts/a1/work/up"))
	meta.warn(MetadataNotice{Kind: kindRebalance})
	b.committed(1)
	b.mu.Lock()
	phase := b.observed("a1").Phase
	b.mu.Unlock()
	if phase != agentapi.Running {
		t.Errorf("advice stopped it: %s", phase)
	}
}

func TestStoreAwayLosesNothing(t *testing.T) {
	b, dir := newFakeBroker(t), t.TempDir()
	startAgent(t, b, dir, nil)
	b.store.set(func() {
		b.store.fails[""] = http.StatusServiceUnavailable
		b.store.objects["in"] = []byte("input")
	})
	b.add("a1", agentapi.Task{
		Shell:  `echo working; cat {{input}} > {{output}}/a; mkdir -p out/deep; echo b > out/deep/b; : > out/empty`,
		Fetch:  []agentapi.Fetch{{Name: "in", Path: "in"}},
		Output: &agentapi.OutputSpec{Path: "out", Folder: true}, Input: "x", InputPath: "in",
	})
	b.until("staging", func() bool { return b.observed("a1").Phase == agentapi.Staging })
	b.store.set(func() { delete(b.store.fails, ""); b.store.fails["a1/"] = http.StatusServiceUnavailable })
	b.until("uploading", func() bool { return b.observed("a1").Phase == agentapi.Uploading })
	// URLs run out meanwhile: others are asked for.
	b.store.set(func() {
		b.store.refuse = map[string]bool{}
		for n := range b.store.signed {
			for _, key := range []string{"a1/out/a/1", "a1/log/1", "a1/out/deep/b/1"} {
				b.store.refuse[fmt.Sprintf("http://store/%s?sig=%d", key, n+1)] = true
			}
		}
		delete(b.store.fails, "a1/")
	})
	end := b.end("a1")
	if !succeeded(end.Ended) {
		t.Fatalf("ended: %+v", end.Ended)
	}
	var names []string
	for _, f := range end.Output.Files {
		names = append(names, fmt.Sprintf("%s %d", f.Name, f.Bytes))
	}
	if got := strings.Join(names, ", "); got != "a 5, deep/b 2, empty 0" {
		t.Errorf("files: %s", got)
	}
	if b.store.get("a1/out/a/1") != "input" || b.store.get("a1/out/deep/b/1") != "b\n" || !strings.HasPrefix(b.store.log("a1"), "working\n") {
		t.Errorf("objects: %v", b.store.objects)
	}
}

func TestPublishThatFailsIsNoSuccess(t *testing.T) {
	b := newFakeBroker(t)
	startAgent(t, b, t.TempDir(), nil)
	b.add("a1", agentapi.Task{Shell: "echo x > {{output}}", Output: &agentapi.OutputSpec{Path: "x"}})
	b.change(func() { b.attempts["a1"].PublishErr = "another object is there" })
	end := b.end("a1")
	if end.Ended.Reason.Code != "output_failed" || !strings.Contains(end.Ended.Reason.String(), "another object") {
		t.Errorf("ended: %+v", end.Ended)
	}
}

func TestCancelDuringStagingEndsAtOnce(t *testing.T) {
	b := newFakeBroker(t)
	startAgent(t, b, t.TempDir(), nil)
	b.store.set(func() { b.store.fails["in"] = http.StatusServiceUnavailable })
	b.add("a1", agentapi.Task{Shell: "true", Fetch: []agentapi.Fetch{{Name: "in", Path: "in"}}})
	b.until("staging", func() bool { return b.observed("a1").Phase == agentapi.Staging })
	b.stop("a1", agentapi.Stop{})
	if end := b.end("a1"); end.Ended.Reason.Code != "cancelled" || end.Ended.ExitCode != nil {
		t.Errorf("ended: %+v", end.Ended)
	}
}

// A broker that was killed while a manifest came in adopts the save at its start:
// the sender, which had no answer, takes that for one.
func TestASaveThatTheBrokerAdoptedIsSent(t *testing.T) {
	b, dir := newFakeBroker(t), t.TempDir()
	startAgent(t, b, dir, nil)
	b.store.set(func() { b.store.fails["a1/save/1/manifest"] = http.StatusServiceUnavailable })
	b.add("a1", counterTask())
	step(t, dir, "a1")
	b.until("the parts", func() bool { return b.store.get("a1/save/1/1") != "" })
	b.change(func() { b.attempts["a1"].Committed, b.attempts["a1"].Next = 1, 2 })
	step(t, dir, "a1")
	b.committed(2)
	b.stop("a1", agentapi.Stop{})
	b.end("a1")
}

// A save on its way holds up neither a success nor a task that nobody wants.
func TestSaveThatNobodyNeedsIsGivenUp(t *testing.T) {
	for name, end := range map[string]func(b *fakeBroker, work string) error{
		"success": func(_ *fakeBroker, work string) error { return os.WriteFile(filepath.Join(work, "go"), nil, 0o644) },
		"cancel":  func(b *fakeBroker, _ string) error { b.stop("a1", agentapi.Stop{}); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			b, dir := newFakeBroker(t), t.TempDir()
			startAgent(t, b, dir, nil)
			b.store.set(func() { b.store.fails["a1/save"] = http.StatusServiceUnavailable })
			b.add("a1", agentapi.Task{
				Shell:      `echo 1 > ckpt/n.tmp; mv ckpt/n.tmp ckpt/n; until [ -f go ]; do sleep 0.02; done`,
				Checkpoint: &agentapi.CheckpointSpec{Dir: "ckpt"},
			})
			b.until("the save to be on its way", func() bool { return b.attempts["a1"].Put["save/1/1"] != "" })
			if err := end(b, filepath.Join(dir, "attempts/a1/work")); err != nil {
				t.Fatal(err)
			}
			b.end("a1")
			if n := b.store.puts["a1/save/1/1"]; n > 0 {
				t.Errorf("the save was sent %d times", n)
			}
		})
	}
}
