package verda

import (
	"encoding/json"

	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// rule is what an answer of the cloud means.
type rule struct {
	code    providers.Code
	scope   providers.ErrScope
	outcome providers.Outcome // of a launch
}

const invalidRequest = "invalid_request"

// byCode is the error table: what the API's words mean to a launch. The words are
// those of its documentation's page of errors, as the vendor's SDK has them
// (verda-cloud/sdk-python, verda/constants.py). A word that is not here is judged
// by its HTTP status.
//
// service_unavailable is documented as "Not enough resources at the moment, try
// again later". forbidden_action is "Can't perform the current action": of a
// launch, the account may not have it.
var byCode = map[string]rule{
	invalidRequest:         {providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated},
	"unauthorized_request": {providers.Unauthorized, providers.ScopeProvider, providers.NotCreated},
	"insufficient_funds":   {providers.NoFunds, providers.ScopeProvider, providers.NotCreated},
	"forbidden_action":     {providers.QuotaExceeded, providers.ScopeFamily, providers.NotCreated},
	"not_found":            {providers.NotFound, providers.ScopeOffer, providers.NotCreated},
	"server_error":         {providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
	"service_unavailable":  {providers.NoCapacity, providers.ScopeOffer, providers.NotCreated},
}

// failure is the body of a failed answer.
type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// judge says what an answer means. The body comes first: no success has a code.
func judge(a rest.Answer) *providers.Error {
	e := rest.ByStatus(a)
	var failed failure
	if err := json.Unmarshal(a.Body, &failed); err != nil || failed.Code == "" {
		return e
	}
	known, ok := byCode[failed.Code]
	if e == nil {
		if !ok {
			return nil
		}
		e = &providers.Error{}
	}
	if ok {
		e.Code, e.Scope, e.Outcome = known.code, known.scope, known.outcome
	}
	e.Message = failed.Code + ": " + failed.Message
	return e
}

// ofOther turns the meaning of an answer to a launch into that of one to any
// other call: what cannot be done now may be asked for again.
func ofOther(e *providers.Error) {
	switch e.Code {
	case providers.NoCapacity, providers.QuotaExceeded:
		e.Code = providers.Unavailable
	default:
	}
}
