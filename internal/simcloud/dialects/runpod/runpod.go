// Package runpod makes a simcloud world speak RunPod's API: REST, version 2
// (pods, catalog), and of GraphQL what REST does not have: spot pods, their prices,
// why a pod stopped, the balance, and the end that a pod makes itself.
//
// Point a client's REST base at http://ADDRESS/v2 and its GraphQL endpoint at
// http://ADDRESS/graphql. The key is the world's token as a bearer; an empty token
// lets everybody in. Each pod is given a key of its own, which GraphQL lets do one
// thing, to terminate that pod, and REST nothing, as users have met it.
//
// A pod that was outbid stays in the list as EXITED, at no cost, until it is
// deleted. A list comes in pages of the world's page size.
//
// What the cloud has and this leaves out: volumes, templates, serverless,
// clusters, stop and start.
package runpod

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// Dialect is the dialect, for one world.
func Dialect() *simcloud.Dialect {
	s := &server{pods: map[string]*spec{}}
	return &simcloud.Dialect{
		Name: "runpod",
		API:  s.bind,
		// Pods have no metadata service: this is RunPod itself, as a pod reaches it.
		Metadata: func(*simcloud.World, string) http.Handler { return s.handler },
		Env: func(m simapi.Machine) []string {
			id := ID(s.cfg.Seed, m.ID)
			return []string{"RUNPOD_POD_ID=" + id, "RUNPOD_API_KEY=" + s.podKey(id), "RUNPOD_DC_ID=" + m.Region}
		},
	}
}

// ID is what the API calls a machine of a world with a seed: 14 letters and digits.
func ID(seed uint64, world string) string {
	number, ok := strings.CutPrefix(world, "sim-")
	n, err := strconv.ParseUint(number, 10, 32)
	if !ok || err != nil {
		return world
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "runpod/%d/%d", seed, n))
	return hex.EncodeToString(sum[:4]) + fmt.Sprintf("%06d", n)
}

// WorldID is the other way round: "" for an id that the API never gave out.
func WorldID(seed uint64, id string) string {
	if len(id) != 14 {
		return ""
	}
	if world := "sim-" + id[8:]; ID(seed, world) == id {
		return world
	}
	return ""
}

// spec is what the world itself does not keep of a pod.
type spec struct {
	Name     string
	Image    string
	Args     string
	Disk     int64
	Env      map[string]string
	Registry string
	deleted  bool
}

type server struct {
	w       *simcloud.World
	cfg     simcloud.Config
	handler http.Handler

	mu    sync.Mutex
	pods  map[string]*spec // by the world's id
	calls int64
}

// maxBody is a request with the longest start command.
const maxBody = 1 << 20

// bind makes the handler of the world; it is the same one each time.
func (s *server) bind(w *simcloud.World) http.Handler {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handler != nil {
		return s.handler
	}
	s.w, s.cfg = w, w.Config()
	mux := http.NewServeMux()
	on := func(pattern string, f http.HandlerFunc) {
		mux.HandleFunc(pattern, func(rw http.ResponseWriter, r *http.Request) {
			switch given := bearer(r); {
			case s.cfg.Tokens.API == "" || given == s.cfg.Tokens.API:
			case strings.HasPrefix(given, podKeyPrefix):
				problem(rw, http.StatusForbidden, "access denied")
				return
			default:
				words(rw, &simapi.Error{Status: http.StatusUnauthorized, Code: simapi.CodeUnauthorized})
				return
			}
			r.Body = http.MaxBytesReader(rw, r.Body, maxBody)
			rw.Header().Set("RateLimit-Policy", `"minute";q=60;w=60, "hour";q=3000;w=3600, "day";q=50000;w=86400`)
			rw.Header().Set("RateLimit", `"minute";r=59;t=60, "hour";r=2999;t=3600, "day";r=49999;t=86400`)
			f(rw, r)
		})
	}
	on("GET /v2/catalog/gpus", s.gpus)
	on("GET /v2/catalog/gpus/{id}", s.gpu)
	on("GET /v2/catalog/cpus", s.cpus)
	on("GET /v2/catalog/cpus/{id}", s.cpu)
	on("GET /v2/catalog/datacenters", s.dataCenters)
	on("GET /v2/pods", s.list)
	on("POST /v2/pods", s.create)
	on("GET /v2/pods/{id}", s.get)
	on("DELETE /v2/pods/{id}", s.remove)
	mux.HandleFunc("POST /graphql", s.graphql)
	mux.HandleFunc("/", func(rw http.ResponseWriter, _ *http.Request) {
		http.Error(rw, "404 page not found", http.StatusNotFound)
	})
	s.handler = mux
	return mux
}

func bearer(r *http.Request) string {
	given, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return given
}

const podKeyPrefix = "rpa_pod_"

// podKey is the key that a pod is given.
func (s *server) podKey(id string) string {
	sum := sha256.Sum256([]byte(s.cfg.Tokens.API + "/" + id))
	return podKeyPrefix + hex.EncodeToString(sum[:12])
}

// problem writes an error as RFC 9457 has it.
func problem(rw http.ResponseWriter, status int, detail string, more ...string) {
	problemIn(rw, status, status, detail, more...)
}

func problemIn(rw http.ResponseWriter, answer, status int, detail string, more ...string) {
	body := struct {
		Title  string   `json:"title"`
		Status int      `json:"status"`
		Detail string   `json:"detail"`
		Errors []string `json:"errors,omitempty"`
	}{http.StatusText(status), status, detail, more}
	rw.Header().Set("Content-Type", "application/problem+json")
	rw.WriteHeader(answer)
	_ = json.NewEncoder(rw).Encode(body) // the caller has gone
}

// The words of refusals; the first two were recorded by users.
const (
	noInstances = "There are no longer any instances available with the requested specifications. Please refresh and try again."
	noBalance   = "Your account balance is too low to rent a pod"
	spendLimit  = "Your account has reached its spend limit of $80 per hour"
	lowBid      = "Your bid is below the minimum bid price"
)

// words says a failure as the REST API does.
func words(rw http.ResponseWriter, err error) {
	e, ok := errors.AsType[*simapi.Error](err)
	if !ok {
		e = &simapi.Error{Status: http.StatusInternalServerError, Code: simapi.CodeInternal, Message: err.Error()}
	}
	retryAfter(rw, e)
	switch e.Code {
	case simapi.CodeCapacity, simapi.CodeNoOffer:
		problem(rw, http.StatusBadRequest, noInstances)
	case simapi.CodeQuota:
		problem(rw, http.StatusBadRequest, spendLimit)
	case simapi.CodePrice:
		problem(rw, http.StatusBadRequest, lowBid)
	case simapi.CodeNoFunds:
		problem(rw, http.StatusPaymentRequired, noBalance)
	case simapi.CodeThrottled:
		if e.RetryAfter == 0 {
			rw.Header().Set("RateLimit", `"minute";r=0;t=12, "hour";r=2800;t=1812, "day";r=49500;t=45012`)
		}
		problem(rw, http.StatusTooManyRequests, "rate limit exceeded for the minute window")
	case simapi.CodeUnauthorized:
		problem(rw, http.StatusUnauthorized, "missing bearer token")
	case simapi.CodeInvalid, simapi.CodeMismatch, simapi.CodeEndFixed:
		problem(rw, http.StatusUnprocessableEntity, "Request validation failed.", e.Message)
	case simapi.CodeNotFound:
		problem(rw, http.StatusNotFound, "pod not found")
	case simapi.CodeRefused:
		problem(rw, http.StatusConflict, "the pod is busy")
	case simapi.CodeUnavailable:
		problem(rw, http.StatusServiceUnavailable, "service unavailable")
	default:
		problemIn(rw, e.Status, http.StatusInternalServerError, "internal server error")
	}
}

func retryAfter(rw http.ResponseWriter, e *simapi.Error) {
	if e.RetryAfter > 0 {
		rw.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds()))))
	}
}

// answer makes a call with the fault that hits it.
func (s *server) answer(rw http.ResponseWriter, r *http.Request, c simcloud.Call, status int, effect func(age time.Duration, dud bool) (any, error)) {
	s.w.Answer(rw, r, c, words, func(age time.Duration, dud bool) (simcloud.Reply, error) {
		v, err := effect(age, dud)
		if err != nil || v == nil {
			return simcloud.Reply{Status: status}, err
		}
		data, err := json.Marshal(v)
		return simcloud.Reply{Status: status, Type: "application/json", Body: data}, err
	})
}

func invalid(format string, args ...any) *simapi.Error {
	return &simapi.Error{Status: http.StatusUnprocessableEntity, Code: simapi.CodeInvalid, Message: fmt.Sprintf(format, args...)}
}

func notFound() *simapi.Error {
	return &simapi.Error{Status: http.StatusNotFound, Code: simapi.CodeNotFound}
}

// taken reports whether a pod was taken from its owner.
func taken(m simapi.Machine) bool {
	return m.Cause == providers.CausePreempted || m.Cause == providers.CausePrice
}
