package simcloud

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// initScript is the first process of a machine; see its comments.
//
//go:embed init.sh
var initScript []byte

// powerScript is what poweroff, halt, reboot, shutdown and systemctl are on a
// machine.
//
//go:embed power.sh
var powerScript []byte

// powerNames are the programs that a machine has its own form of.
var powerNames = []string{"poweroff", "halt", "reboot", "shutdown", "systemctl"}

// Processes runs each machine's user data in a real process: with /bin/sh, or
// by its own "#!" line, in a folder of the machine's own, which is HOME and the
// working directory, with a clean environment:
//
//	PATH                   the machine's own poweroff first, then the host's programs
//	HOME, TMPDIR, LANG
//	SIMCLOUD_METADATA      http://127.0.0.1:port of the machine's metadata, where
//	                       the world speaks no other cloud's words
//	GPUBROKER_METADATA_URL the same, where it does
//	SIMCLOUD_INSTANCE_ID
//	GPUBROKER_AGENT_IMAGE  path of the agent that the image holds, when there is one
//
// A machine is a PID and mount namespace where that is allowed (as root, else
// in a user namespace), so that killing it kills everything on it; otherwise a
// process group whose processes are found by descent, by their environment and
// by their working directory, which a process that hides all three escapes. If
// this process dies, its machines die.
type Processes struct {
	cfg       MachineConfig
	log       *slog.Logger
	dir       string
	own       bool // dir is ours to remove
	isolation isolation
	forker    *forker
	wg        sync.WaitGroup
}

// NewProcesses prepares a runner. It fails when the isolation that is asked for
// is not allowed here.
func NewProcesses(cfg MachineConfig, log *slog.Logger) (*Processes, error) {
	p := &Processes{cfg: cfg, log: log, dir: cfg.Dir}
	if cfg.AgentImage != "" {
		if info, err := os.Stat(cfg.AgentImage); err != nil {
			return nil, fmt.Errorf("simcloud: agent image: %w", err)
		} else if info.IsDir() || info.Mode()&0o111 == 0 {
			return nil, fmt.Errorf("simcloud: agent image %s is no program; build the agent first", cfg.AgentImage)
		}
		abs, err := filepath.Abs(cfg.AgentImage)
		if err != nil {
			return nil, fmt.Errorf("simcloud: agent image: %w", err)
		}
		p.cfg.AgentImage = abs
	}
	p.forker = newForker()
	err := p.prepare()
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func (p *Processes) prepare() (err error) {
	if p.dir == "" {
		p.own = !p.cfg.Keep
		if p.dir, err = os.MkdirTemp("", "simcloud-"); err != nil {
			return fmt.Errorf("simcloud: folder for machines: %w", err)
		}
	}
	if p.dir, err = filepath.Abs(p.dir); err == nil {
		err = os.MkdirAll(p.dir, 0o755)
	}
	if err != nil {
		return fmt.Errorf("simcloud: folder for machines: %w", err)
	}
	p.isolation, err = p.chooseIsolation(p.cfg.Isolation)
	return err
}

// Isolation says how machines are cut off: "namespace", "user namespace" or
// "process group".
func (p *Processes) Isolation() string { return p.isolation.String() }

// Close waits until nothing of any machine is left.
func (p *Processes) Close() {
	p.wg.Wait()
	p.forker.close()
	if p.own {
		if err := os.RemoveAll(p.dir); err != nil {
			p.log.Warn("folder of machines stays", "dir", p.dir, "error", err)
		}
	}
}

// Start makes a machine's folder, metadata address and first process.
func (p *Processes) Start(g Guest) (Process, error) {
	m := &realMachine{p: p, id: g.ID, dir: filepath.Join(p.dir, g.ID), console: console{limit: p.cfg.Console}, dead: make(chan struct{})}
	if err := m.start(g); err != nil {
		m.clean()
		return nil, fmt.Errorf("simcloud: start machine %s: %w", g.ID, err)
	}
	return m, nil
}

// realMachine is a machine that is processes of this host.
type realMachine struct {
	p       *Processes
	id      string
	dir     string
	console console
	server  *http.Server
	power   *os.File // FIFO on which the guest asks to be turned off
	proc    *osProcess
	killed  sync.Once
	ours    chan struct{} // closed when the end was asked for here
	dead    chan struct{}
}

func (m *realMachine) start(g Guest) error {
	m.ours = make(chan struct{})
	bin := filepath.Join(m.dir, "bin")
	if err := errors.Join(os.Mkdir(m.dir, 0o755), os.Mkdir(bin, 0o755), os.Mkdir(filepath.Join(m.dir, "tmp"), 0o700)); err != nil {
		return err
	}
	files := map[string][]byte{"init": initScript, "user-data": []byte(g.UserData)}
	for _, name := range powerNames {
		files[filepath.Join("bin", name)] = bytes.ReplaceAll(powerScript, []byte("@DIR@"), []byte(m.dir))
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(m.dir, name), text, 0o700); err != nil {
			return err
		}
	}
	var err error
	if m.power, err = makeFIFO(filepath.Join(m.dir, "power")); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	m.server = &http.Server{Handler: g.Metadata, ReadHeaderTimeout: 5 * time.Second, ErrorLog: slog.NewLogLogger(m.p.log.Handler(), slog.LevelDebug)}
	env := []string{
		"PATH=" + bin + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + m.dir, "TMPDIR=" + filepath.Join(m.dir, "tmp"), "LANG=C.UTF-8",
		"SIMCLOUD_INSTANCE_ID=" + m.id,
	}
	env = append(env, g.Env("http://"+l.Addr().String())...)
	if m.p.cfg.AgentImage != "" {
		env = append(env, "GPUBROKER_AGENT_IMAGE="+m.p.cfg.AgentImage)
	}
	m.p.wg.Go(func() {
		if err := m.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			m.p.log.Warn("metadata address failed", "machine", m.id, "error", err)
		}
	})
	out, in, err := os.Pipe()
	if err != nil {
		return err
	}
	m.proc, err = m.p.spawn(m.id, m.dir, env, in)
	if cerr := in.Close(); err != nil || cerr != nil {
		return errors.Join(err, cerr, out.Close())
	}
	m.p.wg.Go(func() {
		m.console.copy(out)
		_ = out.Close() // read to its end
	})
	m.p.wg.Go(func() {
		// A closed FIFO is the machine's end by another way.
		if n, _ := m.power.Read(make([]byte, 1)); n > 0 {
			g.PowerOff()
		}
	})
	m.p.wg.Go(func() {
		m.proc.wait()
		_ = out.SetReadDeadline(time.Now().Add(time.Second)) // for what is still in the pipe
		m.clean()
		close(m.dead)
		select {
		case <-m.ours:
		default:
			g.PowerOff() // its first process ended: it turned itself off
		}
	})
	return nil
}

func (m *realMachine) clean() {
	if m.server != nil {
		_ = m.server.Close() // connections of processes that are gone
	}
	if m.power != nil {
		_ = m.power.Close() // nobody writes to it any more
	}
	if m.p.cfg.Keep {
		return
	}
	if err := removeAll(m.dir); err != nil {
		m.p.log.Warn("folder of a machine stays", "machine", m.id, "dir", m.dir, "error", err)
	}
}

// removeAll removes a folder, of which parts may be write-protected.
func removeAll(dir string) error {
	if err := os.RemoveAll(dir); err == nil {
		return nil
	}
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_ = os.Chmod(path, 0o700) // the removal below says what is left
		}
		return nil
	})
	return os.RemoveAll(dir)
}

// Kill ends the machine.
func (m *realMachine) Kill() <-chan struct{} {
	m.killed.Do(func() {
		close(m.ours)
		m.proc.kill()
	})
	return m.dead
}

// Crash kills everything but the first process.
func (m *realMachine) Crash() error { return m.proc.signalAll(true) }

// Freeze stops everything but the first process.
func (m *realMachine) Freeze() error { return m.proc.signalAll(false) }

// Console returns the last bytes that the machine wrote.
func (m *realMachine) Console() []byte { return m.console.bytes() }

// console keeps the last bytes of a stream.
type console struct {
	mu    sync.Mutex
	limit int
	data  []byte
}

func (c *console) copy(f *os.File) {
	buf := make([]byte, 8<<10)
	for {
		n, err := f.Read(buf)
		c.mu.Lock()
		c.data = append(c.data, buf[:n]...)
		if len(c.data) > 2*c.limit {
			c.data = append(c.data[:0], c.data[len(c.data)-c.limit:]...)
		}
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (c *console) bytes() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.data[max(0, len(c.data)-c.limit):])
}

// firstLines shortens a program's words for an error.
func firstLines(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[:min(len(lines), 3)], "; ")
}

// probeTime is the longest that a trial of an isolation may take.
const probeTime = 5 * time.Second

func probeContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), probeTime)
}
