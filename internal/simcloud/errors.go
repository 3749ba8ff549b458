package simcloud

import (
	"fmt"
	"net/http"
	"strings"

	"gpubroker/internal/simcloud/simapi"
)

func apiError(status int, code, format string, args ...any) *simapi.Error {
	return &simapi.Error{Status: status, Code: code, Message: fmt.Sprintf(format, args...)}
}

func notFound(id string) *simapi.Error {
	return apiError(http.StatusNotFound, simapi.CodeNotFound, "no machine %s", id)
}

func errClosed() *simapi.Error {
	return apiError(http.StatusServiceUnavailable, simapi.CodeUnavailable, "the cloud is shutting down")
}

// cutRequest reads the form of an id that names a machine by its request.
func cutRequest(id string) (string, bool) { return strings.CutPrefix(id, "request:") }
