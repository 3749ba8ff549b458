package providertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"gpubroker/internal/money"
	"gpubroker/providers"
)

const (
	fakeOwner  = "conformance"
	fakeSecret = "sk-fake-0123456789"
	fakeBoot   = 20 * time.Second
	fakeStop   = 10 * time.Second
	fakeNotice = 2 * time.Minute
	fakeLag    = 3 * time.Second
)

// cloud is a small cloud that keeps the contract, or breaks it in the one way
// that defect names.
type cloud struct {
	defect string

	mu       sync.Mutex
	machines []*machine
	faults   []Fault
	streams  []chan providers.Notice
}

// machine is one machine. Its life follows from its times.
type machine struct {
	id      string
	req     providers.LaunchRequest
	born    time.Time
	asked   time.Time // terminate was called
	taken   time.Time // the provider takes it
	end     time.Time
	foreign bool
}

// adapter is the provider over a cloud.
type adapter struct{ c *cloud }

func (m *machine) life() (ended time.Time, cause providers.Cause) {
	first := func(at time.Time, why providers.Cause) {
		if !at.IsZero() && (ended.IsZero() || at.Before(ended)) {
			ended, cause = at, why
		}
	}
	first(m.end, providers.CauseExpired)
	first(m.taken, providers.CausePreempted)
	if !m.asked.IsZero() {
		first(m.asked.Add(fakeStop), providers.CauseUser)
	}
	return ended, cause
}

func (m *machine) gone() bool {
	ended, _ := m.life()
	return !ended.IsZero() && !time.Now().Before(ended)
}

func (c *cloud) show(m *machine) providers.Instance {
	i := providers.Instance{
		Ref: providers.Ref{ID: m.id, Request: m.req.Request}, Market: m.req.Market, State: providers.Pending,
		Tags: m.req.Tags, Launched: m.born, End: m.end, Price: money.Rate(money.Unit),
	}
	ended, cause := m.life()
	switch {
	case m.gone():
		i.State, i.Cause, i.Ended = providers.Terminated, cause, ended
	case !m.asked.IsZero():
		i.State = providers.Stopping
	case time.Since(m.born) >= fakeBoot:
		i.State = providers.Running
	}
	if c.defect == "no cause" {
		i.Cause = ""
	}
	if c.defect == "local time" {
		i.Launched = i.Launched.In(time.FixedZone("x", 7200))
	}
	return i
}

func (a adapter) fail(op string, code providers.Code, words string) *providers.Error {
	e := &providers.Error{Code: code, Provider: a.Name(), Op: op, Message: words}
	if op == "launch" {
		e.Outcome = providers.NotCreated
	}
	switch a.c.defect {
	case "strange code":
		e.Code = "weather"
	case "secret in error":
		e.Err = fmt.Errorf("post https://fake/?key=%s", fakeSecret)
	case "two lines":
		e.Message += "\nand more"
	case "outcome everywhere":
		e.Outcome = providers.NotCreated
	case "capacity is unavailable":
		if code == providers.NoCapacity {
			e.Code = providers.Unavailable
		}
	}
	return e
}

// meet takes the fault that the next call of op meets.
func (c *cloud) meet(op string) (Fault, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := slices.IndexFunc(c.faults, func(f Fault) bool { return f.Op == op })
	if n < 0 {
		return Fault{}, false
	}
	f := c.faults[n]
	c.faults = slices.Delete(c.faults, n, n+1)
	return f, true
}

// call does what a call of op does, through the fault it meets.
func (a adapter) call(ctx context.Context, op string, effect func() error) error {
	if err := ctx.Err(); err != nil && a.c.defect != "context is ignored" {
		return a.fail(op, providers.CodeOf(err), "")
	}
	if a.c.defect == "goroutine" {
		go func() { time.Sleep(time.Hour) }()
	}
	f, hit := a.c.meet(op)
	if hit && f.Code == providers.Unavailable && a.c.defect == "retries" {
		hit = false
	}
	if !hit {
		return effect()
	}
	if f.After {
		if err := effect(); err != nil {
			return err
		}
	}
	e := a.fail(op, f.Code, "as provoked")
	if f.Hang {
		if a.c.defect == "waits for ever" {
			time.Sleep(time.Hour)
		}
		<-ctx.Done()
		e = a.fail(op, providers.CodeOf(ctx.Err()), "")
	}
	if op == "launch" && (f.Hang || f.Code == providers.Unavailable) && a.c.defect != "sure of nothing" {
		e.Outcome = providers.OutcomeUnknown
	}
	return e
}

func (a adapter) Name() string { return "fake" }

func (a adapter) Capabilities() providers.Capabilities {
	c := providers.Capabilities{
		Kinds: []providers.Kind{providers.Spot, providers.OnDemand}, Notice: fakeNotice, NoticeSource: providers.NoticeEvents,
		Billing: money.Billing{Unit: time.Second, Minimum: time.Minute}, BillsBoot: true, PriceBound: true, TagsAtLaunch: true,
		LaunchToken: true, ListLag: fakeLag, SelfEnd: providers.EndRolling, EndAction: providers.EndPoweroff,
		StopTime: fakeStop, BootTime: fakeBoot,
	}
	if a.c.defect == "notice from nowhere" {
		c.NoticeSource = providers.NoticeNone
	}
	return c
}

func (a adapter) Offers(ctx context.Context, scope providers.Scope) (out []providers.Offer, err error) {
	err = a.call(ctx, "offers", func() error {
		for _, region := range []string{"north", "south"} {
			for _, kind := range a.Capabilities().Kinds {
				if scope.Region != "" && scope.Region != region && a.c.defect != "scope" {
					continue
				}
				price := money.Rate(money.Unit)
				if a.c.defect == "free offer" && region == "south" {
					price = 0
				}
				out = append(out, providers.Offer{
					Market: providers.Market{Provider: "fake", Region: region, Type: "g1", Kind: kind},
					Shape:  providers.Shape{GPU: "l4", GPUs: 1}, Price: price, Currency: money.USD,
					Available: providers.Open, Seen: time.Now().UTC(), Source: "made up",
				})
			}
		}
		if a.c.defect == "twice" {
			out = append(out, out[0])
		}
		return nil
	})
	if err != nil && a.c.defect == "part of a list" {
		return []providers.Offer{{}}, err
	}
	return out, err
}

func (a adapter) find(ref providers.Ref) *machine {
	for _, m := range a.c.machines {
		if !m.foreign && (m.id == ref.ID || ref.ID == "" && m.req.Request == ref.Request && a.c.defect != "needs the id") {
			return m
		}
	}
	return nil
}

func (a adapter) Launch(ctx context.Context, req providers.LaunchRequest) (inst providers.Instance, err error) {
	if a.c.defect == "waits for boot" {
		time.Sleep(fakeBoot)
	}
	err = a.call(ctx, "launch", func() error {
		a.c.mu.Lock()
		m := a.find(providers.Ref{Request: req.Request})
		if a.c.defect == "races" {
			a.c.mu.Unlock()
			time.Sleep(time.Millisecond)
			a.c.mu.Lock()
		}
		defer a.c.mu.Unlock()
		if m != nil && a.c.defect != "twice the machine" {
			if m.req.Market != req.Market {
				return a.fail("launch", providers.Conflict, "the request has another machine")
			}
			inst = a.c.show(m)
			return nil
		}
		if req.Market.Type != "g1" {
			if a.c.defect == "leaves a machine" {
				a.c.machines = append(a.c.machines, &machine{id: "left", req: req, born: time.Now().UTC()})
			}
			words := "no such type"
			if a.c.defect == "echoes the script" {
				words = strings.ReplaceAll(req.UserData, "\n", " ")
			}
			return a.fail("launch", providers.InvalidRequest, words)
		}
		if req.PriceMax > 0 && req.PriceMax < money.Rate(money.Unit) && a.c.defect != "no bound" {
			return a.fail("launch", providers.PriceTooLow, "the price is 1.00")
		}
		m = &machine{id: "i-" + strconv.Itoa(len(a.c.machines)), req: req, born: time.Now().UTC(), end: req.End}
		if a.c.defect == "no end" {
			m.end = time.Time{}
		}
		if a.c.defect == "loses tags" {
			m.req.Tags.Project = ""
		}
		a.c.machines = append(a.c.machines, m)
		inst = a.c.show(m)
		return nil
	})
	return inst, err
}

func (a adapter) Terminate(ctx context.Context, ref providers.Ref) error {
	return a.call(ctx, "terminate", func() error {
		a.c.mu.Lock()
		defer a.c.mu.Unlock()
		m := a.find(ref)
		if a.c.defect == "ends another" && m == nil && len(a.c.machines) > 0 {
			m = a.c.machines[0]
		}
		if m == nil || m.gone() {
			if a.c.defect == "never gone" {
				return nil
			}
			return a.fail("terminate", providers.NotFound, "")
		}
		if m.asked.IsZero() {
			m.asked = time.Now().UTC()
		} else if a.c.defect == "terminate once" {
			return a.fail("terminate", providers.InvalidRequest, "it is stopping")
		}
		return nil
	})
}

func (a adapter) Describe(ctx context.Context, ref providers.Ref) (inst providers.Instance, err error) {
	err = a.call(ctx, "describe", func() error {
		a.c.mu.Lock()
		defer a.c.mu.Unlock()
		m := a.find(ref)
		if m == nil || m.gone() && a.c.defect == "forgets at once" {
			return a.fail("describe", providers.NotFound, "")
		}
		inst = a.c.show(m)
		return nil
	})
	return inst, err
}

func (a adapter) List(ctx context.Context) (out []providers.Instance, err error) {
	err = a.call(ctx, "list", func() error {
		a.c.mu.Lock()
		defer a.c.mu.Unlock()
		for _, m := range a.c.machines {
			lag := fakeLag
			if a.c.defect == "long lag" {
				lag = time.Minute
			}
			if !m.foreign && time.Since(m.born) >= lag || m.foreign && a.c.defect == "lists others" {
				out = append(out, a.c.show(m))
			}
		}
		return nil
	})
	return out, err
}

// other runs the optional abilities: about one machine, or not found.
func (a adapter) other(op string, ref providers.Ref, f func(*machine)) error {
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	m := a.find(ref)
	if m == nil {
		return a.fail(op, providers.NotFound, "")
	}
	f(m)
	return nil
}

func (a adapter) MoveEnd(_ context.Context, ref providers.Ref, end time.Time) error {
	return a.other("move-end", ref, func(m *machine) {
		if a.c.defect != "end stays" {
			m.end = end.UTC()
		}
	})
}

func (a adapter) Bill(_ context.Context, ref providers.Ref) (b providers.Bill, err error) {
	err = a.other("bill", ref, func(m *machine) {
		b = providers.Bill{Start: m.born, Prices: []providers.PriceChange{{From: m.born, Price: money.Rate(money.Unit)}}}
		if ended, _ := m.life(); m.gone() {
			b.End = ended
			total, _ := money.Charge(ended.Sub(m.born), money.Rate(money.Unit), a.Capabilities().Billing)
			if a.c.defect == "wrong sum" {
				total++
			}
			b.Total = &total
		}
	})
	return b, err
}

func (a adapter) Console(_ context.Context, ref providers.Ref) (out []byte, err error) {
	err = a.other("console", ref, func(*machine) { out = []byte("booted") })
	return out, err
}

func (a adapter) Quotas(context.Context) ([]providers.Quota, error) {
	q := providers.Quota{Name: "gpus", Unit: "gpu", Limit: 8}
	if a.c.defect == "negative quota" {
		q.Used = -1
	}
	return []providers.Quota{q}, nil
}

func (a adapter) Preflight(context.Context) error {
	if a.c.defect == "preflight" {
		return a.fail("preflight", providers.Unauthorized, "")
	}
	return nil
}

func (a adapter) Interruptions(ctx context.Context) (<-chan providers.Notice, error) {
	stream := make(chan providers.Notice, 16)
	a.c.mu.Lock()
	a.c.streams = append(a.c.streams, stream)
	a.c.mu.Unlock()
	if a.c.defect == "stream stays" {
		return stream, nil
	}
	go func() {
		<-ctx.Done()
		a.c.mu.Lock()
		defer a.c.mu.Unlock()
		a.c.streams = slices.DeleteFunc(a.c.streams, func(s chan providers.Notice) bool { return s == stream })
		close(stream)
	}()
	return stream, nil
}

// open makes an account at a fresh cloud.
func open(defect string) func(testing.TB) Account {
	return func(testing.TB) Account {
		c := &cloud{defect: defect}
		return Account{
			Provider: adapter{c}, Owner: fakeOwner, Secrets: []string{fakeSecret},
			Reopen: func() providers.Provider {
				if defect == "forgets its machines" {
					return adapter{&cloud{}}
				}
				return adapter{c}
			},
			Inject: func(f Fault) error {
				if defect == "no faults" {
					return errors.ErrUnsupported
				}
				c.mu.Lock()
				defer c.mu.Unlock()
				c.faults = append(c.faults, f)
				return nil
			},
			Outsider: func() error {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.machines = append(c.machines, &machine{id: "foreign", born: time.Now().UTC(), foreign: true, req: providers.LaunchRequest{Market: providers.Market{Provider: "fake", Type: "g1", Kind: providers.Spot}}})
				return nil
			},
			Preempt: func(ref providers.Ref) error {
				c.mu.Lock()
				defer c.mu.Unlock()
				for _, m := range c.machines {
					if m.id == ref.ID {
						m.taken = time.Now().Add(fakeNotice).UTC()
					}
				}
				for _, s := range c.streams {
					if defect != "no notice" {
						s <- providers.Notice{Ref: ref, Kind: providers.NoticePreempt, At: time.Now().Add(fakeNotice).UTC()}
					}
				}
				return nil
			},
		}
	}
}
