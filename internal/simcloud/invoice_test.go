package simcloud

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// TestInvoiceIsTheChargeOfItsBills lets chance script a world and compares the
// invoice, line by line, with what package money charges for the bills.
func TestInvoiceIsTheChargeOfItsBills(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := small()
		cfg.Seed = rapid.Uint64().Draw(rt, "seed")
		cfg.BillsBoot = rapid.Bool().Draw(rt, "bills boot")
		cfg.Billing = Billing{
			Unit:    dur(rapid.SampledFrom([]time.Duration{0, time.Second, time.Minute, time.Hour, 7 * time.Millisecond}).Draw(rt, "unit")),
			Minimum: dur(rapid.SampledFrom([]time.Duration{0, time.Minute, 90*time.Second + 1, time.Hour}).Draw(rt, "minimum")),
		}
		cfg.Boot = dur(time.Duration(rapid.Int64Range(0, int64(2*time.Minute)).Draw(rt, "boot")))
		for i := range cfg.Offers {
			cfg.Offers[i].Capacity = nil
			cfg.Offers[i].Price = money.Rate(rapid.Int64Range(1, int64(100*money.Unit)).Draw(rt, "price"))
			cfg.Offers[i].Walk = &Walk{Every: dur(time.Duration(rapid.Int64Range(int64(time.Second), int64(time.Hour)).Draw(rt, "every"))), Percent: 20, Low: 50, High: 200}
		}
		type step struct {
			wait time.Duration
			act  string
			of   int
		}
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
			return step{
				time.Duration(rapid.Int64Range(0, int64(20*time.Minute)).Draw(rt, "wait")),
				rapid.SampledFrom([]string{"launch", "launch", "terminate", "preempt", "price"}).Draw(rt, "act"),
				rapid.IntRange(0, 9).Draw(rt, "of"),
			}
		}), 1, 25).Draw(rt, "steps")

		var failure error
		synctest.Test(t, func(t *testing.T) {
			w, err := New(cfg, nil, nil)
			if err != nil {
				failure = err
				return
			}
			defer w.Close()
			for i, s := range steps {
				time.Sleep(s.wait)
				place := cfg.Offers[s.of%3].Place
				switch s.act {
				case "launch":
					bound := cfg.Offers[s.of%3].Price * money.Rate(1+s.of)
					_, err = w.Launch(simapi.Launch{Place: place, Request: fmt.Sprint(i), PriceMax: bound})
					if codeOf(err) == simapi.CodePrice {
						err = nil
					}
				case "terminate":
					if all := w.Truth(); len(all) > 0 {
						_ = w.Terminate(all[s.of%len(all)].ID) // it may have gone
					}
				case "preempt":
					_, _ = w.Do(simapi.Action{Preempt: &simapi.Preempt{Pick: simapi.Pick{Longest: true}}}) // there may be none
				case "price":
					_, err = w.Do(simapi.Action{Price: &simapi.Price{Match: place, Percent: int64(50 + 20*s.of)}})
				}
				if err != nil {
					failure = fmt.Errorf("step %d: %w", i, err)
					return
				}
			}
			failure = compareBills(w)
		})
		if failure != nil {
			rt.Fatal(failure)
		}
	})
}

func compareBills(w *World) error {
	inv := w.Invoice()
	lines := map[string]simapi.InvoiceLine{}
	var sum money.Amount
	for _, l := range inv.Lines {
		lines[l.Machine] = l
		sum += l.Amount
	}
	if sum != inv.Total {
		return fmt.Errorf("the lines sum to %s, the total is %s", sum, inv.Total)
	}
	for _, m := range w.Truth() {
		bill, err := w.Bill(m.ID)
		if codeOf(err) == simapi.CodeNotFound {
			continue // forgotten
		}
		if err != nil {
			return err
		}
		end := bill.End
		if end.IsZero() {
			end = inv.At
		}
		var segments []money.Segment
		for i, p := range bill.Prices {
			to := end
			if i+1 < len(bill.Prices) {
				to = bill.Prices[i+1].From
			}
			if m.Kind == providers.Spot && m.PriceMax > 0 && p.Price > m.PriceMax {
				return fmt.Errorf("%s is billed at %s, above its bound %s", m.ID, p.Price, m.PriceMax)
			}
			segments = append(segments, money.Segment{Duration: to.Sub(p.From), Rate: p.Price})
		}
		charge, err := money.ChargeSegments(segments, w.cfg.Capabilities().Billing)
		if err != nil {
			return err
		}
		if charge != lines[m.ID].Amount || bill.Total != nil && *bill.Total != charge {
			return fmt.Errorf("%s: invoice %s, charge of its bill %s, total of its bill %v", m.ID, lines[m.ID].Amount, charge, bill.Total)
		}
	}
	return nil
}

// TestBillingRule states the rule in numbers.
func TestBillingRule(t *testing.T) {
	tests := []struct {
		name  string
		bill  Billing
		steps []Step
		life  time.Duration // from launch to terminate, one second of it boot, plus two of stopping
		want  string
	}{
		{"by the second", Billing{}, nil, 3599 * time.Second, "0.30"},
		{"minimum", Billing{Minimum: dur(time.Hour)}, nil, time.Minute, "0.30"},
		{"hours begun are paid", Billing{Unit: dur(time.Hour)}, nil, time.Hour, "0.60"},
		{"the rest of the hour at the last price", Billing{Unit: dur(time.Hour)}, []Step{{At: dur(30*time.Minute + time.Second), Price: new(money.Rate(900_000_000))}}, 40 * time.Minute, "0.60"},
		{"rounded up once", Billing{}, []Step{{At: dur(2 * time.Second), Price: new(money.Rate(300_000_001))}}, 4 * time.Second, "0.000416667"},
		{"never ran", Billing{Minimum: dur(time.Hour)}, nil, 0, "0.00"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cfg := small()
			cfg.Billing = test.bill
			cfg.Offers[0].Steps = test.steps
			inWorld(t, cfg, nil, func(t *testing.T, w *World) {
				m := launch(t, w, "req", spotA)
				time.Sleep(test.life)
				if err := w.Terminate(m.ID); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Second)
				if got := w.Invoice().Total.String(); got != test.want {
					t.Errorf("%s, want %s", got, test.want)
				}
				if bill, err := w.Bill(m.ID); err != nil || bill.Total.String() != test.want {
					t.Errorf("bill %+v, %v", bill, err)
				}
			})
		})
	}
}
