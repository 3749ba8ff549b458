package lambda

import (
	"encoding/json"
	"net/http"
	"strings"

	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// rule is what an answer of the cloud means.
type rule struct {
	code    providers.Code
	scope   providers.ErrScope
	outcome providers.Outcome // of a launch
}

// byCode is the error table: the codes of documents 1.6.0 and 1.10.0. What a 4xx
// refuses was not done.
var byCode = map[string]rule{
	"instance-operations/launch/insufficient-capacity":       {providers.NoCapacity, providers.ScopeOffer, providers.NotCreated},
	"instance-operations/launch/file-system-in-wrong-region": {providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated},
	"global/quota-exceeded":                                  {providers.QuotaExceeded, providers.ScopeFamily, providers.NotCreated},
	"global/invalid-api-key":                                 {providers.Unauthorized, providers.ScopeProvider, providers.NotCreated},
	"global/forbidden":                                       {providers.Unauthorized, providers.ScopeProvider, providers.NotCreated},
	"global/account-inactive":                                {providers.NoFunds, providers.ScopeProvider, providers.NotCreated},
	"global/invalid-address":                                 {providers.NoFunds, providers.ScopeProvider, providers.NotCreated},
	"global/invalid-parameters":                              {providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated},
	"global/object-does-not-exist":                           {providers.NotFound, providers.ScopeOffer, providers.NotCreated},
	// A path that is not there: a wrong endpoint, not a machine that is gone.
	"global/not-found": {providers.InvalidRequest, providers.ScopeProvider, providers.NotCreated},
	"global/duplicate": {providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated},
	// An action that the present state forbids; another try later may do it.
	"global/conflict":       {providers.Unavailable, providers.ScopeOffer, providers.NotCreated},
	"global/internal-error": {providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
}

// fromUpstream begins the codes of faults of services behind the API; what they
// had done before is not said.
const fromUpstream = "provider/"

type errorBody struct {
	Error *struct {
		Code       string `json:"code"`
		Message    string `json:"message"`
		Suggestion string `json:"suggestion"`
	} `json:"error"`
}

// judge says what an answer means. The code in the body comes before the status:
// capacity, quotas and mistakes are all 400.
func judge(a rest.Answer) *providers.Error {
	e := rest.ByStatus(a)
	var body errorBody
	if err := json.Unmarshal(a.Body, &body); err != nil || body.Error == nil {
		return e
	}
	words := body.Error
	retry := rest.RetryAfter(a.Header)
	known, ok := byCode[words.Code]
	switch {
	case ok:
		e = &providers.Error{Code: known.code, Scope: known.scope, Outcome: known.outcome, RetryAfter: retry}
	case strings.HasPrefix(words.Code, fromUpstream):
		e = &providers.Error{Code: providers.Unavailable, Scope: providers.ScopeProvider, Outcome: providers.OutcomeUnknown, RetryAfter: retry}
	case a.Status == http.StatusTooManyRequests || a.Status >= http.StatusInternalServerError:
		// The status says all that matters.
	default:
		e = &providers.Error{Code: providers.Unknown, Scope: providers.ScopeProvider, Outcome: providers.OutcomeUnknown, RetryAfter: retry}
	}
	e.Message = words.Code + ": " + words.Message
	if words.Suggestion != "" {
		e.Message += " (" + words.Suggestion + ")"
	}
	return e
}
