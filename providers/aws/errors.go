package aws

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// rule is what a code of AWS means.
type rule struct {
	code    providers.Code
	scope   providers.ErrScope
	outcome providers.Outcome // of a launch
}

// rules is the error table: EC2's codes
// (docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html), those
// common to all services, and the few of the others' that mean something here. A
// code that is not in it is judged by its HTTP status.
func rules() map[string]rule {
	table := map[string]rule{}
	add := func(r rule, codes ...string) {
		for _, c := range codes {
			table[c] = r
		}
	}
	const none, maybe = providers.NotCreated, providers.OutcomeUnknown
	add(rule{providers.NoCapacity, providers.ScopeOffer, none},
		"InsufficientInstanceCapacity", "InsufficientCapacity", "InsufficientHostCapacity", "UnfulfillableCapacity", "InsufficientFreeAddressesInSubnet", "CapacityReservationFull")
	add(rule{providers.QuotaExceeded, providers.ScopeFamily, none}, "VcpuLimitExceeded", "InstanceLimitExceeded", "MaxSpotInstanceCountExceeded")
	add(rule{providers.QuotaExceeded, providers.ScopeRegion, none},
		"VolumeLimitExceeded", "MaxIOPSLimitExceeded", "NetworkInterfaceLimitExceeded", "AddressLimitExceeded", "PlacementGroupLimitExceeded",
		"ResourceLimitExceeded", "ServiceQuotaExceededException")
	add(rule{providers.PriceTooLow, providers.ScopeOffer, none}, "SpotMaxPriceTooLow")
	add(rule{providers.RateLimited, providers.ScopeProvider, none},
		"RequestLimitExceeded", "Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled", "RequestThrottledException",
		"TooManyRequestsException", "EC2ThrottledException", "SlowDown", "LimitExceededException")
	add(rule{providers.Unauthorized, providers.ScopeProvider, none},
		"AuthFailure", "UnauthorizedOperation", "OptInRequired", "PendingVerification", "RequestExpired", "ExpiredToken", "ExpiredTokenException",
		"AccessDenied", "AccessDeniedException", "NotAuthorized", "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch",
		"InvalidSignatureException", "IncompleteSignature", "MissingAuthenticationToken", "MissingAuthenticationTokenException", "InvalidAccessKeyId")
	add(rule{providers.NoFunds, providers.ScopeProvider, none}, "Blocked")
	add(rule{providers.InvalidRequest, providers.ScopeFamily, none},
		"InvalidParameterValue", "InvalidParameter", "InvalidParameterCombination", "InvalidParameterException", "MissingParameter", "UnknownParameter",
		"ValidationError", "ValidationException", "InvalidInstanceType", "InvalidBlockDeviceMapping", "InvalidUserData.Malformed", "TagLimitExceeded",
		"InvalidInstanceID.Malformed", "InvalidInstanceID", "MalformedQueryString", "SerializationException")
	// Settings that no launch in the region gets past.
	add(rule{providers.InvalidRequest, providers.ScopeRegion, none},
		"InvalidAMIID.Malformed", "InvalidAMIID.NotFound", "InvalidAMIID.Unavailable", "ParameterNotFound", "InvalidSubnetID.NotFound", "InvalidSubnet",
		"InvalidGroup.NotFound", "InvalidGroupId.Malformed", "InvalidSecurityGroupID.NotFound", "VPCIdNotSpecified", "DefaultVpcDoesNotExist",
		"MissingInput", "InvalidNetworkInterface.InUse", "QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", "InvalidAddress")
	// The zone does not have the type: another may.
	add(rule{providers.Unsupported, providers.ScopeOffer, none}, "Unsupported")
	add(rule{providers.Unsupported, providers.ScopeFamily, none},
		"UnsupportedOperation", "UnsupportedInstanceAttribute", "InvalidAction", "UnknownOperationException", "NotImplemented", "UnsupportedProtocol")
	add(rule{providers.NotFound, providers.ScopeOffer, none}, "InvalidInstanceID.NotFound", "ResourceNotFoundException", "NoSuchResourceException")
	add(rule{providers.Conflict, providers.ScopeOffer, maybe}, "IdempotentParameterMismatch", "IdempotentInstanceTerminated")
	add(rule{providers.Conflict, providers.ScopeOffer, none}, "ConflictException", "InvalidPlacementGroup.Duplicate", "InvalidPlacementGroup.InUse")
	// What a machine in another state or with termination protection answers.
	add(rule{providers.Unavailable, providers.ScopeOffer, none}, "IncorrectInstanceState", "IncorrectState", "OperationNotPermitted",
		"InvalidPlacementGroup.Unknown") // the last of another gang's machines took it along
	add(rule{providers.Unavailable, providers.ScopeProvider, maybe},
		"Unavailable", "ServiceUnavailable", "ServiceUnavailableException", "InternalError", "InternalFailure", "InternalServerError",
		"InternalServerException", "InternalErrorException", "ServiceException", "RequestTimeout", "RequestTimeoutException", "InvalidNextToken", "ExpiredNextTokenException")
	return table
}

// apiError is what AWS said to a call: a code and words without secrets, on one
// line.
type apiError struct{ call, code, words string }

func (e *apiError) Error() string { return e.call + ": " + e.code + ": " + e.words }

// said returns the code with which AWS refused a call, "" when it did not.
func said(err error) string {
	if e, ok := errors.AsType[*apiError](err); ok {
		return e.code
	}
	return ""
}

// call makes one call of the SDK and judges its failure. target is the market or
// machine that errors name. Only the operation "launch" has outcomes.
func call[I, O, P any](ctx context.Context, a *Adapter, op, target string, do func(context.Context, *I, ...func(*P)) (*O, error), in *I) (*O, error) {
	if ctx.Err() != nil {
		return nil, a.complete(op, target, rest.Transport(context.Cause(ctx), false))
	}
	sent := new(atomic.Bool)
	out, err := do(context.WithValue(ctx, sentKey{}, sent), in)
	if err != nil {
		return nil, a.complete(op, target, a.judge(err, sent.Load()))
	}
	return out, nil
}

func (a *Adapter) judge(err error, sent bool) *providers.Error {
	status, header := 0, http.Header{}
	if e, ok := errors.AsType[*smithyhttp.ResponseError](err); ok && e.Response != nil {
		status, header = e.HTTPStatusCode(), e.Response.Header
	}
	e := &providers.Error{Code: providers.Unknown, Scope: providers.ScopeOffer, Outcome: providers.OutcomeUnknown, RetryAfter: rest.RetryAfter(header)}
	to := "AWS"
	if o, ok := errors.AsType[*smithy.OperationError](err); ok {
		to = o.ServiceID + " " + o.OperationName
	}
	if api, ok := errors.AsType[smithy.APIError](err); ok && api.ErrorCode() != "UnknownError" {
		code := api.ErrorCode()
		code = code[strings.LastIndex(code, "#")+1:]
		words, _, _ := strings.Cut(api.ErrorMessage(), "Encoded authorization failure message")
		e.Err = &apiError{to, code, a.line(words)}
		switch r, known := rules()[code]; {
		case known:
			e.Code, e.Scope, e.Outcome = r.code, r.scope, r.outcome
		case status >= http.StatusInternalServerError:
			e.Code, e.Scope = providers.Unavailable, providers.ScopeProvider
		case status == http.StatusTooManyRequests:
			e.Code, e.Scope, e.Outcome = providers.RateLimited, providers.ScopeProvider, providers.NotCreated
		}
		return e
	}
	if invalid, ok := errors.AsType[smithy.InvalidParamsError](err); ok {
		e.Code, e.Scope, e.Outcome, e.Err = providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated, errors.New(a.line(invalid.Error()))
		return e
	}
	if status == 0 && !sent && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		// The request was never made: there are no credentials to sign it with.
		e.Code, e.Scope, e.Outcome = providers.Unauthorized, providers.ScopeProvider, providers.NotCreated
		e.Err = errors.New(a.line(err.Error()))
		return e
	}
	cause := err
	if u, ok := errors.AsType[*url.Error](err); ok {
		cause = u.Err
	}
	t := rest.Transport(cause, sent)
	t.RetryAfter = e.RetryAfter
	if status == http.StatusTooManyRequests {
		t.Code, t.Outcome = providers.RateLimited, providers.NotCreated
	}
	if status != 0 && t.Code == providers.Unavailable {
		t.Err, t.Message = nil, fmt.Sprintf("%s: HTTP %d without an answer that can be read: %s", to, status, a.line(cause.Error()))
	}
	return t
}

// complete fills in what every error has.
func (a *Adapter) complete(op, target string, e *providers.Error) error {
	e.Provider, e.Op, e.Target = a.name, op, target
	if op != "launch" {
		e.Outcome = ""
	} else if e.Outcome == "" {
		e.Outcome = providers.OutcomeUnknown
	}
	if e.Scope == "" {
		e.Scope = providers.Reactions()[e.Code].Scope
	}
	return e
}

// refuse is an error of the adapter itself, before anything was created.
func (a *Adapter) refuse(op, target string, code providers.Code, scope providers.ErrScope, format string, args ...any) error {
	return a.complete(op, target, &providers.Error{Code: code, Scope: scope, Outcome: providers.NotCreated, Message: fmt.Sprintf(format, args...)})
}

// strange is the error of an answer that contradicts its request.
func (a *Adapter) strange(op, target, format string, args ...any) error {
	return a.complete(op, target, &providers.Error{Code: providers.Unknown, Scope: providers.ScopeOffer, Outcome: providers.OutcomeUnknown, Message: fmt.Sprintf(format, args...)})
}

// before is the error of a call that a launch makes before its own: nothing was
// created.
func before(err error) error {
	if e, ok := errors.AsType[*providers.Error](err); ok {
		e.Outcome = providers.NotCreated
	}
	return err
}

// maxWords is how much of AWS's words is kept, in bytes.
const maxWords = 300

// line makes AWS's words one line without secrets.
func (a *Adapter) line(s string) string {
	for _, secret := range a.secrets {
		if secret != "" {
			s = strings.ReplaceAll(s, secret, "[hidden]")
		}
	}
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > maxWords {
		s = strings.ToValidUTF8(s[:maxWords], "") + "…"
	}
	return s
}
