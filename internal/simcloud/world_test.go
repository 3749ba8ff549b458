package simcloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

var (
	spotA = simapi.Place{Region: "r1", Zone: "r1a", Type: "l4x1", Kind: providers.Spot}
	spotB = simapi.Place{Region: "r1", Zone: "r1b", Type: "l4x1", Kind: providers.Spot}
	firmA = simapi.Place{Region: "r1", Zone: "r1a", Type: "l4x1", Kind: providers.OnDemand}
)

// small is a world of three markets without chance in it.
func small() Config {
	shape := providers.Shape{GPU: "l4", GPUs: 1, VCPU: 4}
	return Config{
		Seed: 1, Boot: dur(time.Second), StopTime: dur(2 * time.Second), Notice: dur(30 * time.Second),
		Billing: Billing{Unit: dur(time.Second), Minimum: dur(time.Minute)},
		Offers: []Offer{
			{Place: spotA, Shape: shape, Price: 300_000_000, Capacity: new(2)},
			{Place: spotB, Shape: shape, Price: 310_000_000},
			{Place: firmA, Shape: shape, Price: 800_000_000},
		},
	}
}

func dur(d time.Duration) Duration { return Duration(d) }

// inWorld runs a test in virtual time.
func inWorld(t *testing.T, cfg Config, runner Runner, f func(t *testing.T, w *World)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w, err := New(cfg, runner, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		f(t, w)
	})
}

func launch(t *testing.T, w *World, request string, p simapi.Place, edit ...func(*simapi.Launch)) simapi.Machine {
	t.Helper()
	req := simapi.Launch{Place: p, Request: request}
	for _, e := range edit {
		e(&req)
	}
	m, err := w.Launch(req)
	if err != nil {
		t.Fatalf("launch %s: %v", request, err)
	}
	return m
}

func describe(t *testing.T, w *World, id string) simapi.Machine {
	t.Helper()
	m, err := w.Machine(id)
	if err != nil {
		t.Fatalf("describe %s: %v", id, err)
	}
	return m
}

func codeOf(err error) string {
	if e, ok := errors.AsType[*simapi.Error](err); ok {
		return e.Code
	}
	return fmt.Sprint(err)
}

func TestLifeOfAMachine(t *testing.T) {
	inWorld(t, small(), nil, func(t *testing.T, w *World) {
		begin := time.Now().UTC()
		m := launch(t, w, "req-1", spotA)
		if m.State != providers.Pending {
			t.Errorf("state right after launch = %s", m.State)
		}
		time.Sleep(time.Second)
		m = describe(t, w, "request:req-1")
		if m.State != providers.Running || !m.Running.Equal(begin.Add(time.Second)) {
			t.Errorf("after the boot: %s since %s", m.State, m.Running)
		}
		time.Sleep(99 * time.Second)
		if err := w.Terminate(m.ID); err != nil {
			t.Fatal(err)
		}
		if err := w.Terminate(m.ID); err != nil {
			t.Errorf("second terminate while it stops: %v", err)
		}
		if got := describe(t, w, m.ID).State; got != providers.Stopping {
			t.Errorf("after terminate: %s", got)
		}
		time.Sleep(2 * time.Second)
		m = describe(t, w, m.ID)
		if m.State != providers.Terminated || m.Cause != providers.CauseUser || !m.Ended.Equal(begin.Add(102*time.Second)) {
			t.Errorf("at the end: %s, %s, %s", m.State, m.Cause, m.Ended)
		}
		if got := codeOf(w.Terminate(m.ID)); got != simapi.CodeNotFound {
			t.Errorf("terminate of a machine that is gone: %s", got)
		}
		// 101 s of life at 0.30 an hour.
		if got, want := w.Invoice().Total, money.Amount(8_416_667); got != want {
			t.Errorf("invoice %s, want %s", got, want)
		}
		time.Sleep(time.Hour)
		if _, err := w.Machine(m.ID); codeOf(err) != simapi.CodeNotFound {
			t.Errorf("an hour later it is still known: %v", err)
		}
		if got := w.Invoice().Total; got != 8_416_667 {
			t.Errorf("the invoice forgot the machine: %s", got)
		}
	})
}

func TestLaunchIsIdempotent(t *testing.T) {
	inWorld(t, small(), nil, func(t *testing.T, w *World) {
		a := launch(t, w, "req-1", spotA)
		b := launch(t, w, "req-1", spotA, func(l *simapi.Launch) { l.EndAt = time.Now().Add(time.Hour) })
		if a.ID != b.ID {
			t.Errorf("one request, two machines: %s and %s", a.ID, b.ID)
		}
		for name, edit := range map[string]func(*simapi.Launch){
			"market":    func(l *simapi.Launch) { l.Place = spotB },
			"bound":     func(l *simapi.Launch) { l.PriceMax = 1_000_000_000 },
			"user data": func(l *simapi.Launch) { l.UserData = "true" },
		} {
			req := simapi.Launch{Place: spotA, Request: "req-1"}
			edit(&req)
			if _, err := w.Launch(req); codeOf(err) != simapi.CodeMismatch {
				t.Errorf("same request, other %s: %v", name, err)
			}
		}
		if err := w.Terminate(a.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		if c := launch(t, w, "req-1", spotA); c.ID != a.ID || c.State != providers.Terminated {
			t.Errorf("the same request after the end: %s %s", c.ID, c.State)
		}
		if n := len(w.Truth()); n != 1 {
			t.Errorf("%d machines, want 1", n)
		}
	})
}

func TestLaunchRefusals(t *testing.T) {
	cfg := small()
	cfg.Quotas = []Quota{{Name: "spot", Kind: providers.Spot, Unit: "vcpu", Limit: 12}}
	inWorld(t, cfg, nil, func(t *testing.T, w *World) {
		launch(t, w, "1", spotA)
		launch(t, w, "2", spotA)
		refused := func(want string, req simapi.Launch) {
			t.Helper()
			if _, err := w.Launch(req); codeOf(err) != want {
				t.Errorf("launch %+v: %v, want %s", req, err, want)
			}
		}
		refused(simapi.CodeCapacity, simapi.Launch{Place: spotA, Request: "3"})
		launch(t, w, "4", spotB)
		refused(simapi.CodeQuota, simapi.Launch{Place: spotB, Request: "5"})
		launch(t, w, "6", firmA)
		refused(simapi.CodeNoOffer, simapi.Launch{Place: simapi.Place{Type: "none"}, Request: "7"})
		refused(simapi.CodeInvalid, simapi.Launch{Place: firmA})
		refused(simapi.CodeInvalid, simapi.Launch{Place: firmA, Request: "8", UserData: string(make([]byte, UserDataLimit+1))})
		refused(simapi.CodeInvalid, simapi.Launch{Place: firmA, Request: "9", EndAt: time.Now().Add(-time.Second)})
		if q := w.Quotas()[0]; q.Used != 12 {
			t.Errorf("quota used = %g, want 12", q.Used)
		}
		for _, o := range w.Offers("", 0) {
			if o.Place == spotA && (o.Available != providers.Full || *o.Free != 0) {
				t.Errorf("a full market is shown as %s with %d free", o.Available, *o.Free)
			}
		}
	})
}

func TestPriceBoundIsKept(t *testing.T) {
	cfg := small()
	cfg.Offers[0].Steps = []Step{
		{At: dur(100 * time.Second), Price: new(money.Rate(400_000_000))},
		{At: dur(200 * time.Second), Price: new(money.Rate(900_000_000))},
	}
	inWorld(t, cfg, nil, func(t *testing.T, w *World) {
		if _, err := w.Launch(simapi.Launch{Place: spotA, Request: "low", PriceMax: 299_999_999}); codeOf(err) != simapi.CodePrice {
			t.Errorf("a bound below the price: %v", err)
		}
		m := launch(t, w, "bound", spotA, func(l *simapi.Launch) { l.PriceMax = 500_000_000 })
		free := launch(t, w, "free", spotA)
		time.Sleep(200 * time.Second)
		if got := describe(t, w, m.ID); got.State != providers.Running || got.Price != 400_000_000 {
			t.Errorf("when the price passes the bound: %s at %s", got.State, got.Price)
		}
		time.Sleep(32 * time.Second)
		got := describe(t, w, m.ID)
		if got.State != providers.Terminated || got.Cause != providers.CausePrice {
			t.Errorf("after the notice: %s, %s", got.State, got.Cause)
		}
		bill, err := w.Bill(m.ID)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range bill.Prices {
			if p.Price > 500_000_000 {
				t.Errorf("billed at %s above the bound", p.Price)
			}
		}
		if got := describe(t, w, free.ID); got.State != providers.Running || got.Price != 900_000_000 {
			t.Errorf("without a bound: %s at %s", got.State, got.Price)
		}
	})
}

func TestPriceBoundIsKeptWhileItBoots(t *testing.T) {
	cfg := small()
	cfg.Boot = dur(10 * time.Second)
	cfg.Offers[0].Steps = []Step{{At: dur(5 * time.Second), Price: new(money.Rate(900_000_000))}, {At: dur(20 * time.Second), Price: new(money.Rate(350_000_000))}}
	inWorld(t, cfg, nil, func(t *testing.T, w *World) {
		m := launch(t, w, "req", spotA, func(l *simapi.Launch) { l.PriceMax = 400_000_000 })
		time.Sleep(time.Minute)
		want := []providers.PriceChange{
			{From: w.start.Add(10 * time.Second), Price: 400_000_000},
			{From: w.start.Add(20 * time.Second), Price: 350_000_000},
		}
		bill, err := w.Bill(m.ID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, bill.Prices); diff != "" {
			t.Error(diff)
		}
		if !bill.End.Equal(w.start.Add(37 * time.Second)) {
			t.Errorf("billed until %s; the notice of 30 s was given at 5 s, and 2 s are for stopping", bill.End)
		}
	})
}

func TestNoticeTiming(t *testing.T) {
	tests := []struct {
		name     string
		notice   time.Duration
		fault    *simapi.Fault
		warned   time.Duration // after the preemption; -1 for never
		taken    time.Duration
		onEvents bool
		onMeta   bool
	}{
		{"as usual", 30 * time.Second, nil, 0, 30 * time.Second, true, true},
		{"none", 0, nil, -1, 0, false, false},
		{"short", 30 * time.Second, &simapi.Fault{Op: "notice", Effect: simapi.Short, Delay: dur(3 * time.Second)}, 27 * time.Second, 30 * time.Second, true, true},
		{"lost", 30 * time.Second, &simapi.Fault{Op: "notice", Effect: simapi.Lose}, -1, 30 * time.Second, false, false},
		{"lost on the machine", 30 * time.Second, &simapi.Fault{Op: "notice", Effect: simapi.Lose, Channel: "metadata"}, 0, 30 * time.Second, true, false},
		{"lost in the stream", 30 * time.Second, &simapi.Fault{Op: "notice", Effect: simapi.Lose, Channel: "events"}, 0, 30 * time.Second, false, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			meta := time.Duration(-1)
			var begin time.Time
			runner := &Null{Boot: func(ctx context.Context, g Guest) {
				for {
					if a := instanceAction(t, g); a != nil && meta < 0 {
						meta = time.Since(begin)
					}
					select {
					case <-ctx.Done():
						return
					case <-time.After(time.Second):
					}
				}
			}}
			inWorld(t, small(), runner, func(t *testing.T, w *World) {
				m := launch(t, w, "req", spotA)
				time.Sleep(10*time.Second + time.Millisecond)
				if test.fault != nil {
					if err := w.AddFault(*test.fault); err != nil {
						t.Fatal(err)
					}
				}
				begin = time.Now()
				streamed := time.Duration(-1)
				done := make(chan struct{})
				go func() {
					defer close(done)
					if n, err := w.Notices(t.Context(), 0, time.Minute); err == nil && len(n.Notices) > 0 {
						streamed = time.Since(begin)
					}
				}()
				if _, err := w.Do(simapi.Action{Preempt: &simapi.Preempt{Notice: new(dur(test.notice))}}); err != nil {
					t.Fatal(err)
				}
				<-done
				time.Sleep(time.Until(begin.Add(40 * time.Second)))
				var stopping time.Time
				for _, e := range w.Events(0) {
					if e.Kind == "stopping" {
						stopping = e.At
					}
				}
				if got := stopping.Sub(begin); got != test.taken {
					t.Errorf("taken after %s, want %s", got, test.taken)
				}
				if got := describe(t, w, m.ID).Cause; got != providers.CausePreempted {
					t.Errorf("cause %q", got)
				}
				if want := test.warned; (streamed >= 0) != test.onEvents || test.onEvents && streamed != want {
					t.Errorf("in the stream after %s, want %s (%t)", streamed, want, test.onEvents)
				}
				synctest.Wait()
				if (meta >= 0) != test.onMeta || test.onMeta && (meta < test.warned || meta > test.warned+time.Second) {
					t.Errorf("on the machine after %s, want %s (%t)", meta, test.warned, test.onMeta)
				}
			})
		})
	}
}

func instanceAction(t *testing.T, g Guest) *simapi.InstanceAction {
	res, err := g.Client.Get(g.MetadataURL + "/v1/notice")
	if err != nil {
		return nil // the machine is gone
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode == http.StatusNotFound {
		return nil
	}
	var a simapi.InstanceAction
	if err := json.NewDecoder(res.Body).Decode(&a); err != nil || a.Action != "terminate" {
		t.Errorf("notice %+v: %v", a, err)
	}
	return &a
}

func TestSelfEnd(t *testing.T) {
	tests := []struct {
		mode   providers.SelfEnd
		action providers.EndAction
		move   string          // code of an attempt to move the end
		at100s providers.Cause // why it ended, when the end was at 60 s and was moved to 90 s
		ended  bool
		off    providers.InstanceState // after the guest powers off
	}{
		{providers.EndRolling, providers.EndPoweroff, "", providers.CauseExpired, true, providers.Stopping},
		{providers.EndFixed, providers.EndPoweroff, simapi.CodeEndFixed, providers.CauseExpired, true, providers.Stopping},
		{providers.EndGuest, providers.EndPoweroff, simapi.CodeEndFixed, "", false, providers.Stopping},
		{providers.EndGuest, providers.EndAPI, simapi.CodeEndFixed, "", false, providers.Running},
		{providers.EndNone, providers.EndStopTasks, simapi.CodeEndFixed, "", false, providers.Running},
	}
	for _, test := range tests {
		t.Run(string(test.mode+"/")+string(test.action), func(t *testing.T) {
			cfg := small()
			cfg.SelfEnd, cfg.EndAction = test.mode, test.action
			var off atomic.Pointer[func()]
			runner := &Null{Boot: func(_ context.Context, g Guest) { off.Store(&g.PowerOff) }}
			inWorld(t, cfg, runner, func(t *testing.T, w *World) {
				begin := time.Now()
				m := launch(t, w, "req", spotA, func(l *simapi.Launch) { l.EndAt = begin.Add(time.Minute) })
				time.Sleep(50 * time.Second)
				_, err := w.MoveEnd(m.ID, begin.Add(90*time.Second))
				if err != nil && codeOf(err) != test.move || err == nil && test.move != "" {
					t.Errorf("move the end: %v, want %q", err, test.move)
				}
				time.Sleep(time.Minute)
				got := describe(t, w, m.ID)
				if (got.State == providers.Terminated) != test.ended || got.Cause != test.at100s {
					t.Errorf("after its end: %s %q", got.State, got.Cause)
				}
				if test.ended {
					want := 92 * time.Second // two for stopping
					if test.mode == providers.EndFixed {
						want = 62 * time.Second
					}
					if life := got.Ended.Sub(begin); life != want {
						t.Errorf("ended after %s, want %s", life, want)
					}
				}

				n := launch(t, w, "other", spotB)
				time.Sleep(2 * time.Second)
				(*off.Load())()
				if got := describe(t, w, n.ID); got.State != test.off {
					t.Errorf("after poweroff: %s, want %s", got.State, test.off)
				}
			})
		})
	}
}

func TestListLag(t *testing.T) {
	cfg := small()
	cfg.ListLag = dur(10 * time.Second)
	inWorld(t, cfg, nil, func(t *testing.T, w *World) {
		time.Sleep(time.Minute)
		m := launch(t, w, "req", spotA)
		states := func() (out []providers.InstanceState) {
			for _, m := range w.Machines(0) {
				out = append(out, m.State)
			}
			return out
		}
		check := func(want ...providers.InstanceState) {
			t.Helper()
			if diff := cmp.Diff(want, states()); diff != "" {
				t.Errorf("at %s: %s", time.Now(), diff)
			}
		}
		check()
		describe(t, w, m.ID)
		time.Sleep(9999 * time.Millisecond)
		check()
		time.Sleep(time.Millisecond)
		check(providers.Pending)
		time.Sleep(time.Second)
		check(providers.Running)
		if err := w.Terminate(m.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if got := describe(t, w, m.ID).State; got != providers.Terminated {
			t.Errorf("it is %s", got)
		}
		check(providers.Running)
		time.Sleep(7 * time.Second)
		check(providers.Terminated)
	})
}

func TestCapacityDropTakesSpotMachinesOnly(t *testing.T) {
	cfg := small()
	cfg.Script = []simapi.Action{
		{At: dur(time.Minute), Capacity: &simapi.Capacity{Match: simapi.Place{Zone: "r1a"}, Machines: new(1)}},
		{At: dur(2 * time.Minute), Capacity: &simapi.Capacity{Match: simapi.Place{Zone: "r1a"}}},
	}
	inWorld(t, cfg, nil, func(t *testing.T, w *World) {
		launch(t, w, "1", spotA)
		launch(t, w, "2", spotA)
		launch(t, w, "3", firmA)
		launch(t, w, "4", firmA)
		time.Sleep(100 * time.Second)
		gone := map[providers.Kind]int{}
		for _, m := range w.Truth() {
			if m.State == providers.Terminated {
				gone[m.Kind]++
			}
		}
		if diff := cmp.Diff(map[providers.Kind]int{providers.Spot: 1}, gone); diff != "" {
			t.Error(diff)
		}
		if _, err := w.Launch(simapi.Launch{Place: spotA, Request: "5"}); codeOf(err) != simapi.CodeCapacity {
			t.Errorf("launch into a full market: %v", err)
		}
		time.Sleep(time.Minute)
		launch(t, w, "6", spotA)
		launch(t, w, "7", spotA)
	})
}

// busy lives a busy half hour and returns everything that happened.
func busy(t *testing.T, cfg Config) (events []simapi.Event, inv simapi.Invoice) {
	inWorld(t, cfg, nil, func(t *testing.T, w *World) {
		for i := range 60 {
			offers := w.Offers("", 0)
			o := offers[i*7%len(offers)]
			_, _ = w.Launch(simapi.Launch{Place: o.Place, Request: fmt.Sprint(i), PriceMax: o.Price + o.Price/20, EndAt: time.Now().Add(time.Duration(i) * 37 * time.Second)})
			time.Sleep(29 * time.Second)
			if i%5 == 4 {
				_, _ = w.Do(simapi.Action{Preempt: &simapi.Preempt{Pick: simapi.Pick{Longest: true}}})
			}
		}
		events, inv = w.Events(0), w.Invoice()
	})
	return events, inv
}

func TestSameScriptSameEvents(t *testing.T) {
	cfg := Default(7)
	cfg.Faults = []simapi.Fault{{Op: "notice", Effect: simapi.Lose, Chance: 50, Times: -1}}
	cfg.Script = []simapi.Action{{At: dur(20 * time.Minute), Capacity: &simapi.Capacity{Match: simapi.Place{Kind: providers.Spot}, Machines: new(0)}}}
	events, inv := busy(t, cfg)
	again, inv2 := busy(t, cfg)
	if diff := cmp.Diff(events, again); diff != "" {
		t.Errorf("two runs differ: %s", diff)
	}
	if diff := cmp.Diff(inv, inv2); diff != "" {
		t.Errorf("two invoices differ: %s", diff)
	}
	kinds := map[string]int{}
	for _, e := range events {
		kinds[e.Kind]++
	}
	for _, k := range []string{"launched", "running", "notice", "stopping", "terminated", "price", "capacity", "fault"} {
		if kinds[k] == 0 {
			t.Errorf("the script never saw %q: %v", k, kinds)
		}
	}
	cfg.Seed = 8
	if other, _ := busy(t, cfg); cmp.Equal(events, other) {
		t.Error("another seed gives the same events")
	}
}
