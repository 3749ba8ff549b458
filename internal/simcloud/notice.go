package simcloud

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

type notice struct {
	simapi.Notice
	machine *machine
}

// warn gives the warning of a preemption on the channels that are not lost.
func (w *World) warn(m *machine, taken time.Time, c channels) {
	if !m.stopping.IsZero() {
		return
	}
	if c.metadata {
		m.notice = &simapi.InstanceAction{Action: "terminate", Time: taken}
	}
	if c.events {
		w.publish(m, providers.NoticePreempt, taken)
	}
	w.note("notice", m, "", "taken at %s (metadata %t, events %t)", taken.Format(time.RFC3339Nano), c.metadata, c.events)
}

// advise tells a machine that the risk has risen. No end need follow.
func (w *World) advise(m *machine) {
	m.rebalance = w.now
	w.publish(m, providers.NoticeRebalance, time.Time{})
	w.note("rebalance", m, "", "the risk has risen")
}

func (w *World) publish(m *machine, kind providers.NoticeKind, t time.Time) {
	w.noticeSeq++
	w.notices = append(w.notices, &notice{machine: m, Notice: simapi.Notice{
		Seq: w.noticeSeq, Machine: m.id, Request: m.req.Request, Region: m.offer.Region, Zone: m.offer.Zone, Kind: kind, Time: t,
	}})
	w.signal()
}

// Notices returns the warnings after a number whose machines are not gone. With
// none it waits until there is one, the time is over or ctx ends.
func (w *World) Notices(ctx context.Context, after int64, wait time.Duration) (simapi.Notices, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		w.enter()
		if w.closed {
			w.mu.Unlock()
			return simapi.Notices{}, errClosed()
		}
		out := simapi.Notices{Notices: []simapi.Notice{}, Next: max(after, w.noticeSeq)}
		kept := w.notices[:0]
		for _, n := range w.notices {
			if !n.machine.live() {
				continue
			}
			kept = append(kept, n)
			if n.Seq > after {
				out.Notices = append(out.Notices, n.Notice)
			}
		}
		clear(w.notices[len(kept):])
		w.notices = kept
		changed := w.changed
		w.mu.Unlock()
		if len(out.Notices) > 0 || wait <= 0 {
			return out, nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return out, nil
		case <-w.done:
		case <-ctx.Done():
			return simapi.Notices{}, ctx.Err()
		}
	}
}

// metadata is the address that only the machine itself can reach, in the words
// of the world's dialect.
func (w *World) metadata(m *machine) http.Handler {
	d := w.cfg.Dialect
	switch {
	case d == nil:
		return w.ownMetadata(m)
	case d.Metadata == nil:
		return http.NotFoundHandler()
	}
	return d.Metadata(w, m.id)
}

// ownMetadata is simcloud's own:
//
//	GET    /v1/instance-id
//	GET    /v1/user-data
//	GET    /v1/notice       404 until there is one, then {"action":"terminate","time":…}
//	GET    /v1/rebalance    404 until there is one, then {"time":…}
//	POST   /v1/poweroff     shuts the machine down from within
//	DELETE /v1/instance     deletes the machine with its own right
func (w *World) ownMetadata(m *machine) http.Handler {
	mux := http.NewServeMux()
	text := func(s string) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
			_, _ = io.WriteString(rw, s)
		}
	}
	mux.HandleFunc("GET /v1/instance-id", text(m.id))
	mux.HandleFunc("GET /v1/user-data", text(m.req.UserData))
	mux.HandleFunc("GET /v1/notice", func(rw http.ResponseWriter, r *http.Request) {
		w.enter()
		n := m.notice
		w.mu.Unlock()
		if n == nil {
			http.NotFound(rw, r)
			return
		}
		answer(rw, *n)
	})
	mux.HandleFunc("GET /v1/rebalance", func(rw http.ResponseWriter, r *http.Request) {
		w.enter()
		t := m.rebalance
		w.mu.Unlock()
		if t.IsZero() {
			http.NotFound(rw, r)
			return
		}
		answer(rw, struct {
			Time time.Time `json:"time"`
		}{t})
	})
	mux.HandleFunc("POST /v1/poweroff", func(rw http.ResponseWriter, _ *http.Request) {
		rw.WriteHeader(http.StatusAccepted)
		w.powerOff(m)
	})
	mux.HandleFunc("DELETE /v1/instance", func(rw http.ResponseWriter, _ *http.Request) {
		rw.WriteHeader(http.StatusAccepted)
		w.enter()
		defer w.mu.Unlock()
		w.stop(m, providers.CauseUser, "deleted with its own right")
	})
	return mux
}

func answer(rw http.ResponseWriter, v any) {
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(v) // the caller has gone; nothing to do about it
}
