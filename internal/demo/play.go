package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"gpubroker/internal/api"
	"gpubroker/internal/api/client"
	"gpubroker/internal/control"
	"gpubroker/internal/rig"
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
`, n.Dir),
		"steady": fmt.Sprintf(`name: steady-index
project: research
resources: {gpu: none, vcpu: 2, memory: 1GiB}
spot: {policy: never}
max_duration: 10m
run:
  shell: |
    i=0; while [ $i -lt %[2]d ]; do i=$((i+1)); echo "line $i of %[2]d"; sleep 1; done | tee index.txt
    sha256sum index.txt | cut -d' ' -f1 >"{{output}}"
outputs: {to: "%[1]s/done/index.sha256"}
progress: {log: "line (\\d+) of", total: %[2]d}
`, n.Dir, n.lines),
	}
	for _, r := range n.renders {
		files[r.name] = fmt.Sprintf(`name: %[2]s
project: research
resources: {gpu: l4, vcpu: 2, memory: 1GiB}
work: {time: 40s, on: l4}
workdir: %[1]s/render
checkpoint: {dir: saves, interval: 2s}
run: {command: [./tiles, --tiles, "%[3]d", --work, "%[4]d", --out, "{{output}}"]}
outputs: {to: "%[1]s/done/%[2]s.pgm"}
progress: {log: "tile (\\d+)/", total: %[3]d}
`, n.Dir, r.name, r.tiles, tileWork)
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
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-n.Broker.Process.Ended():
			return fmt.Errorf("the broker has ended by itself, with exit code %d", n.Broker.Process.ExitCode())
		case <-n.Cloud.Process.Ended():
			return fmt.Errorf("the cloud has ended by itself, with exit code %d", n.Cloud.Process.ExitCode())
		case <-tick.C:
		}
		done, err := n.look(ctx)
		if err != nil {
			n.show.trouble(err) // the next look tells more
			continue
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
	files := n.specs()
	names := []string{"ladder"}
	for _, r := range n.renders {
		names = append(names, r.name)
	}
	for _, name := range append(names, "steady") {
		file := n.Path(name + ".yaml")
		if err := os.WriteFile(file, []byte(files[name]), 0o644); err != nil {
			return err
		}
		out, stderr, code, err := n.Run(ctx, "submit", file, "-o", "json")
		if err != nil {
			return fmt.Errorf("submitting %s: %w", file, err)
		}
		if code != 0 {
			return fmt.Errorf("submitting %s: exit code %d: %s", file, code, strings.TrimSpace(stderr))
		}
		var j api.Job
		if err := json.Unmarshal([]byte(out), &j); err != nil {
			return fmt.Errorf("submitting %s: %w: %s", file, err, out)
		}
		n.jobs = append(n.jobs, job{id: j.ID, name: j.Name})
		n.show.names[j.ID] = j.Name
		n.show.say("submitted %s: %s", j.Name, counted(j.Tasks, "task"))
	}
	return nil
}

// state is what one look at the broker saw.
type state struct {
	jobs      []api.Job
	instances []control.InstanceView
	costs     api.Costs
}

// look shows what has happened, and reports whether the night is over: all jobs
// done, all machines gone and paid for.
func (n *night) look(ctx context.Context) (bool, error) {
	var s state
	for _, j := range n.jobs {
		out, err := n.Broker.Job(ctx, j.id)
		if err != nil {
			return false, err
		}
		s.jobs = append(s.jobs, out)
	}
	list, err := n.Broker.Instances(ctx)
	if err != nil {
		return false, err
	}
	s.instances = list.Instances
	if s.costs, err = n.Broker.Costs(ctx, client.CostQuery{}); err != nil {
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
	const page = 500
	for {
		out, err := n.Broker.Events(ctx, client.EventQuery{After: n.show.seq, Limit: page})
		if err != nil {
			return err
		}
		for _, e := range out.Events {
			n.show.event(e)
		}
		if len(out.Events) < page {
			return nil
		}
	}
}

// disturb takes a machine with notice and one without, each from an image that
// has been saved, and kills the broker in between.
func (n *night) disturb(ctx context.Context) error {
	switch {
	case n.noticed == 0:
		taken, err := n.take(ctx, n.jobs[1], nil)
		if err != nil || !taken {
			return err
		}
		n.noticed++
	case n.kills == 0:
		n.show.say("KILL -9 of the broker")
		n.Broker.Process.Kill()
		n.kills++
		select { // long enough for the agents to miss it
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(2 * time.Second):
		}
		if err := n.startBroker(ctx); err != nil {
			return err
		}
		n.show.say("the broker is up again, over the same store")
	case n.silent == 0:
		taken, err := n.take(ctx, n.jobs[2], new(simapi.Duration(0)))
		if err != nil || !taken {
			return err
		}
		n.silent++
	}
	return nil
}

// take has the cloud take the machine that a job runs on, once the job has
// committed a checkpoint.
func (n *night) take(ctx context.Context, j job, notice *simapi.Duration) (bool, error) {
	tasks, err := n.Broker.Tasks(ctx, j.id, "", "", 1)
	if err != nil {
		return false, nil //nolint:nilerr // look again
	}
	if len(tasks.Tasks) == 0 || tasks.Tasks[0].Committed < 2 || tasks.Tasks[0].Running == nil || tasks.Tasks[0].Running.State != queue.AttemptRunning {
		return false, nil
	}
	list, err := n.Broker.Instances(ctx)
	if err != nil {
		return false, nil //nolint:nilerr // likewise
	}
	for _, i := range list.Instances {
		if i.ID != tasks.Tasks[0].Running.Instance || i.CloudID == "" {
			continue
		}
		how := "with a notice of 5 s"
		if notice != nil {
			how = "without a word"
		}
		n.show.say("the cloud takes the machine of %s %s", j.name, how)
		action := simapi.Action{Preempt: &simapi.Preempt{Pick: simapi.Pick{Machine: i.CloudID}, Notice: notice}}
		if _, err := n.Cloud.Do(ctx, action); err != nil {
			return false, fmt.Errorf("taking machine %s: %w", i.CloudID, err)
		}
		return true, nil
	}
	return false, nil
}

// startReferences renders the images without any interruption, with least
// priority, to compare with.
func (n *night) startReferences(ctx context.Context) {
	n.references.Go(func() {
		for _, r := range n.renders {
			if n.refErr = n.reference(ctx, r); n.refErr != nil {
				return
			}
		}
	})
}

func (n *night) reference(ctx context.Context, r render) error {
	cmd := exec.Command(n.Path("render", "tiles"), "--tiles", fmt.Sprint(r.tiles), "--work", fmt.Sprint(tileWork),
		"--out", n.Path("reference", r.name+".pgm"))
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	p, err := rig.Start(cmd, n.Path("reference.log"))
	if err != nil {
		return err
	}
	p.Humble()
	select {
	case <-ctx.Done():
		p.Kill()
		return context.Cause(ctx)
	case <-p.Ended():
	}
	if p.ExitCode() != 0 {
		return fmt.Errorf("tiles ended with exit code %d: %s", p.ExitCode(), strings.TrimSpace(p.Log()))
	}
	return nil
}
