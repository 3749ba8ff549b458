package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cgroups is the folder of cgroup v2 that commands get a cgroup of their own in.
type cgroups struct {
	dir    string // "" where there is none
	path   string // the same from the root of cgroup v2 on
	memory bool   // the memory controller is ours to use
}

// findCgroups makes a folder for this agent at the root of cgroup v2 and turns the
// controllers on for it. Below the agent's own cgroup they could not be: one that
// holds processes hands no controllers down (kernel, cgroup-v2.rst, "No Internal
// Process Constraint"). Agents with other state folders have folders of their own.
func findCgroups(state string) cgroups {
	root := cgroupRoot()
	if root == "" {
		return cgroups{}
	}
	path := "gpubroker/" + agentName(state)
	dir := filepath.Join(root, path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return cgroups{}
	}
	// Each may be refused; what counts is what the folder then offers.
	for _, parent := range []string{root, filepath.Dir(dir), dir} {
		for _, controller := range []string{"+memory", "+cpu"} {
			_ = os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte(controller), 0o644)
		}
	}
	on, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	if err != nil {
		return cgroups{}
	}
	return cgroups{dir, path, strings.Contains(string(on), "memory")}
}

// cgroupRoot is where cgroup v2 is mounted: at its usual place, or beside version
// 1; "" where it is not.
func cgroupRoot() string {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return ""
	}
	root := ""
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" && (root == "" || f[1] == "/sys/fs/cgroup") {
			root = f[1]
		}
	}
	return root
}

// agentName tells agents with other state folders apart.
func agentName(state string) string {
	sum := sha256.Sum256([]byte(state))
	return hex.EncodeToString(sum[:6])
}

// sweep removes the empty cgroups of earlier agents.
func (g cgroups) sweep() {
	if g.dir == "" {
		return
	}
	left, _ := filepath.Glob(filepath.Join(g.dir, "*", "cgroup.procs")) // the pattern is well formed
	for _, procs := range left {
		_ = os.Remove(filepath.Dir(procs)) // one that is in use stays
	}
}

// cgroup is that of one command; nil where there is none.
type cgroup struct {
	dir    string
	handle *os.File
	memory bool
}

func (g cgroups) create(id string, memory int64) (*cgroup, error) {
	if g.dir == "" {
		return nil, nil
	}
	c := &cgroup{dir: filepath.Join(g.dir, strings.ReplaceAll(id, "/", "_")), memory: g.memory}
	if err := os.Mkdir(c.dir, 0o755); err != nil && !os.IsExist(err) {
		return nil, fmt.Errorf("agent: make a cgroup: %w", err)
	}
	if g.memory && memory > 0 {
		for _, set := range [][2]string{{"memory.max", strconv.FormatInt(memory, 10)}, {"memory.oom.group", "1"}} {
			if err := os.WriteFile(filepath.Join(c.dir, set[0]), []byte(set[1]), 0o644); err != nil {
				c.remove()
				return nil, fmt.Errorf("agent: limit a cgroup: %w", err)
			}
		}
		// There without swap accounting only; then swap is not counted.
		_ = os.WriteFile(filepath.Join(c.dir, "memory.swap.max"), []byte("0"), 0o644)
	}
	var err error
	if c.handle, err = os.Open(c.dir); err != nil {
		c.remove()
		return nil, fmt.Errorf("agent: open a cgroup: %w", err)
	}
	return c, nil
}

func (c *cgroup) fd() int { return int(c.handle.Fd()) }

// oomKilled reports whether the kernel killed in it for want of memory.
func (c *cgroup) oomKilled() bool {
	if c == nil || !c.memory {
		return false
	}
	events, err := os.ReadFile(filepath.Join(c.dir, "memory.events"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(events)) {
		if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
			return strings.TrimSpace(n) != "0"
		}
	}
	return false
}

// remove takes the cgroup away; the kernel may need a moment to see it empty.
func (c *cgroup) remove() {
	if c == nil {
		return
	}
	if c.handle != nil {
		c.handle.Close()
	}
	for wait := time.Millisecond; wait < 200*time.Millisecond; wait *= 2 {
		if err := os.Remove(c.dir); err == nil || os.IsNotExist(err) {
			return
		}
		time.Sleep(wait)
	}
}
