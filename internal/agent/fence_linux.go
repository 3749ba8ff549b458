package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"time"
)

// fence keeps commands from addresses: a table of nftables that matches the
// cgroup which all of them are in. It needs nft, root, and cgroup v2 at its usual
// place.
func (g cgroups) fence(state string, deny []netip.AddrPort) error {
	if g.dir == "" {
		return errors.New("no cgroup v2")
	}
	nft, err := exec.LookPath("nft")
	if err != nil {
		return errors.New("nft is not installed")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) //nolint:forbidigo // at start, bounded by itself
	defer cancel()
	c := exec.CommandContext(ctx, nft, "-f", "-")
	c.Stdin = strings.NewReader(fenceTable("gpubroker_"+agentName(state), g.path, deny))
	if out, err := c.CombinedOutput(); err != nil {
		first, _, _ := strings.Cut(string(out), "\n")
		return fmt.Errorf("nft: %s: %w", first, err)
	}
	return nil
}

// fenceTable replaces a table in one transaction.
func fenceTable(name, group string, deny []netip.AddrPort) string {
	var s strings.Builder
	fmt.Fprintf(&s, "add table inet %[1]s\ndelete table inet %[1]s\ntable inet %[1]s {\n\tchain out {\n\t\ttype filter hook output priority 0; policy accept;\n", name)
	for _, a := range deny {
		family := "ip"
		if a.Addr().Is6() {
			family = "ip6"
		}
		fmt.Fprintf(&s, "\t\tsocket cgroupv2 level %d %q %s daddr %s tcp dport %d reject\n",
			strings.Count(group, "/")+1, group, family, a.Addr(), a.Port())
	}
	s.WriteString("\t}\n}\n")
	return s.String()
}
