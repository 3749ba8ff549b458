package verda

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// call makes one call.
func (a *Adapter) call(ctx context.Context, c rest.Call) error {
	err := a.api.Do(ctx, c)
	if e, ok := errors.AsType[*providers.Error](err); ok {
		if e.Code == providers.Unauthorized {
			a.tokens.forget() // it may have been revoked before its end
		}
		if c.Method != http.MethodPost || c.Path != "/instances" {
			ofOther(e)
		}
		// Only a call that names a thing may say that it is gone: for any other, not
		// found is a wrong endpoint. PUT has the id in its body.
		if e.Code == providers.NotFound && strings.Count(c.Path, "/") < 2 && c.Method != http.MethodPut {
			e.Code, e.Scope = providers.InvalidRequest, providers.ScopeProvider
		}
	}
	return err
}

// The operations, as errors name them.
const (
	opLaunch    = "launch"
	opTerminate = "terminate"
	opDescribe  = "describe"
	opList      = "list"
	opOffers    = "offers"
	opPreflight = "preflight"
	opBalance   = "balance"
)

// tokens keeps the access token of the OAuth 2.0 client credentials grant.
type tokens struct {
	api    *rest.Client
	id     string
	secret string
	turn   chan struct{} // held by the call that fetches one

	mu    sync.Mutex
	token string
	until time.Time
}

// tokenMargin is how long before its end a token is given up: as the vendor's SDK
// does it (verdacloud-sdk-go, auth.go).
const tokenMargin = 30 * time.Second

// authorize adds the token, and fetches one first where there is none that is
// still good.
func (t *tokens) authorize(ctx context.Context, r *http.Request) error {
	token := t.kept()
	if token == "" {
		select {
		case t.turn <- struct{}{}:
			defer func() { <-t.turn }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if token = t.kept(); token == "" { // nobody has fetched one meanwhile
			var err error
			if token, err = t.fetch(ctx); err != nil {
				return err
			}
		}
	}
	r.Header.Set("Authorization", "Bearer "+token)
	return nil
}

func (t *tokens) kept() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !time.Now().Before(t.until) {
		return ""
	}
	return t.token
}

func (t *tokens) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.token, t.until = "", time.Time{}
}

func (t *tokens) fetch(ctx context.Context) (string, error) {
	asked := time.Now()
	var got struct {
		Token   string `json:"access_token"`
		Seconds int64  `json:"expires_in"`
	}
	err := t.api.Do(ctx, rest.Call{
		Op: "authorize", Method: http.MethodPost, Path: "/oauth2/token", Out: &got,
		In: map[string]string{"grant_type": "client_credentials", "client_id": t.id, "client_secret": t.secret},
	})
	if e, ok := errors.AsType[*providers.Error](err); ok {
		switch e.Code {
		case providers.InvalidRequest, providers.QuotaExceeded: // the only input is the credential
			e.Code = providers.Unauthorized
		case providers.NotFound: // the endpoint, and nothing that a call is about
			e.Code, e.Scope = providers.InvalidRequest, providers.ScopeProvider
		default:
			ofOther(e)
		}
	}
	if err != nil {
		return "", err
	}
	if got.Token == "" || got.Seconds <= 0 {
		return "", t.api.Strange("authorize", "", "the answer holds no token or no life of it")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.token, t.until = got.Token, asked.Add(time.Duration(got.Seconds)*time.Second-tokenMargin)
	return got.Token, nil
}

// created reads the id of what a create has made: bare text, or the thing itself
// as JSON (verdacloud-sdk-go, createWithPlainTextResponse).
func created(body []byte) (string, error) {
	text := strings.TrimSpace(string(body))
	if strings.HasPrefix(text, "{") {
		var thing struct {
			ID string `json:"id"`
		}
		if err := json.Unmarshal(body, &thing); err != nil {
			return "", fmt.Errorf("decode what was created: %w", err)
		}
		text = thing.ID
	}
	text = strings.Trim(text, `"`)
	if text == "" || strings.ContainsAny(text, " \n<>/?") {
		return "", errors.New("the answer holds no id of what was created")
	}
	return text, nil
}
