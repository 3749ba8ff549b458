package api

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gpubroker/internal/control"
	"gpubroker/queue"
)

// Role is what a token may do.
type Role string

// The roles. Each may also view.
const (
	Admin   Role = "admin"
	Submit  Role = "submit"  // jobs of its projects
	Finance Role = "finance" // money of all projects
	View    Role = "view"
	Host    Role = control.RoleHost // lets machines that people own join; nothing else
)

// Roles lists them.
func Roles() []Role { return []Role{Admin, Submit, Finance, View, Host} }

const roleKey = "role"

// TokenPrefix marks a token of ours, so that one which leaks is recognised.
const TokenPrefix = "gpb_"

// NewToken draws a token: its text, shown once, and its row, which only knows the
// digest.
func NewToken(name string, role Role, projects []string, now, expires time.Time) (text string, row *queue.Token) {
	id := strings.ToLower(rand.Text()[:10])
	text = TokenPrefix + id + "_" + rand.Text()
	return text, &queue.Token{
		ID: id, Name: name, Hash: hash(text), Role: string(role), Projects: projects, Created: now, Expires: expires,
	}
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

type callerKey struct{}

// caller is who makes a call.
type caller struct{ *queue.Token }

func callerOf(ctx context.Context) caller {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c
}

// may reports whether the caller sees a project.
func (c caller) may(project string) bool {
	return c.Token != nil && (len(c.Projects) == 0 || slices.Contains(c.Projects, project))
}

// anywhere reports whether the caller's jobs may name any place that the broker can
// open: who commands the broker could open it anyway.
func (c caller) anywhere() bool {
	return c.Token != nil && Role(c.Role) == Admin && len(c.Projects) == 0
}

func (c caller) name() string {
	if c.Token == nil {
		return "unknown"
	}
	return c.Token.Name
}

// authenticate lets a call through whose token has the role that it needs.
func (s *Server) authenticate(ctx huma.Context, next func(huma.Context)) {
	need, _ := ctx.Operation().Metadata[roleKey].(Role)
	if need == "" {
		next(ctx)
		return
	}
	text, _ := strings.CutPrefix(ctx.Header("Authorization"), "Bearer ")
	token, why := s.token(strings.TrimSpace(text))
	if token == nil {
		ctx.SetHeader("WWW-Authenticate", `Bearer realm="gpubroker"`)
		s.refuse(ctx, http.StatusUnauthorized, why+": give a valid one with --token or GPUBROKER_TOKEN; an admin makes one with gpubroker token create")
		return
	}
	role := Role(token.Role)
	if role == Host || role != Admin && need != View && role != need {
		s.refuse(ctx, http.StatusForbidden, "this needs a token with the role "+string(need)+", yours has "+token.Role)
		return
	}
	next(huma.WithValue(ctx, callerKey{}, caller{token}))
}

func (s *Server) refuse(ctx huma.Context, status int, message string) {
	if err := huma.WriteErr(s.api, ctx, status, message); err != nil {
		s.log.Warn("answer not written", "error", err)
	}
}

// token returns the row of a token that is good now, or why there is none. Only
// who knows a token learns that it has run out.
func (s *Server) token(text string) (t *queue.Token, why string) {
	rest, ok := strings.CutPrefix(text, TokenPrefix)
	switch {
	case text == "":
		return nil, "no token was given"
	case !ok:
		return nil, "this is no token of a broker"
	}
	id, _, _ := strings.Cut(rest, "_")
	t = s.broker.State().View().Tokens.Get(id)
	switch {
	case t == nil || subtle.ConstantTimeCompare([]byte(hash(text)), []byte(t.Hash)) != 1:
		return nil, "this broker does not know the token"
	case !t.Revoked.IsZero():
		return nil, "the token was revoked"
	case !t.Expires.IsZero() && !time.Now().Before(t.Expires):
		return nil, "the token expired on " + t.Expires.UTC().Format(time.RFC3339)
	}
	return t, ""
}
