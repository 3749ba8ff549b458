package runpod

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// rule is what an answer of the cloud means.
type rule struct {
	code    providers.Code
	scope   providers.ErrScope
	outcome providers.Outcome // of a launch
}

// byWords is what RunPod says in words alone: "capacity exhaustion currently
// carries no machine-readable code of its own" (OpenAPI document 2.0.0, createPod).
// A phrase is looked for in lower case; the first that is found counts.
var byWords = []struct {
	phrase string
	rule
}{
	{"no longer any instances available", rule{providers.NoCapacity, providers.ScopeOffer, providers.NotCreated}},
	{"does not have the resources to deploy your pod", rule{providers.NoCapacity, providers.ScopeOffer, providers.NotCreated}},
	{"balance is too low", rule{providers.NoFunds, providers.ScopeProvider, providers.NotCreated}},
	{"insufficient balance", rule{providers.NoFunds, providers.ScopeProvider, providers.NotCreated}},
	// "accounts have a spend limit of $80 per hour" (docs.runpod.io/pods/pricing);
	// how a refusal reads is not documented.
	{"spend limit", rule{providers.QuotaExceeded, providers.ScopeProvider, providers.NotCreated}},
	{"spending limit", rule{providers.QuotaExceeded, providers.ScopeProvider, providers.NotCreated}},
	{"minimum bid", rule{providers.PriceTooLow, providers.ScopeOffer, providers.NotCreated}},
}

// byCode are the codes of GraphQL errors: RunPod's own and those of its server.
var byCode = map[string]rule{
	"POD_NOT_FOUND":             {providers.NotFound, providers.ScopeOffer, providers.NotCreated},
	"UNAUTHENTICATED":           {providers.Unauthorized, providers.ScopeProvider, providers.NotCreated},
	"FORBIDDEN":                 {providers.Unauthorized, providers.ScopeProvider, providers.NotCreated},
	"BAD_USER_INPUT":            {providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated},
	"GRAPHQL_VALIDATION_FAILED": {providers.InvalidRequest, providers.ScopeProvider, providers.NotCreated},
	"INTERNAL_SERVER_ERROR":     {providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
}

func spoken(words string) (rule, bool) {
	words = strings.ToLower(words)
	for _, w := range byWords {
		if strings.Contains(words, w.phrase) {
			return w.rule, true
		}
	}
	return rule{}, false
}

func (r rule) error(header http.Header) *providers.Error {
	return &providers.Error{Code: r.code, Scope: r.scope, Outcome: r.outcome, RetryAfter: rest.RetryAfter(header)}
}

// problem is RFC 9457's.
type problem struct {
	Title  string   `json:"title"`
	Status int      `json:"status"`
	Detail string   `json:"detail"`
	Errors []string `json:"errors"`
}

// judge says what an answer of the REST API means.
func judge(a rest.Answer) *providers.Error {
	e := rest.ByStatus(a)
	var p problem
	if err := json.Unmarshal(a.Body, &p); err != nil || p.Title == "" || p.Status < 400 {
		return e // no problem, or nobody's words
	}
	known, ok := spoken(p.Detail)
	switch {
	case ok && p.Status < 500:
		e = known.error(a.Header)
	case p.Status == http.StatusNotFound:
		e = rule{providers.NotFound, providers.ScopeOffer, providers.NotCreated}.error(a.Header)
	case p.Status == http.StatusForbidden && strings.Contains(strings.ToLower(p.Detail), "pool"):
		// "Your account cannot access the requested pool. Skip this candidate."
		e = rule{providers.Unsupported, providers.ScopeFamily, providers.NotCreated}.error(a.Header)
	case p.Status == http.StatusBadRequest:
		// Against a rule, or without a place: the status leaves it open, and says
		// that nothing was made.
		e = rule{providers.Unknown, providers.ScopeOffer, providers.NotCreated}.error(a.Header)
	case p.Status == http.StatusConflict:
		// The present state forbids it; another try later may do it.
		e = rule{providers.Unavailable, providers.ScopeOffer, providers.NotCreated}.error(a.Header)
	case e == nil:
		// An error that came with a status of success.
		e = rest.ByStatus(rest.Answer{Status: p.Status, Header: a.Header})
		e.Outcome = providers.OutcomeUnknown
	}
	if e.Code == providers.RateLimited && e.RetryAfter == 0 {
		e.RetryAfter = untilQuota(a.Header)
	}
	e.Message = strings.Join(append([]string{strconv.Itoa(p.Status) + " " + p.Title + ": " + p.Detail}, p.Errors...), "; ")
	return e
}

// window is a member of the header RateLimit: `"minute";r=0;t=12`.
var window = regexp.MustCompile(`"[a-z]+";r=(\d+);t=(\d+)`)

// untilQuota is how long until every window that is used up begins anew.
func untilQuota(h http.Header) (d time.Duration) {
	for _, m := range window.FindAllStringSubmatch(h.Get("RateLimit"), -1) {
		if left, err := strconv.Atoi(m[1]); err != nil || left > 0 {
			continue
		}
		if t, err := strconv.Atoi(m[2]); err == nil {
			d = max(d, time.Duration(min(t, 3600))*time.Second)
		}
	}
	return d
}

// judgeGraph says what an answer of the GraphQL API means: its failures come with
// status 200.
func judgeGraph(a rest.Answer) *providers.Error {
	e := rest.ByStatus(a)
	var body struct {
		Data   map[string]json.RawMessage `json:"data"`
		Errors []struct {
			Message    string `json:"message"`
			Extensions struct {
				Code string `json:"code"`
			} `json:"extensions"`
		} `json:"errors"`
	}
	if err := json.Unmarshal(a.Body, &body); err != nil || len(body.Errors) == 0 {
		return e
	}
	first := body.Errors[0]
	if known, ok := spoken(first.Message); ok {
		e = known.error(a.Header)
	} else if known, ok := byCode[first.Extensions.Code]; ok {
		e = known.error(a.Header)
	} else if e == nil {
		e = rule{providers.Unknown, providers.ScopeProvider, providers.OutcomeUnknown}.error(a.Header)
	}
	for _, part := range body.Data {
		if string(part) != "null" {
			e.Outcome = providers.OutcomeUnknown // something was done, and a part of the answer failed
		}
	}
	e.Message = strings.TrimSpace(first.Extensions.Code + " " + first.Message)
	return e
}
