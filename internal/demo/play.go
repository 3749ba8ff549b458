package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"gpubroker/internal/api"
	"gpubroker/internal/control"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/queue"
)

// specs are the job files of the night.
func (n *night) specs() map[string]string {
	files := map[string]string{
		"ladder": fmt.Sprintf(`name: nightly-ladder
project: media
queue: overnight
scenario: transcode
tasks: {glob: "%[1]s/clips/*.mov"}
resources: {gpu: [l4, t4], vcpu: 1, memory: 1GiB, slots: 2}
work: {time: 4s, on: l4}
run:
  command: [ffmpeg, -nostdin, -v, error, -y, -i, "{{input}}", -vf, "scale=-2:360", -c:v, libx264, -preset, medium, -c:a, aac, "{{output}}"]
outputs: {to: "%[1]s/done/{{stem}}.mp4"}
retry: {failures: 1}
`, n.dir),
		"steady": fmt.Sprintf(`name: steady-index
project: research
resources: {gpu: none, vcpu: 2, memory: 1GiB}
spot: {policy: never}
max_duration: 10m
run:
  shell: |
    i=0; while [ $i -lt 24 ]; do i=$((i+1)); echo "line $i of 24"; sleep 1; done | tee index.txt
    sha256sum index.txt | cut -d' ' -f1 >"{{output}}"
outputs: {to: "%s/done/index.sha256"}
progress: {log: "line (\\d+) of", total: 24}
`, n.dir),
	}
	for _, r := range renders {
		files[r.name] = fmt.Sprintf(`name: %[2]s
project: research
resources: {gpu: l4, vcpu: 2, memory: 1GiB}
work: {time: 40s, on: l4}
workdir: %[1]s/render
checkpoint: {dir: saves, interval: 2s}
run: {command: [./tiles, --tiles, "%[3]d", --work, "%[4]d", --out, "{{output}}"]}
outputs: {to: "%[1]s/done/%[2]s.pgm"}
progress: {log: "tile (\\d+)/", total: %[3]d}
`, n.dir, r.name, r.tiles, tileWork)
	}
	return files
}

// run plays the night: submit, take machines away, kill the broker, wait.
func (n *night) run(ctx context.Context) error {
	if err := n.up(ctx); err != nil {
		return err
	}
	n.show.say("cloud and broker are up; the broker's budget for the night is 5.00 USD")
	if err := n.submit(ctx); err != nil {
		return err
	}
	n.startReferences(ctx)
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("demo: the night took longer than allowed: %w", ctx.Err())
		case <-time.After(250 * time.Millisecond):
		}
		done, err := n.look(ctx)
		if err != nil {
			if n.brokerProc.ProcessState != nil {
				return errors.Join(errors.New("demo: the broker has ended by itself"), err)
			}
			continue // it may be starting
		}
		if err := n.disturb(ctx); err != nil {
			return err
		}
		if done {
			return nil
		}
	}
}

// submit hands the jobs in with the command line, as a person would.
func (n *night) submit(ctx context.Context) error {
	n.env = append(n.env, "GPUBROKER_DATA="+n.path("broker"))
	files := n.specs()
	for _, name := range []string{"ladder", renders[0].name, renders[1].name, "steady"} {
		file := n.path(name + ".yaml")
		if err := os.WriteFile(file, []byte(files[name]), 0o644); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
		cmd := exec.CommandContext(ctx, n.o.Self, "submit", file, "-o", "json")
		cmd.Env = n.env
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("demo: submitting %s: %w: %s", file, err, strings.TrimSpace(stderr.String()))
		}
		var j api.Job
		if err := json.Unmarshal(out, &j); err != nil {
			return fmt.Errorf("demo: submitting %s: %w: %s", file, err, out)
		}
		n.jobs = append(n.jobs, job{id: j.ID, name: j.Name, project: j.Project, tasks: j.Tasks})
		n.show.names[j.ID] = j.Name
		n.show.say("submitted %s: %d tasks", j.Name, j.Tasks)
	}
	return nil
}

// state is what one look at the broker saw.
type state struct {
	jobs      []api.Job
	instances []control.InstanceView
	costs     control.Costs
}

// look shows what has happened, and reports whether the night is over: all jobs
// done, all machines gone and paid for.
func (n *night) look(ctx context.Context) (bool, error) {
	var s state
	for _, j := range n.jobs {
		var out api.Job
		if err := n.broker.get(ctx, "/api/v1/jobs/"+j.id, &out); err != nil {
			return false, err
		}
		s.jobs = append(s.jobs, out)
	}
	var list struct {
		Instances []control.InstanceView `json:"instances"`
	}
	if err := n.broker.get(ctx, "/api/v1/instances", &list); err != nil {
		return false, err
	}
	s.instances = list.Instances
	if err := n.broker.get(ctx, "/api/v1/costs", &s.costs); err != nil {
		return false, err
	}
	if err := n.events(ctx); err != nil {
		return false, err
	}
	n.show.status(&s)
	over := len(s.instances) == 0
	for _, j := range s.jobs {
		over = over && j.Ended != nil
	}
	return over, nil
}

func (n *night) events(ctx context.Context) error {
	for {
		var out struct {
			Events []api.Event `json:"events"`
		}
		if err := n.broker.get(ctx, fmt.Sprintf("/api/v1/events?after=%d&limit=500", n.show.seq), &out); err != nil {
			return err
		}
		for _, e := range out.Events {
			n.show.event(e)
		}
		if len(out.Events) < 500 {
			return nil
		}
	}
}

// disturb takes a machine with notice and one without, each from an image that
// has been saved, and kills the broker in between.
func (n *night) disturb(ctx context.Context) error {
	switch {
	case n.preempted.Noticed == 0:
		taken, err := n.take(ctx, n.jobs[1], nil)
		if err != nil || !taken {
			return err
		}
		n.preempted.Noticed++
	case n.kills == 0:
		n.show.say("KILL -9 of the broker")
		if err := n.brokerProc.Process.Kill(); err != nil {
			return fmt.Errorf("demo: killing the broker: %w", err)
		}
		_ = n.brokerProc.Wait() // it was killed
		n.kills++
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Second):
		}
		if err := n.startBroker(ctx); err != nil {
			return err
		}
		n.show.say("the broker is up again, over the same store")
	case n.preempted.Silent == 0:
		taken, err := n.take(ctx, n.jobs[2], new(simapi.Duration(0)))
		if err != nil || !taken {
			return err
		}
		n.preempted.Silent++
	}
	return nil
}

// take has the cloud take the machine that a job runs on, once the job has
// committed a checkpoint.
func (n *night) take(ctx context.Context, j job, notice *simapi.Duration) (bool, error) {
	var out struct {
		Tasks []control.TaskView `json:"tasks"`
	}
	if err := n.broker.get(ctx, "/api/v1/jobs/"+j.id+"/tasks", &out); err != nil {
		return false, nil //nolint:nilerr // the broker may be starting: look again
	}
	if len(out.Tasks) == 0 || out.Tasks[0].Committed < 2 || out.Tasks[0].Running == nil || out.Tasks[0].Running.State != queue.AttemptRunning {
		return false, nil
	}
	var list struct {
		Instances []control.InstanceView `json:"instances"`
	}
	if err := n.broker.get(ctx, "/api/v1/instances", &list); err != nil {
		return false, nil //nolint:nilerr // likewise
	}
	for _, i := range list.Instances {
		if i.ID != out.Tasks[0].Running.Instance || i.CloudID == "" {
			continue
		}
		how := "with a notice of 5 s"
		if notice != nil {
			how = "without a word"
		}
		n.show.say("the cloud takes the machine of %s %s", j.name, how)
		action := simapi.Action{Preempt: &simapi.Preempt{Pick: simapi.Pick{Machine: i.CloudID}, Notice: notice}}
		if err := n.cloud.post(ctx, "/admin/actions", action, nil); err != nil {
			return false, fmt.Errorf("demo: taking machine %s: %w", i.CloudID, err)
		}
		return true, nil
	}
	return false, nil
}

// startReferences renders the images without any interruption, with least
// priority, to compare with.
func (n *night) startReferences(ctx context.Context) {
	n.references.Go(func() {
		for _, r := range renders {
			cmd := exec.CommandContext(ctx, n.path("render", "tiles"), "--tiles", fmt.Sprint(r.tiles), "--work", fmt.Sprint(tileWork),
				"--out", n.path("reference", r.name+".pgm"))
			cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
			if err := cmd.Start(); err != nil {
				n.refErr = err
				return
			}
			_ = syscall.Setpriority(syscall.PRIO_PROCESS, cmd.Process.Pid, 19) // only a courtesy
			if err := cmd.Wait(); err != nil {
				n.refErr = err
				return
			}
		}
	})
}
