package gcp

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/api/googleapi"

	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// rule is what a word of Google's means.
type rule struct {
	code    providers.Code
	scope   providers.ErrScope
	outcome providers.Outcome // of a launch
}

var (
	noCapacity  = rule{providers.NoCapacity, providers.ScopeOffer, providers.NotCreated}
	noQuota     = rule{providers.QuotaExceeded, providers.ScopeFamily, providers.NotCreated}
	throttled   = rule{providers.RateLimited, providers.ScopeProvider, providers.NotCreated}
	denied      = rule{providers.Unauthorized, providers.ScopeProvider, providers.NotCreated}
	noFunds     = rule{providers.NoFunds, providers.ScopeProvider, providers.NotCreated}
	invalid     = rule{providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated}
	notFound    = rule{providers.NotFound, providers.ScopeOffer, providers.NotCreated}
	conflict    = rule{providers.Conflict, providers.ScopeOffer, providers.OutcomeUnknown}
	unsupported = rule{providers.Unsupported, providers.ScopeFamily, providers.NotCreated}
	notNow      = rule{providers.Unavailable, providers.ScopeOffer, providers.NotCreated}
	broken      = rule{providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown}
)

// byWord is the error table: reasons of error bodies, reasons of their ErrorInfo
// details, and codes of failed operations
// (cloud.google.com/compute/docs/troubleshooting/troubleshooting-vm-creation,
// /compute/docs/troubleshooting/troubleshooting-resource-availability,
// /apis/design/errors, googleapis google/api/error_reason.proto). A word that is
// not here is judged by its HTTP status.
var byWord = map[string]rule{
	"ZONE_RESOURCE_POOL_EXHAUSTED":              noCapacity,
	"ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": noCapacity,
	"REGION_RESOURCE_POOL_EXHAUSTED":            noCapacity,
	"RESOURCE_POOL_EXHAUSTED":                   noCapacity,
	"resourcePoolExhausted":                     noCapacity,
	"stockout":                                  noCapacity,
	"resource_availability":                     noCapacity,

	"quotaExceeded":  noQuota,
	"QUOTA_EXCEEDED": noQuota,
	"limitExceeded":  noQuota,
	"LIMIT_EXCEEDED": noQuota,

	"rateLimitExceeded":                throttled,
	"userRateLimitExceeded":            throttled,
	"dailyLimitExceeded":               throttled,
	"concurrentLimitExceeded":          throttled,
	"RATE_LIMIT_EXCEEDED":              throttled,
	"RESOURCE_OPERATION_RATE_EXCEEDED": throttled,

	"authError":                       denied,
	"required":                        denied, // of the header Authorization; of a field it comes with a 400, see judge
	"unauthorized":                    denied,
	"expired":                         denied,
	"forbidden":                       denied,
	"insufficientPermissions":         denied,
	"accessNotConfigured":             denied,
	"SERVICE_DISABLED":                denied,
	"CREDENTIALS_MISSING":             denied,
	"ACCESS_TOKEN_EXPIRED":            denied,
	"ACCESS_TOKEN_SCOPE_INSUFFICIENT": denied,
	"IAM_PERMISSION_DENIED":           denied,
	"PERMISSIONS_ERROR":               denied,
	"CONSUMER_INVALID":                denied,

	"BILLING_DISABLED":   noFunds,
	"CONSUMER_SUSPENDED": noFunds,
	"accountDisabled":    noFunds,
	"billingNotEnabled":  noFunds,

	"invalid":             invalid,
	"badRequest":          invalid,
	"parseError":          invalid,
	"invalidParameter":    invalid,
	"conditionNotMet":     invalid, // a constraint of the organization
	"preconditionFailed":  invalid,
	"INVALID_FIELD_VALUE": invalid,
	"INVALID_USAGE":       invalid,
	"CONDITION_NOT_MET":   invalid,
	"RESOURCE_NOT_FOUND":  invalid, // of an insert's operation: something that it refers to

	"UNSUPPORTED_OPERATION": unsupported,
	"notImplemented":        unsupported,

	"notFound":  notFound,
	"NOT_FOUND": notFound,

	"alreadyExists":           conflict,
	"ALREADY_EXISTS":          conflict,
	"duplicate":               conflict,
	"RESOURCE_ALREADY_EXISTS": conflict,

	"resourceNotReady":                    notNow,
	"RESOURCE_NOT_READY":                  notNow,
	"resourceInUseByAnotherResource":      notNow,
	"RESOURCE_IN_USE_BY_ANOTHER_RESOURCE": notNow,
	"operationInProgress":                 notNow,

	"backendError":   broken,
	"internalError":  broken,
	"INTERNAL_ERROR": broken,
}

// failure is what an answer says, whatever it was written in.
type failure struct {
	status  int
	header  http.Header
	words   []string // the most telling first
	message string
}

// judge says what a failure means.
func judge(f failure) *providers.Error {
	e := rest.ByStatus(rest.Answer{Status: f.status, Header: f.header})
	if e == nil { // an error in an answer with status 200
		e = &providers.Error{Code: providers.Unknown, Scope: providers.ScopeProvider, Outcome: providers.OutcomeUnknown}
	}
	e.Message = f.message
	i := slices.IndexFunc(f.words, func(w string) bool { return byWord[w] != rule{} })
	switch {
	case i >= 0:
		known := byWord[f.words[i]]
		if f.words[i] == "required" && f.status == http.StatusBadRequest {
			known = invalid
		}
		e.Code, e.Scope, e.Outcome = known.code, known.scope, known.outcome
		e.Message = f.words[i] + ": " + f.message
	case len(f.words) > 0:
		// A refusal that is not known says nothing of what was done.
		if e.Code == providers.InvalidRequest {
			e.Code, e.Outcome = providers.Unknown, providers.OutcomeUnknown
		}
		e.Message = f.words[0] + ": " + f.message
	}
	return e
}

// errorBody is the error of Google's JSON APIs.
type errorBody struct {
	Error *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Status  string `json:"status"`
		Errors  []struct {
			Reason string `json:"reason"`
		} `json:"errors"`
		Details []json.RawMessage `json:"details"`
	} `json:"error"`
}

// judgeBody is for answers that no library has read.
func judgeBody(a rest.Answer) *providers.Error {
	var body errorBody
	if err := json.Unmarshal(a.Body, &body); err != nil || body.Error == nil || body.Error.Code == 0 {
		return rest.ByStatus(a)
	}
	f := failure{status: max(a.Status, body.Error.Code), header: a.Header, message: body.Error.Message}
	for _, d := range body.Error.Details {
		var info struct {
			Reason string `json:"reason"`
		}
		if json.Unmarshal(d, &info) == nil && info.Reason != "" {
			f.words = append(f.words, info.Reason)
		}
	}
	for _, e := range body.Error.Errors {
		if e.Reason != "" {
			f.words = append(f.words, e.Reason)
		}
	}
	// The canonical code (google.rpc.Code) tells what a status does not, where there
	// is no reason; what needs no word is judged by its status.
	if word := cmp.Or(body.Error.Status, canonical[f.status]); len(f.words) == 0 && byWord[word] != (rule{}) {
		f.words = append(f.words, word)
	}
	return judge(f)
}

// canonical are the codes that stand for a status in a body of Google's.
var canonical = map[int]string{http.StatusNotFound: "NOT_FOUND", http.StatusConflict: "ALREADY_EXISTS"}

// judgeError is for errors of Google's library.
func judgeError(err error) *providers.Error {
	if t, ok := errors.AsType[*tokenError](err); ok {
		return t.judge()
	}
	if e, ok := errors.AsType[*providers.Error](err); ok {
		return new(*e)
	}
	if e, ok := errors.AsType[*googleapi.Error](err); ok {
		if e.Body != "" {
			return judgeBody(rest.Answer{Status: e.Code, Header: e.Header, Body: []byte(e.Body)})
		}
		f := failure{status: e.Code, header: e.Header, message: e.Message}
		for _, d := range e.Details {
			if m, ok := d.(map[string]any); ok {
				if reason, ok := m["reason"].(string); ok {
					f.words = append(f.words, reason)
				}
			}
		}
		for _, item := range e.Errors {
			f.words = append(f.words, item.Reason)
		}
		return judge(f)
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err // without the address
	}
	return rest.Transport(err, true)
}

// judgeOperation is for operations: nil when it has not failed.
func judgeOperation(op *computepb.Operation) *providers.Error {
	errs := op.GetError().GetErrors()
	if len(errs) == 0 {
		return nil
	}
	f := failure{status: int(op.GetHttpErrorStatusCode()), header: http.Header{}, message: errs[0].GetMessage()}
	for _, e := range errs {
		f.words = append(f.words, e.GetCode())
		for _, d := range e.GetErrorDetails() {
			if reason := d.GetErrorInfo().GetReason(); reason != "" {
				f.words = append(f.words, reason)
			}
		}
	}
	e := judge(f)
	if e.Code == providers.Unknown {
		e.Scope = providers.ScopeOffer
	}
	return e
}

// tokenError is a failure to get a token: the call itself was never sent.
type tokenError struct{ err error }

func (e *tokenError) Error() string { return "no access token: " + e.err.Error() }
func (e *tokenError) Unwrap() error { return e.err }

func (e *tokenError) judge() *providers.Error {
	out := rest.Transport(e.err, false)
	out.Message = "no access token"
	if a, ok := errors.AsType[*auth.Error](e.err); ok {
		out.Err = nil // its text holds the answer's body
		if a.Response != nil {
			out.Message += ": HTTP " + http.StatusText(a.Response.StatusCode)
			if a.Response.StatusCode >= 400 && a.Response.StatusCode < 500 && a.Response.StatusCode != http.StatusTooManyRequests {
				out.Code, out.Scope = providers.Unauthorized, providers.ScopeProvider
			}
		}
	}
	return out
}

// failed completes an error of Google's library. A machine that is not found
// counts only where the call names one.
func (a *Adapter) failed(op, target string, err error, names bool) error {
	return a.complete(op, target, judgeError(err), names)
}

// failedIf is failed for what may be no error, of a call that names no machine.
func (a *Adapter) failedIf(op, target string, err error) error {
	if err == nil {
		return nil
	}
	return a.failed(op, target, err, false)
}

func (a *Adapter) complete(op, target string, e *providers.Error, names bool) error {
	if e.Code == providers.NotFound && !names {
		e.Code, e.Scope = providers.InvalidRequest, providers.ScopeProvider
	}
	return a.billing.Error(op, target, e)
}
