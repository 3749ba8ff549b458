package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
)

// clips is how many clips are transcoded.
const clips = 24

// renders are the images: the number of tiles is what tells them apart.
var renders = []struct {
	name  string
	tiles int
}{{"render-dawn", 220}, {"render-dusk", 260}}

// tileWork is the number of steps of each tile.
const tileWork = 12_000_000

// night is one run of the demo.
type night struct {
	o       Options
	dir     string
	keepDir bool
	show    *show
	start   time.Time

	cloud, broker         caller
	cloudProc, brokerProc *exec.Cmd
	env                   []string
	jobs                  []job
	kills                 int
	preempted             Preemptions
	references            sync.WaitGroup
	refErr                error
}

// job is a submitted job.
type job struct {
	id, name, project string
	tasks             int
}

func newNight(o Options) (*night, error) {
	out := o.Stdout
	if o.JSON {
		out = o.Stderr
	}
	n := &night{o: o, dir: o.Dir, start: time.Now(), show: &show{out: out, live: o.Live && !o.JSON, names: map[string]string{}}}
	n.show.start = n.start
	if n.dir == "" {
		dir, err := os.MkdirTemp("", "gpubroker-demo-")
		if err != nil {
			return nil, fmt.Errorf("demo: %w", err)
		}
		n.dir = dir
	}
	abs, err := filepath.Abs(n.dir)
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	n.dir = abs
	for _, d := range []string{"clips", "done", "render", "reference", "machines"} {
		if err := os.MkdirAll(n.path(d), 0o755); err != nil {
			return nil, fmt.Errorf("demo: %w", err)
		}
	}
	return n, nil
}

func (n *night) path(parts ...string) string {
	return filepath.Join(append([]string{n.dir}, parts...)...)
}

// end stops what runs, and removes the folder of a night that went well.
func (n *night) end() {
	for _, p := range []*exec.Cmd{n.brokerProc, n.cloudProc} {
		stop(p)
	}
	n.references.Wait()
	if !n.keepDir && n.o.Dir == "" {
		if err := os.RemoveAll(n.dir); err != nil {
			fmt.Fprintf(n.o.Stderr, "demo: the folder is not removed: %v\n", err)
		}
	}
}

// stop ends a process and waits for it.
func stop(p *exec.Cmd) {
	if p == nil || p.Process == nil || p.ProcessState != nil {
		return
	}
	_ = p.Process.Signal(os.Interrupt) // it may have ended by itself
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Wait() }()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		_ = p.Process.Kill()
		<-done
	}
}

// prepare makes the work: clips with moving pictures and sound, and the folder
// with the render program.
func (n *night) prepare(ctx context.Context) error {
	for _, tool := range []string{"ffmpeg", "ffprobe"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("demo: %s is not installed; on Debian: apt-get install ffmpeg", tool)
		}
	}
	here := filepath.Dir(n.o.Self)
	for _, program := range []string{"gpubroker-agent", "tiles"} {
		if _, err := os.Stat(filepath.Join(here, program)); err != nil {
			return fmt.Errorf("demo: %s is missing beside %s; make demo builds it", program, n.o.Self)
		}
	}
	if err := copyFile(filepath.Join(here, "tiles"), n.path("render", "tiles")); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	n.show.say("making %d clips with moving pictures and sound", clips)
	if err := n.makeClips(ctx); err != nil {
		return err
	}
	n.show.say("%d clips are there, %s", clips, n.path("clips"))
	return nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// clip is the k-th clip's length in seconds, size and picture: all differ.
func clip(k int) (seconds float64, size, picture string) {
	seconds = 2 + math.Mod(float64(k)*0.7, 5)
	size = []string{"320x180", "426x240", "640x360"}[k%3]
	switch k % 4 {
	case 0:
		picture = fmt.Sprintf("testsrc2=size=%s:rate=25", size)
	case 1:
		picture = fmt.Sprintf("mptestsrc=rate=25:test=all,scale=%s", strings.Replace(size, "x", ":", 1))
	case 2:
		picture = fmt.Sprintf("life=size=%s:rate=25:ratio=0.4:seed=%d:mold=10:life_color=#c83232", size, k+1)
	default:
		picture = fmt.Sprintf("testsrc=size=%s:rate=25", size)
	}
	return seconds, size, picture
}

func (n *night) makeClips(ctx context.Context) error {
	slots := make(chan struct{}, 2)
	errs := make(chan error, clips)
	for k := range clips {
		go func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			seconds, _, picture := clip(k)
			length := fmt.Sprintf("%.2f", seconds)
			cmd := exec.CommandContext(ctx, "ffmpeg", "-nostdin", "-v", "error", "-y",
				"-f", "lavfi", "-t", length, "-i", picture,
				"-f", "lavfi", "-t", length, "-i", fmt.Sprintf("sine=frequency=%d", 220+20*k),
				"-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-c:a", "aac", "-t", length,
				n.path("clips", fmt.Sprintf("clip-%02d.mov", k)))
			if out, err := cmd.CombinedOutput(); err != nil {
				errs <- fmt.Errorf("demo: making clip %d: %w: %s", k, err, strings.TrimSpace(string(out)))
				return
			}
			errs <- nil
		}()
	}
	var all error
	for range clips {
		all = errors.Join(all, <-errs)
	}
	return all
}

// world is the cloud of the night: the built-in one, in which the second launch
// meets no capacity, and the fourth is answered with an error after the machine
// was made.
func (n *night) world() simcloud.Config {
	cfg := simcloud.Default(1)
	cfg.Machines.Dir = n.path("machines")
	cfg.Machines.AgentImage = filepath.Join(filepath.Dir(n.o.Self), "gpubroker-agent")
	cfg.Faults = append(cfg.Faults,
		simapi.Fault{Op: "launch", Effect: simapi.NoCapacity, Nth: 2},
		simapi.Fault{Op: "launch", Effect: simapi.InternalAfter, Nth: 4},
	)
	return cfg
}

const brokerConfig = `# The broker of the demo.
owner: demo
data_dir: %[1]s/broker
listen: %[2]s
providers:
  - name: sim
    type: simcloud
    settings: {endpoint: "http://%[3]s", token: "env:SIMCLOUD_TOKEN"}
projects:
  - {name: media, team: studio}
  - {name: research, team: lab}
queues:
  - {name: overnight, priority: 50}
budgets:
  - {name: night, scope: org, cap: 5 USD, period: day, timezone: Europe/Berlin}
  - {name: media, scope: project, match: media, cap: 2 USD, period: day, timezone: Europe/Berlin}
leases: {length: 2m, idle: 4s}
intervals: {offers: 5s, observe: 1s, sweep: 1m}
log: {level: info, format: text}
`

// up starts cloud and broker.
func (n *night) up(ctx context.Context) error {
	cloudAt, err := freeAddress()
	if err != nil {
		return err
	}
	brokerAt, err := freeAddress()
	if err != nil {
		return err
	}
	token := newSecret()
	n.env = append(os.Environ(), "SIMCLOUD_TOKEN="+token)
	world, err := json.MarshalIndent(n.world(), "", "  ")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if err := os.WriteFile(n.path("world.json"), world, 0o644); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if err := os.WriteFile(n.path("broker.yaml"), fmt.Appendf(nil, brokerConfig, n.dir, brokerAt, cloudAt), 0o644); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	n.cloud = caller{base: "http://" + cloudAt, token: token}
	if n.cloudProc, err = n.launch("cloud.log", "simcloud", "--config", n.path("world.json"), "--listen", cloudAt); err != nil {
		return err
	}
	var about simapi.About
	if err := n.await(ctx, "the cloud", n.cloudProc, func() error { return n.cloud.get(ctx, "/v1/about", &about) }); err != nil {
		return err
	}
	n.broker = caller{base: "http://" + brokerAt}
	return n.startBroker(ctx)
}

func (n *night) startBroker(ctx context.Context) (err error) {
	if n.brokerProc, err = n.launch("broker.log", "serve", "--config", n.path("broker.yaml")); err != nil {
		return err
	}
	return n.await(ctx, "the broker", n.brokerProc, func() error {
		text, err := os.ReadFile(n.path("broker", "client.json"))
		if err != nil {
			return err
		}
		var client struct{ Token string }
		if err := json.Unmarshal(text, &client); err != nil {
			return err
		}
		n.broker.token = client.Token
		return n.broker.get(ctx, "/healthz", nil)
	})
}

// launch starts this program with other arguments; its output goes to a log.
func (n *night) launch(log string, args ...string) (*exec.Cmd, error) {
	f, err := os.OpenFile(n.path(log), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	defer f.Close()
	cmd := exec.Command(n.o.Self, args...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = n.env, n.dir, f, f
	quietChild(cmd)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("demo: starting %s: %w", args[0], err)
	}
	return cmd, nil
}

// await waits until a process answers.
func (n *night) await(ctx context.Context, what string, p *exec.Cmd, ready func() error) error {
	var last error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		if last = ready(); last == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	n.tellLogs()
	return fmt.Errorf("demo: %s does not answer: %w", what, last)
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("demo: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}
