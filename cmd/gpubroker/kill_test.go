package main_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/internal/api/client"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/queue"
)

// killSeed chooses the moments at which the broker is killed.
var killSeed = flag.Uint64("kill.seed", 1, "seed of the moments at which the broker is killed")

// kills is how often it is.
const kills = 20

// fortyTasks are jobs of four kinds, forty tasks in all, by name. Results depend
// on every step taken.
func (s *site) fortyTasks() map[string]string {
	const head = "resources: {gpu: none, vcpu: 2, memory: 512MiB}\n"
	return map[string]string{
		"steps": s.job("steps", 24, 8, head+`checkpoint: {dir: saves, interval: 1s}
run:
  shell: |
    s="$GPUBROKER_CHECKPOINT_DIR/state"; i=0; h="start of $GPUBROKER_INDEX"
    [ -f "$s" ] && read -r i h <"$s"
    while [ "$i" -lt 20 ]; do
      h=$(printf '%s %s' "$h" "$i" | sha256sum | cut -c1-64); i=$((i+1))
      printf '%s %s\n' "$i" "$h" >state.new && mv state.new "$s"
      sleep 0.3
    done
    printf '%s\n' "$h" >"{{output}}"
`),
		"short": s.job("short", 13, 4, head+`work: {time: 1s}
run: {shell: "sleep 1; printf 'task %s' $GPUBROKER_INDEX | sha256sum >\"{{output}}\""}
`),
		"fails": fmt.Sprintf("name: fails\nproject: p\ntasks: {count: 2}\n%swork: {time: 1s}\nretry: {failures: 1}\nrun: {shell: \"sleep 1; exit 3\"}\n", head),
		"steady": s.job("steady", 1, 1, head+`spot: {policy: never}
max_duration: 5m
run: {shell: "n=0; while [ $n -lt 15 ]; do n=$((n+1)); echo $n; sleep 1; done | tee lines; sha256sum <lines >\"{{output}}\""}
`),
	}
}

func (s *site) job(name string, count, parallelism int, rest string) string {
	return fmt.Sprintf("name: %s\nproject: p\ntasks: {count: %d, parallelism: %d}\noutputs: {to: \"%s/%s-{{index}}\"}\n%s",
		name, count, parallelism, s.Path("done"), name, rest)
}

// outcome is what is left of a task in the end.
type outcome struct {
	State    queue.TaskState
	Exit     int
	Failures int
	Digest   string // of the output, as the broker knows it
	Content  string // of the output, as it lies there
}

// outcomes returns every task's, by job and index, and checks that none has two
// results.
func (s *site) outcomes(jobs map[string]string) map[string]outcome {
	s.t.Helper()
	out := map[string]outcome{}
	for name, id := range jobs {
		tasks, err := s.Broker.Tasks(s.ctx, id, "", "", 1000)
		s.must(err)
		for _, t := range tasks.Tasks {
			o := outcome{State: t.State, Exit: -1, Failures: t.Failures, Digest: t.Output}
			if t.ExitCode != nil {
				o.Exit = *t.ExitCode
			}
			text, err := os.ReadFile(s.Path("done", fmt.Sprintf("%s-%d", name, t.Index)))
			if !errors.Is(err, os.ErrNotExist) {
				s.must(err)
			}
			o.Content = string(text)
			out[fmt.Sprintf("%s/%02d", name, t.Index)] = o
		}
		wins := map[int]int{}
		for _, a := range s.attempts(id) {
			if a.State != queue.AttemptEnded {
				s.t.Errorf("attempt %s of %s has not ended: %s", a.ID, a.TaskID, a.State)
			}
			if a.Outcome == queue.Succeeded {
				wins[a.Index]++
			}
		}
		for index, n := range wins {
			if n > 1 {
				s.t.Errorf("task %d of %s has %d results", index, name, n)
			}
		}
	}
	return out
}

// submitAll hands all jobs in, and returns their ids by name.
func (s *site) submitAll(specs map[string]string) map[string]string {
	s.t.Helper()
	s.must(os.MkdirAll(s.Path("done"), 0o755))
	ids := map[string]string{}
	for name, spec := range specs {
		ids[name] = s.submit(spec)
	}
	return ids
}

// settled checks that ledger and invoice are the same to the last digit.
func (s *site) settled() {
	s.t.Helper()
	costs, err := s.Broker.Costs(s.ctx, client.CostQuery{})
	s.must(err)
	invoice, err := s.Cloud.Invoice(s.ctx)
	s.must(err)
	if costs.Spent != invoice.Total || invoice.Total == 0 || costs.Reserved != 0 {
		s.t.Errorf("the ledger says %s spent and %s reserved, the invoice %s", costs.Spent, costs.Reserved, invoice.Total)
	}
}

// watchMoney checks at every look that the cloud never charges more than is
// reserved and spent. It returns how often it could look, when ctx has ended.
func (s *site) watchMoney(ctx context.Context, broker func() *client.Client) (looks int) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return looks
		case <-tick.C:
		}
		c := broker()
		if c == nil {
			continue
		}
		invoice, err := s.Cloud.Invoice(ctx) // first: it only rises
		if err != nil {
			continue
		}
		costs, err := c.Costs(ctx, client.CostQuery{})
		if err != nil {
			continue // it is being killed
		}
		looks++
		if costs.Spent+costs.Reserved < invoice.Total {
			s.t.Errorf("the invoice is at %s with %s spent and %s reserved", invoice.Total, costs.Spent, costs.Reserved)
		}
	}
}

// TestKilledBrokersChangeNothing runs forty tasks twice: undisturbed, and while
// the broker is killed twenty times at random moments, machines are taken away,
// an agent is killed and a machine freezes. Both have the same results.
func TestKilledBrokersChangeNothing(t *testing.T) {
	t.Parallel()
	program(t)
	var want map[string]outcome
	t.Run("runs", func(t *testing.T) {
		var calm, wild map[string]outcome
		t.Run("undisturbed", func(t *testing.T) {
			t.Parallel()
			s := newSite(t, 5*time.Minute)
			s.up(quick(1), "")
			jobs := s.submitAll(s.fortyTasks())
			for _, id := range jobs {
				s.ended(id)
			}
			s.empty()
			s.settled()
			calm = s.outcomes(jobs)
		})
		t.Run("killed", func(t *testing.T) {
			t.Parallel()
			wild = killed(t)
		})
		t.Cleanup(func() {
			want = calm
			if diff := cmp.Diff(calm, wild); diff != "" {
				t.Errorf("results differ from those of the undisturbed run (-calm +killed):\n%s", diff)
			}
		})
	})
	if len(want) != 40 {
		t.Errorf("%d tasks have results, not 40", len(want))
	}
	for id, o := range want {
		if strings.HasPrefix(id, "fails/") {
			if o.State != queue.TaskFailed || o.Exit != 3 || o.Failures != 2 {
				t.Errorf("task %s ended as %+v", id, o)
			}
		} else if o.State != queue.TaskSucceeded || o.Content == "" {
			t.Errorf("task %s ended as %+v", id, o)
		}
	}
}

func killed(t *testing.T) map[string]outcome {
	s := newSite(t, 6*time.Minute)
	rng := rand.New(rand.NewPCG(*killSeed, 0))
	world := quick(2)
	world.Faults = append(world.Faults,
		simapi.Fault{Op: "launch", Effect: simapi.NoCapacity, Nth: 2},
		simapi.Fault{Op: "launch", Effect: simapi.DropAfter, Nth: 3},
		simapi.Fault{Op: "terminate", Effect: simapi.Refuse, Nth: 2},
	)
	s.up(world, "")
	jobs := s.submitAll(s.fortyTasks())

	var mu sync.Mutex
	var at *client.Client
	set := func(c *client.Client) { mu.Lock(); at = c; mu.Unlock() }
	watching, stop := context.WithCancel(s.ctx)
	looks := make(chan int, 1)
	go func() {
		looks <- s.watchMoney(watching, func() *client.Client { mu.Lock(); defer mu.Unlock(); return at })
	}()

	disturb := []func(){
		func() { s.takeSpot(nil) },
		func() { s.takeSpot(new(simapi.Duration(0))) },
		func() { s.check(s.agentOf(s.busySpot()).Signal(syscall.SIGKILL)) },
		func() {
			_, err := s.Cloud.Do(s.ctx, simapi.Action{Freeze: &simapi.Pick{Machine: s.busySpot()}})
			s.check(err)
		},
	}
	for k := range kills {
		longest := time.Second
		if k%2 == 0 {
			// Every other one is known to have come up, and does some work.
			s.must(s.Broker.Ready(s.ctx))
			set(s.Broker.Client)
			longest = 2 * time.Second
			if n := k / 4; k%4 == 2 && n < len(disturb) {
				disturb[n]()
			}
		}
		select {
		case <-time.After(time.Duration(rng.Int64N(int64(longest)))):
		case <-s.Broker.Process.Ended():
			t.Fatalf("the broker ended by itself with exit code %d before kill %d", s.Broker.Process.ExitCode(), k+1)
		}
		set(nil)
		s.Broker.Process.Kill()
		b, err := s.LaunchBroker(s.Path("broker.yaml"), s.Path("broker"))
		s.must(err)
		s.Broker = b
	}
	s.must(s.Broker.Ready(s.ctx))
	set(s.Broker.Client)
	t.Logf("killed %d times", kills)
	for _, id := range jobs {
		s.ended(id)
	}
	s.empty()
	stop()
	if n := <-looks; n < 20 {
		t.Errorf("only %d looks at the money", n)
	}
	s.settled()
	resumed := 0
	for _, a := range s.attempts(jobs["steps"]) {
		if a.Resume > 0 {
			resumed++
		}
	}
	t.Logf("%d attempts at steps, %d of them resumed from a checkpoint", len(s.attempts(jobs["steps"])), resumed)
	if a := s.attempts(jobs["steady"]); placed(a) != 1 {
		t.Errorf("the job that must not be interrupted was placed %d times", placed(a))
	}
	machines, err := filepath.Glob(s.Path("machines", "*"))
	s.must(err)
	if len(machines) > 0 {
		t.Errorf("folders of machines are left: %v", machines)
	}
	return s.outcomes(jobs)
}

// busySpot waits for a spot machine on which a task of steps runs, and returns
// the cloud's name of it.
func (s *site) busySpot() string {
	s.t.Helper()
	var id string
	s.await("a busy spot machine", func() error {
		list, err := s.Broker.Instances(s.ctx)
		if err != nil {
			return err
		}
		for _, i := range list.Instances {
			if i.Kind != string(providers.Spot) || i.State != queue.InstanceReady {
				continue
			}
			for _, a := range i.Attempts {
				if a.State == queue.AttemptRunning {
					id = i.CloudID
					return nil
				}
			}
		}
		return errors.New("none")
	})
	return id
}

// takeSpot has the cloud take a busy spot machine.
func (s *site) takeSpot(notice *simapi.Duration) {
	s.t.Helper()
	_, err := s.Cloud.Do(s.ctx, simapi.Action{Preempt: &simapi.Preempt{Pick: simapi.Pick{Machine: s.busySpot()}, Notice: notice}})
	s.check(err)
}

// placed counts the attempts that came to a machine: a launch that was refused is
// none.
func placed(list []*queue.Attempt) (n int) {
	for _, a := range list {
		if a.Outcome != queue.LaunchFailed {
			n++
		}
	}
	return n
}
