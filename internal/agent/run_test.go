package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/internal/agentapi"
)

func TestRunsACommandToItsEnd(t *testing.T) {
	b := newFakeBroker(t)
	dir := t.TempDir()
	startAgent(t, b, dir, nil)
	b.add("a1", agentapi.Task{
		Shell:   `echo "hello $GREETING $TOKEN $GPUBROKER_INDEX"; cat {{input}}; tr a-z A-Z < "$GPUBROKER_INPUT" > {{output}}; pwd`,
		Env:     map[string]string{"GREETING": "world"},
		Secrets: map[string]string{"TOKEN": "s3cret-value"},
		Index:   7,
		Input:   "s3://in/text.txt", InputPath: "in/text.txt",
		Fetch:  []agentapi.Fetch{{Name: "input", Path: "in/text.txt", Digest: "sha256:" + sha256Hex("some text\n")}},
		Output: &agentapi.OutputSpec{Path: "out/done.txt"},
	})
	b.store.set(func() { b.store.objects["input"] = []byte("some text\n") })
	end := b.end("a1")
	if end.Ended == nil || end.Ended.ExitCode == nil || *end.Ended.ExitCode != 0 || end.Ended.Layer != layerTask {
		t.Fatalf("ended: %+v", end.Ended)
	}
	if got, want := b.store.log("a1"), "hello world s3cret-value 7\nsome text\n"; !strings.HasPrefix(got, want) {
		t.Errorf("log %q, want %q", got, want)
	}
	if got := b.store.get("a1/out//1"); got != "SOME TEXT\n" {
		t.Errorf("output %q", got)
	}
	if end.Output == nil || len(end.Output.Files) != 1 || end.Output.Digest != outputDigest(end.Output.Files) || end.Output.Files[0].Digest != "sha256:"+sha256Hex("SOME TEXT\n") {
		t.Errorf("output: %+v", end.Output)
	}
	b.until("the attempt to be forgotten", func() bool { return len(b.last.Attempts) == 0 })
	left, err := os.ReadDir(filepath.Join(dir, "attempts"))
	if err != nil || len(left) > 0 {
		t.Errorf("left on disk: %v, %v", left, err)
	}
}

func TestHowCommandsEnd(t *testing.T) {
	b := newFakeBroker(t)
	startAgent(t, b, t.TempDir(), nil)
	for _, c := range []struct {
		id   string
		task agentapi.Task
		want agentapi.Ended
	}{
		{"code", agentapi.Task{Shell: "exit 3"}, agentapi.Ended{ExitCode: new(3), Layer: "task"}},
		{"signal", agentapi.Task{Shell: "kill -USR1 $$; sleep 60"}, agentapi.Ended{Signal: "SIGUSR1", Layer: "task"}},
		{"missing", agentapi.Task{Command: []string{"no-such-program"}}, agentapi.Ended{ExitCode: new(127), Layer: "task"}},
		{"nothing", agentapi.Task{}, agentapi.Ended{Layer: "task"}},
		{"pattern", agentapi.Task{Shell: "true", ProgressLog: "("}, agentapi.Ended{Layer: "task"}},
		{"many files", agentapi.Task{Shell: `cd "{{output}}" && seq -f "$(printf %0200d 0)%g" 12500 | xargs touch`, Output: &agentapi.OutputSpec{Path: "out", Folder: true}}, agentapi.Ended{ExitCode: new(0), Layer: "task"}},
		{"outside", agentapi.Task{Shell: "true", Output: &agentapi.OutputSpec{Path: "../../x"}}, agentapi.Ended{Layer: "task"}},
		{"no output", agentapi.Task{Shell: "true", Output: &agentapi.OutputSpec{Path: "x"}}, agentapi.Ended{ExitCode: new(0), Layer: "task"}},
		{"no input", agentapi.Task{Shell: "true", Fetch: []agentapi.Fetch{{Name: "nowhere", Path: "x"}}}, agentapi.Ended{Layer: "task"}},
		{"long", agentapi.Task{Shell: "sleep 60", MaxDuration: 700}, agentapi.Ended{Signal: "SIGTERM", Layer: "task"}},
		{"memory", agentapi.Task{Shell: "a=$(head -c 200000000 /dev/zero | tr '\\0' x); sleep 60", Memory: 100 << 20}, agentapi.Ended{Signal: "SIGKILL", Layer: "task"}},
	} {
		t.Run(c.id, func(t *testing.T) {
			b.add(c.id, c.task)
			got := *b.end(c.id).Ended
			t.Log(got.Reason)
			if got.Reason.IsZero() {
				t.Error("no reason")
			}
			if c.id == "memory" && got.Reason.Code != "out_of_memory" || c.id == "long" && got.Reason.Code != "max_duration" {
				t.Errorf("reason %s", got.Reason)
			}
			c.want.Reason = got.Reason
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTaskThatIgnoresTheStopSignalIsKilled(t *testing.T) {
	b, dir := newFakeBroker(t), t.TempDir()
	startAgent(t, b, dir, nil)
	b.add("a1", agentapi.Task{Shell: `trap '' TERM; echo > up; while :; do sleep 0.1; done`})
	waitFor(t, filepath.Join(dir, "attempts/a1/work/up"))
	began := time.Now()
	b.stop("a1", agentapi.Stop{Grace: agentapi.Of(500 * time.Millisecond)})
	end := b.end("a1")
	if end.Ended.Signal != "SIGKILL" || end.Ended.Reason.Code != "cancelled" {
		t.Errorf("ended: %+v", end.Ended)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %s", took)
	}
}

func TestStopSignalLetsTheCommandFinishInOrder(t *testing.T) {
	b, dir := newFakeBroker(t), t.TempDir()
	startAgent(t, b, dir, nil)
	b.add("a1", agentapi.Task{Shell: `trap 'echo bye; exit 9' INT; echo > up; while :; do sleep 0.1; done`, StopSignal: "SIGINT", StopGrace: agentapi.Of(20 * time.Second)})
	waitFor(t, filepath.Join(dir, "attempts/a1/work/up"))
	b.stop("a1", agentapi.Stop{})
	end := b.end("a1")
	if end.Ended.ExitCode == nil || *end.Ended.ExitCode != 9 || end.Ended.Layer != layerAgent {
		t.Errorf("ended: %+v", end.Ended)
	}
	if got := b.store.log("a1"); !strings.HasPrefix(got, "bye\n") {
		t.Errorf("log %q", got)
	}
}
