//go:build unix

package control

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/market"
	"gpubroker/internal/money"
	"gpubroker/internal/pgtest"
	"gpubroker/internal/spec"
	"gpubroker/internal/state"
	"gpubroker/internal/store"
	"gpubroker/providers"
	"gpubroker/providers/managed"
	"gpubroker/queue"
	"gpubroker/scheduler"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }

// account is a cloud of which only the facts are asked.
type account string

func (a account) Name() string { return string(a) }

func (account) Capabilities() providers.Capabilities {
	return providers.Capabilities{
		Kinds: []providers.Kind{providers.Spot, providers.OnDemand}, Billing: money.Billing{Unit: time.Second},
		TagsAtLaunch: true, LaunchToken: true, SelfEnd: providers.EndRolling, StopTime: time.Minute, BootTime: 2 * time.Minute,
	}
}

func (account) Offers(context.Context, providers.Scope) ([]providers.Offer, error) { return nil, nil }

func (account) Launch(context.Context, providers.LaunchRequest) (providers.Instance, error) {
	return providers.Instance{}, nil
}
func (account) Terminate(context.Context, providers.Ref) error { return nil }

func (account) Describe(context.Context, providers.Ref) (providers.Instance, error) {
	return providers.Instance{}, nil
}
func (account) List(context.Context) ([]providers.Instance, error) { return nil, nil }

// fleeting is a store that keeps nothing: what remains is the work in memory.
type fleeting struct{ *store.Store }

func (fleeting) Commit(context.Context, *queue.Batch) error { return nil }

// desk is a broker whose loops do not run: a benchmark calls them.
type desk struct {
	*Broker
	b     testing.TB
	store *store.Store
	place string // what the store was opened with
	end   func()
}

// newDesk opens a broker over an empty store: memory, sqlite or postgres.
func newDesk(b testing.TB, engine string) *desk {
	b.Helper()
	d := &desk{b: b, place: filepath.Join(b.TempDir(), "broker.db")}
	if engine == "postgres" {
		d.place = pgtest.Database(b)
	}
	d.open(engine)
	return d
}

func (d *desk) open(engine string) {
	d.b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	st, err := store.Open(ctx, d.place, store.Options{})
	d.check(err)
	epoch, err := st.Lead(ctx, "bench", 24*time.Hour)
	d.check(err)
	meta, err := st.Meta(ctx)
	d.check(err)
	var kept queue.Store = st
	if engine == "memory" {
		kept = fleeting{st}
	}
	tables, err := state.Open(ctx, kept, slog.New(slog.DiscardHandler))
	d.check(err)
	tables.SetEpoch(epoch)
	var accounts []*Account
	for p := range 5 {
		accounts = append(accounts, &Account{Provider: managed.New(account(fmt.Sprintf("p%d", p)), managed.Options{})})
	}
	set := Settings{
		Owner:   "bench",
		Budgets: []budget.Budget{{Name: "org", Scope: budget.Org, Capped: true, Cap: 1_000_000 * money.Unit, Period: budget.Rule{Length: budget.Month}}},
		Plan:    scheduler.Settings{Lease: 20 * time.Minute, Idle: time.Minute, Stale: scheduler.Stale{Spot: time.Hour, OnDemand: time.Hour}},
	}
	d.Broker = New(set, tables, meta, accounts, market.New(), nil, nil, slog.New(slog.DiscardHandler))
	for _, a := range accounts {
		d.listed[a.Name()] = time.Now()
	}
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = tables.Run(ctx) }()
	d.store = st
	d.end = func() {
		cancel()
		<-stopped
		d.check(st.Close())
	}
}

func (d *desk) check(err error) {
	if err != nil {
		d.b.Helper()
		d.b.Fatal(err)
	}
}

func (d *desk) do(fn func(*state.Tx) error) {
	d.b.Helper()
	d.check(d.state.Do(d.b.Context(), fn))
}

// gpus are the models on offer, cheapest first.
var gpus = []string{"l4", "t4", "a10g", "l40s", "a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "mi300x", "a100-sxm-40gb", "rtx-4090"}

// offer fills the market with 2,000 shapes in 25 places each, and returns the
// 50,000 offers.
func (d *desk) offer() []providers.Offer {
	random := rand.New(rand.NewPCG(1, 2))
	lists := map[string][]providers.Offer{}
	for i := range 2000 {
		name := gpus[i%len(gpus)]
		shape := providers.Shape{GPU: name, GPUName: name, GPUs: float64(int(1) << (i / 10 % 4)), VCPU: float64(int(4) << (i / 40 % 5)), Memory: int64(16+i) << 30, Arch: "amd64"}
		if i%20 == 19 {
			shape = providers.Shape{VCPU: shape.VCPU, Memory: shape.Memory, Arch: "amd64"}
		}
		for j := range 25 {
			price := (0.3 + float64(i%len(gpus))*0.6) * max(1, shape.GPUs) * (0.5 + random.Float64()) * (1 + shape.VCPU/200)
			kind := providers.Spot
			if j%5 == 0 {
				kind, price = providers.OnDemand, price*2.5
			}
			p := fmt.Sprintf("p%d", j%5)
			lists[p] = append(lists[p], providers.Offer{
				Market: providers.Market{Provider: p, Region: fmt.Sprintf("r%d", j/5), Zone: fmt.Sprint(j), Type: fmt.Sprintf("t%d", i), Kind: kind},
				Shape:  shape, Price: money.Rate(price * float64(money.Unit)), Currency: money.USD, Seen: time.Now().UTC(),
			})
		}
	}
	var all []providers.Offer
	for p := range 5 {
		name := fmt.Sprintf("p%d", p)
		d.market.Replace(name, lists[name], time.Now().UTC())
		all = append(all, lists[name]...)
	}
	return all
}

// job is the spec of the i-th of many jobs that differ.
func job(i, tasks int) string {
	gpu, regions, deadline, save := "", "", "", "checkpoint: {dir: ckpt, interval: 5m}"
	if i%3 == 0 {
		gpu = fmt.Sprintf("gpu: [%s, %s], ", gpus[i%8], gpus[(i+1)%8])
	}
	if i%7 == 0 {
		regions = "regions: [r1, r3], "
	}
	if i%4 == 0 {
		deadline = "deadline: " + time.Now().Add(24*time.Hour).UTC().Format(time.RFC3339)
	}
	if i%5 == 0 {
		save = "spot: {policy: never}"
	}
	return fmt.Sprintf(`
name: job-%d
project: project%d
tasks: {count: %d, parallelism: 23}
resources: {%s%sgpu_memory: %dGiB, vcpu: 2, memory: %dGiB}
work: {time: %dm, on: a10g}
max_duration: 2h
run: {command: [work, "{{index}}"]}
%s
%s
`, i, i%20, tasks, gpu, regions, 8+i%4*8, 8+i%16, 5+i%90, deadline, save)
}

// busy fills the tables with 1,000,000 queued tasks of 1,000 jobs, and 10,000
// machines that run 15,000 more.
func (d *desk) busy() {
	d.b.Helper()
	offers := d.offer()
	var jobs []*queue.Job
	for i := range 1000 {
		s, err := spec.Parse("job", []byte(job(i, 1015)))
		d.check(err)
		j, err := d.Submit(d.b.Context(), Submission{Spec: s, Anywhere: true}, nil)
		d.check(err)
		jobs = append(jobs, j)
	}
	random := rand.New(rand.NewPCG(3, 4))
	for from := 0; from < 10_000; from += 500 {
		d.do(func(tx *state.Tx) error {
			for n := from; n < from+500; n++ {
				o, j := &offers[random.IntN(len(offers))], jobs[n%len(jobs)]
				s, err := d.specs.of(j)
				if err != nil {
					return err
				}
				i := d.machine(tx, o, j.Project, 2, s.needs.SlotKey())
				if err := d.reserve(tx, i, i.Lease, nil); err != nil {
					return err
				}
				for slot := range 1 + n/len(jobs)%2 {
					if err := run(tx, j.ID, i.ID, slot); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
}

// machine stages one that is ready.
func (d *desk) machine(tx *state.Tx, o *providers.Offer, project string, slots int, key string) *queue.Instance {
	born := tx.Now.Add(-time.Hour)
	return tx.AddInstance(&queue.Instance{
		ID: tx.NewID("i"), State: queue.InstanceReady, Project: project,
		Provider: o.Market.Provider, Region: o.Market.Region, Zone: o.Market.Zone, Type: o.Market.Type, Kind: string(o.Market.Kind),
		GPU: o.Shape.GPU, GPUName: o.Shape.GPUName, GPUs: o.Shape.GPUs, VCPU: o.Shape.VCPU, Memory: o.Shape.Memory, Arch: o.Shape.Arch,
		Slots: slots, SlotKey: key, Price: o.Price, Bound: o.Price, OnDemand: o.Price * 2,
		Billing: money.Billing{Unit: time.Second}, SelfEnd: string(providers.EndRolling),
		Requested: born, Launched: born, Ready: born, Lease: tx.Now.Add(15 * time.Minute), End: tx.Now.Add(15 * time.Minute), Boot: born,
	})
}

// run stages a job's next task as running.
func run(tx *state.Tx, job, machine string, slot int) error {
	j := tx.EditJob(job)
	t := tx.AddTask(&queue.Task{TaskID: queue.TaskID{Job: job, Index: j.Next}})
	j.Next++
	if err := queue.SetTask(j, t, queue.TaskRunning); err != nil {
		return err
	}
	a := tx.AddAttempt(&queue.Attempt{
		ID: tx.NewID("a"), TaskID: t.TaskID, Token: tx.NewToken(), Number: 1, Instance: machine, Slot: slot,
		State: queue.AttemptRunning, Created: tx.Now, Started: tx.Now,
	})
	t.Attempt, t.Attempts = a.ID, 1
	return nil
}

// cpu is the processor time that this process has used, which other work on the
// machine does not change.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// ms reports a time spent over all iterations, for each of them.
func ms(b *testing.B, d time.Duration, unit string) {
	b.ReportMetric(float64(d.Microseconds())/1000/float64(b.N), unit)
}

// BenchmarkPass is the broker's whole pass but its commit, over 1,000,000 queued
// tasks in 1,000 groups, 50,000 offers, and 10,000 machines with 15,000 running
// tasks: drawing the snapshot from the tables, and the plan. The goal is 100 ms.
func BenchmarkPass(b *testing.B) {
	d := newDesk(b, "memory")
	defer d.end()
	d.busy()
	var drawing, drawingCPU time.Duration
	placed, queued := 0, 0
	start := cpu(b)
	for b.Loop() {
		now, used := time.Now(), cpu(b)
		p := d.snapshot(d.state.View(), d.now())
		drawing += time.Since(now)
		drawingCPU += cpu(b) - used
		r := scheduler.Plan(&p.Snapshot, &d.memo)
		placed, queued = 0, 0
		for i := range r.Decisions {
			placed += r.Decisions[i].Placed
			queued += r.Decisions[i].Waiting
		}
	}
	ms(b, drawing, "snapshot-ms/op")
	ms(b, drawingCPU, "snapshot-cpu-ms/op")
	ms(b, b.Elapsed(), "ms/op")
	ms(b, cpu(b)-start, "cpu-ms/op")
	b.ReportMetric(float64(placed), "placed")
	b.ReportMetric(float64(queued), "queued")
}

// BenchmarkLaunches commits the plan of that pass to a store: some 4,000 machines
// are wished for and reserved, beside the 10,000 that live, and 8,000 tasks placed.
func BenchmarkLaunches(b *testing.B) {
	var used, pass time.Duration
	launched := 0
	for b.Loop() {
		b.StopTimer()
		d := newDesk(b, "sqlite")
		d.busy()
		p := d.snapshot(d.state.View(), d.now())
		r := scheduler.Plan(&p.Snapshot, &d.memo)
		b.StartTimer()
		start, begun := cpu(b), time.Now()
		d.do(func(tx *state.Tx) error { return d.commit(tx, p, &r) })
		used += cpu(b) - start
		pass += time.Since(begun)
		b.StopTimer()
		if launched = d.state.View().Instances.Len() - len(p.Machines); launched != len(r.Launches) {
			b.Fatalf("%d of %d machines are wished for", launched, len(r.Launches))
		}
		d.end()
		b.StartTimer()
	}
	ms(b, pass, "ms/op")
	ms(b, used, "cpu-ms/op")
	b.ReportMetric(float64(launched), "launches")
}

// BenchmarkPlan answers `gpubroker plan`, with full reasons, about one more job:
// on an idle broker, and beside the load of [BenchmarkPass]. The goal is 50 ms.
func BenchmarkPlan(b *testing.B) {
	for _, load := range []string{"idle", "busy"} {
		b.Run(load, func(b *testing.B) {
			d := newDesk(b, "memory")
			defer d.end()
			if load == "busy" {
				d.busy()
			} else {
				d.offer()
			}
			s, err := spec.Parse("job", []byte(job(1, 1000)))
			d.check(err)
			d.market.Catalog()
			start := cpu(b)
			for b.Loop() {
				e, launches, err := d.ExplainPlan(b.Context(), Submission{Spec: s, Anywhere: true}, nil)
				d.check(err)
				if e.Considered != 50_000 || load == "idle" && len(launches) == 0 {
					b.Fatalf("%d offers are explained, %d machines would be launched", e.Considered, len(launches))
				}
			}
			ms(b, b.Elapsed(), "ms/op")
			ms(b, cpu(b)-start, "cpu-ms/op")
		})
	}
}

// BenchmarkPlacements places 32,000 small tasks of as many jobs on 1,000 machines
// of 32 slots by the broker's own pass: drawn from the tables, planned with its
// reasons, admitted by the budgets and committed. The machines are in hand, or
// are rented and reserved for in the same commit. The goals are 100,000 a second
// in memory and 15,000 durable.
func BenchmarkPlacements(b *testing.B) {
	const machines, slots = 1000, 32
	small := "{name: small, project: small, resources: {gpu: none, vcpu: 1, memory: 1GiB}, work: {time: 30m}, max_duration: 1h, spot: {policy: never}, run: {command: [work]}}"
	market := providers.Market{Provider: "p0", Region: "a", Zone: "1", Type: "c32", Kind: providers.OnDemand}
	shape := providers.Shape{VCPU: slots, Memory: 64 << 30, Arch: "amd64"}
	for _, engine := range []string{"memory", "sqlite", "postgres"} {
		for _, have := range []string{"in-hand", "rented"} {
			b.Run(engine+"/"+have, func(b *testing.B) {
				var used, pass time.Duration
				for b.Loop() {
					b.StopTimer()
					d := newDesk(b, engine)
					o := providers.Offer{Market: market, Shape: shape, Price: money.Rate(money.Unit / 100), Currency: money.USD, Seen: time.Now().UTC()}
					d.market.Replace("p0", []providers.Offer{o}, o.Seen)
					s, err := spec.Parse("job", []byte(small))
					d.check(err)
					first, err := d.Submit(b.Context(), Submission{Spec: s, Anywhere: true}, nil)
					d.check(err)
					p, err := d.specs.of(first)
					d.check(err)
					d.do(func(tx *state.Tx) error {
						for range machines*slots - 1 {
							j := *first
							j.ID = tx.NewID("j")
							tx.AddJob(&j)
						}
						for range machines {
							if have == "rented" {
								break
							}
							i := d.machine(tx, &o, "small", slots, p.needs.SlotKey())
							i.Idle = tx.Now
						}
						return nil
					})
					d.snapshot(d.state.View(), d.now()) // specs are read once, when a job is new
					b.StartTimer()
					start, begun := cpu(b), time.Now()
					_, err = d.schedule(b.Context())
					used += cpu(b) - start
					pass += time.Since(begun)
					b.StopTimer()
					d.check(err)
					view := d.state.View()
					if view.On.Len() != machines*slots || view.Instances.Len() != machines {
						b.Fatalf("%d tasks run on %d machines", view.On.Len(), view.Instances.Len())
					}
					d.end()
					b.StartTimer()
				}
				ms(b, used, "cpu-ms/op")
				b.ReportMetric(machines*slots*float64(b.N)/pass.Seconds(), "placements/s")
				b.ReportMetric(machines*slots*float64(b.N)/used.Seconds(), "placements/cpu-s")
			})
		}
	}
}

// BenchmarkRestart opens a store with 10,000 machines, 15,000 running tasks and
// 1,000 jobs, up to the first snapshot.
func BenchmarkRestart(b *testing.B) {
	for _, engine := range []string{"sqlite", "postgres"} {
		b.Run(engine, func(b *testing.B) {
			d := newDesk(b, engine)
			d.busy()
			d.end()
			b.ResetTimer()
			var used time.Duration
			for b.Loop() {
				start := cpu(b)
				d.open(engine)
				p := d.snapshot(d.state.View(), d.now())
				used += cpu(b) - start
				b.StopTimer()
				if len(p.Machines) != 10_000 || len(p.Running) != 15_000 || len(p.Groups) != 1000 {
					b.Fatalf("%d machines, %d running, %d groups", len(p.Machines), len(p.Running), len(p.Groups))
				}
				d.end()
				b.StartTimer()
			}
			ms(b, b.Elapsed(), "ms/op")
			ms(b, used, "cpu-ms/op")
		})
	}
}
