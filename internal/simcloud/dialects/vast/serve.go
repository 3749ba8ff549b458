package vast

import (
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

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
)

// server is the API of one world, with what Vast keeps beside machines.
type server struct {
	w    *simcloud.World
	keys keyring

	mu        sync.Mutex
	contracts map[int]*contract
	lost      int // contracts that never were machines
}

func serve(w *simcloud.World, keys keyring) http.Handler {
	s := &server{w: w, keys: keys, contracts: map[int]*contract{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/v0/bundles/", s.search)
	for pattern, handle := range map[string]http.HandlerFunc{
		"PUT /api/v0/asks/{id}/":         s.create,
		"GET /api/v1/instances/":         s.list,
		"GET /api/v0/instances/{id}/":    s.get,
		"DELETE /api/v0/instances/{id}/": s.destroy,
		"GET /api/v0/users/current/":     s.user,
	} {
		mux.HandleFunc(pattern, s.guard(handle))
	}
	mux.HandleFunc("/", func(rw http.ResponseWriter, _ *http.Request) {
		rw.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(rw, "Not Found")
	})
	return mux
}

// maxBody is the longest request body in bytes.
const maxBody = 1 << 20

// guard lets in who has the account's key, or that of the instance in the path.
func (s *server) guard(next http.HandlerFunc) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		given, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		token := s.w.Config().Tokens.API
		own := false
		if id, err := strconv.Atoi(r.PathValue("id")); err == nil && strings.HasPrefix(r.URL.Path, "/api/v0/instances/") {
			own = same(given, s.keys.of(id))
		}
		if token != "" && !same(given, token) && !own {
			words(rw, &simapi.Error{Code: simapi.CodeUnauthorized, Message: "Invalid user key"})
			return
		}
		r.Body = http.MaxBytesReader(rw, r.Body, maxBody)
		next(rw, r)
	}
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// call makes a call that answers JSON.
func (s *server) call(rw http.ResponseWriter, r *http.Request, c simcloud.Call, effect func(age time.Duration, dud bool) (any, error)) {
	s.w.Answer(rw, r, c, words, func(age time.Duration, dud bool) (simcloud.Reply, error) {
		v, err := effect(age, dud)
		if err != nil {
			return simcloud.Reply{}, err
		}
		data, err := json.Marshal(v)
		return simcloud.Reply{Type: "application/json", Body: data}, err
	})
}

func decode(r *http.Request, v any) error {
	if err := json.NewDecoder(r.Body).Decode(v); err != nil {
		return invalid("the body is not valid JSON")
	}
	return nil
}

func invalid(format string, args ...any) *simapi.Error {
	return &simapi.Error{Code: simapi.CodeInvalid, Message: fmt.Sprintf(format, args...)}
}

// number is money as a JSON number.
func number(r money.Rate) json.Number { return json.Number(r.String()) }

// wording is how Vast says something. An empty code is plain text.
type wording struct {
	status     int
	code, text string // an empty text keeps the world's own
}

// said are Vast's words for what a world says.
var said = map[string]wording{
	simapi.CodeCapacity:     {http.StatusGone, "no_such_ask", "error 410/3907: no_such_ask Instance type is no longer available."},
	simapi.CodeQuota:        {http.StatusBadRequest, "instance_limit", ""},
	simapi.CodePrice:        {http.StatusBadRequest, "invalid_price", ""},
	simapi.CodeThrottled:    {http.StatusTooManyRequests, "", "API requests too frequent: endpoint threshold=4.5"},
	simapi.CodeUnauthorized: {http.StatusUnauthorized, "auth_error", "Invalid user key"},
	simapi.CodeNoFunds:      {http.StatusBadRequest, "insufficient_credit", "Your account lacks credit; see the billing page."},
	simapi.CodeInvalid:      {http.StatusBadRequest, "invalid_args", ""},
	simapi.CodeNoOffer:      {http.StatusNotFound, "invalid_args", "error 404/3603: no_such_ask Instance type is not available."},
	simapi.CodeNotFound:     {http.StatusNotFound, "no_such_instance", "No such instance."},
	simapi.CodeMismatch:     {http.StatusBadRequest, "invalid_args", ""},
	simapi.CodeRefused:      {http.StatusConflict, "busy", "The instance is busy."},
	simapi.CodeUnavailable:  {http.StatusServiceUnavailable, "", "upstream connect error"},
	simapi.CodeInternal:     {http.StatusInternalServerError, "internal_error", "Something went wrong."},
}

// words writes a failure as Vast does: {success, error, msg}, or plain text.
func words(rw http.ResponseWriter, err error) {
	e, ok := errors.AsType[*simapi.Error](err)
	if !ok {
		e = &simapi.Error{Code: simapi.CodeInternal, Message: err.Error()}
	}
	w, ok := said[e.Code]
	if !ok {
		w = said[simapi.CodeInternal]
	}
	if w.text == "" {
		w.text = e.Message
	}
	if e.Status == http.StatusOK {
		w.status = http.StatusOK // the fault that hides an error in a success
	}
	if e.RetryAfter > 0 {
		rw.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds()))))
	}
	if w.code == "" {
		rw.Header().Set("Content-Type", "text/plain")
		rw.WriteHeader(w.status)
		_, _ = io.WriteString(rw, w.text)
		return
	}
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(w.status)
	_ = json.NewEncoder(rw).Encode(map[string]any{"success": false, "error": w.code, "msg": w.text}) // the caller has gone
}

// funds are what the account was filled with, in dollars.
const funds = 1000 * money.Unit

func (s *server) user(rw http.ResponseWriter, r *http.Request) {
	s.call(rw, r, simcloud.Call{Op: "about"}, func(time.Duration, bool) (any, error) {
		left := funds - s.w.Invoice().Total
		return map[string]any{"id": 1, "email": "ops@example.org", "username": "ops", "balance": 0, "credit": json.Number(left.String())}, nil
	})
}
