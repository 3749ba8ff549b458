package simcloud

import (
	"context"
	"io"
	"net/http"
	"time"

	"gpubroker/internal/simcloud/simapi"
)

// Dialect makes a world look like another cloud: its API, and what its machines
// see of it. The packages below this one hold the dialects. A world of a dialect
// is still driven through /admin/…, in simcloud's own words.
type Dialect struct {
	Name string
	// API answers the cloud's calls.
	API func(w *World) http.Handler
	// Metadata is the metadata service of one machine; nil means that there is none.
	// It is called with the world locked.
	Metadata func(w *World, id string) http.Handler
	// Left names what is left in the account beside machines: disks, addresses,
	// schedules. Nil where machines have nothing beside them.
	Left func(w *World) []string
	// Env are variables that the cloud gives to programs on a machine; may be nil.
	Env func(m simapi.Machine) []string
}

// guestEnv is what a machine's programs are told in variables.
func (w *World) guestEnv(m *machine) func(string) []string {
	d := w.cfg.Dialect
	if d == nil {
		return func(url string) []string { return []string{"SIMCLOUD_METADATA=" + url} }
	}
	var own []string
	if d.Env != nil {
		own = d.Env(m.view(time.Time{}))
	}
	return func(url string) []string {
		if d.Metadata == nil {
			return own
		}
		return append(own, "GPUBROKER_METADATA_URL="+url)
	}
}

// Inside is what a machine's metadata service can tell.
type Inside struct {
	Machine   simapi.Machine
	UserData  string
	Notice    *simapi.InstanceAction // nil until a preemption is announced there
	Rebalance time.Time              // zero until the risk has risen
	Off       bool                   // powered off from within, and billed until it is ended
}

// Inside returns what a machine's metadata service can tell now.
func (w *World) Inside(id string) (Inside, error) {
	w.enter()
	defer w.mu.Unlock()
	m, err := w.find(id)
	if err != nil {
		return Inside{}, err
	}
	return Inside{m.view(time.Time{}), m.req.UserData, m.notice, m.rebalance, m.dark && m.stopping.IsZero()}, nil
}

// PowerOff is the shutdown of a machine from within.
func (w *World) PowerOff(id string) error {
	w.enter()
	m, err := w.find(id)
	w.mu.Unlock()
	if err != nil {
		return err
	}
	w.powerOff(m)
	return nil
}

// Changed returns a channel that is closed at the world's next event.
func (w *World) Changed() <-chan struct{} {
	w.enter()
	defer w.mu.Unlock()
	return w.changed
}

// Now is the world's present moment.
func (w *World) Now() time.Time {
	w.enter()
	defer w.mu.Unlock()
	return w.now
}

// Call is an API call as faults are matched against it. Op is one of
// [simapi.Ops]; Machine is the world's id of the machine that the call names, or
// "request:" and its request id.
type Call struct {
	Op      string
	Place   simapi.Place
	Machine string
}

// Reply is the answer to a call, whole.
type Reply struct {
	Status int // 0 means 200
	Type   string
	Body   []byte
}

// Effect does what a call asks for. age is how old the answer shall be, and dud
// says that a launched machine shall never start its user data.
type Effect func(age time.Duration, dud bool) (Reply, error)

// Words writes the failure of a call as a cloud's API writes it: a
// [*simapi.Error], or another error, which is the dialect's own defect.
type Words func(rw http.ResponseWriter, err error)

// LaunchAs is [World.Launch] for an effect that is told of duds.
func (w *World) LaunchAs(req simapi.Launch, dud bool) (simapi.Machine, error) {
	return w.launch(req, dud)
}

// Answer makes a call, with the fault that hits it, and writes the answer.
func (w *World) Answer(rw http.ResponseWriter, r *http.Request, c Call, words Words, effect Effect) {
	f := w.hit(c)
	if f == nil {
		f = new(simapi.Fault)
	}
	if e := instead(f); e != nil {
		words(rw, e)
		return
	}
	var age time.Duration
	switch f.Effect {
	case simapi.Drop:
		panic(http.ErrAbortHandler)
	case simapi.Hang:
		select {
		case <-r.Context().Done():
		case <-w.done:
		}
		panic(http.ErrAbortHandler)
	case simapi.Proxy:
		rw.Header().Set("Content-Type", "text/html")
		rw.WriteHeader(http.StatusBadGateway)
		_, _ = io.WriteString(rw, "<html><h1>502 Bad Gateway</h1></html>")
		return
	case simapi.Late:
		w.sleep(context.Background(), f.Delay.D())
	case simapi.Stale:
		age = f.Delay.D()
	}
	reply, err := effect(age, f.Effect == simapi.Dud)
	if e := afterwards(f); e != nil && err == nil {
		err = e
	}
	switch f.Effect {
	case simapi.DropAfter:
		panic(http.ErrAbortHandler)
	case simapi.Slow:
		w.sleep(r.Context(), f.Delay.D())
	case simapi.Truncate:
		if err == nil {
			truncate(rw, reply.Body)
		}
	}
	if err != nil {
		words(rw, err)
		return
	}
	reply.write(rw)
}

// hit returns the fault that hits a call, nil for none.
func (w *World) hit(c Call) *simapi.Fault {
	w.enter()
	defer w.mu.Unlock()
	in := call{op: c.Op, place: c.Place}
	if c.Machine != "" {
		if m, err := w.find(c.Machine); err == nil {
			in.place, in.machine, in.age = m.offer.Place, m.id, w.now.Sub(m.launched)
		}
	}
	return w.nextFault(in)
}

func (r Reply) write(rw http.ResponseWriter) {
	if r.Type != "" {
		rw.Header().Set("Content-Type", r.Type)
	}
	if r.Status != 0 {
		rw.WriteHeader(r.Status)
	}
	_, _ = rw.Write(r.Body) // the caller has gone; nothing to do about it
}
