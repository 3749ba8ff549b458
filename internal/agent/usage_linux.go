package agent

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Used reads the command's cgroup where it has one, else its processes.
func (r *process) Used() Used {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return Used{}
	}
	var u Used
	if r.group != nil {
		u = r.group.used()
	}
	if u.CPU == nil || u.Memory == nil {
		tree := treeUsed(r.cmd.Process.Pid, r.seen.read())
		if u.CPU == nil {
			u.CPU = tree.CPU
		}
		if u.Memory == nil {
			u.Memory = tree.Memory
		}
	}
	return u
}

// used reads the kernel's books. Of the memory, file cache that it would give up
// first is left out (memory.current − inactive_file, the working set).
func (c *cgroup) used() Used {
	var u Used
	if us, ok := readField(filepath.Join(c.dir, "cpu.stat"), "usage_usec"); ok {
		u.CPU = new(time.Duration(us) * time.Microsecond)
	}
	if !c.memory {
		return u
	}
	text, err := os.ReadFile(filepath.Join(c.dir, "memory.current"))
	if err != nil {
		return u
	}
	now, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if cache, ok := readField(filepath.Join(c.dir, "memory.stat"), "inactive_file"); ok && err == nil {
		u.Memory = new(max(0, now-cache))
	}
	return u
}

// readField reads the number behind a name in a file of such lines.
func readField(file, name string) (int64, bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// ticksPerSecond is the unit of /proc/PID/stat: USER_HZ is 100 on every
// architecture that Go runs on.
const ticksPerSecond = 100

// treeUsed sums up the processes below root, and root's books of those that have
// ended. Pages that several share count several times: it is an upper bound.
func treeUsed(root int, f forest) Used {
	pids := append(f.below(root), root)
	var ticks int64
	for _, pid := range pids {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			continue // it has just ended: its parent's books have it soon
		}
		// proc(5): utime, stime, cutime and cstime are fields 14 to 17, of which the
		// second is a name in brackets.
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if len(fields) < 15 {
			continue
		}
		for _, f := range fields[11:15] {
			n, _ := strconv.ParseInt(f, 10, 64) // the kernel writes numbers
			ticks += n
		}
	}
	return Used{CPU: new(time.Duration(ticks) * time.Second / ticksPerSecond), Memory: new(memoryOf(pids, math.MaxInt64))}
}

// lastForest is read once for all commands that are looked at together.
type lastForest struct {
	mu sync.Mutex
	at time.Time
	forest
}

func (l *lastForest) read() forest {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.at) > 500*time.Millisecond {
		l.forest, l.at = readForest(), time.Now()
	}
	return l.forest
}

// machineReader reads what the machine does between two looks.
type machineReader struct {
	proc, sys string
	cpus      float64
	major     uint32 // of the disk under the workspaces
	minor     uint32
	at        time.Time
	disk      reading // milliseconds in which it worked
	in, out   reading // bytes
}

// reading is a count of the kernel's as it was; unknown at first.
type reading struct {
	was   int64
	known bool
}

// since is how much it has grown, nil when that is unknown.
func (c *reading) since(now int64, known bool) *float64 {
	was := *c
	*c = reading{now, known}
	if !was.known || !known || now < was.was {
		return nil
	}
	return new(float64(now - was.was))
}

func newMachineReader(proc, sys, dir string) *machineReader {
	r := &machineReader{proc: proc, sys: sys, cpus: threads(sys)}
	var st unix.Stat_t
	if unix.Stat(dir, &st) == nil {
		r.major, r.minor = unix.Major(st.Dev), unix.Minor(st.Dev)
	}
	r.read(time.Now())
	return r
}

// threads is how many CPU threads commands may use: those that the agent may run
// on, and no more than its own cgroup's quota (cpu.max, of a container).
func threads(sys string) float64 {
	n := float64(runtime.NumCPU())
	text, err := os.ReadFile(filepath.Join(sys, "fs/cgroup/cpu.max"))
	if err != nil {
		return n
	}
	if f := strings.Fields(string(text)); len(f) == 2 {
		quota, err := strconv.ParseFloat(f[0], 64) // or "max"
		period, err2 := strconv.ParseFloat(f[1], 64)
		if err == nil && err2 == nil && quota > 0 && period > 0 {
			n = min(n, quota/period)
		}
	}
	return n
}

func (r *machineReader) read(now time.Time) machineNow {
	span := now.Sub(r.at)
	r.at = now
	m := machineNow{cpus: r.cpus}
	if ms := r.disk.since(r.diskTicks()); ms != nil && span > 0 {
		m.disk = new(min(100, *ms/float64(span.Milliseconds())*100))
	}
	in, out, link, ok := r.traffic()
	i, o := r.in.since(in, ok), r.out.since(out, ok)
	if i != nil && o != nil && span > 0 {
		m.network = new(max(*i, *o) / span.Seconds())
	}
	m.link = link
	return m
}

// diskTicks reads how long the disk under the workspaces has worked (io_ticks,
// kernel, iostats.rst, field 10). A file system without a device of its own, such
// as an overlay, is not known.
func (r *machineReader) diskTicks() (int64, bool) {
	text, err := os.ReadFile(filepath.Join(r.proc, "diskstats"))
	if err != nil || r.major == 0 {
		return 0, false
	}
	major, minor := strconv.FormatUint(uint64(r.major), 10), strconv.FormatUint(uint64(r.minor), 10)
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 12 && f[0] == major && f[1] == minor {
			n, err := strconv.ParseInt(f[12], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// traffic sums up the network interfaces that have a device, or where none has
// (a container) all but the loopback. link is what they take together, 0 where one
// does not say.
func (r *machineReader) traffic() (in, out int64, link float64, ok bool) {
	text, err := os.ReadFile(filepath.Join(r.proc, "net/dev"))
	if err != nil {
		return 0, 0, 0, false
	}
	type device struct {
		name    string
		in, out int64
	}
	var all, real []device
	for line := range strings.Lines(string(text)) {
		name, rest, found := strings.Cut(line, ":")
		f := strings.Fields(rest)
		name = strings.TrimSpace(name)
		if !found || len(f) < 9 || name == "lo" {
			continue
		}
		d := device{name: name}
		var errIn, errOut error
		d.in, errIn = strconv.ParseInt(f[0], 10, 64)
		d.out, errOut = strconv.ParseInt(f[8], 10, 64)
		if errIn != nil || errOut != nil {
			continue
		}
		all = append(all, d)
		if _, err := os.Stat(filepath.Join(r.sys, "class/net", name, "device")); err == nil {
			real = append(real, d)
		}
	}
	if len(real) > 0 {
		all = real
	}
	said := len(all) > 0
	for _, d := range all {
		in, out = in+d.in, out+d.out
		speed, err := os.ReadFile(filepath.Join(r.sys, "class/net", d.name, "speed"))
		mbit, err2 := strconv.ParseFloat(strings.TrimSpace(string(speed)), 64)
		if err != nil || err2 != nil || mbit <= 0 {
			said = false
			continue
		}
		link += mbit * 1e6 / 8
	}
	if !said {
		link = 0
	}
	return in, out, link, len(all) > 0
}
