package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gpubroker/queue"
)

// Event is an event with its reason as a sentence.
type Event struct {
	*queue.Event
	Name string `json:"name,omitempty" doc:"of the job"`
	Text string `json:"text" doc:"the reason as a sentence"`
}

// namer finds the names of jobs, each once.
type namer struct {
	server *Server
	known  map[string]string
}

// show makes an event as the API shows it. A job that cannot be read has no name.
func (n *namer) show(ctx context.Context, e *queue.Event) Event {
	name, ok := n.known[e.Job]
	if !ok && e.Job != "" {
		if j, err := n.server.broker.Job(ctx, e.Job); err == nil {
			name = j.Name
		}
		if n.known == nil {
			n.known = map[string]string{}
		}
		n.known[e.Job] = name
	}
	return Event{e, name, e.Reason.String()}
}

type eventsInput struct {
	After   int64  `query:"after" doc:"the sequence number that the last page ended with"`
	Limit   int    `query:"limit" minimum:"0" maximum:"1000" default:"100"`
	Job     string `query:"job"`
	Project string `query:"project"`
	Last    bool   `query:"last" doc:"the newest ones instead of the first"`
}

// Events is a page of events.
type Events struct {
	Events []Event `json:"events"`
	Next   int64   `json:"next,omitempty" doc:"goes into after for the next page; absent at the end"`
}

type eventsOutput struct{ Body Events }

type watchInput struct {
	After   int64  `query:"after" doc:"0 begins with what comes"`
	Job     string `query:"job"`
	Project string `query:"project"`
	LastID  int64  `header:"Last-Event-ID"`
}

type logsInput struct {
	JobPath
	Index   int   `path:"index" minimum:"0"`
	Attempt int   `query:"attempt" minimum:"0" doc:"number of the attempt; 0 is the newest"`
	Rank    int   `query:"rank" minimum:"0" doc:"with several machines: of that one"`
	From    int64 `query:"from" minimum:"0" doc:"offset in bytes"`
	Follow  bool  `query:"follow" doc:"go on until the attempt has ended"`
}

func (s *Server) registerStreams() {
	huma.Register(s.api, operation("list-events", http.MethodGet, "/api/v1/events", "List events", View, "live"), s.listEvents)
	op := operation("watch-events", http.MethodGet, "/api/v1/events/watch", "Follow events as server-sent events", View, "live")
	op.Responses = map[string]*huma.Response{"200": {Description: "one message for each event", Content: map[string]*huma.MediaType{"text/event-stream": {}}}}
	huma.Register(s.api, op, s.watchEvents)
	op = operation("read-log", http.MethodGet, "/api/v1/jobs/{id}/tasks/{index}/log", "Read or follow a task's log", View, "live")
	op.Responses = map[string]*huma.Response{"200": {Description: "the log as it was written", Content: map[string]*huma.MediaType{"text/plain": {}}}}
	huma.Register(s.api, op, s.readLog)
}

// sees reports whether the caller may see an event. Those of no project are for
// who sees all projects.
func sees(ctx context.Context, e *queue.Event) bool {
	who := callerOf(ctx)
	if e.Project == "" {
		return len(who.Projects) == 0
	}
	return who.may(e.Project)
}

func (s *Server) listEvents(ctx context.Context, in *eventsInput) (*eventsOutput, error) {
	read := func(after int64, limit int) ([]*queue.Event, error) {
		return s.broker.Events(ctx, queue.EventQuery{After: after, Limit: limit, Job: in.Job, Project: in.Project, Last: in.Last})
	}
	var rows []*queue.Event
	var next int64
	var err error
	if in.Last {
		if rows, err = read(0, 1000); err == nil {
			rows = slices.DeleteFunc(rows, func(e *queue.Event) bool { return !sees(ctx, e) })
			rows = rows[max(0, len(rows)-max(in.Limit, 1)):]
		}
	} else {
		rows, next, err = page(in.After, in.Limit, read,
			func(e *queue.Event) int64 { return e.Seq }, func(e *queue.Event) bool { return sees(ctx, e) })
	}
	if err != nil {
		return nil, s.failure(ctx, err)
	}
	out := &eventsOutput{}
	out.Body.Events, out.Body.Next = []Event{}, next
	names := namer{server: s}
	for _, e := range rows {
		out.Body.Events = append(out.Body.Events, names.show(ctx, e))
	}
	return out, nil
}

// keepAlive is how often a quiet stream says that it lives.
const keepAlive = 15 * time.Second

func (s *Server) watchEvents(ctx context.Context, in *watchInput) (*huma.StreamResponse, error) {
	after := max(in.After, in.LastID)
	if after == 0 {
		last, err := s.broker.Events(ctx, queue.EventQuery{Last: true, Limit: 1})
		if err != nil {
			return nil, s.failure(ctx, err)
		}
		if len(last) > 0 {
			after = last[0].Seq
		}
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		ctx := hc.Context()
		hc.SetHeader("Content-Type", "text/event-stream")
		hc.SetHeader("Cache-Control", "no-store")
		w := hc.BodyWriter()
		flush := func() {
			if f, ok := w.(http.Flusher); ok {
				f.Flush()
			}
		}
		flush()
		for ctx.Err() == nil {
			changed := s.broker.Watch()
			list, err := s.broker.Events(ctx, queue.EventQuery{After: after, Limit: 500, Job: in.Job, Project: in.Project})
			if err != nil {
				return
			}
			names := namer{server: s}
			for _, e := range list {
				if !sees(ctx, e) {
					continue
				}
				data, err := json.Marshal(names.show(ctx, e))
				if err != nil {
					s.log.Error("event not written", "error", err)
					return
				}
				if _, err := fmt.Fprintf(w, "id: %d\nevent: %s\ndata: %s\n\n", e.Seq, e.Kind, data); err != nil {
					return
				}
			}
			if n := len(list); n > 0 {
				after = list[n-1].Seq
				flush()
				continue
			}
			select {
			case <-ctx.Done():
			case <-changed:
			case <-time.After(keepAlive):
				if _, err := fmt.Fprint(w, ": alive\n\n"); err != nil {
					return
				}
				flush()
			}
		}
	}}, nil
}

func (s *Server) readLog(ctx context.Context, in *logsInput) (*huma.StreamResponse, error) {
	if _, err := s.visible(ctx, in.ID); err != nil {
		return nil, err
	}
	a, err := s.attempt(ctx, in)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		hc.SetHeader("Content-Type", "text/plain; charset=utf-8")
		hc.SetHeader("X-Content-Type-Options", "nosniff")
		w := hc.BodyWriter()
		flush := func() {
			if f, ok := w.(http.Flusher); ok && in.Follow {
				f.Flush()
			}
		}
		flush() // who follows learns at once that there is a log
		begun := in.Follow
		err := s.broker.Logs(hc.Context(), a, in.From, in.Follow, func(data []byte) error {
			begun = true
			_, err := w.Write(data)
			flush()
			return err
		})
		switch {
		case err == nil || hc.Context().Err() != nil:
		case !begun:
			s.refuse(hc, http.StatusServiceUnavailable, "the log cannot be read now: "+err.Error())
		default:
			s.log.Warn("log not sent whole", "attempt", a.ID, "error", err)
			panic(http.ErrAbortHandler) // so that the reader sees that the rest is missing
		}
	}}, nil
}

// attempt returns the attempt that a log is wanted of.
func (s *Server) attempt(ctx context.Context, in *logsInput) (*queue.Attempt, error) {
	var found *queue.Attempt
	q := queue.AttemptQuery{Page: queue.Page{Limit: 1000}, Job: in.ID, Index: &in.Index}
	number, nodes := 0, 0
	for {
		rows, err := s.broker.State().Store().Attempts(ctx, q)
		if err != nil {
			return nil, s.failure(ctx, err)
		}
		for _, a := range rows {
			number = max(number, a.Number)
			rank := 0
			if a.Member != nil {
				rank, nodes = a.Member.Rank, a.Member.Nodes
			}
			if (in.Attempt == 0 || a.Number == in.Attempt) && rank == in.Rank && (found == nil || a.Number > found.Number) {
				found = a
			}
		}
		if len(rows) < q.Limit {
			break
		}
		q.After = rows[len(rows)-1].ID
	}
	switch {
	case found != nil:
		return found, nil
	case in.Rank >= max(1, nodes) && number > 0:
		return nil, huma.Error404NotFound(fmt.Sprintf("task %d of job %s runs on machines of rank 0 to %d", in.Index, in.ID, max(1, nodes)-1))
	case number > 0:
		return nil, huma.Error404NotFound(fmt.Sprintf("task %d of job %s has attempts 1 to %d", in.Index, in.ID, number))
	}
	return nil, huma.Error404NotFound(fmt.Sprintf("task %d of job %s has not been placed yet", in.Index, in.ID))
}
