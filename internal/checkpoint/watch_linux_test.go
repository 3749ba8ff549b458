package checkpoint_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/checkpoint"
)

// job acts like a program that writes into its checkpoint folder.
type job struct {
	t   *testing.T
	dir string
}

func (j job) path(name string) string { return filepath.Join(j.dir, name) }

func (j job) write(name, text string) {
	j.t.Helper()
	must(j.t, os.MkdirAll(filepath.Dir(j.path(name)), 0o755))
	must(j.t, os.WriteFile(j.path(name), []byte(text), 0o644))
}

func (j job) rename(from, to string) { j.t.Helper(); must(j.t, os.Rename(j.path(from), j.path(to))) }

func watch(t *testing.T, dir string, spec agentapi.CheckpointSpec) *checkpoint.Watcher {
	t.Helper()
	w, err := checkpoint.Watch(dir, spec, slog.New(slog.DiscardHandler))
	must(t, err)
	return w
}

// What completes a save, and what does not. Close takes in all that has happened,
// so that nothing here waits.
func TestWatch(t *testing.T) {
	marker := agentapi.CheckpointSpec{Marker: "done"}
	deep := agentapi.CheckpointSpec{Marker: "*/COMPLETE"}
	for _, c := range []struct {
		name string
		spec agentapi.CheckpointSpec
		do   func(j job)
		want bool
	}{
		{"nothing", agentapi.CheckpointSpec{}, func(job) {}, false},
		{"plain write", agentapi.CheckpointSpec{}, func(j job) { j.write("state", "x"); j.write("a/b/c", "x") }, false},
		{"rename in", agentapi.CheckpointSpec{}, func(j job) { j.write("state.tmp", "x"); j.rename("state.tmp", "state") }, true},
		{"rename in from outside", agentapi.CheckpointSpec{}, func(j job) {
			outside := filepath.Join(filepath.Dir(j.dir), "x")
			must(j.t, os.WriteFile(outside, nil, 0o644))
			must(j.t, os.Rename(outside, j.path("state")))
		}, true},
		{"rename over", agentapi.CheckpointSpec{}, func(j job) {
			j.write("old.tmp", "x")
			j.rename("old.tmp", "old")
		}, true},
		{"rename of a folder", agentapi.CheckpointSpec{}, func(j job) { j.write("tmp-9/x", "x"); j.rename("tmp-9", "step-9") }, true},
		{"rename below", agentapi.CheckpointSpec{}, func(j job) { j.write("old.d/x.tmp", "x"); j.rename("old.d/x.tmp", "old.d/x") }, true},
		{"rename to a temporary name", agentapi.CheckpointSpec{}, func(j job) { j.write("state", "x"); j.rename("state", "state.tmp") }, false},
		{"rename out", agentapi.CheckpointSpec{}, func(j job) {
			must(j.t, os.Rename(j.path("old"), filepath.Join(filepath.Dir(j.dir), "y")))
		}, false},
		{"rename with quiesce", agentapi.CheckpointSpec{Quiesce: agentapi.Of(time.Hour)}, func(j job) { j.write("x.tmp", "x"); j.rename("x.tmp", "x") }, false},
		{"marker written", marker, func(j job) { j.write("done", "") }, true},
		{"marker renamed in", marker, func(j job) { j.write("x", ""); j.rename("x", "done") }, true},
		{"marker linked", marker, func(j job) { must(j.t, os.Symlink("old", j.path("done"))) }, true},
		{"marker hard-linked", marker, func(j job) { must(j.t, os.Link(j.path("old"), j.path("done"))) }, true},
		{"no marker", marker, func(j job) { j.write("x.tmp", ""); j.rename("x.tmp", "x"); j.write("done2", "") }, false},
		{"marker below", marker, func(j job) { j.write("old.d/done", "") }, true},
		{"marker below, not in its place", agentapi.CheckpointSpec{Marker: "old.d/done"}, func(j job) { j.write("done", "") }, false},
		{"marker in its place", agentapi.CheckpointSpec{Marker: "old.d/done"}, func(j job) { j.write("old.d/done", "") }, true},
		{"marker in a new folder", deep, func(j job) { j.write("step-9/COMPLETE", "") }, true},
		{"marker in a renamed folder", deep, func(j job) { j.write("tmp-9/COMPLETE", ""); j.rename("tmp-9", "step-9") }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := job{t, filepath.Join(t.TempDir(), "ckpt")}
			j.write("old", "from before")
			j.write("old.d/x", "from before")
			w := watch(t, j.dir, c.spec)
			c.do(j)
			if got := w.Close(); got != c.want {
				t.Errorf("complete: %v, want %v", got, c.want)
			}
		})
	}
}

// A completed save is told of while the job runs, also after it has removed and
// made its folder anew.
func TestWatchTells(t *testing.T) {
	j := job{t, filepath.Join(t.TempDir(), "ckpt")}
	must(t, os.Mkdir(j.dir, 0o755))
	w := watch(t, j.dir, agentapi.CheckpointSpec{})
	defer w.Close()
	tell := func(do func()) {
		t.Helper()
		do()
		select {
		case <-w.C:
		case <-time.After(30 * time.Second):
			t.Fatal("nothing was told")
		}
	}
	tell(func() { j.write("x.tmp", "1"); j.rename("x.tmp", "x") })
	must(t, os.RemoveAll(j.dir))
	must(t, os.Mkdir(j.dir, 0o755))
	// It takes a moment until the new folder is watched.
	stop := make(chan struct{})
	defer close(stop)
	tell(func() {
		go func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Millisecond):
					_ = os.WriteFile(j.path("y.tmp"), nil, 0o644)
					_ = os.Rename(j.path("y.tmp"), j.path("y"))
				}
			}
		}()
	})
}

func TestWatchQuiesce(t *testing.T) {
	j := job{t, filepath.Join(t.TempDir(), "ckpt")}
	j.write("old", "from before")
	j.write("run/md.log", "step 0\n")
	// The log never stands still, and is no part of what is waited for.
	log, err := os.OpenFile(j.path("run/md.log"), os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	defer log.Close()
	stop := make(chan struct{})
	var growing sync.WaitGroup
	growing.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				if _, err := log.WriteString("step\n"); err != nil {
					t.Error(err)
				}
			}
		}
	})
	defer growing.Wait()
	defer close(stop)
	w := watch(t, j.dir, agentapi.CheckpointSpec{Quiesce: agentapi.Of(200 * time.Millisecond), Append: []string{"*.log"}})
	defer w.Close()
	select {
	case <-w.C:
		t.Fatal("what was there before is no save")
	case <-time.After(600 * time.Millisecond):
	}
	begin := time.Now()
	j.write("state", "plain")
	select {
	case <-w.C:
	case <-time.After(30 * time.Second):
		t.Fatal("nothing was told")
	}
	if took := time.Since(begin); took < 200*time.Millisecond {
		t.Errorf("told after %s", took)
	}
	select {
	case <-w.C:
		t.Fatal("told twice")
	case <-time.After(600 * time.Millisecond):
	}
}
