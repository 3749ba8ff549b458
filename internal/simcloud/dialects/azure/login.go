package azure

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
)

// tokenLife is how long a token is good: an hour, as of Entra's default.
const tokenLife = time.Hour

// token is a bearer token that was given out.
type token struct {
	principal string // "" is the application, else a machine's identity
	expires   time.Time
}

// role is an assignment of Contributor, or of whatever role, at a scope.
type role struct {
	scope     string // lower case
	principal string
	body      map[string]any
}

// guid is a stable id in the form of a UUID.
func guid(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	h := hex.EncodeToString(sum[:16])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// login is Microsoft Entra: the documents that libraries look for, and the client
// credentials flow (learn.microsoft.com/entra/identity-platform/v2-oauth2-client-creds-grant-flow).
func (c *Cloud) login(rw http.ResponseWriter, r *http.Request) {
	tenant, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if rest != "oauth2/v2.0/token" {
		here := base(r) + "/" + tenant
		rw.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(rw).Encode(map[string]any{ // the caller has gone
			"token_endpoint": here + "/oauth2/v2.0/token", "authorization_endpoint": here + "/oauth2/v2.0/authorize",
			"issuer": here + "/v2.0", "tenant_discovery_endpoint": here + "/v2.0/.well-known/openid-configuration",
			"api-version": "1.1", "metadata": []any{},
		})
		return
	}
	words := func(rw http.ResponseWriter, err error) {
		// A fault of every call hits this one too.
		e, code, text := translate(asSim(err), simapi.Place{}), "temporarily_unavailable", "AADSTS90033: A transient error has occurred. Please try again."
		if e.Status < 500 && e.Status != http.StatusTooManyRequests {
			e.Status, code, text = http.StatusUnauthorized, "invalid_client", "AADSTS7000215: Invalid client secret provided. Ensure the secret being sent in the request is the client secret value, not the client secret ID."
		}
		rw.Header().Set("Content-Type", "application/json; charset=utf-8")
		rw.WriteHeader(e.Status)
		_ = json.NewEncoder(rw).Encode(map[string]any{"error": code, "error_description": text, "error_codes": []int{7000215}}) // the caller has gone
	}
	c.w.Answer(rw, r, simcloud.Call{Op: "login"}, words, func(time.Duration, bool) (simcloud.Reply, error) {
		secret := c.w.Config().Tokens.API
		if err := r.ParseForm(); err != nil || r.PostForm.Get("grant_type") != "client_credentials" || r.PostForm.Get("client_id") != ClientID || tenant != Tenant ||
			secret != "" && subtle.ConstantTimeCompare([]byte(r.PostForm.Get("client_secret")), []byte(secret)) != 1 {
			return simcloud.Reply{}, &simapi.Error{Status: http.StatusUnauthorized, Code: simapi.CodeUnauthorized}
		}
		return body(http.StatusOK, map[string]any{"token_type": "Bearer", "expires_in": int(tokenLife.Seconds()), "ext_expires_in": int(tokenLife.Seconds()), "access_token": c.issue("")})
	})
}

// issue gives out a token.
func (c *Cloud) issue(principal string) string {
	now := c.w.Now()
	n := c.number()
	c.mu.Lock()
	defer c.mu.Unlock()
	t := "eyJ0eXAiOiJKV1QifQ." + strings.ReplaceAll(guid("token", principal, strconv.Itoa(n), now.String()), "-", "")
	c.tokens[t] = token{principal, now.Add(tokenLife)}
	return t
}

// Revoke makes every token that was given out as good as expired.
func (c *Cloud) Revoke() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for t, k := range c.tokens {
		k.expires = time.Time{}
		c.tokens[t] = k
	}
}

// authorize says whether the caller may do a call of ARM: the application what was
// not denied to it, a machine's identity only what a role at that scope permits.
func (c *Cloud) authorize(r *http.Request, action string) *armError {
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return failf(http.StatusUnauthorized, "AuthenticationFailed", "Authentication failed. The 'Authorization' header is missing.")
	}
	now := c.w.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	k, known := c.tokens[given]
	switch {
	case !known:
		return failf(http.StatusUnauthorized, "InvalidAuthenticationToken", "The access token is invalid.")
	case !now.Before(k.expires):
		return failf(http.StatusUnauthorized, "ExpiredAuthenticationToken", "The access token expiry UTC time '%s' is earlier than current UTC time '%s'.", k.expires.Format(time.RFC1123), now.Format(time.RFC1123))
	}
	who, allowed := ClientID, k.principal == ""
	if allowed {
		for _, d := range c.denied {
			allowed = allowed && !strings.EqualFold(d, action)
		}
	} else {
		who = k.principal
		path := strings.ToLower(r.URL.Path)
		for _, a := range c.roles {
			allowed = allowed || a.principal == k.principal && (path == a.scope || strings.HasPrefix(path, a.scope+"/"))
		}
	}
	if !allowed {
		return failf(http.StatusForbidden, "AuthorizationFailed", "The client '%s' with object id '%s' does not have authorization to perform action '%s' over scope '%s' or the scope is invalid. If access was recently granted, please refresh your credentials.", who, who, action, r.URL.Path)
	}
	return nil
}

func asSim(err error) *simapi.Error {
	if s, ok := err.(*simapi.Error); ok { //nolint:errorlint // the world's own value, not a chain
		return s
	}
	return &simapi.Error{Status: http.StatusInternalServerError, Code: simapi.CodeInternal, Message: err.Error()}
}
