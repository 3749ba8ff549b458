package simcloud

import (
	"encoding/json"

	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/providers/rest"
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

// judge says what an answer means. The cloud is known to send errors with status
// 200, so the body is asked first.
func judge(a rest.Answer) *providers.Error {
	e := rest.ByStatus(a)
	var failed simapi.ErrorBody
	if err := json.Unmarshal(a.Body, &failed); err != nil || failed.Error == nil {
		return e
	}
	if e == nil {
		e = &providers.Error{Code: providers.Unknown, Scope: providers.ScopeProvider, Outcome: providers.OutcomeUnknown}
	}
	if known, ok := byCode[failed.Error.Code]; ok {
		e.Code, e.Scope, e.Outcome = known.code, known.scope, known.outcome
	}
	e.Message = failed.Error.Code + ": " + failed.Error.Message
	return e
}
