package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strings"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/control"
)

func (s *Server) join(w http.ResponseWriter, r *http.Request) {
	var req agentapi.JoinRequest
	if !s.read(w, r, &req) {
		return
	}
	res, err := s.broker.Join(r.Context(), req)
	s.answer(w, r, res, err)
}

func (s *Server) sync(w http.ResponseWriter, r *http.Request) {
	var obs agentapi.Observed
	if !s.read(w, r, &obs) {
		return
	}
	credential := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	res, err := s.broker.Sync(r.Context(), credential, obs)
	s.answer(w, r, res, err)
}

func (s *Server) read(w http.ResponseWriter, r *http.Request, v any) bool {
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, agentapi.MaxBody)).Decode(v)
	if err != nil {
		s.problem(w, http.StatusBadRequest, agentapi.Problem{Code: "invalid", Message: "the body is not understood: " + err.Error()})
	}
	return err == nil
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request, v any, err error) {
	if p, ok := errors.AsType[*control.Problem](err); ok {
		s.problem(w, p.Status, p.Problem)
		return
	}
	if err != nil {
		if r.Context().Err() == nil {
			s.log.Error("agent call failed", "path", r.URL.Path, "error", err)
		}
		s.problem(w, http.StatusServiceUnavailable, agentapi.Problem{Code: agentapi.Busy, Message: "the broker cannot answer now; ask again"})
		return
	}
	s.write(w, http.StatusOK, v)
}

func (s *Server) problem(w http.ResponseWriter, status int, p agentapi.Problem) {
	s.write(w, status, p)
}

func (s *Server) write(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		s.log.Debug("answer not written", "error", err)
	}
}

// program serves the agent for an architecture. It is public: its digest is in
// each machine's user data.
func (s *Server) program(w http.ResponseWriter, r *http.Request) {
	path, ok := "", false
	if s.opts.Agents != nil {
		path, ok = s.opts.Agents(r.PathValue("arch"))
	}
	f, err := os.Open(path)
	if !ok || err != nil {
		http.Error(w, "this broker has no agent for "+r.PathValue("arch"), http.StatusNotFound)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		http.Error(w, "the agent cannot be read", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", info.ModTime(), f)
}
