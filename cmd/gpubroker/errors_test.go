package main_test

import (
	"database/sql"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"gpubroker/internal/rig"
)

// refused runs a broker that is to end by itself, and returns what it says.
func (s *site) refused(config string) (string, int) {
	s.t.Helper()
	p, err := s.Start("refused.log", "serve", "--config", config)
	s.must(err)
	select {
	case <-p.Ended():
	case <-s.ctx.Done():
		s.t.Errorf("the broker goes on: %s", p.Log())
		p.Kill()
	}
	said := p.Log()
	s.must(os.Remove(s.Path("refused.log")))
	return said, p.ExitCode()
}

// What a broker cannot start with is told in one line that says what to do, with
// the exit code of its kind.
func TestServeRefuses(t *testing.T) {
	t.Parallel()
	s := newSite(t, 3*time.Minute)
	s.write("broker.yaml", s.plain(""))
	s.start()
	other, err := rig.FreeAddress()
	s.must(err)
	config := func(name, text string) string { return s.write(name+".yaml", text) }
	data := func(name string) string { return s.Path(name) }
	alone := func(name, more string) string {
		return config(name, fmt.Sprintf("data_dir: %s\nlisten: %s\n%s", data(name), other, more))
	}

	newer := data("newer")
	s.must(os.Mkdir(newer, 0o700))
	s.damage(alone("newer", ""), filepath.Join(newer, "store.db"))
	s.must(os.WriteFile(s.Path("file"), nil, 0o600))

	for name, c := range map[string]struct {
		config string
		code   int
		says   []string
	}{
		"port in use":      {config("port", fmt.Sprintf("data_dir: %s\nlisten: %s\n", data("port"), s.listen)), 1, []string{s.listen, "address already in use", "set listen to a free address"}},
		"unknown key":      {config("key", "listn: 127.0.0.1:0\n"), 2, []string{"key.yaml:1:1", "listn", "listen"}},
		"open without TLS": {config("bare", fmt.Sprintf("data_dir: %s\nlisten: 0.0.0.0:0\n", data("bare"))), 2, []string{"bare.yaml:2", "tls", "insecure"}},
		"store in use":     {config("two", fmt.Sprintf("data_dir: %s\nlisten: %s\n", s.Path("broker"), other)), 1, []string{"store", fmt.Sprintf("process %d holds", s.Broker.Process.Pid()), "give this broker a store of its own"}},
		"newer store":      {s.Path("newer.yaml"), 1, []string{"has schema 9999", "run the newer version"}},
		"no data folder":   {config("folder", fmt.Sprintf("data_dir: %s/below\nlisten: %s\n", s.Path("file"), other)), 1, []string{"data folder", "set data_dir"}},
		"no such database": {alone("gone", "store: postgres://nobody@127.0.0.1:1/none\n"), 1, []string{"127.0.0.1:1"}},
		"damaged store":    {s.notADatabase(alone("torn", ""), data("torn")), 1, []string{"store.db", "put a backup in its place"}},
		"no config":        {s.Path("nowhere.yaml"), 1, []string{"nowhere.yaml"}},
	} {
		said, code := s.refused(c.config)
		if code != c.code {
			t.Errorf("%s: exit code %d, not %d: %s", name, code, c.code, said)
		}
		for _, need := range c.says {
			if !strings.Contains(said, need) {
				t.Errorf("%s: it does not say %q: %s", name, need, said)
			}
		}
		if strings.Contains(said, "goroutine") || c.code == 1 && strings.Count(said, "\n") > 3 {
			t.Errorf("%s: it says too much: %s", name, said)
		}
	}
	if h, err := s.Broker.Health(s.ctx); err != nil || !h.OK {
		t.Errorf("the broker that was there before: %+v, %v", h, err)
	}
}

// damage makes a store as a later version would leave it.
func (s *site) damage(config, file string) {
	s.t.Helper()
	b, err := s.StartBroker(s.ctx, config, filepath.Dir(file))
	s.must(err)
	b.Process.Stop(10 * time.Second)
	if b.Process.ExitCode() != 0 {
		s.t.Errorf("a broker that was interrupted ended with exit code %d: %s", b.Process.ExitCode(), b.Process.Log())
	}
	db, err := sql.Open("sqlite", file)
	s.must(err)
	_, err = db.ExecContext(s.ctx, "INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, 1)")
	s.must(err)
	s.must(db.Close())
}

func (s *site) notADatabase(config, dir string) string {
	s.t.Helper()
	s.must(os.Mkdir(dir, 0o700))
	s.must(os.WriteFile(filepath.Join(dir, "store.db"), []byte(strings.Repeat("this is no database\n", 500)), 0o600))
	return config
}

// A full disk stops nothing but what has to be written: the broker says so, keeps
// its machines, and goes on when there is room.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	s := newSite(t, 4*time.Minute)
	if os.Geteuid() != 0 {
		t.Skip("mounts a small disk, which only root may")
	}
	s.must(os.Mkdir(s.Path("broker"), 0o700))
	if err := syscall.Mount("tmpfs", s.Path("broker"), "tmpfs", 0, "size=24m"); err != nil {
		t.Skip("mounts are not allowed here: ", err)
	}
	t.Cleanup(func() {
		s.Close() // it holds files open there
		if err := syscall.Unmount(s.Path("broker"), syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	s.up(quick(1), fmt.Sprintf("objects: {url: %s}\n", s.Path("objects")))
	id := s.submit(s.gated("full", 2, 4, ""))
	s.running(id, 2)

	fill := s.fill(s.Path("broker", "fill"))
	s.await("a complaint", func() error {
		out, stderr, code, err := s.Run(s.ctx, "submit", s.write("more.yaml", s.gated("more", 1, 4, "")), "-o", "json")
		s.must(err)
		if code == 0 {
			return fmt.Errorf("the job was taken: %s", out)
		}
		if code != 1 || !strings.Contains(stderr, "disk is full") {
			t.Errorf("exit code %d: %s", code, stderr)
		}
		return nil
	})
	res, err := http.Get("http://" + s.listen + "/healthz")
	s.must(err)
	s.must(res.Body.Close())
	if res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("health is %s while the disk is full", res.Status)
	}
	s.during(30 * time.Second) // longer than an agent may be silent
	machines, err := s.Cloud.Machines(s.ctx)
	s.must(err)
	if len(live(machines)) != 1 {
		t.Errorf("%d machines live while the disk is full, not 1", len(live(machines)))
	}
	s.must(os.Remove(fill))
	s.open()
	s.ended(id)
	s.onceEach(id)
	s.await("a broker in good health", func() error {
		h, err := s.Broker.Health(s.ctx)
		if err == nil && !h.OK {
			err = fmt.Errorf("%+v", h)
		}
		return err
	})
	s.ended(s.submit(s.gated("after", 1, 4, "")))
	s.empty()
	s.settled()
}

// fill takes all the room that a disk has.
func (s *site) fill(path string) string {
	s.t.Helper()
	f, err := os.Create(path)
	s.must(err)
	chunk := make([]byte, 4096)
	for {
		if _, err := f.Write(chunk); err != nil {
			break // that is the point
		}
	}
	s.must(f.Close())
	return path
}

// With tls: {} the broker signs its own certificate: agents are given its
// authority, and the command line finds it in client.json.
func TestOwnCertificate(t *testing.T) {
	t.Parallel()
	s := newSite(t, 3*time.Minute)
	s.up(quick(1), "tls: {}\n")
	if set := s.Broker.Settings; !strings.HasPrefix(set.URL, "https://") || !strings.Contains(set.CA, "BEGIN CERTIFICATE") {
		t.Errorf("client.json says %s with the authority %q", set.URL, set.CA)
	}
	id := s.submit(s.gated("secret", 2, 2, "checkpoint: {dir: saves, interval: 1s}\n"))
	s.running(id, 2)
	s.open()
	s.ended(id)
	s.onceEach(id)
	if out, stderr, code, err := s.Run(s.ctx, "jobs", id); err != nil || code != 0 || !strings.Contains(out, "succeeded") {
		t.Errorf("jobs: exit code %d, %v: %s %s", code, err, out, stderr)
	}
	// Who does not know the authority does not trust the broker.
	if res, err := http.Get(s.Broker.Settings.URL + "/healthz"); err == nil {
		s.must(res.Body.Close())
		t.Error("the certificate is trusted without the broker's authority")
	}
	// And plain calls get nothing.
	c, err := net.Dial("tcp", s.listen)
	s.must(err)
	s.must(c.SetDeadline(time.Now().Add(10 * time.Second)))
	_, err = fmt.Fprintf(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
	s.must(err)
	answer := make([]byte, 200)
	n, _ := c.Read(answer) // the answer tells
	if strings.Contains(string(answer[:n]), " 200 ") {
		t.Errorf("a plain call was answered: %s", answer[:n])
	}
	s.must(c.Close())
	s.empty()
}
