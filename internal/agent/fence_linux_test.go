package agent

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

func TestCommandsCannotReachTheMetadataAddress(t *testing.T) {
	if os.Getenv("AGENT_TEST_FENCE") == "" {
		if _, err := exec.LookPath("nft"); err != nil || os.Getuid() != 0 {
			t.Skip("needs root and nft (apt-get install nftables)")
		}
		// A mount namespace with cgroup v2 where it usually is.
		c := exec.Command("/bin/sh", "-c", `mount --make-rprivate / && mount -t cgroup2 none /sys/fs/cgroup && exec "$0" -test.run='^TestCommandsCannotReach' -test.v`, os.Args[0])
		c.Env = append(os.Environ(), "AGENT_TEST_FENCE=1")
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
		out, err := c.CombinedOutput()
		switch {
		case strings.Contains(string(out), "--- SKIP"):
			t.Skipf("%s", out)
		case err != nil:
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	address := netip.MustParseAddrPort(strings.TrimPrefix(s.URL, "http://"))
	state := t.TempDir()
	e, err := NewProcesses(state, []netip.AddrPort{address}, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	p, ok := e.(*processes)
	if !ok {
		t.Fatal("another executor")
	}
	defer p.Close()
	if p.open != nil {
		t.Skipf("this machine cannot: %v", p.open)
	}
	defer exec.Command("nft", "delete", "table", "inet", "gpubroker_"+agentName(state)).Run()
	reach := func(url string) int {
		host := strings.Replace(strings.TrimPrefix(url, "http://"), ":", "/", 1)
		run := startCommand(t, p, Command{Args: []string{"bash", "-c", "exec 3<>/dev/tcp/" + host}})
		return run.Wait().Code
	}
	if reach(s.URL) == 0 {
		t.Error("a command reached the metadata address")
	}
	if reach(other.URL) != 0 {
		t.Error("a command cannot reach anything else")
	}
	if res, err := http.Get(s.URL); err != nil {
		t.Errorf("the agent itself cannot reach it: %v", err)
	} else {
		res.Body.Close()
	}
}
