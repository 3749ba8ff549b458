package control_test

import (
	"context"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/money"
	cloud "gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/queue"
)

func rate(units int64) money.Rate { return money.Rate(units) * money.Rate(money.Unit) }

// capped is a budget of all money.
func capped(units int64) budget.Budget {
	return budget.Budget{
		Name: "org", Scope: budget.Org, Capped: true, Cap: money.Amount(units) * money.Unit,
		Period: budget.Rule{Length: budget.Total}, Guard: budget.Normal,
	}
}

// withBudgets starts a site with caps.
func (s *site) withBudgets(bs ...budget.Budget) {
	s.stop()
	s.set.Budgets = bs
	s.rig(func() { s.check.Caps = bs })
	s.start()
}

// dollar is a cloud of machines at one dollar an hour, billed by the hour.
func dollar() cloud.Config {
	cfg := calm()
	cfg.Quotas = nil
	cfg.Billing = cloud.Billing{Unit: simapi.Duration(time.Hour), Minimum: simapi.Duration(time.Hour)}
	cfg.Offers = []cloud.Offer{plain("dollar", providers.Shape{VCPU: 1, Memory: 1 << 32, Disk: 1 << 37}, 1)}
	return cfg
}

// A hundred launches of a dollar under a cap of ten dollars: ten.
func TestACapHoldsUnderManyLaunches(t *testing.T) {
	inBubble(t, dollar(), func(s *site) {
		b := capped(10)
		b.Cap += 1000 // each reservation keeps two nano-units for rounding at periods' edges
		s.withBudgets(b)
		var jobs []*queue.Job
		for range 100 {
			jobs = append(jobs, s.submit("name: one\nproject: media\nresources: {gpu: none, vcpu: 1}\nspot: {policy: never}\nmax_duration: 50m\nrun: {command: [work, 40m]}\n"))
		}
		time.Sleep(20 * time.Minute)
		if n := len(s.world.Truth()); n != 10 {
			t.Errorf("%d machines under a cap of ten dollars", n)
		}
		waiting := 0
		for _, j := range jobs {
			if d, _, ok := s.up().Decision(j.ID); ok && d.Wait {
				waiting++
				if d.Why.Code != "over_budget" || d.Why.Args["budget"] == "" || d.Why.Args["need"] == "" || d.Why.Args["free"] == "" {
					t.Errorf("the wait is explained by %+v", d.Why)
				}
			}
		}
		if waiting != 90 {
			t.Errorf("%d jobs wait and know it", waiting)
		}
		time.Sleep(2 * time.Hour)
		for _, j := range jobs {
			if _, err := s.up().Cancel(context.Background(), j.ID, "test"); err != nil {
				t.Fatal(err)
			}
		}
		s.quiet(time.Hour)
		a := s.account(budget.Key{Budget: "org"})
		if a.Cost > 10*money.Unit || a.Cost < 9*money.Unit {
			t.Errorf("%v was spent", a.Cost)
		}
	})
}

// Billed by the hour, a machine is used for its hour and let go before the next.
func TestHourlyBilling(t *testing.T) {
	inBubble(t, dollar(), func(s *site) {
		j := s.submit("name: few\nproject: media\ntasks: {count: 4, parallelism: 1}\nresources: {gpu: none, vcpu: 1}\nspot: {policy: never}\nmax_duration: 20m\nwork: {time: 10m}\nrun: {command: [work, 10m]}\n")
		s.succeeded(j)
		s.quiet(2 * time.Hour)
		if total := s.world.Invoice().Total; total != money.Unit {
			t.Errorf("forty minutes cost %v", total)
		}
	})
}

// A job with a budget of its own has machines of its own, and never costs more.
func TestABudgetOfOneJob(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		j := s.submit(task(10*time.Minute, "tasks: {count: 30, parallelism: 2}\nbudget: {max: 0.30 USD}\n"))
		other := s.submit(task(10*time.Minute, "tasks: {count: 3}\n"))
		s.succeeded(other)
		time.Sleep(6 * time.Hour)
		now, err := s.up().Job(context.Background(), j.ID)
		if err != nil || now.Done() || now.Counts.Succeeded == 0 {
			t.Errorf("%+v, %v", now.Counts, err)
		}
		if d, _, ok := s.up().Decision(j.ID); !ok || d.Why.Code != "over_budget" {
			t.Errorf("the wait is explained by %+v", d.Why)
		}
		if _, err := s.up().Cancel(context.Background(), j.ID, "test"); err != nil {
			t.Fatal(err)
		}
		s.quiet(time.Hour)
		a := s.account(budget.Key{Budget: "job/" + j.ID})
		if a == nil || a.Cost == 0 || a.Cost > 300_000_000 || a.Overrun != 0 {
			t.Errorf("%+v", a)
		}
	})
}

// A cap that is lowered under what is committed stops extensions: what runs saves
// and stops when its lease ends.
func TestLoweringACap(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		s.withBudgets(capped(10))
		j := s.submit(task(3*time.Hour, saves))
		s.running()
		time.Sleep(15 * time.Minute)
		low := capped(10)
		low.Cap = 1
		s.withBudgets(low)
		time.Sleep(40 * time.Minute)
		if n := len(s.up().Instances()); n != 0 {
			t.Errorf("%d machines live on", n)
		}
		as := s.attempts(j.ID)
		if as[0].Outcome != queue.Stopped || as[0].Busy-as[0].Kept > 5*time.Second {
			t.Errorf("it ended as %s, %v lost", as[0].Outcome, as[0].Busy-as[0].Kept)
		}
		if s.count("budget.short") == 0 {
			t.Error("nobody was told")
		}
		if d, _, ok := s.up().Decision(j.ID); !ok || d.Why.Code != "over_budget" {
			t.Errorf("the wait is explained by %+v", d.Why)
		}
		s.withBudgets(capped(10))
		s.succeeded(j)
	})
}

// A strict budget takes no machine that only ends itself, and reserves up to the
// end that a provider keeps for good.
func TestAStrictBudget(t *testing.T) {
	strict := capped(100)
	strict.Guard = budget.Strict
	t.Run("guest", func(t *testing.T) {
		cfg := calm()
		cfg.SelfEnd = providers.EndGuest
		inBubble(t, cfg, func(s *site) {
			s.withBudgets(strict)
			j := s.submit(task(10*time.Minute, ""))
			time.Sleep(time.Hour)
			if n := len(s.world.Truth()); n != 0 {
				t.Errorf("%d machines", n)
			}
			d, _, _ := s.up().Decision(j.ID)
			found := d.Why.Code == "no_guest_end"
			for _, c := range d.Reasons {
				found = found || c.Code == "no_guest_end"
			}
			if !found {
				t.Errorf("the wait is explained by %+v, %+v", d.Why, d.Reasons)
			}
			s.withBudgets(capped(100))
			s.succeeded(j)
		})
	})
	t.Run("fixed", func(t *testing.T) {
		cfg := calm()
		cfg.SelfEnd = providers.EndFixed
		inBubble(t, cfg, func(s *site) {
			s.withBudgets(strict)
			j := s.submit(task(10*time.Minute, ""))
			a := s.running()
			i := s.record(a.Instance)
			want, err := money.Charge(24*time.Hour, i.Bound, i.Billing)
			if err != nil {
				t.Fatal(err)
			}
			if k := s.account(budget.Key{Budget: "org"}); k.Committed() < want {
				t.Errorf("%v is committed, a day at its bound costs %v", k.Committed(), want)
			}
			s.succeeded(j)
		})
	})
}

// A restored copy of the store only looks on until it is adopted: what it knows
// may be old, and the machines may be another broker's.
func TestARestoredStoreOnlyReports(t *testing.T) {
	inBubble(t, calm(), func(s *site) {
		j := s.submit(task(time.Hour, saves))
		s.running()
		time.Sleep(5 * time.Minute)
		s.stop()
		if err := copyFile(filepath.Join(s.dir, "store.db"), filepath.Join(s.dir, "copy.db")); err != nil {
			t.Fatal(err)
		}
		s.file = "copy.db"
		s.start()
		before := s.commits()
		calls := len(s.world.Truth())
		second := s.submit(task(time.Minute, ""))
		time.Sleep(30 * time.Minute)
		for _, m := range s.world.Truth() {
			if m.Cause == providers.CauseUser {
				t.Errorf("machine %s was ended", m.ID)
			}
		}
		if n := len(s.world.Truth()); n != calls {
			t.Errorf("%d machines were launched", n-calls)
		}
		if d, _, ok := s.up().Decision(second.ID); !ok || d.Why.Code != "not_adopted" {
			t.Errorf("the wait is explained by %+v", d.Why)
		}
		if s.commits() == before {
			t.Error("not even the new job was written")
		}
		if _, err := s.up().AdoptStore(context.Background()); err != nil {
			t.Fatal(err)
		}
		s.stop()
		s.start()
		s.succeeded(j)
		s.succeeded(second)
	})
}

// Machines that bear our name without a record are ended only if this store made
// them.
func TestOrphans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, calm())
		s.start()
		defer s.close()
		s.foreign = func(request string) bool { return request == "ours" || request == "theirs" }
		meta := s.up().Meta()
		launch := func(request, generation string) {
			_, err := s.world.Launch(simapi.Launch{
				Place: simapi.Place{Region: "sim-east", Zone: "sim-east-a", Type: "cpu8", Kind: providers.OnDemand}, Request: request,
				Tags: map[string]string{"gpubroker-owner": "broker", "gpubroker-generation": generation, "gpubroker-request": request},
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		launch("ours", meta.Generation)
		launch("theirs", "another")
		time.Sleep(time.Minute)
		for _, m := range s.world.Truth() {
			if ended := m.State == providers.Terminated; ended != (m.Request == "ours") {
				t.Errorf("machine of %s is %s", m.Request, m.State)
			}
		}
		if s.count("instance.orphan") != 1 {
			t.Errorf("%d events", s.count("instance.orphan"))
		}
	})
}
