package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"gpubroker/internal/rig"
	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
)

// size is how much work a night has.
type size struct {
	clips   int
	renders []render // each on a machine of its own
	lines   int      // of the steady job, a second each
}

// render is an image: the number of tiles is what tells them apart.
type render struct {
	name  string
	tiles int
}

func sizeOf(o Options) size {
	if o.Short {
		return size{clips: 8, renders: []render{{"render-dawn", 80}, {"render-dusk", 90}}, lines: 8}
	}
	return size{clips: 24, renders: []render{{"render-dawn", 220}, {"render-dusk", 260}}, lines: 24}
}

// tileWork is the number of steps of each tile.
const tileWork = 12_000_000

// night is one run of the demo.
type night struct {
	*rig.Site
	size
	o       Options
	keepDir bool
	show    *show
	start   time.Time

	jobs       []job
	kills      int
	silent     int // machines taken without a word
	noticed    int // and with one
	references sync.WaitGroup
	refErr     error
}

// job is a submitted job.
type job struct{ id, name string }

func newNight(o Options) (*night, error) {
	out := o.Stdout
	if o.JSON {
		out = o.Stderr
	}
	dir := o.Dir
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "gpubroker-demo-"); err != nil {
			return nil, fmt.Errorf("demo: %w", err)
		}
	}
	site, err := rig.NewSite(dir, o.Self)
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	n := &night{
		Site: site, size: sizeOf(o), o: o, start: time.Now(),
		show: &show{out: out, live: o.Live && !o.JSON, start: time.Now(), names: map[string]string{}},
	}
	for _, d := range []string{"clips", "done", "render", "reference", "machines"} {
		if err := os.MkdirAll(n.Path(d), 0o755); err != nil {
			return nil, fmt.Errorf("demo: %w", err)
		}
	}
	return n, nil
}

// end stops what runs, and removes the folder of a night that went well.
func (n *night) end() {
	n.Close()
	n.references.Wait()
	if !n.keepDir && n.o.Dir == "" {
		if err := os.RemoveAll(n.Dir); err != nil {
			fmt.Fprintf(n.o.Stderr, "demo: the folder is not removed: %v\n", err)
		}
	}
}

// prepare makes the work: clips with moving pictures and sound, and the folder
// with the render program.
func (n *night) prepare(ctx context.Context) error {
	for _, tool := range []string{"ffmpeg", "ffprobe"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("%s is not installed; on Debian: apt-get install ffmpeg", tool)
		}
	}
	here := filepath.Dir(n.o.Self)
	for _, program := range []string{"gpubroker-agent", "tiles"} {
		if _, err := os.Stat(filepath.Join(here, program)); err != nil {
			return fmt.Errorf("%s is missing beside %s; make demo builds it", program, n.o.Self)
		}
	}
	if err := copyFile(filepath.Join(here, "tiles"), n.Path("render", "tiles")); err != nil {
		return err
	}
	n.show.say("making %d clips with moving pictures and sound", n.clips)
	if err := n.makeClips(ctx); err != nil {
		return err
	}
	n.show.say("%d clips are in %s", n.clips, n.Path("clips"))
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

// clip is the k-th clip's length in seconds and its picture: lengths and sizes
// differ.
func clip(k int) (seconds float64, picture string) {
	seconds = 2 + math.Mod(float64(k)*0.7, 5)
	size := []string{"320x180", "426x240", "640x360"}[k%3]
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
	return seconds, picture
}

func (n *night) makeClips(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(2)
	for k := range n.clips {
		g.Go(func() error {
			seconds, picture := clip(k)
			length := fmt.Sprintf("%.2f", seconds)
			cmd := exec.CommandContext(ctx, "ffmpeg", "-nostdin", "-v", "error", "-y",
				"-f", "lavfi", "-t", length, "-i", picture,
				"-f", "lavfi", "-t", length, "-i", fmt.Sprintf("sine=frequency=%d", 220+20*k),
				"-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-c:a", "aac", "-t", length,
				n.Path("clips", fmt.Sprintf("clip-%02d.mov", k)))
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("making clip %d: %w: %s", k, err, strings.TrimSpace(string(out)))
			}
			return nil
		})
	}
	return g.Wait()
}

// world is the cloud of the night: the built-in one, in which the second launch
// meets no capacity, and the fourth is answered with an error after the machine
// was made.
func (n *night) world() simcloud.Config {
	cfg := simcloud.Default(1)
	cfg.Machines.Dir = n.Path("machines")
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
	if err := n.StartCloud(ctx, n.world()); err != nil {
		return err
	}
	address, err := rig.FreeAddress()
	if err != nil {
		return err
	}
	if err := os.WriteFile(n.Path("broker.yaml"), fmt.Appendf(nil, brokerConfig, n.Dir, address, n.Cloud.Address), 0o644); err != nil {
		return err
	}
	return n.startBroker(ctx)
}

func (n *night) startBroker(ctx context.Context) (err error) {
	n.Broker, err = n.StartBroker(ctx, n.Path("broker.yaml"), n.Path("broker"))
	return err
}
