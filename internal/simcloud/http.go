package simcloud

import (
	"cmp"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/simcloud/simapi"
)

// Tokens are the bearer tokens of the API. An empty one lets everybody in; an
// empty Admin is the same as API.
type Tokens struct{ API, Admin string }

// maxWait is the longest that a call for events is held.
const maxWait = 30 * time.Second

// maxBody is the longest request body in bytes.
const maxBody = 1 << 20

// Handler is the HTTP API of a world: /v1/… and /admin/…, as docs/simcloud.md
// describes it.
func Handler(w *World) http.Handler {
	h := &handler{w: w}
	mux := http.NewServeMux()
	api := func(pattern string, f http.HandlerFunc) { mux.Handle(pattern, guard(w.cfg.Tokens.API, f)) }
	api("GET /v1/about", h.about)
	api("GET /v1/offers", h.offers)
	api("GET /v1/quotas", h.quotas)
	api("GET /v1/machines", h.list)
	api("POST /v1/machines", h.launch)
	api("GET /v1/machines/{id}", h.describe)
	api("DELETE /v1/machines/{id}", h.terminate)
	api("PUT /v1/machines/{id}/end", h.moveEnd)
	api("GET /v1/machines/{id}/bill", h.bill)
	api("GET /v1/machines/{id}/console", h.console)
	api("GET /v1/events", h.notices)
	api("GET /v1/invoice", h.invoice)
	h.admin(mux)
	return mux
}

// Dialected is the HTTP API of a world in its dialect, with simcloud's own
// /admin/… beside it.
func Dialected(w *World) http.Handler {
	if w.cfg.Dialect == nil || w.cfg.Dialect.API == nil {
		return Handler(w)
	}
	mux := http.NewServeMux()
	(&handler{w}).admin(mux)
	mux.Handle("/", w.cfg.Dialect.API(w))
	return mux
}

func (h *handler) admin(mux *http.ServeMux) {
	w := h.w
	admin := func(pattern string, f http.HandlerFunc) {
		mux.Handle(pattern, guard(cmp.Or(w.cfg.Tokens.Admin, w.cfg.Tokens.API), f))
	}
	admin("GET /admin/events", h.events)
	admin("GET /admin/invoice", h.invoice)
	admin("GET /admin/about", h.about)
	admin("GET /admin/machines/{id}/console", h.rawConsole)
	admin("GET /admin/machines", h.truth)
	admin("POST /admin/actions", h.action)
	admin("GET /admin/faults", h.faults)
	admin("DELETE /admin/faults", h.clearFaults)
}

type handler struct{ w *World }

func guard(token string, next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		given, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if token != "" && subtle.ConstantTimeCompare([]byte(given), []byte(token)) != 1 {
			fail(rw, apiError(http.StatusUnauthorized, simapi.CodeUnauthorized, "the token is not valid"))
			return
		}
		r.Body = http.MaxBytesReader(rw, r.Body, maxBody)
		next(rw, r)
	})
}

// serve makes a call in simcloud's own words.
func (h *handler) serve(rw http.ResponseWriter, r *http.Request, c Call, effect func(age time.Duration, dud bool) (any, error)) {
	h.w.Answer(rw, r, c, fail, func(age time.Duration, dud bool) (Reply, error) {
		v, err := effect(age, dud)
		if err != nil {
			return Reply{}, err
		}
		if v == nil {
			return Reply{Status: http.StatusNoContent}, nil
		}
		data, err := json.Marshal(v)
		return Reply{Type: "application/json", Body: data}, err
	})
}

// sleep waits, or until ctx or the world ends.
func (w *World) sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-w.done:
	}
}

func reply(rw http.ResponseWriter, v any, err error) {
	switch {
	case err != nil:
		fail(rw, err)
	case v == nil:
		rw.WriteHeader(http.StatusNoContent)
	default:
		answer(rw, v)
	}
}

func fail(rw http.ResponseWriter, err error) {
	e, ok := errors.AsType[*simapi.Error](err)
	if !ok {
		e = apiError(http.StatusInternalServerError, simapi.CodeInternal, "%v", err)
	}
	rw.Header().Set("Content-Type", "application/json")
	if e.RetryAfter > 0 {
		rw.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds()))))
	}
	rw.WriteHeader(e.Status)
	_ = json.NewEncoder(rw).Encode(simapi.ErrorBody{Error: e}) // the caller has gone
}

// truncate writes half of an answer and ends the connection.
func truncate(rw http.ResponseWriter, data []byte) {
	rw.Header().Set("Content-Length", strconv.Itoa(len(data)))
	_, _ = rw.Write(data[:len(data)/2])
	if f, ok := rw.(http.Flusher); ok {
		f.Flush()
	}
	panic(http.ErrAbortHandler)
}

func decode(r *http.Request, v any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return apiError(http.StatusBadRequest, simapi.CodeInvalid, "body: %v", err)
	}
	return nil
}

func (h *handler) about(rw http.ResponseWriter, r *http.Request) {
	h.serve(rw, r, Call{Op: "about"}, func(time.Duration, bool) (any, error) { return h.w.About(), nil })
}

func (h *handler) offers(rw http.ResponseWriter, r *http.Request) {
	h.serve(rw, r, Call{Op: "offers"}, func(age time.Duration, _ bool) (any, error) {
		return simapi.Offers{Offers: h.w.Offers(r.URL.Query().Get("region"), age)}, nil
	})
}

func (h *handler) quotas(rw http.ResponseWriter, r *http.Request) {
	h.serve(rw, r, Call{Op: "quotas"}, func(time.Duration, bool) (any, error) { return simapi.Quotas{Quotas: h.w.Quotas()}, nil })
}

// list answers one page. Parameters: after, an id; tag, "key" or "key=value",
// which may be repeated.
func (h *handler) list(rw http.ResponseWriter, r *http.Request) {
	h.serve(rw, r, Call{Op: "list"}, func(age time.Duration, _ bool) (any, error) {
		q := r.URL.Query()
		after := q.Get("after")
		page := simapi.Machines{Machines: []simapi.Machine{}}
		for _, m := range h.w.Machines(age) {
			if len(m.ID) < len(after) || len(m.ID) == len(after) && m.ID <= after || !tagged(m, q["tag"]) {
				continue
			}
			if len(page.Machines) == h.w.cfg.PageSize {
				page.Next = page.Machines[len(page.Machines)-1].ID
				break
			}
			page.Machines = append(page.Machines, m)
		}
		return page, nil
	})
}

func tagged(m simapi.Machine, want []string) bool {
	for _, t := range want {
		key, value, exact := strings.Cut(t, "=")
		if have, ok := m.Tags[key]; !ok || exact && have != value {
			return false
		}
	}
	return true
}

func (h *handler) launch(rw http.ResponseWriter, r *http.Request) {
	var req simapi.Launch
	if err := decode(r, &req); err != nil {
		fail(rw, err)
		return
	}
	h.serve(rw, r, Call{Op: "launch", Place: req.Place}, func(_ time.Duration, dud bool) (any, error) {
		return some(h.w.launch(req, dud))
	})
}

// some turns a value with an error into an answer.
func some[T any](v T, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return v, nil
}

func (h *handler) describe(rw http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	h.serve(rw, r, Call{Op: "describe", Machine: id}, func(time.Duration, bool) (any, error) { return some(h.w.Machine(id)) })
}

func (h *handler) terminate(rw http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	h.serve(rw, r, Call{Op: "terminate", Machine: id}, func(time.Duration, bool) (any, error) { return nil, h.w.Terminate(id) })
}

func (h *handler) moveEnd(rw http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	var req simapi.MoveEnd
	if err := decode(r, &req); err != nil {
		fail(rw, err)
		return
	}
	h.serve(rw, r, Call{Op: "move_end", Machine: id}, func(time.Duration, bool) (any, error) { return some(h.w.MoveEnd(id, req.EndAt)) })
}

func (h *handler) bill(rw http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	h.serve(rw, r, Call{Op: "bill", Machine: id}, func(time.Duration, bool) (any, error) { return some(h.w.Bill(id)) })
}

func (h *handler) console(rw http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	h.serve(rw, r, Call{Op: "console", Machine: id}, func(time.Duration, bool) (any, error) {
		text, err := h.w.Console(id)
		if err != nil {
			return nil, err
		}
		return struct {
			Console []byte `json:"console"`
		}{text}, nil
	})
}

// rawConsole is the console as plain text, for people and tests.
func (h *handler) rawConsole(rw http.ResponseWriter, r *http.Request) {
	text, err := h.w.Console(r.PathValue("id"))
	if err != nil {
		fail(rw, err)
		return
	}
	rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = rw.Write(text) // the caller has gone
}

func (h *handler) notices(rw http.ResponseWriter, r *http.Request) {
	after, wait, err := window(r)
	if err != nil {
		fail(rw, err)
		return
	}
	h.serve(rw, r, Call{Op: "events"}, func(time.Duration, bool) (any, error) {
		return some(h.w.Notices(r.Context(), after, wait))
	})
}

// window reads the parameters after, a number, and wait, a duration.
func window(r *http.Request) (after int64, wait time.Duration, err error) {
	q := r.URL.Query()
	if s := q.Get("after"); s != "" {
		if after, err = strconv.ParseInt(s, 10, 64); err != nil {
			return 0, 0, apiError(http.StatusBadRequest, simapi.CodeInvalid, "after=%q is no number", s)
		}
	}
	if s := q.Get("wait"); s != "" {
		if wait, err = time.ParseDuration(s); err != nil {
			return 0, 0, apiError(http.StatusBadRequest, simapi.CodeInvalid, "wait=%q is no duration", s)
		}
	}
	return after, min(max(wait, 0), maxWait), nil
}

func (h *handler) invoice(rw http.ResponseWriter, r *http.Request) {
	h.serve(rw, r, Call{Op: "invoice"}, func(time.Duration, bool) (any, error) { return h.w.Invoice(), nil })
}

func (h *handler) events(rw http.ResponseWriter, r *http.Request) {
	after, _, err := window(r)
	if err != nil {
		fail(rw, err)
		return
	}
	events := simapi.Events{Events: h.w.Events(after), Next: after}
	if n := len(events.Events); n > 0 {
		events.Next = events.Events[n-1].Seq
	}
	answer(rw, events)
}

func (h *handler) truth(rw http.ResponseWriter, _ *http.Request) {
	answer(rw, simapi.Machines{Machines: h.w.Truth()})
}

func (h *handler) action(rw http.ResponseWriter, r *http.Request) {
	var a simapi.Action
	if err := decode(r, &a); err != nil {
		fail(rw, err)
		return
	}
	res, err := some(h.w.Do(a))
	reply(rw, res, err)
}

func (h *handler) faults(rw http.ResponseWriter, _ *http.Request) {
	answer(rw, struct {
		Faults []simapi.Fault `json:"faults"`
	}{h.w.Faults()})
}

func (h *handler) clearFaults(rw http.ResponseWriter, _ *http.Request) {
	h.w.ClearFaults()
	rw.WriteHeader(http.StatusNoContent)
}

// String hides the tokens from logs.
func (Tokens) String() string { return "[hidden]" }

// GoString hides the tokens from logs.
func (Tokens) GoString() string { return "[hidden]" }
