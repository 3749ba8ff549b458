package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"gpubroker/internal/agentapi"
	"gpubroker/queue"
)

// Ports that members of gangs are reached at: below those that the kernel hands out
// itself, and few enough for a rule of a firewall. 29500 is what PyTorch takes when
// nobody says (torch.distributed, "Environment variable initialization").
const (
	firstPort = 29500
	ports     = 500
)

// gangDir holds what a member is told of its gang.
func (t *attempt) gangDir() string { return filepath.Join(t.dir, "gang") }

// meet tells where this member is reached, and waits until all of its gang are
// staged. The port is kept from others of this machine until then.
func (t *attempt) meet(ctx context.Context, task *agentapi.Task) (*agentapi.Gang, error) {
	if task.Launcher == agentapi.MPI {
		if err := findSSH(task.Rank); err != nil {
			return nil, agentError(err)
		}
	}
	address, err := t.a.address(ctx)
	if err != nil {
		return nil, agentError(err)
	}
	held, port, err := freePort(address, t.id)
	if err != nil {
		return nil, agentError(err)
	}
	t.set(func(r *record) { r.At = &queue.Endpoint{Address: address, Port: port} })
	t.log.Info("staged; waiting for the others of its gang", "rank", task.Rank, "nodes", task.Nodes, "address", address, "port", port)
	var gang *agentapi.Gang
	err = t.wait(ctx, func() bool { gang = t.want.Gang; return gang != nil })
	if err := errors.Join(err, held.Close()); err != nil {
		return nil, err
	}
	if len(gang.Hosts) != task.Nodes || task.Rank >= task.Nodes {
		return nil, agentError(fmt.Errorf("agent: member %d of a gang of %d was told of %d", task.Rank, task.Nodes, len(gang.Hosts)))
	}
	return gang, nil
}

// address is what other machines reach this one at: as its owner says, else the
// address from which it reaches the broker.
func (a *Agent) address(ctx context.Context) (string, error) {
	if a.set.Address != "" {
		return a.set.Address, nil
	}
	u, err := url.Parse(a.set.URL)
	if err != nil {
		return "", fmt.Errorf("agent: the broker's address: %w", err)
	}
	port := cmp.Or(u.Port(), map[string]string{"http": "80"}[u.Scheme], "443")
	var d net.Dialer
	c, err := d.DialContext(ctx, "udp", net.JoinHostPort(u.Hostname(), port)) // sends nothing
	if err != nil {
		return "", fmt.Errorf("agent: find the address that other machines reach this one at; set GPUBROKER_ADDRESS to it: %w", err)
	}
	defer c.Close()
	host, _, err := net.SplitHostPort(c.LocalAddr().String())
	return host, err
}

// freePort listens at a port that nobody uses. Attempts begin to look at different
// ones, so that programs of several on one machine seldom want the same.
func freePort(address, attempt string) (net.Listener, int, error) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(attempt)) // never fails
	first := int(h.Sum32() % ports)
	var last error
	for n := range ports {
		port := firstPort + (first+n)%ports
		l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
		if errors.Is(err, syscall.EADDRNOTAVAIL) { // behind a translation of addresses
			l, err = net.Listen("tcp", ":"+strconv.Itoa(port))
		}
		if err == nil {
			return l, port, nil
		}
		last = err
	}
	return nil, 0, fmt.Errorf("agent: none of the ports %d to %d is free: %w", firstPort, firstPort+ports-1, last)
}

// gangEnv writes down who the members are, and returns what the command is told.
func (t *attempt) gangEnv(task *agentapi.Task, gang *agentapi.Gang) (map[string]string, error) {
	if err := os.MkdirAll(t.gangDir(), 0o700); err != nil {
		return nil, agentError(err)
	}
	var hosts strings.Builder
	for rank, h := range gang.Hosts {
		name := h.Address
		if task.Launcher == agentapi.MPI && task.Rank == 0 {
			name = alias(rank)
		}
		fmt.Fprintf(&hosts, "%s slots=%d\n", name, task.Procs)
	}
	file := filepath.Join(t.gangDir(), "hosts")
	if err := os.WriteFile(file, []byte(hosts.String()), 0o644); err != nil {
		return nil, agentError(err)
	}
	return map[string]string{
		"NODE_RANK": strconv.Itoa(task.Rank), "NNODES": strconv.Itoa(task.Nodes),
		"MASTER_ADDR": gang.Hosts[0].Address, "MASTER_PORT": strconv.Itoa(gang.Hosts[0].Port),
		"GPUBROKER_HOSTS": file,
	}, nil
}

// helps reports whether the attempt runs nothing of its own: it is there for the
// mpirun of its gang's first member.
func (t *attempt) helps() bool {
	return t.rec.Task.Launcher == agentapi.MPI && !t.rec.Task.Leads()
}
