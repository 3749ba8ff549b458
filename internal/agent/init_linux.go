package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// InitArg is the first argument that makes the program the init of one command.
// The main function calls [Init] when it sees it.
const InitArg = "task-init"

// Descriptors of the init beside standard input, output and error.
const (
	orderFD  = 3 // lines from the agent: the job, then "signal N" and "kill"; its end means that the agent is gone
	reportFD = 4 // one line of JSON back
)

// initJob is the init's first order. It goes through a pipe, so that secrets
// show neither in arguments nor in the init's own environment.
type initJob struct {
	Args      []string `json:"args"`
	Dir       string   `json:"dir"`
	Env       []string `json:"env"`
	Namespace bool     `json:"namespace"`
	Probe     bool     `json:"probe,omitzero"` // only say whether a namespace can be set up
}

// initReport is how the command ended.
type initReport struct {
	Code   int    `json:"code"`
	Signal int    `json:"signal,omitzero"`
	Err    string `json:"err,omitzero"`
}

// Init is the first process of a command: it starts it, hands on signals, reaps
// what is orphaned, reports the end, and takes everything else with it. It
// returns the process's exit code.
func Init() int {
	// What the init does not need must not reach the command.
	closeOnExec()
	// Stop signals come through the pipe. Those that reach the init by way of its
	// group or a terminal are not meant for it.
	// Notify rather than Ignore: what is ignored would stay so in the command.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	orders := bufio.NewReader(os.NewFile(orderFD, "orders"))
	report := os.NewFile(reportFD, "report")
	rep := initReport{Code: -1}
	var job initJob
	line, err := orders.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &job)
	}
	if err == nil {
		rep, err = runJob(job, orders)
	}
	if err != nil {
		rep.Err = err.Error()
	}
	// When the agent is gone nobody reads it.
	_ = json.NewEncoder(report).Encode(rep)
	return 0
}

// closeOnExec keeps every descriptor but the first three from the command: the
// init's own, and those that whoever started the agent left open.
func closeOnExec() {
	if unix.CloseRange(orderFD, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	unix.CloseOnExec(orderFD) // kernels before 5.11
	unix.CloseOnExec(reportFD)
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}

func runJob(job initJob, orders *bufio.Reader) (initReport, error) {
	rep := initReport{Code: -1}
	// Capabilities belong to a thread, and the command is forked from this one.
	runtime.LockOSThread()
	if job.Namespace {
		if err := ownProc(); err != nil {
			return rep, err
		}
		if job.Probe {
			rep.Code = 0
			return rep, nil
		}
	} else if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return rep, fmt.Errorf("become a subreaper: %w", err)
	}
	setLimits()

	c := exec.Command(job.Args[0], job.Args[1:]...)
	c.Dir, c.Env = job.Dir, job.Env
	c.Path = lookPath(job.Args[0], job.Dir, job.Env)
	c.Err = nil // LookPath looked in the init's own PATH
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		rep.Code = 127 // as a shell says it
		if errors.Is(err, syscall.EACCES) {
			rep.Code = 126
		}
		return rep, fmt.Errorf("start %s: %w", job.Args[0], err)
	}
	main := c.Process.Pid
	go obey(orders, main, job.Namespace)

	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return rep, fmt.Errorf("wait: %w", err)
		case pid != main || !status.Exited() && !status.Signaled():
			continue
		}
		if status.Signaled() {
			rep.Signal = int(status.Signal())
		} else {
			rep.Code = status.ExitStatus()
		}
		if !job.Namespace {
			killTree(os.Getpid(), false)
		}
		return rep, nil
	}
}

// ownProc gives the namespace a /proc of its own and gives up what that took.
func ownProc() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cut off the mounts: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("give up capabilities: %w", err)
	}
	return nil
}

// obey follows the agent's orders until it is gone, and then ends everything.
func obey(orders *bufio.Reader, main int, namespace bool) {
	for {
		line, err := orders.ReadString('\n')
		if err != nil { // io.EOF: the agent is gone, and with it whoever wanted this
			line = "kill"
		}
		word, arg, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "signal":
			if n, err := strconv.Atoi(arg); err == nil {
				_ = unix.Kill(-main, syscall.Signal(n)) // ESRCH: it has just ended
			}
		case "kill":
			if namespace {
				os.Exit(137) //nolint:forbidigo // the init's end is the namespace's end, and there is nothing to put in order
			}
			killTree(os.Getpid(), false) // the wait above sees the command's end
			if errors.Is(err, io.EOF) {
				return
			}
		}
	}
}

// setLimits gives the command what daemons usually lack and takes what would
// fill the disk.
func setLimits() {
	// Each is refused at worst, and then the machine's own limit holds.
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil && files.Cur < files.Max {
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files.Max, Max: files.Max})
	}
	// Pinned host memory for GPU transfers.
	_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
}

// lookPath finds a program as the command's own shell would: in its PATH, with
// relative names seen from its folder.
func lookPath(name, dir string, env []string) string {
	if strings.Contains(name, "/") {
		return name
	}
	path := ""
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	for folder := range strings.SplitSeq(path, ":") {
		if !strings.HasPrefix(folder, "/") {
			folder = dir + "/" + folder
		}
		full := folder + "/" + name
		if info, err := os.Stat(full); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return full
		}
	}
	return name // Start says that it is not there
}

// killTree kills what is below root in the tree of processes, and root itself if
// asked, until nothing is left. Stopping first keeps a forking one from outrunning
// the walk.
func killTree(root int, self bool) {
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		below := descendants(root)
		if len(below) == 0 {
			break
		}
		for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
			for _, pid := range below {
				_ = unix.Kill(pid, sig) // ESRCH: gone meanwhile
			}
		}
		time.Sleep(wait)
	}
	if self {
		_ = unix.Kill(root, syscall.SIGKILL)
	}
}

// descendants are the living processes below root, zombies left out.
func descendants(root int) []int { return readForest().below(root) }

// forest is the processes of the machine at one moment.
type forest struct {
	children map[int][]int
	dead     map[int]bool // zombies
}

func readForest() forest {
	children := map[int][]int{}
	dead := map[int]bool{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return forest{}
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		state, parent, ok := readStat(pid)
		if !ok {
			continue
		}
		children[parent] = append(children[parent], pid)
		dead[pid] = state == 'Z' || state == 'X'
	}
	return forest{children, dead}
}

func (f forest) below(root int) []int {
	var found []int
	for queue := slices.Clone(f.children[root]); len(queue) > 0; {
		pid := queue[0]
		queue = append(queue[1:], f.children[pid]...)
		if !f.dead[pid] {
			found = append(found, pid)
		}
	}
	return found
}

// readStat reads state and parent from /proc/PID/stat (proc(5)): the name before
// them stands in brackets and may hold anything.
func readStat(pid int) (state byte, parent int, ok bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, false
	}
	text := string(data)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 2 {
		return 0, 0, false
	}
	parent, err = strconv.Atoi(fields[1])
	return fields[0][0], parent, err == nil
}
