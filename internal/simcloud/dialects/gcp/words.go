package gcp

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
)

// machineToken is the beginning of the token that a machine's metadata server
// gives to its service account.
const machineToken = "ya29.machine."

// guard wants a bearer token.
func (h *handler) guard(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		want := h.w.Config().Tokens.API
		switch {
		case !ok || given == "":
			fail(rw, http.StatusUnauthorized, "required", "Request is missing required authentication credential. Expected OAuth 2 access token.")
			return
		case strings.HasPrefix(given, machineToken):
		case want != "" && subtle.ConstantTimeCompare([]byte(given), []byte(want)) != 1:
			fail(rw, http.StatusUnauthorized, "authError", "Invalid Credentials")
			return
		}
		r.Body = http.MaxBytesReader(rw, r.Body, 4<<20)
		next(rw, r)
	})
}

// token exchanges a service account's signed assertion. The signature is not
// checked: the fake holds no keys.
func (h *handler) token(rw http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil || r.Form.Get("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" || strings.Count(r.Form.Get("assertion"), ".") != 2 {
		writeJSON(rw, http.StatusBadRequest, object{"error": "invalid_grant", "error_description": "Invalid JWT: a signed assertion is wanted."})
		return
	}
	token := h.w.Config().Tokens.API
	if token == "" {
		token = "ya29.anybody"
	}
	writeJSON(rw, http.StatusOK, object{"access_token": token, "expires_in": 3599, "token_type": "Bearer"})
}

// testPermissions grants whatever is asked for.
func (h *handler) testPermissions(rw http.ResponseWriter, r *http.Request) {
	project, verb, _ := strings.Cut(r.PathValue("project"), ":")
	if verb != "testIamPermissions" {
		fail(rw, http.StatusNotFound, "notFound", "Method not found.")
		return
	}
	if project != Project {
		fail(rw, http.StatusForbidden, "forbidden", "The caller does not have permission")
		return
	}
	var body struct {
		Permissions []string `json:"permissions"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		fail(rw, http.StatusBadRequest, "badRequest", "Invalid JSON payload received.")
		return
	}
	h.answer(rw, r, simcloud.Call{Op: "about"}, func(time.Duration, bool) (any, error) {
		return object{"permissions": body.Permissions}, nil
	})
}

// answer makes a call whose failures are plain error bodies.
func (h *handler) answer(rw http.ResponseWriter, r *http.Request, c simcloud.Call, effect func(age time.Duration, dud bool) (any, error)) {
	h.answerWords(rw, r, c, words, effect)
}

func (h *handler) answerWords(rw http.ResponseWriter, r *http.Request, c simcloud.Call, say simcloud.Words, effect func(age time.Duration, dud bool) (any, error)) {
	h.w.Answer(rw, r, c, say, func(age time.Duration, dud bool) (simcloud.Reply, error) {
		v, err := effect(age, dud)
		if err != nil {
			return simcloud.Reply{}, err
		}
		data, err := json.MarshalIndent(v, "", "  ")
		return simcloud.Reply{Type: "application/json; charset=UTF-8", Body: data}, err
	})
}

// words writes a failure as Google does.
func words(rw http.ResponseWriter, err error) {
	if used, ok := errors.AsType[errInUse](err); ok {
		fail(rw, http.StatusBadRequest, "resourceInUseByAnotherResource", used.message)
		return
	}
	e, ok := errors.AsType[*simapi.Error](err)
	if !ok {
		fail(rw, http.StatusInternalServerError, "internalError", "the fake failed: "+err.Error())
		return
	}
	if e.RetryAfter > 0 {
		rw.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds()))))
	}
	if e.Status == http.StatusOK {
		failAs(rw, http.StatusOK, http.StatusInternalServerError, "backendError", "Internal error. Please try again or contact Google Support.", nil)
		return
	}
	switch e.Code {
	case simapi.CodeThrottled:
		failAs(rw, http.StatusForbidden, http.StatusForbidden, "rateLimitExceeded",
			"Quota exceeded for quota metric 'Queries' and limit 'Queries per minute' of service 'compute.googleapis.com' for consumer 'project_number:1'.",
			[]any{object{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "RATE_LIMIT_EXCEEDED", "domain": "googleapis.com"}})
	case simapi.CodeUnauthorized:
		fail(rw, http.StatusUnauthorized, "authError", "Invalid Credentials")
	case simapi.CodeNoFunds:
		failAs(rw, http.StatusForbidden, http.StatusForbidden, "forbidden", "This API method requires billing to be enabled.",
			[]any{object{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "BILLING_DISABLED", "domain": "googleapis.com"}})
	case simapi.CodeQuota:
		fail(rw, http.StatusForbidden, "quotaExceeded", e.Message)
	case simapi.CodeCapacity:
		failAs(rw, http.StatusServiceUnavailable, http.StatusServiceUnavailable, "backendError", e.Message,
			[]any{object{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "stockout", "domain": "compute.googleapis.com"}})
	case simapi.CodeNoOffer, simapi.CodeInvalid, simapi.CodePrice:
		fail(rw, http.StatusBadRequest, "invalid", e.Message)
	case simapi.CodeNotFound:
		fail(rw, http.StatusNotFound, "notFound", e.Message)
	case simapi.CodeMismatch:
		fail(rw, http.StatusConflict, "alreadyExists", e.Message)
	case simapi.CodeRefused, simapi.CodeEndFixed:
		fail(rw, http.StatusBadRequest, "resourceNotReady", e.Message)
	case simapi.CodeUnavailable:
		fail(rw, http.StatusServiceUnavailable, "backendError", "Service unavailable. Please try again.")
	default:
		fail(rw, http.StatusInternalServerError, "internalError", "Internal error. Please try again or contact Google Support.")
	}
}

// fail writes the error body of Google's JSON APIs.
func fail(rw http.ResponseWriter, status int, reason, message string) {
	failAs(rw, status, status, reason, message, nil)
}

func failAs(rw http.ResponseWriter, httpStatus, status int, reason, message string, details []any) {
	e := object{
		"code": status, "message": message,
		"errors": []any{object{"message": message, "domain": "global", "reason": reason}},
	}
	if name := map[int]string{
		400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 409: "ALREADY_EXISTS", 503: "UNAVAILABLE", 500: "INTERNAL",
	}[status]; name != "" && (details != nil || status == http.StatusUnauthorized) {
		e["status"] = name
	}
	if details != nil {
		e["details"] = details
	}
	writeJSON(rw, httpStatus, object{"error": e})
}

func writeJSON(rw http.ResponseWriter, status int, v any) {
	rw.Header().Set("Content-Type", "application/json; charset=UTF-8")
	rw.WriteHeader(status)
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return // only maps of plain values are written
	}
	_, _ = rw.Write(data) // the caller has gone; nothing to do about it
}
