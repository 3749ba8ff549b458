//go:build unix

package control

import (
	"context"
	"errors"
	"math"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/state"
	"gpubroker/providers"
	"gpubroker/queue"
	"gpubroker/scheduler/policy"
)

// spotMachine adds the record of a spot machine that was launched at a moment.
func (d *desk) spotMachine(id string, at time.Time) *queue.Instance {
	i := &queue.Instance{
		ID: id, State: queue.InstanceReady, Provider: "p0", Region: "r", Zone: "z", Type: "t", Kind: string(providers.Spot), Launched: at,
	}
	d.do(func(tx *state.Tx) error { tx.AddInstance(i); return nil })
	return i
}

func (d *desk) see(i *queue.Instance, at time.Time, what sight) {
	d.do(func(tx *state.Tx) error { d.Broker.see(tx, i, at, what); return nil })
}

// What is drawn follows from the rows and the moment: however often it was drawn before,
// and by whatever broker.
func TestOutlooksFollowFromTheRows(t *testing.T) {
	d := newDesk(t, "memory")
	defer d.end()
	start := time.Date(2026, 3, 2, 8, 1, 2, 3, time.UTC)
	draw := func(s *spots, at time.Time) *policy.Outlook {
		return s.draw(d.state.View(), at, func(_ string, err error) { t.Error(err) })["p0/r/z/t/spot"]
	}
	same := func(what string, at time.Time) {
		t.Helper()
		got, want := draw(d.spots, at), draw(newSpots(), at)
		if got == nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v\nof a broker that starts now: %+v", what, got, want)
		}
	}
	if o := draw(d.spots, start); o != nil {
		t.Errorf("something is known of a market that nobody has seen: %+v", o)
	}
	i := d.spotMachine("i1", start)
	d.see(i, start, gotOne)
	for m := range 100 {
		same("held", start.Add(time.Duration(m)*7*time.Minute))
	}
	end := start.Add(12 * time.Hour)
	if up := draw(d.spots, end).Up; up < 0.999 {
		t.Errorf("a market with a machine in hand is up with chance %v", up)
	}
	d.see(i, end, lostOne)
	d.do(func(tx *state.Tx) error { tx.EditInstance("i1").State = queue.InstanceGone; return nil })
	before := draw(d.spots, end.Add(time.Second))
	if before.Up > 0.001 {
		t.Errorf("a market that took a machine is up with chance %v", before.Up)
	}
	for m := range 100 {
		same("lost", end.Add(time.Duration(m)*7*time.Minute))
	}
	if after := draw(d.spots, end.Add(100*7*time.Minute)); after.Up < 0.05 {
		t.Errorf("half a day after a loss it is up with chance %v", after.Up)
	}
	// Of one moment the refusal counts, whichever is recorded first.
	at := end.Add(13 * time.Hour)
	for _, order := range [][]sight{{gotOne, gotNone}, {gotNone, gotOne}} {
		for _, what := range order {
			d.see(i, at, what)
		}
		if o := draw(d.spots, at); o.Up > 0.001 {
			t.Errorf("%v: up with chance %v", order, o.Up)
		}
		at = at.Add(time.Hour)
	}
	// What nobody has seen for long is dropped, and counts no more before that.
	late := at.Add(learnedFor)
	if o := draw(d.spots, late); o != nil {
		t.Errorf("it counts after %v: %+v", late.Sub(at), o)
	}
	if err := d.dropSpots(t.Context(), d.state.View(), late); err != nil {
		t.Fatal(err)
	}
	if row := d.state.View().Settings.Get(learnedPrefix + "p0/r/z/t/spot"); row == nil || string(row.Value) != dropped {
		t.Errorf("the row is %v", row)
	}
	d.see(i, late, gotOne)
	same("seen again", late.Add(time.Minute))
}

// A row that is not understood is said, and begun anew.
func TestAMemoryOfAnotherModel(t *testing.T) {
	d := newDesk(t, "memory")
	defer d.end()
	key := learnedPrefix + "p0/r/z/t/spot"
	d.do(func(tx *state.Tx) error {
		tx.PutSetting(&queue.Setting{Key: key, Value: []byte(`{"belief":{"at":"2026-03-02T08:00:00Z","belief":"AAAA"}}`)})
		return nil
	})
	var said []error
	complain := func(_ string, err error) { said = append(said, err) }
	now := time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)
	for range 2 {
		if o := d.spots.draw(d.state.View(), now, complain); len(o) != 0 {
			t.Errorf("drawn from it: %v", o)
		}
	}
	if len(said) != 1 {
		t.Errorf("said %v", said)
	}
	i := d.spotMachine("i1", now)
	d.see(i, now, gotOne)
	if o := d.spots.draw(d.state.View(), now, complain); len(o) != 1 || len(said) != 1 {
		t.Errorf("begun anew: %v, said %v", o, said)
	}
}

// Tables are built one after another until the broker stops; where more are wanted than
// are kept, those that were built lately stay.
func TestTablesAreBuilt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wanted := func(from, n int) (list []policy.Sketch) {
			now := time.Now()
			for k := range n {
				o := policy.ShippedModel().Memory(now).Outlook(now)
				d := policy.Decide(policy.View{
					Now: now, Start: now, Deadline: now.Add(2 * time.Hour), Total: time.Hour, Left: time.Hour, Interruptible: true, Library: &policy.Library{},
					Candidates: []policy.Candidate{
						{Market: "a", Kind: policy.Spot, Price: 1e9, Work: time.Hour, Delay: time.Minute, Outlook: o},
						{Market: "b", Kind: policy.OnDemand, Price: money.Rate(3e9 * math.Pow(1.05, float64(from+k))), Work: time.Hour, Delay: time.Minute},
					},
				})
				list = append(list, *d.Want)
			}
			return list
		}
		b := newTables()
		ctx, cancel := context.WithCancel(t.Context())
		told := 0
		done := make(chan error, 1)
		go func() { done <- b.build(ctx, func() { told++ }) }()
		has := func(list []policy.Sketch) (n int) {
			library, _ := b.now()
			for i := range list {
				if library.Has(list[i].Key()) {
					n++
				}
			}
			return n
		}
		first, second := wanted(0, keptTables), wanted(keptTables, 3)
		b.want(first, time.Now())
		synctest.Wait()
		if has(first) != keptTables || told != keptTables {
			t.Fatalf("%d of %d are there, told %d times", has(first), keptTables, told)
		}
		b.want(second, time.Now())
		synctest.Wait()
		if _, asked := b.now(); has(second) != 0 || has(first) != keptTables || len(asked) != 3 {
			t.Errorf("%d new and %d old are there, %d asked", has(second), has(first), len(asked))
		}
		time.Sleep(keptFor)
		b.want(second, time.Now())
		synctest.Wait()
		if has(second) != 3 || has(first) != keptTables-3 {
			t.Errorf("later %d new and %d old are there", has(second), has(first))
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
