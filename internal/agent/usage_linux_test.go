package agent

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpubroker/internal/agentapi"
)

// script puts a program on the path.
func script(t *testing.T, name, text string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// writeTree writes a tree of files.
func writeTree(t *testing.T, root string, content map[string]string) {
	t.Helper()
	for name, text := range content {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// eventually waits for ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func TestParseNvidia(t *testing.T) {
	say := func(v *float64) string {
		if v == nil {
			return "?"
		}
		return strconv.FormatFloat(*v, 'f', -1, 64)
	}
	for _, c := range []struct{ line, want string }{
		{"0, 97, 20480, 24576, 12, 3", "0: busy 97 used 21474836480 size 25769803776 encoder 12 decoder 3"},
		{"7,0,1,24576,0,0", "7: busy 0 used 1048576 size 25769803776 encoder 0 decoder 0"},
		{"1, 97, 20480, 24576", "1: busy 97 used 21474836480 size 25769803776 encoder ? decoder ?"},
		{"0, [N/A], [N/A], [N/A], [N/A], [N/A]", "0: busy ? used ? size ? encoder ? decoder ?"}, // MIG
		{"0, [Not Supported], 10, 20, [Not Supported], [Unknown Error]", "0: busy ? used 10485760 size 20971520 encoder ? decoder ?"},
		{"0, 255, 10, 20, -1, 101", "0: busy ? used 10485760 size 20971520 encoder ? decoder ?"},
		{`Field "utilization.encoder" is not a valid field to query.`, ""},
		{"No devices were found", ""},
		{"x, 1, 2, 3", ""},
		{"", ""},
	} {
		got := ""
		if n, d, ok := parseNvidia(c.line); ok {
			got = strconv.Itoa(n) + ": busy " + say(d.busy) + " used " + say(d.used) + " size " + say(d.size) + " encoder " + say(d.encoder) + " decoder " + say(d.decoder)
		}
		if got != c.want {
			t.Errorf("%q: got %q, want %q", c.line, got, c.want)
		}
	}
}

// Whatever a driver writes: a figure that is read can be so.
func FuzzParseNvidia(f *testing.F) {
	for _, line := range []string{"0, 97, 20480, 24576, 12, 3", "1, [N/A], NaN, +Inf, 1e400, -0", "0,,,", ",,,,,,,,"} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		_, d, ok := parseNvidia(line)
		for _, v := range []*float64{d.busy, d.encoder, d.decoder, d.used, d.size} {
			if v != nil && (!ok || !(*v >= 0) || math.IsInf(*v, 0)) {
				t.Errorf("%q: %v", line, *v)
			}
		}
		for _, v := range []*float64{d.busy, d.encoder, d.decoder} {
			if v != nil && *v > 100 {
				t.Errorf("%q: %v %%", line, *v)
			}
		}
	})
}

// One process of the tool is read for as long as it is needed, and is gone after
// that.
func TestNvidiaIsReadByOneProcess(t *testing.T) {
	dir := t.TempDir()
	script(t, "nvidia-smi", `
echo $$ >>`+dir+`/pids
echo "$@" >>`+dir+`/args
while :; do echo "0, 90, 1000, 24576, 5, 0"; echo "1, 10, 2000, 24576, 0, 7"; sleep 0.05; done
`)
	r := openGPUs(t.Context(), "/nowhere", lookEvery, testLog(t))
	eventually(t, "two GPUs", func() bool { return len(r.read()) == 2 })
	if d := r.read()[1]; *d.busy != 10 || *d.used != 2000<<20 || *d.decoder != 7 {
		t.Errorf("GPU 1: busy %v, used %v, decoder %v", *d.busy, *d.used, *d.decoder)
	}
	r.close()
	args, _ := os.ReadFile(dir + "/args")
	if want := "--query-gpu=index,utilization.gpu,memory.used,memory.total,utilization.encoder,utilization.decoder --format=csv,noheader,nounits -l 5\n"; string(args) != want {
		t.Errorf("asked %q, want %q", args, want)
	}
	pids, _ := os.ReadFile(dir + "/pids")
	pid, err := strconv.Atoi(strings.TrimSpace(string(pids)))
	if err != nil {
		t.Fatalf("it was started more than once: %q", pids)
	}
	if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
		t.Errorf("the tool still runs: %v", err)
	}
}

// A driver that does not know all fields is asked for less, and the rest is
// unknown.
func TestOlderNvidiaDriver(t *testing.T) {
	script(t, "nvidia-smi", `
case "$1" in *encoder*) echo 'Field "utilization.encoder" is not a valid field to query.'; exit 2;; esac
while :; do echo "0, 90, 1000, 24576"; sleep 0.05; done
`)
	r := openGPUs(t.Context(), "/nowhere", lookEvery, testLog(t))
	defer r.close()
	eventually(t, "the GPU", func() bool { return len(r.read()) == 1 })
	if d := r.read()[0]; *d.busy != 90 || d.encoder != nil || d.decoder != nil {
		t.Errorf("%+v", d)
	}
}

// What a tool said that has ended since becomes unknown.
func TestNvidiaGrowsStale(t *testing.T) {
	script(t, "nvidia-smi", `echo "0, 90, 1000, 24576, 1, 1"`)
	n := openNvidia(t.Context(), "nvidia-smi", 10*time.Millisecond, testLog(t))
	defer n.close()
	eventually(t, "the GPU", func() bool { return len(n.read()) == 1 })
	n.mu.Lock()
	row := n.rows[0]
	row.at = row.at.Add(-4 * time.Second)
	n.rows[0] = row
	n.mu.Unlock()
	if got := n.read(); len(got) != 0 {
		t.Errorf("still known: %v", got)
	}
}

func TestAMDIsReadFromSysfs(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	sys := t.TempDir()
	// Card 1 stands before card 0 on the bus; card 2 is another driver's.
	writeTree(t, sys, map[string]string{
		"devices/0000:c1:00.0/gpu_busy_percent": "7\n", "devices/0000:c1:00.0/mem_info_vram_used": "17179869184\n", "devices/0000:c1:00.0/mem_info_vram_total": "206158430208\n",
		"devices/0000:03:00.0/gpu_busy_percent": "93\n", "devices/0000:03:00.0/mem_info_vram_used": "1073741824\n", "devices/0000:03:00.0/mem_info_vram_total": "206158430208\n",
		"devices/0000:03:00.0/vcn_busy_percent": "40\n",
		"class/drm/card2/device/vendor":         "0x1a03\n",
	})
	for card, address := range map[string]string{"card0": "0000:c1:00.0", "card1": "0000:03:00.0"} {
		if err := os.MkdirAll(filepath.Join(sys, "class/drm", card), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("../../../devices/"+address, filepath.Join(sys, "class/drm", card, "device")); err != nil {
			t.Fatal(err)
		}
	}
	r := openGPUs(t.Context(), sys, lookEvery, testLog(t))
	got := r.read()
	if len(got) != 2 || *got[0].busy != 93 || *got[0].encoder != 40 || *got[1].busy != 7 || *got[1].used != 16<<30 || *got[1].size != 192<<30 || got[1].encoder != nil {
		t.Errorf("%v", got)
	}
	r.close()
	if r := openGPUs(t.Context(), t.TempDir(), lookEvery, testLog(t)); r != nil {
		t.Errorf("there is no GPU, and yet %v", r)
	}
}

func TestMachineReader(t *testing.T) {
	root := t.TempDir()
	net := func(in, out int) string {
		return "Inter-|   Receive | Transmit\n face |bytes packets errs\n" +
			"    lo: 9999 1 0 0 0 0 0 0 9999 1 0 0 0 0 0 0\n" +
			"docker0: 5555 1 0 0 0 0 0 0 5555 1 0 0 0 0 0 0\n" +
			"  eth0: " + strconv.Itoa(in) + " 1 0 0 0 0 0 0 " + strconv.Itoa(out) + " 1 0 0 0 0 0 0\n"
	}
	disk := func(ms int) string { return " 259 3 nvme0n1p1 1 0 8 5 1 0 8 5 0 " + strconv.Itoa(ms) + " 10\n" }
	writeTree(t, root, map[string]string{
		"net/dev": net(1000, 50), "diskstats": " 259 0 nvme0n1 1 0 8 5 1 0 8 5 0 1 10\n" + disk(100),
		"class/net/eth0/device/vendor": "0x1d0f\n", "class/net/eth0/speed": "10000\n", "fs/cgroup/cpu.max": "150000 100000\n",
	})
	r := &machineReader{proc: root, sys: root, cpus: threads(root), major: 259, minor: 3}
	at := time.Now()
	if m := r.read(at); m.disk != nil || m.network != nil || m.link != 1.25e9 || m.cpus != min(1.5, float64(runtime.NumCPU())) {
		t.Errorf("the first look has nothing to compare with: %+v", m)
	}
	writeTree(t, root, map[string]string{"net/dev": net(2000, 5050), "diskstats": disk(4100)})
	if m := r.read(at.Add(5 * time.Second)); *m.disk != 80 || *m.network != 1000 {
		t.Errorf("disk %v, network %v", *m.disk, *m.network)
	}
	// Counters that fall were set anew.
	writeTree(t, root, map[string]string{"net/dev": net(10, 10), "diskstats": disk(7), "class/net/eth0/speed": "-1\n"})
	if m := r.read(at.Add(10 * time.Second)); m.disk != nil || m.network != nil || m.link != 0 {
		t.Errorf("after counters fell: %+v", m)
	}
	if err := os.Remove(filepath.Join(root, "diskstats")); err != nil {
		t.Fatal(err)
	}
	r.major = 0
	if m := r.read(at.Add(15 * time.Second)); m.disk != nil {
		t.Errorf("a disk that nobody knows works %v %%", *m.disk)
	}
}

// The real /proc says something of this machine.
func TestMachineReaderHere(t *testing.T) {
	r := newMachineReader("/proc", "/sys", t.TempDir())
	m := r.read(time.Now().Add(time.Second))
	if m.cpus <= 0 || m.cpus > float64(runtime.NumCPU()) || m.disk != nil && *m.disk > 100 {
		t.Errorf("%+v", m)
	}
	if _, _, _, ok := r.traffic(); ok && m.network == nil {
		t.Error("the network was read, and is unknown")
	}
}

// A command's processor time and memory are seen, however it is run, also that of
// children that have ended.
func TestUsedOfACommand(t *testing.T) {
	for name, p := range executors(t) {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			// A child works for a while and ends, then the shell holds 64 MiB and waits.
			c := startCommand(t, p, Command{Dir: dir, Args: []string{"/bin/sh", "-c", `
(i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done)
x=$(head -c 67108864 /dev/zero | tr '\0' x); echo >ready; sleep 60`}})
			waitFor(t, filepath.Join(dir, "ready"))
			u := c.Process.(Metered).Used()
			if u.CPU == nil || *u.CPU < 50*time.Millisecond || *u.CPU > time.Minute {
				t.Errorf("processor time %v", u.CPU)
			}
			if u.Memory == nil || *u.Memory < 64<<20 || *u.Memory > 2<<30 {
				t.Errorf("memory %v", u.Memory)
			}
			c.Kill()
			c.Wait()
			if u := c.Process.(Metered).Used(); u.CPU != nil || u.Memory != nil {
				t.Errorf("after the end: %+v", u)
			}
		})
	}
}

// An attempt's usage goes with its reports while it runs and at its end, is kept
// for a restarted agent, and nothing is left of the looking.
func TestUsageIsReported(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	script(t, "nvidia-smi", `echo $$ >>`+pids+`
while :; do echo "0, 40, 9000, 24576, 5, 0"; echo "1, 0, 3, 24576, 0, 0"; sleep 0.02; done`)
	before := runtime.NumGoroutine()
	dir := t.TempDir()
	b := newFakeBroker(t)
	set := Settings{URL: "http://broker", Instance: "i-1", Token: "join", Dir: dir}
	if err := set.Check(); err != nil {
		t.Fatal(err)
	}
	exec, err := NewProcesses(dir, nil, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	a := New(set, Parts{Broker: b, Store: b.store, Metadata: NoMetadata{}, Clock: newTestClock(), Log: testLog(t), Executor: exec})
	a.meter.every, a.meter.report = 20*time.Millisecond, 60*time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- a.Run(ctx) }()

	hold := filepath.Join(dir, "hold")
	b.add("a1", agentapi.Task{Shell: "while [ ! -e " + hold + " ]; do sleep 0.01; done; echo done", GPUs: []int{0, 1}})
	b.add("a2", agentapi.Task{Shell: "while [ ! -e " + hold + " ]; do sleep 0.01; done", GPUs: []int{1}})
	record := func(id string) string {
		text, _ := os.ReadFile(filepath.Join(a.attemptDir(id), "record.json"))
		return string(text)
	}
	eventually(t, "usage in the record", func() bool { return strings.Contains(record("a1"), `"usage"`) })
	a.poke()
	b.until("usage while it runs", func() bool {
		a.poke() // the real agent calls every 20 s
		for _, c := range b.calls {
			for _, x := range c.Attempts {
				if x.ID == "a1" && x.Phase == agentapi.Running && x.Usage != nil && x.Usage.Shared > 0 && x.Usage.Samples > x.Usage.Alone {
					return true
				}
			}
		}
		return false
	})
	told, calls := 0, 0
	b.mu.Lock()
	for _, c := range b.calls {
		for _, x := range c.Attempts {
			if x.ID == "a1" && x.Phase == agentapi.Running {
				if calls++; x.Usage != nil {
					told++
				}
			}
		}
	}
	b.mu.Unlock()
	if told == calls {
		t.Errorf("each of %d calls tells the usage anew", calls)
	}
	eventually(t, "looks at both", func() bool {
		a.meter.mu.Lock()
		defer a.meter.mu.Unlock()
		n := 0
		for _, w := range a.meter.on {
			if w.tally.samples > 3 {
				n++
			}
		}
		return n == 2
	})
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	end := b.end("a1")
	u := end.Usage
	if u == nil || !u.Plausible() || u.Samples < 3 || u.CPU == nil || u.Memory == nil || u.Memory.Max <= 0 || u.GPUs != 2 {
		t.Fatalf("usage at the end: %+v", u)
	}
	if u.Shared == 0 || u.Shared > u.Samples {
		t.Errorf("GPU 1 was another's too, and yet %d of %d looks say so", u.Shared, u.Samples)
	}
	if u := b.end("a2").Usage; u == nil || u.Samples < 3 {
		t.Errorf("usage of the other: %+v", u)
	}
	cancel()
	if err := <-over; err != nil {
		t.Fatal(err)
	}
	lines, _ := os.ReadFile(pids)
	for line := range strings.FieldsSeq(string(lines)) {
		pid, _ := strconv.Atoi(line)
		eventually(t, "the end of nvidia-smi", func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH })
	}
	eventually(t, "the end of all goroutines", func() bool { return runtime.NumGoroutine() <= before })
}

// A lone attempt has the GPU's figures for itself.
func TestUsageOfALoneAttempt(t *testing.T) {
	script(t, "nvidia-smi", `while :; do echo "0, 40, 9000, 24576, 5, 0"; sleep 0.02; done`)
	b := newFakeBroker(t)
	dir := t.TempDir()
	set := Settings{URL: "http://broker", Instance: "i-1", Token: "join", Dir: dir}
	if err := set.Check(); err != nil {
		t.Fatal(err)
	}
	exec, err := NewProcesses(dir, nil, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	a := New(set, Parts{Broker: b, Store: b.store, Metadata: NoMetadata{}, Clock: newTestClock(), Log: testLog(t), Executor: exec})
	a.meter.every = 20 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- a.Run(ctx) }()
	defer func() { cancel(); <-over }()
	hold := filepath.Join(dir, "hold")
	b.add("a1", agentapi.Task{Shell: "while [ ! -e " + hold + " ]; do sleep 0.01; done", GPUs: []int{0}})
	eventually(t, "some looks", func() bool {
		a.meter.mu.Lock()
		defer a.meter.mu.Unlock()
		for _, w := range a.meter.on {
			return w.tally.gpu.n > 5
		}
		return false
	})
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	u := b.end("a1").Usage
	if u == nil || u.GPU == nil || u.GPU.Mean != 40 || u.GPU.Max != 40 || u.GPUMemory.Max < 9000<<20 || u.GPUSize != 24576<<20 || u.Encoder.Max != 5 || u.Alone != u.Samples || u.Shared != 0 || u.Idle != 0 {
		t.Fatalf("%+v", u)
	}
	if w := u.Waiting; w == nil || w.Share != 0.6 || w.CPU == nil {
		t.Errorf("waiting %+v", w)
	}
}
