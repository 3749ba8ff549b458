//go:build unix

// Package pgtest starts a PostgreSQL server of our own for the tests of one
// binary: in a temporary folder, on a socket in it that nothing else can reach,
// from the server programs of this machine.
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }
//
//	func TestX(t *testing.T) { url := pgtest.Database(t) … }
//
// The server starts with the first database that a test asks for and ends with
// the binary, also when that is killed (on Linux). Without the programs tests
// are skipped, or fail if GPUBROKER_TEST_REQUIRE is 1.
package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// shared is the one server of this test binary. Go's tests have no other place
// for what several of them share.
var shared struct {
	once   sync.Once
	server *server
	err    error
	count  atomic.Int64
}

// errMissing says that the server programs are not on this machine.
var errMissing = errors.New("PostgreSQL's server programs (initdb, postgres) were not found; install them (Debian: apt-get install postgresql) or name their folder in GPUBROKER_TEST_PGBIN")

// Run runs the tests and then ends the server, if one was started.
func Run(m *testing.M) int {
	code := m.Run()
	if s := shared.server; s != nil {
		if err := s.stop(); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest:", err)
			return max(code, 1)
		}
	}
	return code
}

// Database makes an empty database, returns its URL, and drops it when the test
// ends.
func Database(t testing.TB) string {
	t.Helper()
	shared.once.Do(func() { shared.server, shared.err = start() })
	if errors.Is(shared.err, errMissing) && os.Getenv("GPUBROKER_TEST_REQUIRE") != "1" {
		t.Skip(shared.err)
	}
	if shared.err != nil {
		t.Fatal("pgtest: ", shared.err)
	}
	name := fmt.Sprintf("test%d", shared.count.Add(1))
	if err := shared.server.exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal("pgtest: ", err)
	}
	t.Cleanup(func() {
		if err := shared.server.exec(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Error("pgtest: ", err)
		}
	})
	return shared.server.url(name)
}

// Exec runs a statement as the server's superuser, outside of any store.
func Exec(t testing.TB, statement string) {
	t.Helper()
	if err := shared.server.exec(t.Context(), statement); err != nil {
		t.Fatal("pgtest: ", err)
	}
}

type server struct {
	folder  string
	process *os.Process
	ended   chan error
	output  bytes.Buffer // read after ended
}

func (s *server) url(database string) string {
	query := url.Values{"host": {s.folder}, "user": {"postgres"}}
	return (&url.URL{Scheme: "postgres", Path: "/" + database, RawQuery: query.Encode()}).String()
}

func (s *server) exec(ctx context.Context, statement string) error {
	conn, err := pgx.Connect(ctx, s.url("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, statement)
	return err
}

// start makes a data folder and a server over it. The server refuses to run as
// root, so then both programs run as another user.
func start() (*server, error) {
	bin, err := programs()
	if err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp(shortTemp(), "gpubroker-pg-")
	if err != nil {
		return nil, err
	}
	s := &server{folder: folder, ended: make(chan error, 1)}
	attr, err := other(folder)
	if err == nil {
		err = s.start(bin, attr)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	return s, nil
}

func (s *server) start(bin string, attr *syscall.SysProcAttr) error {
	data := filepath.Join(s.folder, "data")
	initdb := exec.Command(filepath.Join(bin, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
	initdb.Dir, initdb.SysProcAttr = s.folder, attr
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	cmd := exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-k", s.folder,
		"-c", "listen_addresses=", "-c", "max_connections=200", "-c", "log_min_messages=fatal")
	cmd.Dir, cmd.SysProcAttr = s.folder, dieWithParent(attr)
	cmd.Stdout, cmd.Stderr = &s.output, &s.output
	started := make(chan error)
	go func() {
		// The kernel ties the child to the thread that starts it.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			s.ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	s.process = cmd.Process
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := s.exec(context.Background(), "SELECT 1")
		if err == nil {
			return nil
		}
		select {
		case ended := <-s.ended:
			return fmt.Errorf("postgres ended at once: %w: %s", ended, s.output.String())
		default:
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("postgres does not answer: %w", err), s.stop())
		}
	}
}

func (s *server) stop() error {
	err := s.process.Signal(syscall.SIGINT) // fast shutdown: connections are cut
	if err == nil {
		err = <-s.ended
	}
	return errors.Join(err, os.RemoveAll(s.folder))
}

// programs returns the folder with the server programs: the one named in the
// environment, pg_config's, Debian's newest, or the one on the PATH.
func programs() (string, error) {
	var folders []string
	if named := os.Getenv("GPUBROKER_TEST_PGBIN"); named != "" {
		folders = append(folders, named)
	}
	if config := os.Getenv("PG_CONFIG"); config != "" {
		if out, err := exec.Command(config, "--bindir").Output(); err == nil {
			folders = append(folders, strings.TrimSpace(string(out)))
		}
	}
	debian, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is right
	version := func(path string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(path))) // 0 sorts last
		return n
	}
	slices.SortFunc(debian, func(a, b string) int { return version(b) - version(a) })
	folders = append(folders, debian...)
	if found, err := exec.LookPath("initdb"); err == nil {
		folders = append(folders, filepath.Dir(found))
	}
	for _, f := range folders {
		if executable(filepath.Join(f, "initdb")) && executable(filepath.Join(f, "postgres")) {
			return f, nil
		}
	}
	return "", errMissing
}

func executable(path string) bool {
	st, err := os.Stat(path)
	return err == nil && !st.IsDir() && st.Mode()&0o111 != 0
}

// shortTemp is the temporary folder, or /tmp if its name is too long for a
// socket's path (107 bytes).
func shortTemp() string {
	if dir := os.TempDir(); len(dir) < 70 {
		return dir
	}
	return "/tmp"
}

// other returns how to run a program as a user that is not root and owns the
// folder; nil if we are not root.
func other(folder string) (*syscall.SysProcAttr, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}},
			os.Chown(folder, int(uid), int(gid))
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is no user postgres or nobody to run it as")
}
