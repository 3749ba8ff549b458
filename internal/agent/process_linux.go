package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// marker is the variable by which processes of ours are found when the tree
// above them is gone.
const marker = "GPUBROKER_WORKSPACE="

// processes runs commands as processes of this machine.
type processes struct {
	self      string // this program
	namespace bool
	user      bool // with a user namespace
	groups    cgroups
	open      error // why commands can reach what is denied
	seen      *lastForest
	log       *slog.Logger
}

// NewProcesses finds out what the machine allows and returns the executor for
// it. Commands cannot reach the addresses in deny, where that can be arranged. The
// program must hand its first argument [InitArg] to [Init].
func NewProcesses(state string, deny []netip.AddrPort, log *slog.Logger) (Executor, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("agent: find this program: %w", err)
	}
	p := &processes{self: self, log: log, groups: findCgroups(state), seen: &lastForest{}}
	if len(deny) > 0 {
		p.open = p.groups.fence(state, deny)
	}
	if !p.groups.memory && (len(deny) == 0 || p.open != nil) { // they would do nothing
		p.Close()
		p.groups = cgroups{}
	}
	for _, user := range []bool{false, true} {
		p.user = user
		p.namespace = true
		run, err := p.spawn(initJob{Namespace: true, Probe: true}, nil, nil)
		if err != nil {
			continue
		}
		if exit := run.Wait(); exit.Code == 0 && exit.Err == nil {
			return p, nil
		}
	}
	p.namespace, p.user = false, false
	return p, nil
}

// Limits says what this machine does not allow.
func (p *processes) Limits() []string {
	var short []string
	if !p.namespace {
		short = append(short, "no PID namespace: commands are ended by walking the process tree")
	}
	if !p.groups.memory {
		short = append(short, "no cgroup v2 memory controller: memory limits are kept by looking every second")
	}
	if p.open != nil {
		short = append(short, "tasks can reach the metadata address: "+p.open.Error())
	}
	return short
}

// Close removes this agent's cgroups.
func (p *processes) Close() {
	if p.groups.dir != "" {
		p.groups.sweep()
		_ = os.Remove(p.groups.dir) // the kernel refuses while something is in it
	}
}

// Start starts a command.
func (p *processes) Start(c Command) (Process, error) {
	if len(c.Args) == 0 {
		return nil, errors.New("agent: start a command: it is empty")
	}
	job := initJob{Args: c.Args, Dir: c.Dir, Env: append(c.Env, marker+c.Dir), Namespace: p.namespace}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("agent: start a command: %w", err)
	}
	run, err := p.spawn(job, w, &c)
	w.Close()
	if err != nil {
		r.Close()
		return nil, err
	}
	run.output = r
	run.copying.Go(func() {
		// It ends with the last holder of the pipe, or by the deadline in Wait. The
		// writer never fails.
		_, _ = io.CopyBuffer(c.Output, struct{ io.Reader }{r}, make([]byte, 32<<10))
	})
	return run, nil
}

// spawn starts an init with its job.
func (p *processes) spawn(job initJob, output *os.File, c *Command) (*process, error) {
	ordersR, ordersW, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("agent: start a command: %w", err)
	}
	defer ordersR.Close()
	reportR, reportW, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("agent: start a command: %w", err), ordersW.Close())
	}
	defer reportW.Close()

	cmd := exec.Command(p.self, InitArg)
	cmd.Dir = "/"
	cmd.Env = []string{"GOMAXPROCS=2", marker + job.Dir}
	cmd.Stdout, cmd.Stderr = output, output
	cmd.ExtraFiles = []*os.File{ordersR, reportW}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if p.namespace {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS
	}
	if p.namespace && p.user {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}}
		cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN}
	}
	run := &process{seen: p.seen, cmd: cmd, orders: ordersW, report: reportR, namespace: p.namespace, dir: job.Dir, log: p.log}
	if c != nil {
		run.memory = c.Memory
		if run.group, err = p.groups.create(c.ID, c.Memory); err != nil {
			p.log.Warn("no cgroup for the command", "attempt", c.ID, "err", err)
		}
		if run.group != nil {
			cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, run.group.fd()
		}
	}
	run.oomBefore = kernelOOMs()
	if err := cmd.Start(); err != nil {
		run.group.remove()
		return nil, errors.Join(fmt.Errorf("agent: start a command's init: %w", err), ordersW.Close(), reportR.Close())
	}
	if err := json.NewEncoder(ordersW).Encode(job); err != nil {
		run.Kill()
		_ = run.Wait() // it was killed just now
		return nil, fmt.Errorf("agent: hand a command to its init: %w", err)
	}
	return run, nil
}

// Clean ends whatever bears a workspace below folder.
func (p *processes) Clean(ctx context.Context, folder string) error {
	for wait := 10 * time.Millisecond; ; wait *= 2 {
		left := killMarked(folder)
		if left == 0 {
			p.groups.sweep()
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("agent: %d processes of an earlier agent do not end: %w", left, ctx.Err())
		case <-time.After(wait):
		}
	}
}

// killMarked kills every process whose environment names a workspace in folder,
// and returns how many there were.
func killMarked(folder string) int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	n := 0
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		env, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err != nil {
			continue // gone, or not ours
		}
		for v := range strings.SplitSeq(string(env), "\x00") {
			if dir, ok := strings.CutPrefix(v, marker); ok && (dir == folder || strings.HasPrefix(dir, folder+"/")) {
				if state, _, ok := readStat(pid); ok && state != 'Z' && unix.Kill(pid, syscall.SIGKILL) == nil {
					n++
				}
			}
		}
	}
	return n
}

// process is one init with what runs below it.
type process struct {
	seen      *lastForest
	cmd       *exec.Cmd
	orders    *os.File
	report    *os.File
	output    *os.File // what the command writes; nil for a probe
	copying   sync.WaitGroup
	namespace bool
	dir       string
	group     *cgroup
	memory    int64
	oomBefore int64
	log       *slog.Logger

	killed atomic.Bool
	oom    atomic.Bool
	mu     sync.Mutex
	over   bool // the init was waited for: its pid may be another's
}

// Signal hands a signal to the command's process group.
func (r *process) Signal(sig syscall.Signal) error {
	if _, err := fmt.Fprintf(r.orders, "signal %d\n", int(sig)); err != nil {
		return fmt.Errorf("agent: signal the command: %w", err)
	}
	return nil
}

// Kill ends everything at once.
func (r *process) Kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return
	}
	r.killed.Store(true)
	pid := r.cmd.Process.Pid
	if r.namespace {
		_ = unix.Kill(pid, syscall.SIGKILL) // it is not waited for yet, so it is there
		return
	}
	_ = unix.Kill(pid, syscall.SIGSTOP)
	killTree(pid, false)
	_ = unix.Kill(pid, syscall.SIGCONT) // it reports and ends
}

// Wait returns once nothing is left.
func (r *process) Wait() Exit {
	done := make(chan struct{})
	var watch sync.WaitGroup
	if r.memory > 0 && (r.group == nil || !r.group.memory) {
		watch.Go(func() { r.watchMemory(done) })
	}
	var rep initReport
	err := json.NewDecoder(r.report).Decode(&rep)
	reported := err == nil
	// Only then may its pid become another's.
	waitErr := waitExited(r.cmd.Process.Pid)
	r.mu.Lock()
	r.over = true
	_ = r.cmd.Wait() // what it says is in the report, or it was killed
	r.mu.Unlock()
	close(done)
	watch.Wait()
	r.orders.Close()
	r.report.Close()
	if !r.namespace && r.dir != "" {
		// The init may have been killed by the command itself.
		for killMarked(r.dir) > 0 {
			time.Sleep(5 * time.Millisecond)
		}
	}
	if r.output != nil {
		// Nothing of it is left, so what the pipe holds is all there is.
		_ = r.output.SetReadDeadline(time.Now().Add(5 * time.Second)) // a pipe takes deadlines
		r.copying.Wait()
		r.output.Close()
	}
	exit := Exit{Code: rep.Code, Signal: syscall.Signal(rep.Signal)}
	switch {
	case rep.Err != "":
		exit.Err = errors.New(rep.Err)
	case !reported && r.killed.Load():
		exit.Code, exit.Signal = -1, syscall.SIGKILL
	case !reported:
		exit.Code, exit.Err = -1, errors.Join(errors.New("the command's init was lost"), waitErr)
	}
	exit.OOM = r.oom.Load() || r.group.oomKilled() ||
		exit.Signal == syscall.SIGKILL && !r.killed.Load() && kernelOOMs() > r.oomBefore
	r.group.remove()
	return exit
}

// waitExited waits for a child without reaping it.
func waitExited(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// watchMemory keeps the memory limit where the kernel does not.
func (r *process) watchMemory(done <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		if used := treeMemory(r.cmd.Process.Pid, r.memory); used > r.memory {
			r.log.Warn("memory limit exceeded", "used", used, "limit", r.memory)
			r.oom.Store(true)
			r.Kill()
			return
		}
	}
}

// treeMemory is the memory that the processes below root use. Resident sizes
// count shared pages many times over; only when their sum is above limit are the
// exact shares read, which costs the kernel more.
func treeMemory(root int, limit int64) int64 { return memoryOf(descendants(root), limit) }

func memoryOf(pids []int, limit int64) int64 {
	var rss int64
	for _, pid := range pids {
		data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
		if err != nil {
			continue
		}
		if fields := strings.Fields(string(data)); len(fields) > 1 {
			pages, _ := strconv.ParseInt(fields[1], 10, 64) // the kernel writes numbers
			rss += pages * int64(os.Getpagesize())
		}
	}
	if rss <= limit {
		return rss
	}
	var pss int64
	for _, pid := range pids {
		data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/smaps_rollup")
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
				kib, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
				pss += kib << 10
			}
		}
	}
	return pss
}

// kernelOOMs is how often the kernel has killed for want of memory since boot,
// and 0 where it does not say.
func kernelOOMs() int64 {
	data, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			return n
		}
	}
	return 0
}
