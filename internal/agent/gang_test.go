package agent

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/sshkey"
	"gpubroker/queue"
)

func atHome(s *Settings, _ *Parts) { s.Address = "127.0.0.1" }

// gangOf adds a gang whose members are all on one machine, waits until all are
// staged, and lets them begin.
func (b *fakeBroker) gangOf(nodes int, task agentapi.Task, key sshkey.Pair) {
	b.t.Helper()
	for rank := range nodes {
		task.Nodes, task.Rank, task.Procs = nodes, rank, 2
		b.add(fmt.Sprint("a", rank), task)
	}
	gang := agentapi.Gang{Hosts: make([]queue.Endpoint, nodes), Key: key.Private, Public: key.Public}
	b.until("all members to be staged", func() bool {
		n := 0
		for _, o := range b.last.Attempts {
			if o.At != nil {
				var rank int
				if _, err := fmt.Sscanf(o.ID, "a%d", &rank); err != nil {
					b.t.Fatal(err)
				}
				gang.Hosts[rank] = *o.At
				n++
			}
			if o.Phase != agentapi.Staging {
				b.t.Errorf("%s is %s before the others are there", o.ID, o.Phase)
			}
		}
		return n == nodes
	})
	b.change(func() {
		for _, a := range b.attempts {
			a.Gang = &gang
		}
	})
}

// Members begin when all are staged, know each other, and the first alone sends its
// output.
func TestMembersOfAGang(t *testing.T) {
	b := newFakeBroker(t)
	startAgent(t, b, t.TempDir(), atHome)
	b.gangOf(3, agentapi.Task{
		Shell:  `echo "$NODE_RANK of $NNODES at $MASTER_ADDR, ${WORLD_SIZE-none}"; cat "$GPUBROKER_HOSTS"; echo "$MASTER_PORT" >{{output}}`,
		Output: &agentapi.OutputSpec{Path: "out/port"},
	}, sshkey.Pair{})
	for rank := range 3 {
		id := fmt.Sprint("a", rank)
		if end := b.end(id); end.Ended == nil || end.Ended.ExitCode == nil || *end.Ended.ExitCode != 0 || (end.Output != nil) != (rank == 0) {
			t.Errorf("%s ended: %+v, output %v", id, end.Ended, end.Output)
		}
		want := fmt.Sprintf("%d of 3 at 127.0.0.1, none\n127.0.0.1 slots=2\n127.0.0.1 slots=2\n127.0.0.1 slots=2\n", rank)
		if got := b.store.log(id); got != want {
			t.Errorf("%s says %q, want %q", id, got, want)
		}
	}
	var port int
	if _, err := fmt.Sscan(b.store.get("a0/out//1"), &port); err != nil || port < firstPort || port >= firstPort+ports {
		t.Errorf("the port is %q", b.store.get("a0/out//1"))
	}
}

// A member that is stopped while it waits for the others ends.
func TestAMemberThatWaitsIsStopped(t *testing.T) {
	b := newFakeBroker(t)
	startAgent(t, b, t.TempDir(), atHome)
	b.add("a0", agentapi.Task{Shell: "echo begun", Nodes: 2})
	b.until("it to be staged", func() bool { return len(b.last.Attempts) == 1 && b.last.Attempts[0].At != nil })
	b.stop("a0", agentapi.Stop{})
	if end := b.end("a0"); end.Ended == nil || end.Ended.ExitCode != nil || strings.Contains(b.store.log("a0"), "begun") {
		t.Errorf("it ended %+v, its log %q", end.Ended, b.store.log("a0"))
	}
}

// The first member of a gang of MPI reaches the others by the gang's key, finds there
// what their own command would have found, and no secret; another key opens nothing.
func TestAGangOfMPI(t *testing.T) {
	if _, err := exec.LookPath("ssh"); err != nil || sshd() == "" {
		t.Skip("no OpenSSH: .ci/setup test installs it")
	}
	key, err := sshkey.Derive("a token", "a gang")
	if err != nil {
		t.Fatal(err)
	}
	b := newFakeBroker(t)
	dir := t.TempDir()
	startAgent(t, b, dir, atHome)
	b.gangOf(2, agentapi.Task{
		Shell: `ssh -F "$GPUBROKER_SSH_CONFIG" node1 'echo "there: $NODE_RANK of $NNODES, $GREETING, ${TOKEN-no secret}"; pwd; exit 3'; echo "it ended with $?"
echo "here: $TOKEN"; cat "$GPUBROKER_HOSTS"
ssh-keygen -q -t ed25519 -N '' -f other
sed "s|IdentityFile .*|IdentityFile $PWD/other|" "$GPUBROKER_SSH_CONFIG" >other_config
ssh -F other_config node1 'echo "got in"' 2>/dev/null || echo "another key: refused"`,
		Env: map[string]string{"GREETING": `it's "so"`}, Secrets: map[string]string{"TOKEN": "s3cret"}, Launcher: agentapi.MPI,
	}, key)
	if end := b.end("a0"); end.Ended == nil || end.Ended.ExitCode == nil || *end.Ended.ExitCode != 0 {
		t.Errorf("it ended %+v", end.Ended)
	}
	log := b.store.log("a0")
	for _, want := range []string{
		"there: 1 of 2, it's \"so\", no secret\n" + dir + "/attempts/a1/work\nit ended with 3\n",
		"here: s3cret\nlocalhost slots=2\nnode1 slots=2\n", "another key: refused\n",
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %q:\n%s", want, log)
		}
	}
	b.change(func() { delete(b.attempts, "a1") })
	b.until("the other to be gone", func() bool {
		for _, o := range b.last.Attempts {
			if o.ID == "a1" {
				return false
			}
		}
		return true
	})
}
