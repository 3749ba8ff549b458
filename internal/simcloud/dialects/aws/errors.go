package aws

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// failure is an error in AWS's words.
type failure struct {
	status        int
	code, message string
	retryAfter    time.Duration
}

func (f *failure) Error() string { return "aws: " + f.code + ": " + f.message }

func errorf(status int, code, format string, args ...any) *failure {
	return &failure{status: status, code: code, message: fmt.Sprintf(format, args...)}
}

func noInstance(id string) *failure {
	return errorf(http.StatusBadRequest, "InvalidInstanceID.NotFound", "The instance ID '%s' does not exist", id)
}

// The codes of one meaning differ by service: EC2's are from
// docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html, the
// others from each service's reference.

func (q *request) unsigned(why string) error {
	switch q.service {
	case "ec2":
		return errorf(http.StatusUnauthorized, "AuthFailure", "AWS was not able to validate the provided access credentials: %s", why)
	case "sts", "sqs":
		return errorf(http.StatusForbidden, "InvalidClientTokenId", "The security token included in the request is invalid: %s", why)
	default:
		return errorf(http.StatusForbidden, "UnrecognizedClientException", "The security token included in the request is invalid: %s", why)
	}
}

func (q *request) expired() error {
	switch q.service {
	case "ec2":
		return errorf(http.StatusBadRequest, "RequestExpired", "Request has expired.")
	case "sts", "sqs":
		return errorf(http.StatusForbidden, "ExpiredToken", "The security token included in the request is expired")
	default:
		return errorf(http.StatusForbidden, "ExpiredTokenException", "The security token included in the request is expired")
	}
}

func (q *request) denied() error {
	text := fmt.Sprintf("User: arn:aws:iam::%s:user/broker is not authorized to perform: %s:%s because no identity-based policy allows the %s:%s action", account, q.service, q.action, q.service, q.action)
	if q.service == "ec2" {
		return errorf(http.StatusForbidden, "UnauthorizedOperation", "You are not authorized to perform this operation. %s. Encoded authorization failure message: 4fCUNbrrbXOyLnCnVIZVWM", text)
	}
	return errorf(map[bool]int{true: http.StatusForbidden, false: http.StatusBadRequest}[q.service == "scheduler"], "AccessDeniedException", "%s", text)
}

// translate says a failure of the world in the service's words.
func (q *request) translate(err error, c simcloud.Call) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	e, ok := errors.AsType[*simapi.Error](err)
	if !ok {
		return errorf(http.StatusInternalServerError, "InternalError", "%v", err)
	}
	f := q.ec2Words(e, c)
	if q.service != "ec2" {
		f = q.otherWords(e)
	}
	if e.Status == http.StatusOK { // an error in a 200
		f.status = http.StatusOK
	}
	f.retryAfter = e.RetryAfter
	return f
}

func (q *request) ec2Words(e *simapi.Error, c simcloud.Call) *failure {
	switch e.Code {
	case simapi.CodeCapacity:
		return errorf(http.StatusInternalServerError, "InsufficientInstanceCapacity", "We currently do not have sufficient %s capacity in the Availability Zone you requested (%s).", c.Place.Type, c.Place.Zone)
	case simapi.CodeQuota:
		if c.Place.Kind == providers.Spot {
			return errorf(http.StatusBadRequest, "MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
		}
		return errorf(http.StatusBadRequest, "VcpuLimitExceeded", "You have requested more vCPU capacity than your current vCPU limit allows for the instance bucket that the specified instance type belongs to.")
	case simapi.CodePrice:
		return errorf(http.StatusBadRequest, "SpotMaxPriceTooLow", "Your Spot request price is lower than the minimum required Spot request fulfillment price.")
	case simapi.CodeThrottled:
		return errorf(http.StatusServiceUnavailable, "RequestLimitExceeded", "Request limit exceeded.")
	case simapi.CodeUnauthorized:
		return errorf(http.StatusUnauthorized, "AuthFailure", "AWS was not able to validate the provided access credentials")
	case simapi.CodeNoFunds:
		return errorf(http.StatusForbidden, "Blocked", "This account is currently blocked and not recognized as a valid account.")
	case simapi.CodeNoOffer:
		return errorf(http.StatusBadRequest, "Unsupported", "Your requested instance type (%s) is not supported in your requested Availability Zone (%s).", c.Place.Type, c.Place.Zone)
	case simapi.CodeNotFound:
		return noInstance(InstanceID(c.Machine))
	case simapi.CodeMismatch:
		return errorf(http.StatusBadRequest, "IdempotentParameterMismatch", "Arguments on this idempotent request are inconsistent with arguments used in previous request(s).")
	case simapi.CodeRefused:
		return errorf(http.StatusBadRequest, "IncorrectInstanceState", "The instance is not in a state from which this is possible: %s", e.Message)
	case simapi.CodeUnavailable:
		return errorf(http.StatusServiceUnavailable, "Unavailable", "The server is overloaded and can't handle the request.")
	case simapi.CodeInternal:
		return errorf(http.StatusInternalServerError, "InternalError", "An internal error has occurred")
	default:
		return errorf(http.StatusBadRequest, "InvalidParameterValue", "%s", e.Message)
	}
}

func (q *request) otherWords(e *simapi.Error) *failure {
	rest := q.service == "scheduler"
	pick := func(status int) int {
		if rest {
			return status
		}
		return http.StatusBadRequest
	}
	switch e.Code {
	case simapi.CodeThrottled:
		return errorf(pick(http.StatusTooManyRequests), "ThrottlingException", "Rate exceeded")
	case simapi.CodeUnauthorized:
		return errorf(http.StatusForbidden, "UnrecognizedClientException", "The security token included in the request is invalid.")
	case simapi.CodeNotFound:
		return errorf(pick(http.StatusNotFound), "ResourceNotFoundException", "not found")
	case simapi.CodeRefused:
		return errorf(pick(http.StatusConflict), "ConflictException", "%s", e.Message)
	case simapi.CodeUnavailable:
		return errorf(http.StatusServiceUnavailable, "ServiceUnavailableException", "The service is unavailable. Please try again shortly.")
	case simapi.CodeInternal:
		return errorf(http.StatusInternalServerError, "InternalServerException", "Internal server error")
	default:
		return errorf(http.StatusBadRequest, "ValidationException", "%s", e.Message)
	}
}

// fail answers with an error that came before the world was asked.
func (q *request) fail(err error) { q.write(q.translate(err, simcloud.Call{})) }

func (q *request) write(f *failure) {
	h := q.rw.Header()
	if f.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(f.retryAfter.Seconds()))))
	}
	h.Set("X-Amzn-RequestId", requestID)
	var body []byte
	switch {
	case q.query && q.service == "ec2":
		h.Set("Content-Type", "text/xml;charset=UTF-8")
		body = render(el("Response", el("Errors", el("Error", tx("Code", f.code), tx("Message", f.message))), tx("RequestID", requestID)))
	case q.query:
		h.Set("Content-Type", "text/xml")
		kind := "Sender"
		if f.status >= 500 {
			kind = "Receiver"
		}
		body = render(el("ErrorResponse", el("Error", tx("Type", kind), tx("Code", f.code), tx("Message", f.message)), tx("RequestId", requestID)))
	case q.service == "scheduler":
		h.Set("Content-Type", "application/json")
		h.Set("X-Amzn-ErrorType", f.code)
		body = encode(map[string]string{"Message": f.message})
	default:
		h.Set("Content-Type", "application/x-amz-json-1.1")
		body = encode(map[string]string{"__type": f.code, "message": f.message})
	}
	q.rw.WriteHeader(f.status)
	_, _ = q.rw.Write(body) // the caller has gone; nothing to do about it
}

func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		return []byte(`{"__type":"InternalServerException"}`)
	}
	return data
}
