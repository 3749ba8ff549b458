package azblob

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"

	"gpubroker/internal/objects"
)

// fail gives an SDK error its code, and one line.
func fail(op, name string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*objects.Error](err); ok {
		return &objects.Error{Op: op, Key: name, Code: e.Code, Err: short(e.Err)}
	}
	return &objects.Error{Op: op, Key: name, Code: code(err), Err: short(err)}
}

// code follows learn.microsoft.com/rest/api/storageservices/blob-service-error-codes.
func code(err error) objects.Code {
	if e, ok := errors.AsType[*azidentity.AuthenticationFailedError](err); ok {
		if s := httpStatus(e.RawResponse); s == 0 || s >= 500 {
			return objects.Away
		}
		return objects.Denied
	}
	e, ok := errors.AsType[*azcore.ResponseError](err)
	if !ok {
		return objects.Away // no answer
	}
	switch bloberror.Code(e.ErrorCode) {
	case bloberror.BlobNotFound:
		return objects.NotFound
	case bloberror.ContainerNotFound, bloberror.SourceConditionNotMet, bloberror.InvalidBlockList,
		bloberror.BlockCountExceedsLimit, bloberror.BlockListTooLong:
		return objects.Invalid
	case bloberror.ConditionNotMet, bloberror.TargetConditionNotMet, bloberror.BlobAlreadyExists:
		return objects.Exists
	case bloberror.ServerBusy, bloberror.OperationTimedOut, bloberror.InternalError, bloberror.ContainerBeingDeleted,
		bloberror.AccountBeingCreated, bloberror.SystemInUse:
		return objects.Away
	// CannotVerifyCopySource: the service may not read its own blob, by the
	// account's network rules.
	case bloberror.CannotVerifyCopySource, bloberror.AccountIsDisabled, bloberror.InsufficientAccountPermissions, bloberror.BlobImmutableDueToPolicy:
		return objects.Denied
	default:
		return codeOf(e.StatusCode)
	}
}

// codeOf is for answers whose error code says no more than their status.
func codeOf(status int) objects.Code {
	switch {
	case status == http.StatusNotFound:
		return objects.NotFound
	case status == http.StatusPreconditionFailed, status == http.StatusConflict:
		return objects.Exists
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return objects.Denied
	case status == http.StatusInsufficientStorage:
		return objects.Full
	case status == http.StatusTooManyRequests, status == http.StatusRequestTimeout, status >= 500:
		return objects.Away
	}
	return objects.Invalid
}

// brief is an SDK error in one line: its own text is the whole exchange.
type brief struct {
	text string
	err  error
}

func (b *brief) Error() string { return b.text }
func (b *brief) Unwrap() error { return b.err }

func short(err error) error {
	if e, ok := errors.AsType[*azcore.ResponseError](err); ok {
		return &brief{fmt.Sprintf("HTTP %d %s", e.StatusCode, e.ErrorCode), err}
	}
	if e, ok := errors.AsType[*azidentity.AuthenticationFailedError](err); ok {
		return &brief{fmt.Sprintf("no token from Azure (HTTP %d): check the credentials", httpStatus(e.RawResponse)), err}
	}
	// A transport's error repeats the address, which may be a signed one.
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	if text := err.Error(); strings.Contains(text, "\n") {
		return &brief{strings.Join(strings.Fields(text), " "), err}
	}
	return err
}

// httpStatus of an answer, 0 if there was none.
func httpStatus(resp *http.Response) int {
	if resp == nil {
		return 0
	}
	return resp.StatusCode
}
