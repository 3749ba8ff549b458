package agent

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// executors are the ways in which this machine can run commands.
func executors(t *testing.T) map[string]*processes {
	t.Helper()
	e, err := NewProcesses(t.TempDir(), nil, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	best, ok := e.(*processes)
	if !ok {
		t.Fatal("another executor")
	}
	tree := *best
	tree.namespace, tree.user = false, false
	all := map[string]*processes{"tree": &tree}
	if best.namespace {
		all["namespace"] = best
	} else {
		t.Log("this machine allows no PID namespace")
	}
	return all
}

// started is a command under test with its output, which is whole after Wait.
type started struct {
	Process
	out *bytes.Buffer
}

func startCommand(t *testing.T, p *processes, c Command) started {
	t.Helper()
	s := started{out: &bytes.Buffer{}}
	c.Output = s.out
	if c.Dir == "" {
		c.Dir = t.TempDir()
	}
	if c.ID == "" {
		c.ID = strings.ReplaceAll(t.Name(), "/", "_")
	}
	c.Env = append(c.Env, "PATH=/usr/bin:/bin")
	var err error
	if s.Process, err = p.Start(c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	return s
}

func shellCommand(script string) Command { return Command{Args: []string{"/bin/sh", "-c", script}} }

// waitFor waits for a file that a command under test writes, and returns what it
// holds.
func waitFor(t *testing.T, path string) string {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if data, err := os.ReadFile(path); err == nil && strings.HasSuffix(string(data), "\n") {
			return strings.TrimSpace(string(data))
		}
	}
	t.Fatalf("%s never came", path)
	return ""
}

// alive counts the processes with a word in their command line.
func alive(word string) int {
	n := 0
	found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range found {
		data, err := os.ReadFile(path)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if state, _, ok := readStat(pid); err == nil && ok && state != 'Z' && strings.Contains(string(data), word) && !strings.Contains(string(data), "setsid") {
			n++
		}
	}
	return n
}

// unusual returns a sleep that nobody else does, to be looked for.
func unusual(t *testing.T) string {
	return "31" + strconv.Itoa(os.Getpid()) + strconv.Itoa(len(t.Name())*100+int(time.Now().UnixNano()%97))
}

func TestCommandThatForksAwayEndsWithTheRest(t *testing.T) {
	for name, p := range executors(t) {
		for _, how := range []string{"kill", "exit"} {
			t.Run(name+" "+how, func(t *testing.T) {
				dir, mark := t.TempDir(), unusual(t)
				// Twice away: a session of its own, and its parent gone.
				script := `setsid sh -c "setsid sleep ` + mark + ` >/dev/null 2>&1 </dev/null & echo up > ready" ; `
				if how == "kill" {
					script += "sleep " + mark
				} else {
					script += "exit 4"
				}
				c := shellCommand(script)
				c.Dir = dir
				s := startCommand(t, p, c)
				waitFor(t, filepath.Join(dir, "ready"))
				if how == "kill" {
					for alive(mark) < 2 {
						time.Sleep(time.Millisecond)
					}
					s.Kill()
				}
				exit := s.Wait()
				if how == "exit" && (exit.Code != 4 || exit.Signal != 0) || how == "kill" && exit.Signal != syscall.SIGKILL || exit.Err != nil {
					t.Errorf("exit: %+v", exit)
				}
				if n := alive(mark); n > 0 {
					t.Errorf("%d processes are left", n)
				}
			})
		}
	}
}

func TestCommandThatKillsItsInitIsStillCaught(t *testing.T) {
	p := executors(t)["tree"]
	mark := unusual(t)
	s := startCommand(t, p, shellCommand(`setsid sleep `+mark+` & kill -9 $PPID; sleep `+mark))
	if exit := s.Wait(); exit.Err == nil {
		t.Errorf("exit: %+v", exit)
	}
	if n := alive(mark); n > 0 {
		t.Errorf("%d processes are left", n)
	}
}

func TestSignalsReachTheCommandAndCodesComeBack(t *testing.T) {
	for name, p := range executors(t) {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c := shellCommand(`trap 'echo got; exit 12' USR1; echo up > ready; while :; do sleep 0.05; done`)
			c.Dir = dir
			s := startCommand(t, p, c)
			waitFor(t, filepath.Join(dir, "ready"))
			if err := s.Signal(syscall.SIGUSR1); err != nil {
				t.Fatal(err)
			}
			if exit := s.Wait(); exit.Code != 12 {
				t.Errorf("exit: %+v", exit)
			}
			if out := s.out.String(); !strings.HasSuffix(out, "got\n") { // the shell may say what ended its sleep
				t.Errorf("output %q", out)
			}
		})
	}
}

func TestCommandSeesACleanMachine(t *testing.T) {
	t.Setenv("AWS_SECRET_ACCESS_KEY", "of-the-agent")
	for name, p := range executors(t) {
		t.Run(name, func(t *testing.T) {
			c := shellCommand(`env; echo; ls /proc/self/fd | wc -l; ls -d /proc/[0-9]* | wc -l; ulimit -c; trap`)
			c.Env = []string{"A=b"}
			s := startCommand(t, p, c)
			if exit := s.Wait(); exit.Code != 0 {
				t.Fatalf("exit: %+v", exit)
			}
			out := s.out.String()
			env, rest, _ := strings.Cut(out, "\n\n")
			for line := range strings.Lines(env) {
				key, _, _ := strings.Cut(line, "=")
				switch key {
				case "A", "PATH", "PWD", "GPUBROKER_WORKSPACE", "_", "SHLVL", "OLDPWD":
				default:
					t.Errorf("the command sees %s", line)
				}
			}
			f := strings.Fields(rest)
			if len(f) != 3 {
				t.Fatalf("output %q", rest)
			}
			if f[0] != "4" { // 0, 1, 2, and the folder itself
				t.Errorf("the command has %s open files", f[0])
			}
			if n, _ := strconv.Atoi(f[1]); name == "namespace" && n > 6 {
				t.Errorf("the command sees %d processes", n)
			}
			if f[2] != "0" {
				t.Errorf("core dumps of %s", f[2])
			}
		})
	}
}

func TestInitEndsEverythingWhenTheAgentDies(t *testing.T) {
	for name, p := range executors(t) {
		t.Run(name, func(t *testing.T) {
			dir, mark := t.TempDir(), unusual(t)
			c := shellCommand(`setsid sleep ` + mark + ` & echo up > ready; sleep ` + mark)
			c.Dir = dir
			s := startCommand(t, p, c)
			waitFor(t, filepath.Join(dir, "ready"))
			run, ok := s.Process.(*process)
			if !ok {
				t.Fatal("another process")
			}
			run.orders.Close() // as the kernel does it for a dead agent
			s.Wait()
			if n := alive(mark); n > 0 {
				t.Errorf("%d processes are left", n)
			}
		})
	}
}

func TestCleanFindsWhatAnEarlierAgentLeft(t *testing.T) {
	p := executors(t)["tree"]
	dir, mark := t.TempDir(), unusual(t)
	c := exec.Command("setsid", "sleep", mark)
	c.Env = []string{"PATH=/usr/bin:/bin", marker + dir + "/a1/work"}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	go c.Wait()
	other := exec.Command("sleep", mark+"9")
	other.Env = []string{"PATH=/usr/bin:/bin", marker + dir + "-of-another/work"}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { other.Process.Kill(); other.Wait() }()
	if err := p.Clean(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if n := alive(mark); n != 1 {
		t.Errorf("%d processes are left, want the other agent's alone", n)
	}
}

func TestMemoryLimitCountsSharedPagesOnce(t *testing.T) {
	self := os.Getpid()
	used := treeMemory(self, 0)
	if used < 0 {
		t.Errorf("%d bytes", used)
	}
	p := executors(t)["tree"]
	p.groups = cgroups{}
	c := shellCommand(`a=$(head -c 60000000 /dev/zero | tr '\0' x); (sleep 3) & (sleep 3) & (sleep 3) & sleep 2.5`)
	c.Memory = 170 << 20 // three copies of the shell's memory, shared
	s := startCommand(t, p, c)
	if exit := s.Wait(); exit.OOM || exit.Code != 0 {
		t.Errorf("exit: %+v", exit)
	}
}
