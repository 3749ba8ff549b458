package control_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	cloud "gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/queue"
)

// together lets an adapter launch many machines in one call, one after another
// over the wire, so that a broker can die between any two.
type together struct {
	providers.Provider

	mu    sync.Mutex
	sizes []int // of the calls
}

func (b *together) Unwrap() providers.Provider { return b.Provider }

func (b *together) LaunchMany(ctx context.Context, reqs []providers.LaunchRequest) []providers.LaunchAnswer {
	b.mu.Lock()
	b.sizes = append(b.sizes, len(reqs))
	b.mu.Unlock()
	out := make([]providers.LaunchAnswer, len(reqs))
	for i, r := range reqs {
		out[i].Instance, out[i].Err = b.Launch(ctx, r)
	}
	return out
}

// seen are the sizes of the calls so far.
func (b *together) seen() []int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.sizes)
}

// six tasks that each need a machine of their own.
const six = `
name: six
project: media
resources: {gpu: l4}
tasks: {count: 6}
work: {time: 40m, on: l4}
checkpoint: {dir: ckpt, interval: 5m}
run: {command: [work, 40m]}
`

// inBulk runs a site whose cloud launches many machines in a call.
func inBulk(t *testing.T, run func(s *site, b *together)) {
	t.Helper()
	b := &together{}
	inBubble(t, calm(), func(s *site) {
		s.stop()
		s.wrap = func(p providers.Provider) providers.Provider { b.Provider = p; return b }
		s.start()
		run(s, b)
	})
}

func TestMachinesOfOneMarketAreLaunchedInOneCall(t *testing.T) {
	inBulk(t, func(s *site, b *together) {
		j := s.submit(six)
		s.until("machines that boot", time.Minute, func(is []*queue.Instance, _ []*queue.Attempt) bool {
			n := 0
			for _, i := range is {
				if i.State == queue.InstanceBooting || i.State == queue.InstanceReady {
					n++
				}
			}
			return n == 6
		})
		sum := 0
		for _, n := range b.seen() {
			sum += n
		}
		if len(b.seen()) == 0 || slices.Max(b.seen()) < 2 || slices.Min(b.seen()) < 2 || sum > 6 {
			t.Errorf("calls for %v machines", b.seen())
		}
		s.succeeded(j)
	})
}

// Each machine of a call has its own answer: some are refused, some may or may
// not exist, and nothing is launched twice.
func TestEachMachineOfACallHasItsOwnOutcome(t *testing.T) {
	for _, f := range []simapi.Fault{
		{Op: "launch", Effect: simapi.NoCapacity, Times: 2},
		{Op: "launch", Effect: simapi.DropAfter, Times: 2},
		{Op: "launch", Effect: simapi.Drop, Times: 1},
		{Op: "launch", Effect: simapi.Throttle, Times: 1},
		{Op: "launch", Effect: simapi.InternalAfter, Times: 3},
	} {
		t.Run(f.Effect, func(t *testing.T) {
			inBulk(t, func(s *site, b *together) {
				s.fault(f)
				s.succeeded(s.submit(six))
				if len(b.seen()) == 0 {
					t.Error("no call was for many")
				}
			})
		})
	}
}

func TestKillEverywhereInACallForMany(t *testing.T) {
	killEverywhere(t, 6, 23, func(t *testing.T, point func(string) bool) map[queue.TaskID]outcome {
		t.Helper()
		s := newSite(t, cloud.Default(1))
		s.wrap = func(p providers.Provider) providers.Provider { return &together{Provider: p} }
		// The calls for many are among the first: later ones are those of other tests.
		n := 0
		return crashSite(t, s, []string{six}, func(what string) bool { n++; return n < 400 && point(what) })
	})
}
