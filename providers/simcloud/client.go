package simcloud

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// maxAnswer is the longest answer that is read, in bytes.
const maxAnswer = 64 << 20

// maxMessage is how much of the cloud's words is kept, in bytes.
const maxMessage = 300

// call makes one call and decodes the answer into out, which may be nil. target
// is the market or machine that errors name.
func (a *Adapter) call(ctx context.Context, op, target, method, path string, in, out any) error {
	if err := a.exchange(ctx, method, path, in, out); err != nil {
		err.Provider, err.Op, err.Target = a.name, op, target
		if op != "launch" {
			err.Outcome = ""
		}
		err.Message = a.redact(err.Message)
		return err
	}
	return nil
}

func (a *Adapter) exchange(ctx context.Context, method, path string, in, out any) *providers.Error {
	if err := ctx.Err(); err != nil {
		return judgeTransport(context.Cause(ctx), false)
	}
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return invalid(err)
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, body)
	if err != nil {
		return invalid(err)
	}
	// Go repeats a request whose connection died while it was idle if the
	// request may be repeated; a launch never may.
	if method == http.MethodPost {
		req.GetBody = nil
	}
	req.Header.Set("Accept", "application/json")
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if a.token != "" {
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	res, err := a.client.Do(req)
	if err != nil {
		return judgeTransport(err, true)
	}
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	_ = res.Body.Close() // everything of use has been read
	switch {
	case err != nil:
		return judgeTransport(fmt.Errorf("read the answer: %w", err), true)
	case len(data) > maxAnswer:
		return judgeTransport(fmt.Errorf("the answer is longer than %d bytes", maxAnswer), true)
	}
	// The cloud is known to send errors with status 200, so the body is asked
	// first.
	var failed simapi.ErrorBody
	if err := json.Unmarshal(data, &failed); err == nil && failed.Error != nil {
		return judge(res.StatusCode, res.Header, failed.Error)
	}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return judge(res.StatusCode, res.Header, nil)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return judgeTransport(fmt.Errorf("decode the answer: %w", err), true)
	}
	return nil
}

func invalid(err error) *providers.Error {
	return &providers.Error{Code: providers.InvalidRequest, Scope: providers.ScopeFamily, Outcome: providers.NotCreated, Err: err}
}

func (a *Adapter) redact(s string) string {
	if a.token != "" {
		s = strings.ReplaceAll(s, a.token, "[hidden]")
	}
	if len(s) > maxMessage {
		s = strings.ToValidUTF8(s[:maxMessage], "") + "…"
	}
	return strings.Join(strings.Fields(s), " ")
}

// strange is an answer that contradicts its request.
func (a *Adapter) strange(op, target, format string, args ...any) error {
	e := &providers.Error{
		Code: providers.Unknown, Scope: providers.ScopeOffer, Provider: a.name, Op: op, Target: target,
		Err: errors.New(a.redact(fmt.Sprintf(format, args...))),
	}
	if op == "launch" {
		e.Outcome = providers.OutcomeUnknown
	}
	return e
}
