package simcloud

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// machine is one rented machine. The moments say its state.
type machine struct {
	id     string
	number int
	offer  *offer
	req    simapi.Launch
	dud    bool // its user data is never started

	launched time.Time
	running  time.Time
	stopping time.Time
	ended    time.Time
	endAt    time.Time // the end that the world keeps; zero when there is none
	endSeq   int       // which of the moved ends is valid
	taken    time.Time // when a preemption takes it; zero when none is coming
	dark     bool      // powered off but billed

	rebalance time.Time
	notice    *simapi.InstanceAction // as the metadata address shows it

	billed []providers.PriceChange // empty until billing starts
	cause  providers.Cause
	text   string

	proc Process
	dead bool
}

func (m *machine) state() providers.InstanceState { return m.stateAt(time.Time{}) }

// stateAt returns the state at a moment, now when it is zero.
func (m *machine) stateAt(t time.Time) providers.InstanceState {
	by := func(x time.Time) bool { return !x.IsZero() && (t.IsZero() || !x.After(t)) }
	switch {
	case by(m.ended):
		return providers.Terminated
	case by(m.stopping):
		return providers.Stopping
	case by(m.running):
		return providers.Running
	default:
		return providers.Pending
	}
}

// live reports whether it holds capacity.
func (m *machine) live() bool { return m.ended.IsZero() }

func (m *machine) reprice(now time.Time, p money.Rate) {
	if n := len(m.billed); n > 0 && m.billed[n-1].Price != p {
		if m.billed[n-1].From.Equal(now) {
			m.billed[n-1].Price = p
			return
		}
		m.billed = append(m.billed, providers.PriceChange{From: now, Price: p})
	}
}

func (m *machine) price() money.Rate {
	if n := len(m.billed); n > 0 {
		return m.billed[n-1].Price
	}
	return m.offer.price
}

// view is the machine as a call shows it; t is the moment of a list that lags,
// zero for the present.
func (m *machine) view(t time.Time) simapi.Machine {
	v := simapi.Machine{
		Place: m.offer.Place, ID: m.id, Request: m.req.Request, Number: m.number, State: m.stateAt(t),
		Tags: maps.Clone(m.req.Tags), Launched: m.launched, EndAt: m.endAt,
		Price: m.price(), PriceMax: m.req.PriceMax, Address: fmt.Sprintf("10.0.%d.%d", m.number/250%250, m.number%250+2),
	}
	switch v.State {
	case providers.Terminated:
		v.Running, v.Ended, v.Cause, v.Message = m.running, m.ended, m.cause, m.text
	case providers.Stopping:
		v.Running, v.Cause, v.Message = m.running, m.cause, m.text
	case providers.Running:
		v.Running = m.running
	default: // it has nothing more to show
	}
	return v
}

// Launch rents a machine. The same request id gives the same machine, and an
// error when the rest of the request differs; the end and the tags may differ.
func (w *World) Launch(req simapi.Launch) (simapi.Machine, error) { return w.launch(req, false) }

func (w *World) launch(req simapi.Launch, dud bool) (simapi.Machine, error) {
	w.enter()
	defer w.mu.Unlock()
	none := simapi.Machine{}
	switch {
	case w.closed:
		return none, errClosed()
	case req.Request == "":
		return none, apiError(http.StatusBadRequest, simapi.CodeInvalid, "request is missing: give an id of your own")
	case w.cfg.Dialect == nil && len(req.UserData) > UserDataLimit: // a dialect keeps its own cloud's limit
		return none, apiError(http.StatusBadRequest, simapi.CodeInvalid, "user_data has %d bytes; at most %d", len(req.UserData), UserDataLimit)
	case req.PriceMax < 0:
		return none, apiError(http.StatusBadRequest, simapi.CodeInvalid, "price_max is negative")
	}
	if m := w.byRequest[req.Request]; m != nil {
		if m.req.Place != req.Place || m.req.PriceMax != req.PriceMax || m.req.UserData != req.UserData {
			return none, apiError(http.StatusConflict, simapi.CodeMismatch, "request %s launched %s with another market, bound or user data", req.Request, m.id)
		}
		return m.view(time.Time{}), nil
	}
	o := w.byPlace[req.Place]
	if o == nil {
		return none, apiError(http.StatusNotFound, simapi.CodeNoOffer, "nothing is offered at %s", req.Place)
	}
	endKept := w.selfEnd == providers.EndRolling || w.selfEnd == providers.EndFixed
	if endKept && !req.EndAt.IsZero() && !req.EndAt.After(w.now) {
		return none, apiError(http.StatusBadRequest, simapi.CodeInvalid, "end_at %s is past", req.EndAt.Format(time.RFC3339))
	}
	if o.Kind == providers.Spot && req.PriceMax > 0 && o.price > req.PriceMax {
		return none, apiError(http.StatusBadRequest, simapi.CodePrice, "price_max %s is below the price %s", req.PriceMax, o.price)
	}
	for _, q := range w.cfg.Quotas {
		if q.covers(o) && w.used(q)+q.units(o.shape) > q.Limit {
			return none, apiError(http.StatusBadRequest, simapi.CodeQuota, "quota %s: %g of %g %s used, %g more asked for", q.Name, w.used(q), q.Limit, q.Unit, q.units(o.shape))
		}
	}
	if o.full() {
		return none, apiError(http.StatusInternalServerError, simapi.CodeCapacity, "no capacity for %s", o.Place)
	}
	number := len(w.machines) + 1
	req.Tags = maps.Clone(req.Tags)
	m := &machine{id: fmt.Sprintf("sim-%06d", number), number: number, offer: o, req: req, dud: dud, launched: w.now}
	o.live++
	w.machines, w.living = append(w.machines, m), append(w.living, m)
	w.byID[m.id], w.byRequest[req.Request] = m, m
	w.note("launched", m, "", "at %s, bound %s", o.price, req.PriceMax)
	if w.cfg.BillsBoot {
		m.billed = []providers.PriceChange{{From: w.now, Price: o.price}}
	}
	if endKept && !req.EndAt.IsZero() {
		w.keepEnd(m, moment(req.EndAt))
	}
	boot := w.cfg.Boot.D()
	if w.cfg.BootSpan > 0 {
		boot += time.Duration(w.random(forBoot, uint64(number)).Int64N(int64(w.cfg.BootSpan) + 1))
	}
	w.at(w.now.Add(boot), func() { w.run(m) })
	return m.view(time.Time{}), nil
}

// run is the end of a machine's boot.
func (w *World) run(m *machine) {
	if !m.stopping.IsZero() {
		return
	}
	m.running = w.now
	if len(m.billed) == 0 {
		m.billed = []providers.PriceChange{{From: w.now, Price: m.boundedPrice()}}
	}
	w.note("running", m, "", "booted in %s", m.running.Sub(m.launched))
	if !m.dud {
		proc, err := w.runner.Start(Guest{
			ID: m.id, Number: m.number, UserData: m.req.UserData,
			Metadata: w.metadata(m), MetadataURL: "http://" + m.id + metadataSuffix, Client: InProcess(w),
			PowerOff: func() { w.powerOff(m) }, Env: w.guestEnv(m),
		})
		if err != nil {
			w.note("error", m, "", "%v", err)
			w.stop(m, providers.CauseError, "the machine could not be started")
			return
		}
		m.proc = proc
	}
	for _, a := range w.onMachine[m.number] {
		w.at(w.now.Add(a.After.D()), func() { w.runAction(a, m) })
	}
}

// boundedPrice is the market's price, or the bound where the price has risen
// above it while the machine booted.
func (m *machine) boundedPrice() money.Rate {
	if m.offer.Kind == providers.Spot && m.req.PriceMax > 0 {
		return min(m.offer.price, m.req.PriceMax)
	}
	return m.offer.price
}

// stop begins a machine's end: what runs on it is killed at once, and it is
// gone and no longer billed after the stop time.
func (w *World) stop(m *machine, cause providers.Cause, text string) {
	if !m.stopping.IsZero() {
		return
	}
	m.stopping, m.cause, m.text = w.now, cause, text
	w.note("stopping", m, "", "%s", cause)
	var dead <-chan struct{}
	m.dead = true
	if m.proc != nil {
		dead = m.proc.Kill()
		select {
		case <-dead:
		default:
			m.dead = false
		}
	}
	w.at(w.now.Add(w.cfg.StopTime.D()), func() {
		if m.dead {
			w.finish(m)
		}
	})
	if m.dead {
		return
	}
	w.wg.Go(func() {
		<-dead
		w.enter()
		defer w.mu.Unlock()
		m.dead = true
		if !w.now.Before(m.stopping.Add(w.cfg.StopTime.D())) {
			w.finish(m)
		}
	})
}

func (w *World) finish(m *machine) {
	if !m.ended.IsZero() {
		return
	}
	m.ended = w.now
	m.offer.live--
	w.living = slices.DeleteFunc(w.living, func(l *machine) bool { return l == m })
	w.note("terminated", m, "", "%s after %s", m.cause, m.ended.Sub(m.launched))
	w.at(w.now.Add(w.cfg.Remember.D()), func() {
		delete(w.byID, m.id)
	})
}

// preempt takes a machine away after notice, at once and silently when that is
// zero. A machine that is already going is left alone.
func (w *World) preempt(m *machine, notice time.Duration, cause providers.Cause) bool {
	if !m.stopping.IsZero() || !m.taken.IsZero() {
		return false
	}
	text := "taken back by the provider"
	if cause == providers.CausePrice {
		text = "the price rose above the bound"
	}
	if notice <= 0 {
		w.stop(m, cause, text)
		return true
	}
	m.taken = w.now.Add(notice)
	taken := m.taken
	w.at(taken, func() { w.stop(m, cause, text) })
	channels, short := w.noticeFault(m)
	if short > 0 && short < notice {
		w.at(taken.Add(-short), func() { w.warn(m, taken, channels) })
	} else {
		w.warn(m, taken, channels)
	}
	return true
}

// Terminate ends a machine by its id, or by "request:" and its request id. A
// machine that is gone is not found.
func (w *World) Terminate(id string) error {
	w.enter()
	defer w.mu.Unlock()
	m, err := w.find(id)
	if err != nil {
		return err
	}
	if !m.ended.IsZero() {
		return notFound(id)
	}
	w.stop(m, providers.CauseUser, "terminated by a call")
	return nil
}

// Machine returns a machine by its id, or by "request:" and its request id.
func (w *World) Machine(id string) (simapi.Machine, error) {
	w.enter()
	defer w.mu.Unlock()
	m, err := w.find(id)
	if err != nil {
		return simapi.Machine{}, err
	}
	return m.view(time.Time{}), nil
}

// Machines returns the machines that a list shows, in the order of launch: as
// they were the list lag and a further age ago.
func (w *World) Machines(age time.Duration) []simapi.Machine {
	w.enter()
	defer w.mu.Unlock()
	t := w.now.Add(-w.cfg.ListLag.D() - age)
	out := []simapi.Machine{}
	for _, m := range w.machines {
		if w.byID[m.id] != nil && !m.launched.After(t) {
			out = append(out, m.view(t))
		}
	}
	return out
}

// Truth returns every machine that ever was, as it is now.
func (w *World) Truth() []simapi.Machine {
	w.enter()
	defer w.mu.Unlock()
	out := []simapi.Machine{}
	for _, m := range w.machines {
		out = append(out, m.view(time.Time{}))
	}
	return out
}

// MoveEnd moves the end that the world keeps. A moment that is past ends the
// machine now.
func (w *World) MoveEnd(id string, end time.Time) (simapi.Machine, error) {
	w.enter()
	defer w.mu.Unlock()
	m, err := w.find(id)
	switch {
	case err != nil:
		return simapi.Machine{}, err
	case !m.stopping.IsZero():
		return simapi.Machine{}, notFound(id)
	case w.selfEnd != providers.EndRolling:
		return simapi.Machine{}, apiError(http.StatusConflict, simapi.CodeEndFixed, "the end of a machine cannot be moved (self_end %s)", w.selfEnd)
	case end.IsZero():
		return simapi.Machine{}, apiError(http.StatusBadRequest, simapi.CodeInvalid, "end_at is missing")
	}
	w.keepEnd(m, moment(end))
	w.note("end_moved", m, "", "to %s", m.endAt.Format(time.RFC3339Nano))
	return m.view(time.Time{}), nil
}

func (w *World) keepEnd(m *machine, end time.Time) {
	m.endAt = end
	m.endSeq++
	seq := m.endSeq
	w.at(end, func() {
		if m.endSeq == seq {
			w.stop(m, providers.CauseExpired, "its end came")
		}
	})
}

// powerOff is the guest's own shutdown.
func (w *World) powerOff(m *machine) {
	w.enter()
	defer w.mu.Unlock()
	switch {
	case w.closed || !m.stopping.IsZero() || m.dark:
	case w.endAction == providers.EndPoweroff:
		w.stop(m, providers.CauseGuest, "shut down from within")
	default:
		m.dark = true
		w.note("dark", m, "", "powered off from within; it is billed until it is deleted")
		if m.proc != nil {
			m.proc.Kill()
		}
	}
}

// Console returns the last bytes of a machine's console.
func (w *World) Console(id string) ([]byte, error) {
	w.enter()
	defer w.mu.Unlock()
	m, err := w.find(id)
	if err != nil {
		return nil, err
	}
	if m.proc == nil {
		return nil, nil
	}
	return m.proc.Console(), nil
}

func (w *World) find(id string) (*machine, error) {
	if w.closed {
		return nil, errClosed()
	}
	m := w.byID[id]
	if request, ok := cutRequest(id); ok {
		if r := w.byRequest[request]; r != nil {
			m = w.byID[r.id]
		}
	}
	if m == nil {
		return nil, notFound(id)
	}
	return m, nil
}

// pick returns the live machines that are not going yet.
func (w *World) pick(p simapi.Pick, self *machine) *machine {
	if p == (simapi.Pick{}) && self != nil {
		return self
	}
	var here []*machine
	for _, m := range w.living {
		if m.stopping.IsZero() && m.taken.IsZero() && m.offer.Matches(p.Match) &&
			(p.Machine == "" || p.Machine == m.id) && (p.Number == 0 || p.Number == m.number) {
			here = append(here, m)
		}
	}
	if p.Longest {
		here = slices.DeleteFunc(here, func(m *machine) bool { return m.running.IsZero() || m.offer.Kind != providers.Spot })
		slices.SortStableFunc(here, func(a, b *machine) int { return a.running.Compare(b.running) })
	}
	if len(here) == 0 {
		return nil
	}
	if p.Newest {
		return here[len(here)-1]
	}
	return here[0]
}
