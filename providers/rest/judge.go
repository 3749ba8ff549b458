package rest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"gpubroker/providers"
)

// ByStatus judges an answer by its HTTP status alone: nil for 2xx. It is what a
// judge falls back to for words that it does not know. Only a 4xx says that
// nothing was done, and a bare 404 is a wrong address, not a machine that is gone.
func ByStatus(a Answer) *providers.Error {
	e := &providers.Error{Scope: providers.ScopeProvider, Outcome: providers.NotCreated, RetryAfter: RetryAfter(a.Header), Message: "HTTP " + strconv.Itoa(a.Status)}
	switch {
	case a.Status >= 200 && a.Status <= 299:
		return nil
	case a.Status == http.StatusUnauthorized || a.Status == http.StatusForbidden:
		e.Code = providers.Unauthorized
	case a.Status == http.StatusPaymentRequired:
		e.Code = providers.NoFunds
	case a.Status == http.StatusTooManyRequests:
		e.Code = providers.RateLimited
	case a.Status >= 500 || a.Status == http.StatusRequestTimeout:
		e.Code, e.Outcome = providers.Unavailable, providers.OutcomeUnknown
	case a.Status == http.StatusBadRequest || a.Status == http.StatusUnprocessableEntity || a.Status == http.StatusRequestEntityTooLarge:
		e.Code, e.Scope = providers.InvalidRequest, providers.ScopeFamily
	default:
		e.Code, e.Outcome = providers.Unknown, providers.OutcomeUnknown
	}
	return e
}

// RetryAfter reads the header: whole seconds or a date, at most an hour; 0 when
// it is neither.
func RetryAfter(h http.Header) time.Duration {
	s := h.Get("Retry-After")
	if n, err := strconv.Atoi(strings.TrimSpace(s)); err == nil && n > 0 {
		return time.Duration(min(n, 3600)) * time.Second
	}
	if t, err := http.ParseTime(s); err == nil {
		return min(max(time.Until(t), 0), time.Hour)
	}
	return 0
}

// Transport turns a call without an answer into an error, for adapters that
// speak through a cloud's own library. sent is false when the request cannot have
// reached the cloud.
func Transport(err error, sent bool) *providers.Error { return judgeTransport(err, sent) }

func judgeTransport(err error, sent bool) *providers.Error {
	e := &providers.Error{Code: providers.Unavailable, Scope: providers.ScopeProvider, Outcome: providers.OutcomeUnknown, Err: err}
	switch {
	case errors.Is(err, context.Canceled):
		e.Code = providers.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		e.Code = providers.DeadlineExceed
	}
	if op, ok := errors.AsType[*net.OpError](err); !sent || ok && op.Op == "dial" {
		e.Outcome = providers.NotCreated
	}
	return e
}

func invalid(err error) *providers.Error {
	return &providers.Error{Code: providers.InvalidRequest, Scope: providers.ScopeFamily, Outcome: providers.NotCreated, Err: err}
}
