package simcloud

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// rule is what an answer of the cloud means.
type rule struct {
	code    providers.Code
	scope   providers.ErrScope
	outcome providers.Outcome // of a launch
}

// byCode is the error table: what the words of the API mean. A word that is not
// here is judged by its HTTP status.
var byCode = map[string]rule{
	simapi.CodeCapacity:     {providers.NoCapacity, providers.ScopeOffer, providers.NotCreated},
	simapi.CodeQuota:        {providers.QuotaExceeded, providers.ScopeFamily, providers.NotCreated},
	simapi.CodePrice:        {providers.PriceTooLow, providers.ScopeOffer, providers.NotCreated},
	simapi.CodeThrottled:    {providers.RateLimited, providers.ScopeProvider, providers.NotCreated},
	simapi.CodeUnauthorized: {providers.Unauthorized, providers.ScopeProvider, providers.NotCreated},
	simapi.CodeNoFunds:      {providers.NoFunds, providers.ScopeProvider, providers.NotCreated},
	simapi.CodeInvalid:      {providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated},
	simapi.CodeNoOffer:      {providers.Unsupported, providers.ScopeFamily, providers.NotCreated},
	simapi.CodeNotFound:     {providers.NotFound, providers.ScopeOffer, providers.NotCreated},
	simapi.CodeMismatch:     {providers.Conflict, providers.ScopeOffer, providers.OutcomeUnknown},
	simapi.CodeRefused:      {providers.Unavailable, providers.ScopeOffer, providers.NotCreated},
	simapi.CodeEndFixed:     {providers.Unsupported, providers.ScopeProvider, providers.NotCreated},
	simapi.CodeUnavailable:  {providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
	simapi.CodeInternal:     {providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
}

// byStatus judges an answer without a known word. Only a 4xx says that nothing
// was done.
func byStatus(status int) rule {
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return rule{providers.Unauthorized, providers.ScopeProvider, providers.NotCreated}
	case status == http.StatusPaymentRequired:
		return rule{providers.NoFunds, providers.ScopeProvider, providers.NotCreated}
	case status == http.StatusTooManyRequests:
		return rule{providers.RateLimited, providers.ScopeProvider, providers.NotCreated}
	case status >= 500 || status == http.StatusRequestTimeout:
		return rule{providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown}
	case status == http.StatusBadRequest || status == http.StatusUnprocessableEntity || status == http.StatusRequestEntityTooLarge:
		return rule{providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated}
	default:
		// A bare 404 is a wrong address, not a machine that is gone.
		return rule{providers.Unknown, providers.ScopeProvider, providers.OutcomeUnknown}
	}
}

// judge turns a failed answer into an error.
func judge(status int, head http.Header, e *simapi.Error) *providers.Error {
	r := byStatus(status)
	message := "HTTP " + strconv.Itoa(status)
	if e != nil {
		if known, ok := byCode[e.Code]; ok {
			r = known
		}
		message = e.Code + ": " + e.Message
	}
	return &providers.Error{
		Code: r.code, Scope: r.scope, Outcome: r.outcome,
		RetryAfter: retryAfter(head.Get("Retry-After")), Message: message,
	}
}

// judgeTransport turns a call without an answer into an error. sent is false
// when the request cannot have reached the cloud.
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

// retryAfter reads whole seconds or a date; 0 when it is neither.
func retryAfter(s string) time.Duration {
	if n, err := strconv.Atoi(strings.TrimSpace(s)); err == nil && n > 0 {
		return min(time.Duration(n)*time.Second, time.Hour)
	}
	if t, err := http.ParseTime(s); err == nil {
		return min(max(time.Until(t), 0), time.Hour)
	}
	return 0
}
