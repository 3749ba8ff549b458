package simcloud

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// isolation is how a machine is cut off.
type isolation int

const (
	byNamespace isolation = iota
	byUserNamespace
	byGroup
)

func (i isolation) String() string {
	return [...]string{"namespace", "user namespace", "process group"}[i]
}

// attributes start a machine's first process so that it dies with us.
func (i isolation) attributes() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	switch i {
	case byUserNamespace:
		a.Cloneflags = syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
		a.Unshareflags = syscall.CLONE_NEWNS
	case byNamespace:
		a.Cloneflags = syscall.CLONE_NEWPID
		a.Unshareflags = syscall.CLONE_NEWNS // package syscall makes the mounts private
	case byGroup:
	}
	return a
}

// word is what init.sh is told.
func (i isolation) word() string {
	if i == byGroup {
		return "group"
	}
	return "namespace"
}

// chooseIsolation tries what is asked for, the strongest first.
func (p *Processes) chooseIsolation(want string) (isolation, error) {
	var tried []string
	if want != IsolationGroup {
		candidates := []isolation{byUserNamespace}
		if os.Geteuid() == 0 {
			candidates = []isolation{byNamespace, byUserNamespace}
		}
		for _, i := range candidates {
			err := p.probe(i)
			if err == nil {
				return i, nil
			}
			tried = append(tried, fmt.Sprintf("%s: %v", i, err))
		}
		if want == IsolationNamespace {
			return 0, fmt.Errorf("simcloud: machines cannot have namespaces here (%s); run as root or set machines.isolation: group", strings.Join(tried, ", "))
		}
		p.log.Warn("machines run in process groups: namespaces are not allowed here", "tried", tried)
	}
	// Orphans of a machine become our children, so that they can be found.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("simcloud: become the subreaper of machines: %w", err)
	}
	return byGroup, nil
}

// probe starts a first process that ends at once.
func (p *Processes) probe(i isolation) error {
	dir, err := os.MkdirTemp(p.dir, "probe-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // an empty trial
	script := filepath.Join(dir, "init")
	if err := os.WriteFile(script, initScript, 0o700); err != nil {
		return err
	}
	ctx, cancel := probeContext()
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", script, i.word(), "probe")
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + dir}
	cmd.SysProcAttr = i.attributes()
	var out bytes.Buffer
	cmd.Stderr = &out
	if err := p.forker.start(cmd); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w %s", err, firstLines(out.String()))
	}
	return nil
}

// forker starts processes from one operating-system thread that lives as long
// as they do: the kernel sends the signal of a parent's death when the thread
// that forked ends.
type forker struct{ jobs chan func() }

func newForker() *forker {
	f := &forker{jobs: make(chan func())}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for job := range f.jobs {
			job()
		}
	}()
	return f
}

func (f *forker) start(cmd *exec.Cmd) (err error) {
	done := make(chan struct{})
	f.jobs <- func() { err = cmd.Start(); close(done) }
	<-done
	return err
}

func (f *forker) close() { close(f.jobs) }

// osProcess is the first process of a machine and what descends from it.
type osProcess struct {
	id, dir   string
	cmd       *exec.Cmd
	isolation isolation
	lifeline  *os.File // our end of file 3 of a process group
}

func (p *Processes) spawn(id, dir string, env []string, out *os.File) (*osProcess, error) {
	cmd := exec.Command("/bin/sh", filepath.Join(dir, "init"), p.isolation.word())
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, env, out, out
	cmd.SysProcAttr = p.isolation.attributes()
	o := &osProcess{id: id, dir: dir, cmd: cmd, isolation: p.isolation}
	if p.isolation == byGroup {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		defer func() { _ = r.Close() }() // the child has its own
		cmd.ExtraFiles, o.lifeline = []*os.File{r}, w
	}
	if err := p.forker.start(cmd); err != nil {
		if o.lifeline != nil {
			_ = o.lifeline.Close() // nobody reads it
		}
		return nil, err
	}
	return o, nil
}

func (o *osProcess) kill() { _ = o.cmd.Process.Kill() } // it may have ended by itself

// wait returns when nothing of the machine is left. A PID namespace has ended
// whole when its first process has been reaped.
func (o *osProcess) wait() {
	_ = o.cmd.Wait() // how it ended does not matter
	if o.lifeline == nil {
		return
	}
	_ = o.lifeline.Close() // its watchman goes too
	killed := map[int]bool{}
	for left := o.members(); len(left) > 0; left = o.members() {
		for pid := range left {
			killed[pid] = true
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have gone
		}
		time.Sleep(5 * time.Millisecond)
	}
	for pid := range killed {
		_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil) // ours to reap if it was orphaned
	}
}

// signalAll stops everything but the first process, and then kills it if asked.
// Stopping comes first so that nothing forks away. One that waits in the kernel
// (state D, such as a shell whose forked child was stopped before its exec)
// runs no more either: it stops when it comes out.
func (o *osProcess) signalAll(kill bool) error {
	told := map[int]bool{}
	for range 1000 {
		all := o.members()
		delete(all, o.cmd.Process.Pid)
		if len(all) == 0 {
			return fmt.Errorf("simcloud: nothing runs on machine %s", o.id)
		}
		moving := false
		for pid, state := range all {
			if state != "T" && !(state == "D" && told[pid]) {
				moving, told[pid] = true, true
				_ = syscall.Kill(pid, syscall.SIGSTOP) // it may have gone
			}
		}
		if moving {
			time.Sleep(time.Millisecond)
			continue
		}
		for pid := range all {
			if kill {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		return nil
	}
	return fmt.Errorf("simcloud: processes of machine %s cannot be stopped", o.id)
}

// members returns the processes of the machine with their states, its first one
// included: those that descend from it and, without a namespace, those that
// bear its id in their environment or work in its folder. Ended ones that
// nobody has reaped do not count.
func (o *osProcess) members() map[int]string {
	first := o.cmd.Process.Pid
	parents, states, members := map[int]int{}, map[int]string{}, map[int]string{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		// After the name in brackets, which may hold anything: state, parent.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) < 2 || fields[0] == "Z" || fields[0] == "X" {
			continue
		}
		if parents[pid], err = strconv.Atoi(fields[1]); err != nil {
			continue
		}
		states[pid] = fields[0]
		if o.isolation == byGroup && o.bears(e.Name()) {
			members[pid] = fields[0]
		}
	}
	for pid, state := range states {
		for at, hops := pid, 0; at > 1 && hops < 1000; at, hops = parents[at], hops+1 {
			if at == first {
				members[pid] = state
				break
			}
		}
	}
	return members
}

// bears reports whether a process is marked as the machine's.
func (o *osProcess) bears(pid string) bool {
	env, err := os.ReadFile(filepath.Join("/proc", pid, "environ"))
	if err == nil {
		vars := bytes.Split(env, []byte{0})
		has := func(v string) bool {
			return slices.ContainsFunc(vars, func(have []byte) bool { return string(have) == v })
		}
		if has("SIMCLOUD_INSTANCE_ID="+o.id) && has("HOME="+o.dir) {
			return true
		}
	}
	cwd, err := os.Readlink(filepath.Join("/proc", pid, "cwd"))
	return err == nil && (cwd == o.dir || strings.HasPrefix(cwd, o.dir+"/"))
}

// makeFIFO makes a FIFO and opens it so that it is always readable and writable.
func makeFIFO(path string) (*os.File, error) {
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("make FIFO %s: %w", path, err)
	}
	return os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
}
