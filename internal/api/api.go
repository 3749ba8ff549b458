// Package api serves the broker over HTTP: JSON for people's tools, with an
// OpenAPI 3.1 document made from the same structs, the agents' two calls, and
// signed objects of folder stores.
//
// Every call but health, version and the agents' own needs a token. A token has
// a role and may be bound to projects; what it may not see does not exist for it.
package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"gpubroker/internal/control"
	"gpubroker/internal/money"
	"gpubroker/internal/spec"
	"gpubroker/queue"
)

// Options are what a server needs beside its broker.
type Options struct {
	Version string
	// Currency is the ledger's; "" means USD.
	Currency money.Currency
	// Objects serves signed URLs of folder stores under their own path; nil when
	// there is none.
	Objects http.Handler
	// ObjectsPath is the prefix that Objects serves.
	ObjectsPath string
	// Metrics serves /metrics; nil when there is none.
	Metrics http.Handler
	// Agents returns the path of the agent program for an architecture.
	Agents func(arch string) (path string, ok bool)
	// Source lists and reads inputs when a job is expanded.
	Source spec.Source
	// MaxWorkdir is the largest work folder that may be uploaded, in bytes.
	MaxWorkdir int64
	// TempDir is where uploads are kept until they are whole; "" is the system's.
	TempDir string
	Log     *slog.Logger
}

// Server answers calls.
type Server struct {
	broker *control.Broker
	opts   Options
	log    *slog.Logger
	mux    *http.ServeMux
	api    huma.API
}

// New makes a server over a broker. A nil broker serves to draw the document.
func New(b *control.Broker, opts Options) *Server {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	opts.Currency = cmp.Or(opts.Currency, money.USD)
	s := &Server{broker: b, opts: opts, log: opts.Log, mux: http.NewServeMux()}
	config := huma.DefaultConfig("gpubroker", "1")
	config.Info.Description = "Submit jobs, follow them, and see what they cost. Amounts are decimal strings in the ledger's currency, which stands beside them, times are UTC, durations are nanoseconds unless their name says otherwise."
	config.DocsPath = "" // its page would load a script from another site
	config.SchemasPath = ""
	config.CreateHooks = nil // no $schema links in answers
	describe(config.Components.Schemas)
	config.Components.SecuritySchemes = map[string]*huma.SecurityScheme{"token": {Type: "http", Scheme: "bearer"}}
	s.api = humago.New(s.mux, config)
	s.api.UseMiddleware(s.authenticate)
	s.registerJobs()
	s.registerStreams()
	s.registerMarket()
	s.registerMoney()
	s.registerWorkdirs()
	s.registerAdmin()
	s.mux.HandleFunc("/api/", s.unknown)
	s.mux.HandleFunc("POST /agent/v1/join", s.join)
	s.mux.HandleFunc("POST /agent/v1/sync", s.sync)
	s.mux.HandleFunc("GET /agent/program/{arch}", s.program)
	if opts.Objects != nil {
		s.mux.Handle(opts.ObjectsPath, opts.Objects)
	}
	if opts.Metrics != nil {
		s.mux.Handle("GET /metrics", opts.Metrics)
	}
	return s
}

// ServeHTTP answers one call.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// operation describes a call that needs the given role.
func operation(id, method, path, summary string, role Role, tag string) huma.Operation {
	op := huma.Operation{OperationID: id, Method: method, Path: path, Summary: summary, Tags: []string{tag}}
	if role != "" {
		op.Security = []map[string][]string{{"token": {}}}
		op.Metadata = map[string]any{roleKey: role}
	}
	return op
}

// unknown answers calls that there are none of.
func (s *Server) unknown(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(http.StatusNotFound)
	problem := huma.Error404NotFound("there is no call " + r.Method + " " + r.URL.Path + "; /openapi.yaml lists them")
	if err := json.NewEncoder(w).Encode(problem); err != nil {
		s.log.Debug("answer not written", "error", err)
	}
}

// failure turns an error of the broker into an answer.
func (s *Server) failure(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, control.ErrNotFound), errors.Is(err, queue.ErrNotFound):
		return huma.Error404NotFound(text(err, control.ErrNotFound))
	case errors.Is(err, control.ErrConflict):
		return huma.Error409Conflict(text(err, control.ErrConflict))
	case errors.Is(err, control.ErrInvalid):
		return huma.Error422UnprocessableEntity(text(err, control.ErrInvalid))
	case errors.Is(err, queue.ErrFenced):
		return huma.Error503ServiceUnavailable("another broker leads this store now; ask that one")
	case errors.Is(err, queue.ErrFull):
		return huma.NewError(http.StatusInsufficientStorage, "the broker's disk is full: free space and try again; nothing was changed")
	case ctx.Err() != nil:
		return huma.Error503ServiceUnavailable("the broker is stopping or the call was given up; try again")
	default:
		s.log.Error("call failed", "error", err)
		return huma.Error500InternalServerError("the broker could not do it: " + err.Error())
	}
}

// text is an error without the name of its kind in front, which the status says.
func text(err, kind error) string { return strings.TrimPrefix(err.Error(), kind.Error()+": ") }

// notFound is the answer for a job that is not there, or that the caller may not
// see: the two cannot be told apart.
func notFound(id string) error { return huma.Error404NotFound("there is no job " + id) }
