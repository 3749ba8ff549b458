package main_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gpubroker/internal/api"
	"gpubroker/internal/pgtest"
	"gpubroker/internal/rig"
	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/queue"
)

// These tests start the programs as people start them, and break what carries
// them: they kill, stop and starve processes. What they wait for is seen through
// the API; no time is taken for granted but the limits that the design states.

func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		// They wait much and compute little.
		if err := f.Value.Set("4"); err != nil {
			panic(err)
		}
	}
	code := pgtest.Run(m)
	if err := os.RemoveAll(built.dir); built.dir != "" && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// built are the programs, made once by the first test that needs them.
var built struct {
	sync.Once
	dir string
	err error
}

// program is the path of gpubroker; the agent and the demo's tiles lie beside it.
// It skips in short runs.
func program(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("links the programs and starts processes for long")
	}
	built.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "gpubroker-test-"); built.err != nil {
			return
		}
		cmd := exec.Command("go", "build", "-o", built.dir, ".", "../gpubroker-agent", "../../examples/tiles")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("building the programs: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, "gpubroker")
}

// site is a broker and a cloud for one test. Whatever the test does, nothing of
// it may run after it.
type site struct {
	*rig.Site
	t      testing.TB
	ctx    context.Context
	listen string
}

// newSite makes a site whose test may take so long at most.
func newSite(t testing.TB, limit time.Duration) *site {
	t.Helper()
	self := program(t)
	inner, err := rig.NewSite(t.TempDir(), self)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), limit, fmt.Errorf("the test's limit of %s is over", limit))
	s := &site{Site: inner, t: t, ctx: ctx}
	if s.listen, err = rig.FreeAddress(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			s.tellMachines()
		}
		cancel()
		s.Close()
		s.nothingLeft(s.Dir)
		if t.Failed() {
			logs, _ := filepath.Glob(s.Path("*.log"))
			for _, log := range logs {
				text, _ := os.ReadFile(log) // for a person to read
				t.Logf("%s:\n%s", filepath.Base(log), text[max(0, len(text)-8000):])
			}
		}
	})
	return s
}

// tellMachines shows what agents remember and what machines that live have
// written, for whoever looks for the cause of a failure.
func (s *site) tellMachines() {
	records, _ := filepath.Glob(s.Path("machines", "*", "gpubroker", "attempts", "*", "*.json"))
	for _, r := range records {
		text, _ := os.ReadFile(r)
		s.t.Logf("%s:\n%s", r, text[:min(len(text), 3000)])
	}
	if s.Cloud == nil {
		return
	}
	list, err := s.Cloud.Machines(context.Background())
	if err != nil {
		s.t.Logf("the cloud's machines: %v", err)
		return
	}
	for _, m := range list {
		if m.Ended.IsZero() {
			console, err := s.Cloud.Console(context.Background(), m.ID)
			s.t.Logf("console of %s: %v\n%s", m.ID, err, console[max(0, len(console)-6000):])
		}
	}
}

// nothingLeft fails when a process that bears the folder still runs.
func (s *site) nothingLeft(dir string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s.check(rig.Await(ctx, "the end of all processes", nil, func() error {
		if left := rig.Left(dir); len(left) > 0 {
			return fmt.Errorf("still running:\n%s", strings.Join(left, "\n"))
		}
		return nil
	}))
}

func (s *site) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Error(err)
	}
}

func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// await waits for a condition that the API shows.
func (s *site) await(what string, ready func() error) {
	s.t.Helper()
	s.must(rig.Await(s.ctx, what, nil, ready))
}

// quick is a world whose machines have no GPU, boot at once and are billed by
// the second.
func quick(seed uint64) simcloud.Config {
	w := simcloud.Default(seed)
	w.Boot, w.BootSpan = simcloud.Duration(300*time.Millisecond), simcloud.Duration(200*time.Millisecond)
	w.StopTime, w.ListLag = simcloud.Duration(200*time.Millisecond), simcloud.Duration(300*time.Millisecond)
	w.Notice = simcloud.Duration(3 * time.Second)
	var offers []simcloud.Offer
	for _, o := range w.Offers {
		if o.Type == "cpu8" {
			offers = append(offers, o)
		}
	}
	w.Offers = offers
	return w
}

// plain is the configuration of a broker on the site's cloud; more is added.
func (s *site) plain(more string) string {
	text := fmt.Sprintf("owner: test\ndata_dir: %s\nlisten: %s\nintervals: {offers: 5s, observe: 1s, sweep: 1m}\n", s.Path("broker"), s.listen)
	if s.Cloud != nil {
		text += fmt.Sprintf("providers:\n  - {name: sim, type: simcloud, settings: {endpoint: \"http://%s\", token: \"env:SIMCLOUD_TOKEN\"}}\n", s.Cloud.Address)
	}
	if !strings.Contains(more, "leases:") {
		text += "leases: {length: 5m, idle: 2s}\n"
	}
	return text + more
}

// write makes a file of the site and returns its path.
func (s *site) write(name, text string) string {
	s.t.Helper()
	s.must(os.WriteFile(s.Path(name), []byte(text), 0o644))
	return s.Path(name)
}

// up starts a cloud and a broker on it.
func (s *site) up(world simcloud.Config, more string) {
	s.t.Helper()
	s.must(s.StartCloud(s.ctx, world))
	s.write("broker.yaml", s.plain(more))
	s.start()
}

// start starts the site's broker.
func (s *site) start() {
	s.t.Helper()
	b, err := s.StartBroker(s.ctx, s.Path("broker.yaml"), s.Path("broker"))
	if b != nil {
		s.Broker = b
	}
	s.must(err)
}

// submit hands a spec in with the command line.
func (s *site) submit(spec string) string {
	s.t.Helper()
	file := s.write(fmt.Sprintf("job-%d.yaml", time.Now().UnixNano()), spec)
	out, stderr, code, err := s.Run(s.ctx, "submit", file, "-o", "json")
	s.must(err)
	if code != 0 {
		s.t.Fatalf("submit: exit code %d: %s", code, stderr)
	}
	_, id, ok := strings.Cut(out, `"id": "`)
	id, _, ok2 := strings.Cut(id, `"`)
	if !ok || !ok2 {
		s.t.Fatalf("submit answered %s", out)
	}
	return id
}

// ended waits until a job is done, and returns it.
func (s *site) ended(id string) api.Job {
	s.t.Helper()
	var j api.Job
	s.await("the end of job "+id, func() (err error) {
		if j, err = s.Broker.Job(s.ctx, id); err == nil && j.Ended == nil {
			err = fmt.Errorf("%s %s: %+v %s", j.Name, j.State, j.Counts, j.Reason)
		}
		return err
	})
	return j
}

// attempts returns all attempts of a job.
func (s *site) attempts(id string) []*queue.Attempt {
	s.t.Helper()
	list, err := s.Broker.Attempts(s.ctx, id, -1, "", 1000)
	s.must(err)
	return list.Attempts
}

// running waits until so many tasks of a job run, and returns their attempts.
func (s *site) running(id string, n int) []*queue.Attempt {
	s.t.Helper()
	var on []*queue.Attempt
	s.await(fmt.Sprintf("%d running tasks of %s", n, id), func() error {
		list, err := s.Broker.Attempts(s.ctx, id, -1, "", 1000)
		if err != nil {
			return err
		}
		on = on[:0]
		for _, a := range list.Attempts {
			if a.State == queue.AttemptRunning {
				on = append(on, a)
			}
		}
		if len(on) < n {
			return fmt.Errorf("%d run", len(on))
		}
		return nil
	})
	return on
}

// empty waits until the broker has settled every machine and the cloud has none.
func (s *site) empty() {
	s.t.Helper()
	s.await("the end of all machines", func() error {
		list, err := s.Broker.Instances(s.ctx)
		if err != nil {
			return err
		}
		machines, err := s.Cloud.Machines(s.ctx)
		if err != nil {
			return err
		}
		live := live(machines)
		if len(list.Instances)+len(live) > 0 {
			return fmt.Errorf("the broker knows %d machines, the cloud has %d", len(list.Instances), len(live))
		}
		return nil
	})
}

func live(machines []simapi.Machine) []simapi.Machine {
	var out []simapi.Machine
	for _, m := range machines {
		if m.Ended.IsZero() {
			out = append(out, m)
		}
	}
	return out
}

// cloudID is the cloud's name of the machine that an attempt is on.
func (s *site) cloudID(a *queue.Attempt) string {
	s.t.Helper()
	list, err := s.Broker.Instances(s.ctx)
	s.must(err)
	for _, i := range list.Instances {
		if i.ID == a.Instance {
			return i.CloudID
		}
	}
	s.t.Fatalf("no machine %s", a.Instance)
	return ""
}

// agentOf finds the process of the agent on a machine of the cloud.
func (s *site) agentOf(machine string) *os.Process {
	s.t.Helper()
	var pid int
	s.await("the agent on "+machine, func() error {
		for _, line := range rig.Left(s.Path("machines", machine)) {
			var n int
			var name, verb string
			if _, err := fmt.Sscan(line, &n, &name, &verb); err == nil && strings.HasSuffix(name, "gpubroker-agent") && verb == "run" {
				pid = n
				return nil
			}
		}
		return fmt.Errorf("none")
	})
	p, err := os.FindProcess(pid)
	s.must(err)
	return p
}
