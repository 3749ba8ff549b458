package providertest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/providers/managed"
)

func abilityChecks() []Check {
	return []Check{
		{"self-end", "A provider that ends machines itself does so at the end given at launch, and says that it was that", checkSelfEnd},
		{"move-end", "A provider with rolling ends keeps the end that it was last told; telling it repeats safely", checkMoveEnd},
		{"bill", "A bill has a start, an end once the machine is gone, and the price of each stretch between where prices are said", checkBill},
		{"interruptions", "The stream brings a notice before a machine is taken, and closes when its context ends", checkInterruptions},
		{"quotas", "Quotas are named once, with a unit and numbers that are not negative", checkQuotas},
		{"preflight", "Preflight passes with good credentials and rents nothing", func(t testing.TB, s *subject) {
			a := ability[providers.Preflight](t, s)
			if err := a.Preflight(t.Context()); err != nil {
				s.note("preflight", nil, err)
				t.Errorf("preflight: %v", err)
			}
			if all, err := s.List(t.Context()); err != nil || len(all) > 0 {
				t.Errorf("list after preflight: %d machines, %v", len(all), err)
			}
		}},
		{"console", "The console of a machine can be read, that of no machine is not_found", func(t testing.TB, s *subject) {
			a := ability[providers.Console](t, s)
			_, inst := s.rent(t)
			s.running(t, inst.Ref)
			if _, err := a.Console(t.Context(), inst.Ref); err != nil {
				s.note("console", nil, err)
				t.Errorf("console: %v", err)
			}
			_, err := a.Console(t.Context(), providers.Ref{Request: "never-launched"})
			s.note("console", nil, err)
			if !code(err, providers.NotFound) {
				t.Errorf("console of no machine: %v, want not_found", err)
			}
		}},
	}
}

// ability returns an optional ability, and skips the check where there is none.
func ability[A any](t testing.TB, s *subject) A {
	t.Helper()
	a, ok := managed.Find[A](s.raw)
	if !ok {
		t.Skip("the adapter does not have this ability")
	}
	return a
}

// slack is how much later than promised something may be seen.
func (s *subject) slack() time.Duration { return time.Minute }

// over waits for a machine to end by itself.
func (s *subject) over(t testing.TB, ref providers.Ref) {
	t.Helper()
	if !s.until(s.caps.StopTime+s.caps.ListLag+s.slack(), func() bool {
		i, err := s.Describe(t.Context(), ref)
		return err == nil && !i.Live()
	}) {
		t.Fatal("the machine lives on after its end")
	}
}

func checkSelfEnd(t testing.TB, s *subject) {
	if s.caps.SelfEnd != providers.EndRolling && s.caps.SelfEnd != providers.EndFixed {
		t.Skipf("the provider ends no machines (%s)", s.caps.SelfEnd)
	}
	req := s.request(s.offers(t)[0])
	req.End, req.Life = time.Now().Add(30*time.Minute).UTC().Truncate(time.Second), 30*time.Minute
	inst, err := s.Launch(t.Context(), req)
	if err != nil {
		t.Fatalf("launch: %v", err)
	}
	s.travel(t, 25*time.Minute)
	i, err := s.Describe(t.Context(), inst.Ref)
	if err != nil || !i.Live() {
		t.Fatalf("five minutes before its end the machine is %s, %v", i.State, err)
	}
	if d := i.End.Sub(req.End).Abs(); d > s.slack() {
		t.Errorf("the provider keeps the end %v, told was %v", i.End, req.End)
	}
	s.advance(5 * time.Minute)
	s.over(t, inst.Ref)
	s.endedBy(t, inst.Ref, providers.CauseExpired)
}

func checkMoveEnd(t testing.TB, s *subject) {
	if s.caps.SelfEnd != providers.EndRolling {
		t.Skipf("the provider's ends cannot be moved (%s)", s.caps.SelfEnd)
	}
	a := ability[providers.EndMover](t, s)
	req := s.request(s.offers(t)[0])
	start := time.Now()
	req.End = start.Add(30 * time.Minute).UTC().Truncate(time.Second)
	inst, err := s.Launch(t.Context(), req)
	if err != nil {
		t.Fatalf("launch: %v", err)
	}
	later := req.End.Add(30 * time.Minute)
	for range 2 {
		if err := a.MoveEnd(t.Context(), inst.Ref, later); err != nil {
			s.note("move-end", nil, err)
			t.Fatalf("move-end: %v", err)
		}
	}
	err = a.MoveEnd(t.Context(), providers.Ref{Request: "never-launched"}, later)
	s.note("move-end", nil, err)
	if !code(err, providers.NotFound) {
		t.Errorf("move-end of no machine: %v, want not_found", err)
	}
	s.travel(t, 40*time.Minute)
	i, err := s.Describe(t.Context(), inst.Ref)
	if err != nil || !i.Live() {
		t.Fatalf("past its first end, before its moved one, the machine is %s, %v", i.State, err)
	}
	if d := i.End.Sub(later).Abs(); d > s.slack() {
		t.Errorf("the provider keeps the end %v, told was %v", i.End, later)
	}
	s.advance(20 * time.Minute)
	s.over(t, inst.Ref)
	s.endedBy(t, inst.Ref, providers.CauseExpired)
}

func checkBill(t testing.TB, s *subject) {
	a := ability[providers.Biller](t, s)
	_, inst := s.rent(t)
	i := s.running(t, inst.Ref)
	s.travel(t, 4*time.Minute)
	bill, err := a.Bill(t.Context(), inst.Ref)
	s.note("bill", bill, err)
	if err != nil {
		t.Fatalf("bill: %v", err)
	}
	if !bill.End.IsZero() {
		t.Errorf("a running machine's bill has ended at %v", bill.End)
	}
	s.gone(t, inst.Ref)
	bill, err = a.Bill(t.Context(), providers.Ref{Request: inst.Ref.Request})
	s.note("bill", bill, err)
	if err != nil {
		t.Fatalf("bill after the end, by request: %v", err)
	}
	if bill.Start.Before(i.Launched) || bill.End.Before(bill.Start.Add(4*time.Minute)) {
		t.Errorf("launched at %v, billed from %v to %v", i.Launched, bill.Start, bill.End)
	}
	s.sums(t, bill)
	_, err = a.Bill(t.Context(), providers.Ref{Request: "never-launched"})
	s.note("bill", nil, err)
	if !code(err, providers.NotFound) {
		t.Errorf("bill of no machine: %v, want not_found", err)
	}
}

// sums expects a whole bill whose total follows from its parts.
func (s *subject) sums(t testing.TB, bill providers.Bill) {
	t.Helper()
	if len(bill.Prices) == 0 && bill.Total == nil {
		return // it says when, and not for how much
	}
	if len(bill.Prices) == 0 || !bill.Prices[0].From.Equal(bill.Start) {
		t.Fatalf("the prices do not begin at the start: %+v", bill)
	}
	var stretches []money.Segment
	for n, p := range bill.Prices {
		until := bill.End
		if n+1 < len(bill.Prices) {
			until = bill.Prices[n+1].From
		}
		if p.Price <= 0 || until.Before(p.From) {
			t.Errorf("price %s from %v to %v", p.Price, p.From, until)
		}
		stretches = append(stretches, money.Segment{Duration: until.Sub(p.From), Rate: p.Price})
	}
	if bill.Total == nil {
		return
	}
	want, err := money.ChargeSegments(stretches, s.caps.Billing)
	if err != nil || *bill.Total != want {
		t.Errorf("the provider's total is %s, its stretches make %s (%v)", *bill.Total, want, err)
	}
}

func checkInterruptions(t testing.TB, s *subject) {
	a := ability[providers.Interrupter](t, s)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := a.Interruptions(ctx)
	if err != nil {
		s.note("interruptions", nil, err)
		t.Fatalf("interruptions: %v", err)
	}
	var mu sync.Mutex
	var notices []providers.Notice
	closed, stop := make(chan struct{}), make(chan struct{})
	defer close(stop)
	go func() {
		for {
			select {
			case n, open := <-stream:
				if !open {
					close(closed)
					return
				}
				mu.Lock()
				notices = append(notices, n)
				mu.Unlock()
			case <-stop:
				return
			}
		}
	}()
	req, inst := s.rentSpot(t)
	s.running(t, inst.Ref)
	s.preempt(t, inst.Ref)
	warned := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.ContainsFunc(notices, func(n providers.Notice) bool {
			return n.Kind == providers.NoticePreempt && n.Ref.Request == req.Request
		})
	}
	if !s.until(s.caps.Notice+5*time.Second, warned) {
		t.Errorf("no notice came: %+v", notices)
	}
	cancel()
	over := func() bool {
		select {
		case <-closed:
			return true
		default:
			return false
		}
	}
	if !s.until(10*time.Second, over) {
		t.Fatal("the stream stays open after its context ended")
	}
}

func checkQuotas(t testing.TB, s *subject) {
	a := ability[providers.Quotas](t, s)
	all, err := a.Quotas(t.Context())
	s.note("quotas", all, err)
	if err != nil {
		t.Fatalf("quotas: %v", err)
	}
	seen := map[[3]string]bool{}
	for _, q := range all {
		key := [3]string{q.Name, q.Region, string(q.Kind)}
		if seen[key] {
			t.Errorf("quota %v is listed twice", key)
		}
		seen[key] = true
		if q.Name == "" || q.Unit == "" || q.Limit < 0 || q.Used < 0 {
			t.Errorf("impossible quota %+v", q)
		}
	}
}
