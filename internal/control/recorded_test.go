package control_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/internal/backtest"
	"gpubroker/internal/checkpoint"
	"gpubroker/internal/control"
	"gpubroker/internal/money"
	"gpubroker/internal/objects"
	cloud "gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// recordedCloud is a cloud that does what a recorded market did in a window: spot can be
// had or is taken at the same moments at the same prices, on demand always starts, and
// each machine boots for the delay and pays for that.
func recordedCloud(w *backtest.Window) cloud.Config {
	cfg := cloud.Config{
		Seed: 1, Billing: cloud.Billing{Unit: simapi.Duration(time.Second)}, BillsBoot: true,
		Boot: simapi.Duration(w.Delay), StopTime: simapi.Duration(time.Second), Notice: simapi.Duration(2 * time.Minute),
	}
	shape := providers.Shape{
		GPU: "l4", GPUName: "NVIDIA L4", GPUs: 1, GPUMemory: 24 << 30, VCPU: 4, Memory: 16 << 30, Disk: 250 << 30, Arch: "amd64", NetworkBps: 10_000_000_000,
	}
	for k, p := range w.Pools {
		place := simapi.Place{Region: p.Region, Zone: p.Name, Type: "recorded", Kind: providers.OnDemand}
		cfg.Offers = append(cfg.Offers, cloud.Offer{Place: place, Shape: shape, Price: p.OnDemand})
		place.Kind = providers.Spot
		spot := cloud.Offer{Place: place, Shape: shape, Price: w.Price[0][k], Capacity: new(0)}
		up, price := false, w.Price[0][k]
		for tick := range w.Up {
			s := cloud.Step{At: simapi.Duration(time.Duration(tick) * w.Step)}
			if w.Up[tick][k] != up {
				up, s.Capacity = !up, new(0)
				if up {
					s.Capacity = new(w.Gang)
				}
			}
			if w.Price[tick][k] != price {
				price = w.Price[tick][k]
				s.Price = new(price)
			}
			if s.Capacity != nil || s.Price != nil {
				spot.Steps = append(spot.Steps, s)
			}
		}
		cfg.Offers = append(cfg.Offers, spot)
	}
	return cfg
}

// unsaid is a provider that does not say what is free: a launch tells.
type unsaid struct{ providers.Provider }

func (u unsaid) Unwrap() providers.Provider { return u.Provider }

func (u unsaid) Offers(ctx context.Context, scope providers.Scope) ([]providers.Offer, error) {
	offers, err := u.Provider.Offers(ctx, scope)
	for i := range offers {
		offers[i].Available, offers[i].Capacity = "", 0
	}
	return offers, err
}

// memory keeps objects in memory over a store that signs and knows no object: many
// saves of many virtual hours are many files.
type memory struct {
	objects.Store
	mu   sync.Mutex
	held map[string]object
}

type object struct {
	objects.Info
	body []byte
}

func (m *memory) Put(_ context.Context, key string, body io.ReadSeeker, o objects.PutOptions) (objects.Info, error) {
	data, err := io.ReadAll(body)
	if err != nil {
		return objects.Info{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	i := objects.Info{Key: key, Bytes: int64(len(data)), ETag: checkpoint.Digest(data), Modified: time.Now(), Meta: o.Meta}
	m.held[key] = object{i, data}
	return i, nil
}

func (m *memory) find(key string) (object, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o, ok := m.held[key]
	return o, ok
}

func (m *memory) Get(ctx context.Context, key string, r objects.Range) (io.ReadCloser, objects.Info, error) {
	o, ok := m.find(key)
	if !ok || r != (objects.Range{}) {
		return m.Store.Get(ctx, key, r)
	}
	return io.NopCloser(bytes.NewReader(o.body)), o.Info, nil
}

func (m *memory) Stat(ctx context.Context, key string) (objects.Info, error) {
	if o, ok := m.find(key); ok {
		return o.Info, nil
	}
	return m.Store.Stat(ctx, key)
}

func (m *memory) List(_ context.Context, prefix string) iter.Seq2[objects.Info, error] {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []objects.Info
	for key, o := range m.held {
		if strings.HasPrefix(key, prefix) {
			out = append(out, o.Info)
		}
	}
	return func(yield func(objects.Info, error) bool) {
		for _, i := range out {
			if !yield(i, nil) {
				return
			}
		}
	}
}

func (m *memory) Delete(_ context.Context, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.held, key)
	return nil
}

// served is what the broker's loops spend on a window, from submission to the last bill.
// The broker starts anew every so often; 0 is never.
func served(t *testing.T, w *backtest.Window, anew time.Duration) (cost money.Amount, late bool, path []backtest.Stay) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, recordedCloud(w))
		s.wrap = func(p providers.Provider) providers.Provider { return unsaid{p} }
		s.objects = &memory{Store: s.objects, held: map[string]object{}}
		s.every, s.calls, s.saves = 10*time.Minute, 30*time.Second, 5*time.Minute
		m := time.Minute
		s.set.Every = control.Every{Observe: m, Lease: m, Terminate: 10 * time.Second, Silence: 10 * m, Lost: 15 * m, Offers: m, Sweep: 12 * time.Hour}
		s.set.Plan.Lease, s.set.Plan.Idle = time.Hour, time.Second
		s.start()
		defer s.close()
		start := time.Now()
		nodes := ""
		if w.Gang > 1 {
			nodes = fmt.Sprintf("nodes: %d\n", w.Gang)
		}
		j := s.submit(fmt.Sprintf("name: recorded\nproject: media\n%sresources: {gpu: l4}\nwork: {time: %v, on: l4}\ncheckpoint: {dir: ckpt, interval: 5m, size: 10MB}\ndeadline: %s\nrun: {command: [work, %v]}\n",
			nodes, w.Length, start.Add(w.Deadline).UTC().Format(time.RFC3339), w.Length))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		if anew > 0 {
			wg.Go(func() {
				for pause(ctx, anew) {
					s.stop()
					s.start()
				}
			})
		}
		done := s.await(j.ID, w.Deadline+time.Hour)
		cancel()
		wg.Wait()
		late = done.Ended.After(done.Deadline)
		s.quiet(3 * time.Hour)
		s.squared()
		cost = s.ledger()
		for _, a := range s.attempts(j.ID) {
			if i := s.record(a.Instance); a.Leads() && !i.Launched.IsZero() {
				if i.Kind == string(providers.OnDemand) {
					i.Zone = "on-demand " + i.Zone
				}
				path = append(path, backtest.Stay{At: a.Created.Sub(start).Round(time.Second), On: i.Zone})
			}
		}
	})
	return cost, late, path
}

// What serve spends in a recorded market is what backtest says: the broker's loops, its
// store and a cloud that does what was recorded, in virtual time, against the replay of
// the same windows. The replay asks between ticks too, as the loops do. What is left
// differs by design: a machine with a notice works on until its agent hears of it, what is
// done since the last save is not safe yet, offers are a minute old, and an empty machine
// is held for a second. A moment's difference may move a later one, so windows are summed.
func TestServeCostsWhatBacktestSays(t *testing.T) {
	const within = 0.03
	const traces = "../../../shared/traces/"
	for _, c := range []struct {
		name string
		o    backtest.Options
	}{
		{"made up", backtest.Options{Market: "../backtest/testdata/toy/day", Length: 4 * time.Hour, Deadline: 7 * time.Hour, N: 16}},
		{"one pool", backtest.Options{Market: traces + "aws-k80-v100-2022/2022-10-26", Pools: []string{"us-west-2b_v100_1"}, Length: 48 * time.Hour, Fraction: 0.8, N: 6}},
		{"nine zones", backtest.Options{Market: traces + "aws-v100x1-2023-02/s2", Length: 48 * time.Hour, Deadline: 60 * time.Hour, N: 3}},
		{"gangs", backtest.Options{Market: traces + "gcp-h100x16-2025-10/s2", Length: 40 * time.Hour, Deadline: 50 * time.Hour, Gang: 4, N: 1, SplitAtHoles: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := os.Stat(filepath.Dir(c.o.Market)); errors.Is(err, fs.ErrNotExist) {
				t.Skip("the recorded market is not here")
			}
			if testing.Short() && strings.HasPrefix(c.o.Market, traces) {
				t.Skip("many days of virtual time")
			}
			c.o.Delay, c.o.Between, c.o.Cold = 12*time.Minute, true, true
			windows, err := backtest.Windows(c.o)
			if err != nil {
				t.Fatal(err)
			}
			var spent, said float64
			for k := range windows {
				w := &windows[k]
				want, err := w.Play(t.Context(), "ours")
				if err != nil {
					t.Fatal(err)
				}
				cost, late, path := served(t, w, 0)
				if late || want.Missed {
					t.Errorf("window %d: late in serve: %v, in the replay: %v", k, late, want.Missed)
				}
				t.Logf("window %d: serve $%.2f, backtest $%.2f, %+.2f %%; %d preemptions and %d moves\nserve   %v\nreplay  %v",
					k, cost.Float(), want.Cost, 100*(cost.Float()/want.Cost-1), want.Preemptions, want.Moves, path, want.Stays)
				spent, said = spent+cost.Float(), said+want.Cost
			}
			t.Logf("%d windows: serve $%.2f, backtest $%.2f, %+.2f %%", len(windows), spent, said, 100*(spent/said-1))
			if math.Abs(spent/said-1) > within {
				t.Errorf("serve spends %.2f, backtest says %.2f", spent, said)
			}
		})
	}
}

// A broker that starts anew in mid-job, again and again, decides as one that runs on: what
// it has learned is in its store, and its tables follow from that.
func TestRestartsDecideAlike(t *testing.T) {
	windows, err := backtest.Windows(backtest.Options{
		Market: "../backtest/testdata/toy/day", Length: 4 * time.Hour, Deadline: 6 * time.Hour, Delay: 12 * time.Minute, N: 4,
	})
	if err != nil {
		t.Fatal(err)
	}
	for k := range windows {
		cost, _, path := served(t, &windows[k], 0)
		again, late, took := served(t, &windows[k], 17*time.Minute)
		same := func(a, b backtest.Stay) bool { return a.On == b.On && (a.At-b.At).Abs() <= 2*time.Minute }
		if late || !slices.EqualFunc(path, took, same) {
			t.Errorf("window %d: late: %v\nruns on      %v\nstarts anew  %v", k, late, path, took)
		}
		t.Logf("window %d: $%.2f, and $%.2f with restarts: %v", k, cost.Float(), again.Float(), took)
	}
}
