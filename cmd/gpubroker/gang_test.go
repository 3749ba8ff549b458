package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/rig"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/queue"
)

// needs skips a test on a machine without a program, and fails it where all have to
// be there: .ci/setup installs them.
func needs(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		_, err := exec.LookPath(p)
		if _, there := os.Stat("/usr/sbin/" + p); err == nil || there == nil {
			continue
		}
		if os.Getenv("GPUBROKER_TEST_REQUIRE") != "" {
			t.Fatalf("no %s: .ci/setup test installs it", p)
		}
		t.Skipf("no %s: .ci/setup test installs it", p)
	}
}

// members waits until all of a gang run, and returns them by rank.
func (s *site) members(id string, number, nodes int) []*queue.Attempt {
	s.t.Helper()
	out := make([]*queue.Attempt, nodes)
	s.await(fmt.Sprintf("placing %d of %s on %d machines", number, id, nodes), func() error {
		n := 0
		for _, a := range s.attempts(id) {
			if a.Number == number && a.State == queue.AttemptRunning {
				out[a.Member.Rank] = a
				n++
			}
		}
		if n < nodes {
			return fmt.Errorf("%d run", n)
		}
		return nil
	})
	return out
}

// A job of MPI on four machines: one mpirun reaches all of them; one machine is taken
// away in the middle, all are stopped, the first one's save is kept, the one that was
// lost is replaced, and the job goes on from the save.
func TestMPIOverFourAgents(t *testing.T) {
	needs(t, "mpirun", "sshd", "ssh")
	t.Parallel()
	const rounds = 8
	s := newSite(t, 6*time.Minute)
	s.up(quick(1), "leases: {length: 5m, idle: 15s}\n")
	s.must(os.MkdirAll(s.Path("done"), 0o755))
	id := s.submit(fmt.Sprintf(`name: mpi
project: p
nodes: 4
launcher: mpi
resources: {gpu: none, vcpu: 2, memory: 1GiB}
work: {time: 30m}
checkpoint: {dir: saves, interval: 1s}
outputs: {to: "%s/mpi"}
run:
  shell: |
    s="$GPUBROKER_CHECKPOINT_DIR/state"; i=0
    [ -f "$s" ] && i=$(cat "$s")
    echo "begins at round $i of attempt $GPUBROKER_ATTEMPT, resumed from $GPUBROKER_RESUME, with ${WORLD_SIZE-no} WORLD_SIZE"
    sed 's/^/host file: /' "$GPUBROKER_HOSTS"
    trap 'exit 143' TERM
    while [ "$i" -lt %d ]; do
      mpirun -n 8 sh -c 'echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE on node $NODE_RANK of $NNODES in $HOME"' >round </dev/null & wait $! || exit 1
      i=$((i+1)); cat round
      cp round "$GPUBROKER_CHECKPOINT_DIR/round"; echo $i >state.new && mv state.new "$s"
      sleep 0.5 & wait $!
    done
    cp round "{{output}}"
`, s.Path("done"), rounds))
	first := s.members(id, 1, 4)
	s.await("a save", func() error {
		tasks, err := s.Broker.Tasks(s.ctx, id, "", "", 10)
		if err == nil && tasks.Tasks[0].Committed < 2 {
			err = fmt.Errorf("%d saves", tasks.Tasks[0].Committed)
		}
		return err
	})
	before := map[string]bool{}
	for _, a := range first {
		before[a.Instance] = true
	}
	_, err := s.Cloud.Do(s.ctx, simapi.Action{Preempt: &simapi.Preempt{Pick: simapi.Pick{Machine: s.cloudID(first[2])}}})
	s.must(err)
	again := 0
	for _, a := range s.members(id, 2, 4) {
		if before[a.Instance] {
			again++
		}
	}
	if again != 3 {
		t.Errorf("%d of the 3 machines that were left are used again", again)
	}
	if j := s.ended(id); j.Counts.Succeeded != 1 {
		t.Errorf("the task did not succeed: %+v %s", j.Counts, j.Reason)
	}
	saw := map[string]int{}
	for _, a := range s.attempts(id) {
		saw[fmt.Sprintf("%d %s", a.Number, a.Outcome)]++
		if a.Number == 2 && a.Resume < 2 {
			t.Errorf("member %d began from save %d", a.Member.Rank, a.Resume)
		}
	}
	if saw["1 preempted"] != 1 || saw["1 stopped"] != 3 || saw["2 succeeded"] != 4 || len(saw) != 3 {
		t.Errorf("attempts ended as %v", saw)
	}
	out, err := os.ReadFile(s.Path("done", "mpi"))
	s.must(err)
	ranks, homes := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(string(out)) {
		var rank, size, node, nodes int
		var home string
		if _, err := fmt.Sscanf(line, "rank %d of %d on node %d of %d in %s", &rank, &size, &node, &nodes, &home); err != nil || size != 8 || nodes != 4 || node != rank/2 {
			t.Errorf("a rank says %q, %v", line, err)
		}
		ranks[fmt.Sprint(rank)], homes[home] = true, true
	}
	if len(ranks) != 8 || len(homes) != 4 {
		t.Errorf("%d ranks ran in %d workspaces: %s", len(ranks), len(homes), out)
	}
	log, _, _, err := s.Run(s.ctx, "logs", id)
	s.must(err)
	if !strings.Contains(log, "of attempt 2, resumed from") || strings.Contains(log, "begins at round 0 of attempt 2") || !strings.Contains(log, "with no WORLD_SIZE") {
		t.Errorf("the log says %s", log)
	}
	s.empty()
	s.settled()
	for _, what := range []string{"orted", "sshd"} {
		for _, line := range rig.Left(s.Dir) {
			if strings.Contains(line, what) {
				t.Errorf("still running: %s", line)
			}
		}
	}
	machines, err := s.Cloud.Machines(s.ctx)
	s.must(err)
	kinds := map[simapi.Place]int{}
	for _, m := range machines {
		kinds[m.Place]++
	}
	if len(machines) != 5 || len(kinds) != 1 {
		t.Errorf("the cloud made %d machines in %v, want 5 in one market", len(machines), kinds)
	}
}
