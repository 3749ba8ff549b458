package simcloud

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// TestMain lets this test program be other programs too: the agent of a
// machine's image, and a cloud that is killed.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv("SIMCLOUD_INSTANCE_ID") != "":
		imageAgent()
	case os.Getenv("SIMCLOUD_TEST_CLOUD") != "":
		doomedCloud(os.Getenv("SIMCLOUD_TEST_CLOUD"))
	default:
		os.Exit(m.Run())
	}
}

// imageAgent prints what the machine knows of itself, and each second whether
// it has been warned.
func imageAgent() {
	get := func(path string) string {
		res, err := http.Get(os.Getenv("SIMCLOUD_METADATA") + path)
		if err != nil {
			return err.Error()
		}
		defer func() { _ = res.Body.Close() }()
		body, _ := io.ReadAll(res.Body)
		return fmt.Sprintf("%d %s", res.StatusCode, strings.TrimSpace(string(body)))
	}
	fmt.Println("id:", get("/v1/instance-id"))
	fmt.Println("notice:", get("/v1/notice"))
	fmt.Println("env:", strings.Join(os.Environ(), " "))
	for !strings.HasPrefix(get("/v1/notice"), "200 ") {
		time.Sleep(20 * time.Millisecond)
	}
	fmt.Println("warned:", get("/v1/notice"))
}

// realWorld runs machines as real processes, quickly.
func realWorld(t *testing.T, isolation string, edit func(*Config)) *World {
	t.Helper()
	cfg := small()
	cfg.Boot, cfg.StopTime = 0, 0
	cfg.Machines = MachineConfig{Dir: t.TempDir(), Isolation: isolation}
	if edit != nil {
		edit(&cfg)
	}
	cfg = cfg.withDefaults()
	runner, err := NewProcesses(cfg.Machines, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Skip(err) // namespaces are not allowed here
	}
	w, err := New(cfg, runner, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// until waits for something of the real world; ten seconds are a failure.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not come about in ten seconds", what)
		}
	}
}

func consoleHas(t *testing.T, w *World, id, text string) func() bool {
	return func() bool {
		data, err := w.Console(id)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(data), text)
	}
}

// marked finds the processes of the host whose command line holds a word.
func marked(t *testing.T, word string) (pids []int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil && strings.Contains(string(data), word) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// escape is user data that does what it can to outlive its machine. The odd
// duration marks its processes.
func escape(mark string) string {
	return `sleep ` + mark + ` &
setsid sleep ` + mark + ` &
(setsid sh -c 'trap "" TERM HUP INT; sleep ` + mark + `; :' &) &
(cd "$HOME/tmp" && env -i setsid sh -c 'sleep ` + mark + `; :' &)
echo ready
wait
`
}

func TestNothingOutlivesItsMachine(t *testing.T) {
	for n, isolation := range []string{IsolationNamespace, IsolationGroup} {
		t.Run(isolation, func(t *testing.T) {
			w := realWorld(t, isolation, nil)
			mark := fmt.Sprintf("9731%d.%d", n, os.Getpid())
			other := fmt.Sprintf("9732%d.%d", n, os.Getpid())
			m := launch(t, w, "req", spotA, func(l *simapi.Launch) { l.UserData = escape(mark) })
			stays := launch(t, w, "other", spotB, func(l *simapi.Launch) { l.UserData = "sleep " + other })
			until(t, "its start", func() bool { return len(marked(t, mark)) >= 4 })
			until(t, "the other's start", func() bool { return len(marked(t, other)) > 0 })
			dir := filepath.Join(w.cfg.Machines.Dir, m.ID)
			if _, err := os.Stat(dir); err != nil {
				t.Fatal(err)
			}
			if err := w.Terminate(m.ID); err != nil {
				t.Fatal(err)
			}
			until(t, "its end", func() bool { return describe(t, w, m.ID).State == providers.Terminated })
			if left := marked(t, mark); len(left) > 0 {
				t.Errorf("a machine that is gone runs processes %v", left)
			}
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("its folder is left: %v", err)
			}
			if got := describe(t, w, stays.ID).State; got != providers.Running || len(marked(t, other)) == 0 {
				t.Errorf("the other machine is %s with %d processes", got, len(marked(t, other)))
			}
			w.Close()
			if left := marked(t, other); len(left) > 0 {
				t.Errorf("processes %v outlive the world", left)
			}
		})
	}
}

func TestInsideOfAMachine(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SECRET_OF_THE_HOST", "hunter2")
	w := realWorld(t, IsolationAuto, func(c *Config) { c.Machines.AgentImage = self })
	m := launch(t, w, "req", spotA, func(l *simapi.Launch) {
		l.UserData = "#!/bin/sh\necho pwd: $(pwd) home: $HOME\n\"$GPUBROKER_AGENT_IMAGE\""
	})
	until(t, "the agent's start", consoleHas(t, w, m.ID, "env:"))
	if _, err := w.Do(simapi.Action{Preempt: &simapi.Preempt{Notice: new(dur(time.Minute))}}); err != nil {
		t.Fatal(err)
	}
	until(t, "the end of the user data", consoleHas(t, w, m.ID, "the user data ended with exit code 0"))
	data, err := w.Console(m.ID)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(w.cfg.Machines.Dir, m.ID)
	for _, want := range []string{
		"pwd: " + dir + " home: " + dir, "id: 200 " + m.ID, "notice: 404", `warned: 200 {"action":"terminate","time":"20`,
		"SIMCLOUD_METADATA=http://127.0.0.1:", "GPUBROKER_AGENT_IMAGE=" + self,
	} {
		if !strings.Contains(string(data), want) {
			t.Errorf("the console lacks %q", want)
		}
	}
	if strings.Contains(string(data), "SECRET_OF_THE_HOST") {
		t.Error("the host's environment reaches the machine")
	}
	if t.Failed() {
		t.Logf("console:\n%s", data)
	}
	if got := describe(t, w, m.ID).State; got != providers.Running {
		t.Errorf("with its user data ended the machine is %s; it should run on", got)
	}
}

func TestPowerOff(t *testing.T) {
	commands := []string{"poweroff", "shutdown -h now", "systemctl poweroff"}
	if p, err := exec.LookPath("/sbin/poweroff"); err == nil {
		commands = append(commands, p) // by its own path: never the host's
	}
	for _, command := range commands {
		t.Run(command, func(t *testing.T) {
			w := realWorld(t, IsolationNamespace, nil)
			m := launch(t, w, "req", spotA, func(l *simapi.Launch) { l.UserData = command + "\nsleep 60" })
			until(t, "its end", func() bool { return describe(t, w, m.ID).State == providers.Terminated })
			if got := describe(t, w, m.ID).Cause; got != providers.CauseGuest {
				t.Errorf("cause %q, want guest", got)
			}
		})
	}
	t.Run("billed on", func(t *testing.T) {
		w := realWorld(t, IsolationAuto, func(c *Config) { c.SelfEnd, c.EndAction = providers.EndGuest, providers.EndAPI })
		mark := fmt.Sprintf("97340.%d", os.Getpid())
		m := launch(t, w, "req", spotA, func(l *simapi.Launch) { l.UserData = "sleep " + mark + " &\npoweroff\nwait" })
		until(t, "the poweroff", func() bool {
			for _, e := range w.Events(0) {
				if e.Kind == "dark" {
					return len(marked(t, mark)) == 0
				}
			}
			return false
		})
		if got := describe(t, w, m.ID).State; got != providers.Running {
			t.Errorf("a machine that is only powered off is %s; it is still billed", got)
		}
		if err := w.Terminate(m.ID); err != nil {
			t.Fatal(err)
		}
		until(t, "its end", func() bool { return describe(t, w, m.ID).State == providers.Terminated })
	})
}

func TestCrashAndFreeze(t *testing.T) {
	for _, isolation := range []string{IsolationNamespace, IsolationGroup} {
		t.Run(isolation, func(t *testing.T) {
			w := realWorld(t, isolation, nil)
			mark := fmt.Sprintf("97350.%d", os.Getpid())
			m := launch(t, w, "req", spotA, func(l *simapi.Launch) { l.UserData = "sleep " + mark + " &\nwhile :; do echo tick; sleep 0.01; done" })
			until(t, "its start", consoleHas(t, w, m.ID, "tick"))
			if _, err := w.Do(simapi.Action{Freeze: &simapi.Pick{Machine: m.ID}}); err != nil {
				t.Fatal(err)
			}
			for _, pid := range marked(t, mark) {
				stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
				if err != nil || !strings.Contains(string(stat), ") T ") {
					t.Errorf("process %d of a frozen machine goes on: %s %v", pid, stat, err)
				}
			}
			if _, err := w.Do(simapi.Action{Crash: &simapi.Pick{Machine: m.ID}}); err != nil {
				t.Fatal(err)
			}
			until(t, "the crash", func() bool { return len(marked(t, mark)) == 0 })
			if got := describe(t, w, m.ID).State; got != providers.Running {
				t.Errorf("after a crash of what runs on it the machine is %s", got)
			}
		})
	}
}

// doomedCloud starts a machine and waits to be killed.
func doomedCloud(mark string) {
	dir, err := os.MkdirTemp("", "doomed-")
	if err != nil {
		panic(err)
	}
	isolation, mark, _ := strings.Cut(mark, " ")
	cfg := small().withDefaults()
	cfg.Boot = 0
	runner, err := NewProcesses(MachineConfig{Dir: dir, Isolation: isolation, Console: 1 << 10}, slog.New(slog.DiscardHandler))
	if err != nil {
		fmt.Println("skip:", err)
		return
	}
	w, err := New(cfg, runner, nil)
	if err != nil {
		panic(err)
	}
	data := escape(mark)
	if isolation == IsolationGroup {
		data = "sleep " + mark + " &\nsleep " + mark
	}
	if _, err := w.Launch(simapi.Launch{Place: spotA, Request: "req", UserData: data}); err != nil {
		panic(err)
	}
	fmt.Println("up:", dir)
	select {}
}

func TestMachinesDieWithTheCloud(t *testing.T) {
	for n, isolation := range []string{IsolationNamespace, IsolationGroup} {
		t.Run(isolation, func(t *testing.T) {
			mark := fmt.Sprintf("9736%d.%d", n, os.Getpid())
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), "SIMCLOUD_TEST_CLOUD="+isolation+" "+mark)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(out).ReadString('\n')
			if err != nil || strings.HasPrefix(line, "skip:") {
				_ = cmd.Wait()
				t.Skip(line, err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(strings.TrimSpace(strings.TrimPrefix(line, "up:"))) })
			until(t, "its start", func() bool { return len(marked(t, mark)) >= 2 })
			if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			until(t, "the end of its machines", func() bool { return len(marked(t, mark)) == 0 })
		})
	}
}
