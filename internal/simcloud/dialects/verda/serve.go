package verda

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
)

// tokenLife is for how long an access token is good.
const tokenLife = time.Hour

// server is the API of one world, with what Verda keeps beside machines.
type server struct {
	w *simcloud.World

	mu        sync.Mutex
	tokens    map[string]time.Time // access tokens and their ends
	instances map[string]*instance // by the world's id
	scripts   map[string]*script
	volumes   map[string]*volume
	seq       int
}

func (s *server) api(w *simcloud.World) http.Handler {
	s.w = w
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/oauth2/token", s.token)
	for pattern, handle := range map[string]http.HandlerFunc{
		"GET /v1/balance":               s.balance,
		"GET /v1/locations":             s.locations,
		"GET /v1/images":                s.images,
		"GET /v1/ssh-keys":              s.sshKeys,
		"GET /v1/instance-types":        s.instanceTypes,
		"GET /v1/instance-availability": s.availability,
		"GET /v1/volume-types":          s.volumeTypes,
		"GET /v1/instances":             s.list,
		"GET /v1/instances/{id}":        s.get,
		"POST /v1/instances":            s.create,
		"PUT /v1/instances":             s.action,
		"POST /v1/instances/{id}/tags":  s.addTag,
		"GET /v1/volumes":               s.listVolumes,
		"GET /v1/volumes/{id}":          s.getVolume,
		"PUT /v1/volumes":               s.volumeAction,
		"DELETE /v1/volumes/{id}":       s.deleteVolume,
		"GET /v1/scripts":               s.listScripts,
		"POST /v1/scripts":              s.addScript,
		"DELETE /v1/scripts/{id}":       s.deleteScript,
	} {
		mux.HandleFunc(pattern, s.guard(handle))
	}
	mux.HandleFunc("/", func(rw http.ResponseWriter, _ *http.Request) {
		words(rw, &simapi.Error{Status: http.StatusNotFound, Code: simapi.CodeNotFound, Message: "Cannot find this path"})
	})
	return mux
}

// maxBody is the longest request body in bytes.
const maxBody = 1 << 20

func (s *server) guard(next http.HandlerFunc) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		given, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		s.mu.Lock()
		end, ok := s.tokens[given]
		s.mu.Unlock()
		if !ok || !time.Now().Before(end) {
			words(rw, &simapi.Error{Status: http.StatusUnauthorized, Code: simapi.CodeUnauthorized, Message: "Access token is missing or invalid"})
			return
		}
		r.Body = http.MaxBytesReader(rw, r.Body, maxBody)
		next(rw, r)
	}
}

// token is the OAuth 2.0 client credentials grant.
func (s *server) token(rw http.ResponseWriter, r *http.Request) {
	var in struct {
		Grant  string `json:"grant_type"`
		ID     string `json:"client_id"`
		Secret string `json:"client_secret"`
	}
	if err := json.NewDecoder(io.LimitReader(r.Body, maxBody)).Decode(&in); err != nil || in.Grant != "client_credentials" {
		words(rw, invalid("unsupported grant type"))
		return
	}
	want := s.w.Config().Tokens.API
	if in.ID == "" || want != "" && subtle.ConstantTimeCompare([]byte(in.Secret), []byte(want)) != 1 {
		words(rw, &simapi.Error{Status: http.StatusUnauthorized, Code: simapi.CodeUnauthorized, Message: "Invalid client id or client secret"})
		return
	}
	token, now := rand.Text(), time.Now()
	s.mu.Lock()
	for t, end := range s.tokens {
		if !now.Before(end) {
			delete(s.tokens, t)
		}
	}
	s.tokens[token] = now.Add(tokenLife)
	s.mu.Unlock()
	answer(rw, http.StatusOK, map[string]any{
		"access_token": token, "refresh_token": rand.Text(), "token_type": "Bearer", "expires_in": int(tokenLife.Seconds()), "scope": "cloud-api-v1",
	})
}

// read makes a call that answers JSON.
func (s *server) read(rw http.ResponseWriter, r *http.Request, c simcloud.Call, effect func(age time.Duration) (any, error)) {
	s.w.Answer(rw, r, c, words, func(age time.Duration, _ bool) (simcloud.Reply, error) {
		v, err := effect(age)
		if err != nil {
			return simcloud.Reply{}, err
		}
		data, err := json.Marshal(v)
		return simcloud.Reply{Type: "application/json", Body: data}, err
	})
}

// opSide names calls about what stands beside machines: no fault of
// [simapi.Ops] is about them.
const opSide = "side"

// change makes a call about what stands beside machines.
func (s *server) change(rw http.ResponseWriter, r *http.Request, effect func() (simcloud.Reply, error)) {
	s.w.Answer(rw, r, simcloud.Call{Op: opSide}, words, func(time.Duration, bool) (simcloud.Reply, error) { return effect() })
}

func answer(rw http.ResponseWriter, status int, v any) {
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(status)
	_ = json.NewEncoder(rw).Encode(v) // the caller has gone; nothing to do about it
}

func decode(r *http.Request, v any) error {
	if err := json.NewDecoder(r.Body).Decode(v); err != nil {
		return invalid("the body is not valid JSON")
	}
	return nil
}

func invalid(format string, args ...any) *simapi.Error {
	return &simapi.Error{Status: http.StatusBadRequest, Code: simapi.CodeInvalid, Message: fmt.Sprintf(format, args...)}
}

func notFound(what string) *simapi.Error {
	return &simapi.Error{Status: http.StatusNotFound, Code: simapi.CodeNotFound, Message: "Invalid " + what + " id"}
}

func forbidden(text string) *simapi.Error {
	return &simapi.Error{Status: http.StatusForbidden, Code: simapi.CodeRefused, Message: text}
}

// wording is how Verda says something.
type wording struct {
	status int
	code   string
	text   string // "" keeps the world's own
}

// said are Verda's words for what a world says: its published list of errors.
var said = map[string]wording{
	simapi.CodeCapacity:     {http.StatusServiceUnavailable, "service_unavailable", "Not enough resources at the moment, try again later"},
	simapi.CodeQuota:        {http.StatusForbidden, "forbidden_action", ""},
	simapi.CodePrice:        {http.StatusBadRequest, "invalid_request", ""},
	simapi.CodeThrottled:    {http.StatusTooManyRequests, "too_many_requests", ""},
	simapi.CodeUnauthorized: {http.StatusUnauthorized, "unauthorized_request", ""},
	simapi.CodeNoFunds:      {http.StatusPaymentRequired, "insufficient_funds", "Not enough funds to perform the action"},
	simapi.CodeInvalid:      {http.StatusBadRequest, "invalid_request", ""},
	simapi.CodeNoOffer:      {http.StatusBadRequest, "invalid_request", "Invalid instance type"},
	simapi.CodeNotFound:     {http.StatusNotFound, "not_found", ""},
	simapi.CodeMismatch:     {http.StatusBadRequest, "invalid_request", ""},
	simapi.CodeRefused:      {http.StatusForbidden, "forbidden_action", ""},
	simapi.CodeEndFixed:     {http.StatusForbidden, "forbidden_action", ""},
	simapi.CodeInternal:     {http.StatusInternalServerError, "server_error", "Internal server error"},
}

// words writes a failure as Verda does: {code, message}. What the API itself does
// not answer, since it is down, its load balancer says in HTML.
func words(rw http.ResponseWriter, err error) {
	e, ok := errors.AsType[*simapi.Error](err)
	if !ok {
		e = &simapi.Error{Code: simapi.CodeInternal, Message: err.Error()}
	}
	if e.RetryAfter > 0 {
		rw.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds()))))
	}
	w, ok := said[e.Code]
	if !ok {
		rw.Header().Set("Content-Type", "text/html")
		rw.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(rw, "<html><h1>503 Service Temporarily Unavailable</h1></html>")
		return
	}
	if e.Status == http.StatusOK {
		w.status = http.StatusOK // the fault that hides an error in a success
	}
	if w.text == "" {
		w.text = e.Message
	}
	answer(rw, w.status, map[string]string{"code": w.code, "message": w.text})
}
