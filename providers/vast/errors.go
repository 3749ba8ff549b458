package vast

import (
	"cmp"
	"encoding/json"
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

// byWord is the error table: what the API's words mean to a launch. The words are
// those of its reference (vast-ai/docs, api-reference) and of answers that people
// quote; a word that is not here is judged by its HTTP status.
//
// For a quota no word is documented: instance_limit is a guess, which our fake
// answers.
var byWord = map[string]rule{
	"no_such_ask":           {providers.NoCapacity, providers.ScopeOffer, providers.NotCreated},
	"invalid_price":         {providers.PriceTooLow, providers.ScopeOffer, providers.NotCreated},
	"bid_too_low":           {providers.PriceTooLow, providers.ScopeOffer, providers.NotCreated},
	"invalid_args":          {providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated},
	"invalid_request":       {providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated},
	"bad_request":           {providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated},
	"no_ssh_key_for_vm":     {providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated},
	"auth_error":            {providers.Unauthorized, providers.ScopeProvider, providers.NotCreated},
	"insufficient_credit":   {providers.NoFunds, providers.ScopeProvider, providers.NotCreated},
	"instance_limit":        {providers.QuotaExceeded, providers.ScopeFamily, providers.NotCreated},
	"no_such_instance":      {providers.NotFound, providers.ScopeOffer, providers.NotCreated},
	"busy":                  {providers.Unavailable, providers.ScopeOffer, providers.NotCreated},
	"search_quota_exceeded": {providers.QuotaExceeded, providers.ScopeProvider, providers.NotCreated},
	"internal_error":        {providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
}

// failure is the body of a failed answer: {"success": false, "error", "msg"}, of
// which some endpoints leave out parts (rate-limits-and-errors.mdx).
type failure struct {
	Success  *bool           `json:"success"`
	Word     json.RawMessage `json:"error"`
	Msg      string          `json:"msg"`
	Message  string          `json:"message"`
	Contract *int64          `json:"new_contract"`
}

func (f failure) text() string { return cmp.Or(f.Msg, f.Message) }

func (f failure) word() string {
	var s string
	if json.Unmarshal(f.Word, &s) != nil {
		return string(f.Word)
	}
	return s
}

// judge says what an answer means. The body comes first: failures have come with
// status 200. An answer that names a new instance is no failure to judge here,
// whatever else it says: the instance exists and costs money.
func judge(a rest.Answer) *providers.Error {
	var f failure
	parsed := json.Unmarshal(a.Body, &f) == nil
	e := rest.ByStatus(a)
	switch {
	case parsed && f.Contract != nil && *f.Contract > 0:
		return nil
	case e == nil && (!parsed || f.Success == nil || *f.Success):
		return nil
	case !parsed:
		return e
	}
	word := f.word()
	known, ok := byWord[word]
	switch {
	case strings.Contains(f.text(), "no_such_ask"):
		known, ok = byWord["no_such_ask"], true // comes with invalid_args, too
	case strings.Contains(f.text(), "Invalid user key"):
		known, ok = byWord["auth_error"], true // comes with 404, too (search_offers.yaml)
	}
	switch {
	case ok && e == nil:
		e = &providers.Error{Code: known.code, Scope: known.scope, Outcome: known.outcome}
	case ok:
		e.Code, e.Scope, e.Outcome = known.code, known.scope, known.outcome
	case e == nil:
		e = &providers.Error{Code: providers.Unknown, Scope: providers.ScopeOffer, Outcome: providers.OutcomeUnknown}
	}
	e.Message = strings.Trim(word+": "+f.text(), ": ")
	return e
}

// ofOther turns the meaning of an answer to a launch into that of one to any
// other call: there is no offer that it is about.
func ofOther(e *providers.Error) {
	switch e.Code {
	case providers.NoCapacity, providers.QuotaExceeded, providers.PriceTooLow:
		e.Code = providers.Unavailable
	default:
	}
}
