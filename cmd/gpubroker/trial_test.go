package main_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"gpubroker/internal/api/client"
	"gpubroker/internal/cli"
	"gpubroker/internal/simcloud"
	"gpubroker/queue"
	"gpubroker/scheduler"
)

// models is a world like quick with machines of these types.
func models(types ...string) simcloud.Config {
	w, all := quick(1), simcloud.Default(1)
	for _, o := range all.Offers {
		if slices.Contains(types, o.Type) {
			o.Walk = nil
			w.Offers = append(w.Offers, o)
		}
	}
	w.Quotas = nil
	return w
}

// paced is a shell command that takes three times as long on a T4 as on an L4.
const paced = `case $GPUBROKER_GPU in l4) n=1;; *) n=3;; esac`

// A trial runs the same tasks on each GPU, keeps their results apart, and what it
// measures is what the next plan of the job rests on.
func TestTrial(t *testing.T) {
	t.Parallel()
	s := newSite(t, 5*time.Minute)
	s.up(models("l4x1", "t4x1"), "")
	job := s.write("clips.yaml", `name: clips
project: p
scenario: transcode
tasks: {count: 50}
work: {time: 10m, on: l4}
deadline: "2099-01-01T00:00:00Z"
resources: {gpu: [l4, t4], slots: 1}
max_duration: 10m
run: {shell: '`+paced+`; sleep $n; echo {{index}} > {{output}}'}
outputs: {to: "out/{{index}}.txt"}
`)
	out, stderr, code, err := s.Run(s.ctx, "trial", job, "--on", "l4,t4,l40s,h100", "--sample", "4%", "--max", "9 USD", "-o", "json")
	s.must(err)
	var trial cli.Trial
	if err := json.Unmarshal([]byte(out), &trial); err != nil {
		t.Fatalf("%v in %s\n%s", err, out, stderr)
	}
	t.Logf("%s\n%s", stderr, out)
	if code != 1 || trial.Tasks != 50 || trial.Sample != 2 || len(trial.GPUs) != 4 {
		t.Fatalf("exit code %d", code)
	}
	l4, t4, l40s := trial.GPUs[0], trial.GPUs[1], trial.GPUs[2]
	if l40s.Ran || l40s.Job != "" || !strings.Contains(l40s.Reason, "wanted l40s") {
		t.Errorf("the L40S, which nobody offers: %+v", l40s)
	}
	if h100 := trial.GPUs[3]; h100.Ran || h100.Job != "" || !strings.Contains(h100.Reason, "no GPU named here fits transcode") {
		t.Errorf("the H100, which has no encoder: %+v", h100)
	}
	for _, g := range []cli.TrialGPU{l4, t4} {
		if !g.Ran || g.Done != 2 || g.Machine == nil || g.Machine.Shape.GPU != g.GPU || g.Boot <= 0 || g.TaskCost <= 0 || g.Spent <= 0 ||
			g.Full == nil || g.Full.Rate != scheduler.Measured || g.EndToEnd < g.TaskSeconds {
			t.Errorf("%s: %+v", g.GPU, g)
		}
	}
	if l4.TaskSeconds < 1 || t4.TaskSeconds < 3 || t4.TaskSeconds < 1.5*l4.TaskSeconds {
		t.Errorf("a task takes %.1f s on the L4, %.1f s on the T4", l4.TaskSeconds, t4.TaskSeconds)
	}
	for _, name := range []string{"l4", "t4"} {
		for i := range 2 {
			found, _ := filepath.Glob(s.Path("out", "trial-*", name, fmt.Sprint(i)+".txt"))
			if len(found) != 1 {
				t.Errorf("results of task %d on %s: %v", i, name, found)
			}
		}
	}
	if real, _ := filepath.Glob(s.Path("out", "*.txt")); len(real) > 0 {
		t.Errorf("the trial wrote where the job's own results go: %v", real)
	}
	text, stderr, code, err := s.Run(s.ctx, "plan", job)
	s.must(err)
	if code != 0 || !strings.Contains(text, " measured") || strings.Contains(text, "modelled") || strings.Contains(text, "given") {
		t.Errorf("the plan after it, exit code %d:\n%s%s", code, text, stderr)
	}
	s.empty()
	s.settled()
}

// A job of one task is stopped after a while and judged by its progress; one that
// reports none says so.
func TestTrialOfOneTask(t *testing.T) {
	t.Parallel()
	s := newSite(t, 5*time.Minute)
	s.up(models("l4x1", "t4x1"), "")
	job := s.write("train.yaml", `name: train
project: p
resources: {gpu: [l4, t4]}
progress: {log: "step (\\d+)", total: 1000}
run: {shell: '`+paced+`; i=0; while [ $i -lt 1000 ]; do i=$((i+1)); echo step $i; sleep 0.$n; done'}
`)
	out, stderr, code, err := s.Run(s.ctx, "trial", job, "--on", "l4,t4", "--for", "8s")
	s.must(err)
	t.Logf("%s\n%s", stderr, out)
	if code != 0 || !strings.Contains(out, "l4 would be cheapest for 1 task") && !strings.Contains(out, "t4 would be cheapest for 1 task") {
		t.Errorf("exit code %d", code)
	}
	for line := range strings.Lines(out) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 100 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	mute := s.write("mute.yaml", "name: mute\nproject: p\nresources: {gpu: l4}\nrun: {command: [sleep, \"60\"]}\n")
	out, stderr, code, err = s.Run(s.ctx, "trial", mute, "--on", "l4", "--for", "2s")
	s.must(err)
	if code != 1 || !strings.Contains(out, "reported no progress") {
		t.Errorf("exit code %d: %s%s", code, out, stderr)
	}
	s.empty()
}

// Ctrl-C ends the trial and all that it began.
func TestTrialThatIsInterrupted(t *testing.T) {
	t.Parallel()
	s := newSite(t, 3*time.Minute)
	s.up(models("l4x1", "t4x1"), "")
	job := s.write("long.yaml", "name: long\nproject: p\nresources: {gpu: [l4, t4]}\nrun: {command: [sleep, \"3600\"]}\n")
	s.Env = append(s.Env, "GPUBROKER_DATA="+s.Broker.Data)
	p, err := s.Start("trial.log", "trial", job, "--on", "l4,t4", "--for", "1h")
	s.must(err)
	var ids []string
	s.await("both parts", func() error {
		list, err := s.Broker.Jobs(s.ctx, client.JobQuery{Open: true})
		if err != nil {
			return err
		}
		ids = ids[:0]
		for _, j := range list.Jobs {
			if j.Counts.Running == 1 && strings.HasPrefix(j.Name, "long.trial-") {
				ids = append(ids, j.ID)
			}
		}
		if len(ids) < 2 {
			return fmt.Errorf("%d run", len(ids))
		}
		return nil
	})
	s.must(p.Signal(syscall.SIGINT))
	for _, id := range ids {
		if j := s.ended(id); j.State != queue.JobCancelled {
			t.Errorf("job %s ended as %s", id, j.State)
		}
	}
	s.await("the end of the command", func() error {
		text, err := os.ReadFile(s.Path("trial.log"))
		if err == nil && strings.Count(string(text), "cancelled") < 2 {
			err = fmt.Errorf("it says %s", text)
		}
		return err
	})
	s.empty()
}
