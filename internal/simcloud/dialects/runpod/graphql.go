package runpod

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

type query struct {
	Query     string                     `json:"query"`
	Variables map[string]json.RawMessage `json:"variables"`
}

// variable reads a variable of a query; false when it is absent or of another form.
func (q query) variable(name string, into any) bool {
	return q.Variables[name] != nil && json.Unmarshal(q.Variables[name], into) == nil
}

// graphWords says a failure as the GraphQL API does: with status 200, but for the
// key, the pace and its own faults.
func graphWords(rw http.ResponseWriter, err error) {
	e, ok := errors.AsType[*simapi.Error](err)
	if !ok {
		e = &simapi.Error{Code: simapi.CodeInternal, Message: err.Error()}
	}
	retryAfter(rw, e)
	status, code, message := http.StatusOK, "INTERNAL_SERVER_ERROR", e.Message
	switch e.Code {
	case simapi.CodeCapacity, simapi.CodeNoOffer:
		message = noInstances
	case simapi.CodeQuota:
		message = spendLimit
	case simapi.CodePrice:
		message = lowBid
	case simapi.CodeNoFunds:
		message = noBalance
	case simapi.CodeThrottled:
		status, code, message = http.StatusTooManyRequests, "RATE_LIMITED", "Too many requests"
	case simapi.CodeUnauthorized:
		status, code, message = http.StatusUnauthorized, "UNAUTHENTICATED", "Unauthorized"
	case simapi.CodeInvalid, simapi.CodeMismatch, simapi.CodeEndFixed:
		code = "BAD_USER_INPUT"
	case simapi.CodeNotFound:
		code, message = "POD_NOT_FOUND", "pod not found"
	case simapi.CodeUnavailable:
		status, message = http.StatusServiceUnavailable, "service unavailable"
	default:
		message = "Something went wrong. Please try again later or contact support."
	}
	body := map[string]any{"errors": []any{map[string]any{"message": message, "extensions": map[string]any{"code": code}}}, "data": nil}
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(status)
	_ = json.NewEncoder(rw).Encode(body) // the caller has gone
}

func (s *server) graphAnswer(rw http.ResponseWriter, r *http.Request, c simcloud.Call, effect func(age time.Duration, dud bool) (any, error)) {
	s.w.Answer(rw, r, c, graphWords, func(age time.Duration, dud bool) (simcloud.Reply, error) {
		v, err := effect(age, dud)
		if err != nil {
			return simcloud.Reply{}, err
		}
		data, err := json.Marshal(map[string]any{"data": v})
		return simcloud.Reply{Type: "application/json", Body: data}, err
	})
}

var podID = regexp.MustCompile(`podId: "([^"]+)"`)

// graphql tells the operations apart by their field; it is no parser of the
// language.
func (s *server) graphql(rw http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(rw, r.Body, maxBody)
	var q query
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		graphWords(rw, &simapi.Error{Code: simapi.CodeInvalid, Message: err.Error()})
		return
	}
	has := func(field string) bool { return strings.Contains(q.Query, field) }
	given, all := bearer(r), s.cfg.Tokens.API
	if has("podTerminate") {
		id := ""
		if m := podID.FindStringSubmatch(q.Query); m != nil {
			id = m[1]
		}
		if all != "" && given != all && given != s.podKey(id) {
			graphWords(rw, &simapi.Error{Code: simapi.CodeUnauthorized})
			return
		}
		world := WorldID(s.cfg.Seed, id)
		s.graphAnswer(rw, r, simcloud.Call{Op: "terminate", Machine: world}, func(time.Duration, bool) (any, error) {
			return map[string]any{"podTerminate": nil}, s.end(world)
		})
		return
	}
	if all != "" && given != all {
		graphWords(rw, &simapi.Error{Code: simapi.CodeUnauthorized})
		return
	}
	switch {
	case has("podRentInterruptable"):
		s.rentSpot(rw, r, q)
	case has("gpuTypes"):
		s.prices(rw, r, q)
	case has("clientBalance"):
		s.graphAnswer(rw, r, simcloud.Call{Op: "about"}, func(time.Duration, bool) (any, error) {
			left := 100*money.Unit - s.w.Invoice().Total
			return map[string]any{"myself": map[string]any{"clientBalance": json.Number(left.String())}}, nil
		})
	case has("lastStatusChange"):
		s.changes(rw, r)
	default:
		graphWords(rw, &simapi.Error{Code: simapi.CodeInvalid, Message: "this fake does not know the query"})
	}
}

var lowest = regexp.MustCompile(`(?:(\w+): )?lowestPrice\(input: \{([^}]*)\}\)`)

// prices answers gpuTypes with every lowestPrice that is asked for.
func (s *server) prices(rw http.ResponseWriter, r *http.Request, q query) {
	s.graphAnswer(rw, r, simcloud.Call{Op: "offers"}, func(age time.Duration, _ bool) (any, error) {
		var only string
		narrowed := q.variable("id", &only)
		out := []map[string]any{}
		offers := s.w.Offers("", age)
		for _, g := range s.gpuTypes(age, "", 0) {
			if narrowed && g.ID != only {
				continue
			}
			t := map[string]any{"id": g.ID, "displayName": g.Name, "memoryInGb": g.Memory}
			for _, m := range lowest.FindAllStringSubmatch(q.Query, -1) {
				alias, in := m[1], arguments(m[2])
				if alias == "" {
					alias = "lowestPrice"
				}
				t[alias] = lowestPrice(offers, g.ID, in)
			}
			out = append(out, t)
		}
		return map[string]any{"gpuTypes": out}, nil
	})
}

// arguments reads "a: 1, b: \"x\"".
func arguments(text string) map[string]string {
	out := map[string]string{}
	for part := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(part, ":")
		out[strings.TrimSpace(key)] = strings.Trim(strings.TrimSpace(value), `"`)
	}
	return out
}

func lowestPrice(offers []simapi.Offer, id string, in map[string]string) map[string]any {
	count, err := strconv.Atoi(in["gpuCount"])
	if err != nil {
		count = 1
	}
	zone := "community"
	if in["secureCloud"] == "true" {
		zone = "secure"
	}
	var best *simapi.Offer
	for _, o := range offers {
		n, own, _ := parse(o.Type)
		if o.Kind == providers.Spot && own == id && n == count && o.Zone == zone && o.Available != providers.Full &&
			(in["dataCenterId"] == "" || in["dataCenterId"] == o.Region) && (best == nil || o.Price < best.Price) {
			best = &o
		}
	}
	if best == nil {
		return map[string]any{"minimumBidPrice": nil, "stockStatus": nil}
	}
	at := levelOf(*best)
	return map[string]any{"minimumBidPrice": unitPrice(*best), "stockStatus": at[:1] + strings.ToLower(at[1:])}
}

func (s *server) rentSpot(rw http.ResponseWriter, r *http.Request, q query) {
	var in struct {
		Name       string      `json:"name"`
		Image      string      `json:"imageName"`
		GPU        string      `json:"gpuTypeId"`
		Count      int         `json:"gpuCount"`
		Bid        json.Number `json:"bidPerGpu"`
		Cloud      string      `json:"cloudType"`
		Disk       int64       `json:"containerDiskInGb"`
		Args       string      `json:"dockerArgs"`
		DataCenter string      `json:"dataCenterId"`
		Registry   string      `json:"containerRegistryAuthId"`
		Env        []struct {
			Key   string `json:"key"`
			Value string `json:"value"`
		} `json:"env"`
	}
	bid, err := money.Rate(0), error(nil)
	if q.variable("input", &in) {
		bid, err = money.RateOf(string(in.Bid))
	}
	if in.Name == "" || in.Image == "" || in.Count < 1 || err != nil || bid <= 0 {
		graphWords(rw, &simapi.Error{Code: simapi.CodeInvalid, Message: "input"})
		return
	}
	p := simapi.Place{Region: in.DataCenter, Zone: strings.ToLower(in.Cloud), Type: gpuName(in.Count, in.GPU), Kind: providers.Spot}
	own := &spec{Name: in.Name, Image: in.Image, Args: in.Args, Disk: in.Disk, Registry: in.Registry, Env: map[string]string{}}
	for _, e := range in.Env {
		own.Env[e.Key] = e.Value
	}
	s.graphAnswer(rw, r, simcloud.Call{Op: "launch", Place: p}, func(_ time.Duration, dud bool) (any, error) {
		var centers []string
		if in.DataCenter != "" {
			centers = []string{in.DataCenter}
		}
		m, err := s.rent(s.place(p, centers), own, bid*money.Rate(in.Count)+diskRate*diskGB, dud)
		if err != nil {
			return nil, err
		}
		return map[string]any{"podRentInterruptable": map[string]any{
			"id": ID(s.cfg.Seed, m.ID), "desiredStatus": "RUNNING", "costPerHr": json.Number(m.Price.String()),
		}}, nil
	})
}

// rent makes the machine of a pod.
func (s *server) rent(p simapi.Place, own *spec, most money.Rate, dud bool) (simapi.Machine, error) {
	s.mu.Lock()
	s.calls++
	name := fmt.Sprintf("runpod-%d", s.calls)
	s.mu.Unlock()
	m, err := s.w.LaunchAs(simapi.Launch{
		Place: p, Request: name, PriceMax: most, Tags: own.Env,
		// The image's entrypoint is a shell that runs the arguments.
		UserData: "#!/bin/sh\n" + own.Args + "\n",
	}, dud)
	if err != nil {
		return m, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods[m.ID] = own
	return m, nil
}

// changes answers myself.pods with what happened to each last.
func (s *server) changes(rw http.ResponseWriter, r *http.Request) {
	s.graphAnswer(rw, r, simcloud.Call{Op: "events"}, func(time.Duration, bool) (any, error) {
		out := []map[string]any{}
		for _, m := range s.w.Truth() {
			p := s.pod(m)
			words, at := "Rented by User", m.Launched
			switch {
			case s.isDeleted(m.ID) || p.Status == "TERMINATED":
				continue
			case p.Status == "EXITED":
				words, at = "Outbid", m.Ended
			}
			desired := p.Status
			if desired == "PROVISIONING" {
				desired = "RUNNING"
			}
			out = append(out, map[string]any{
				"id": p.ID, "name": p.Name, "desiredStatus": desired,
				"lastStatusChange": words + ": " + at.Format("Mon Jan 02 2006 15:04:05 GMT-0700 (Coordinated Universal Time)"),
			})
		}
		return map[string]any{"myself": map[string]any{"pods": out}}, nil
	})
}
