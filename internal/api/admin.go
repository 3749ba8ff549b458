package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gpubroker/internal/state"
	"gpubroker/queue"
)

// Token is an API token without its secret.
type Token struct {
	ID       string     `json:"id"`
	Name     string     `json:"name"`
	Role     Role       `json:"role" enum:"admin,submit,finance,view,host"`
	Projects []string   `json:"projects,omitempty" doc:"absent means all"`
	Created  time.Time  `json:"created"`
	Expires  *time.Time `json:"expires,omitempty"`
	Revoked  *time.Time `json:"revoked,omitempty"`
	Text     string     `json:"text,omitempty" doc:"the token itself; shown once, when it is made"`
}

// TokenRequest asks for a token.
type TokenRequest struct {
	Name     string   `json:"name" minLength:"1" maxLength:"100"`
	Role     Role     `json:"role" enum:"admin,submit,finance,view,host"`
	Projects []string `json:"projects,omitempty"`
	Days     int      `json:"days,omitempty" minimum:"0" maximum:"3650" doc:"until it expires; 0 means never"`
}

type tokenInput struct{ Body TokenRequest }

type tokenOutput struct{ Body Token }

// Tokens are tokens without their secrets.
type Tokens struct {
	Tokens []Token `json:"tokens"`
}

type tokensOutput struct{ Body Tokens }

type tokenPath struct {
	ID string `path:"id"`
}

// Health is how the broker is.
type Health struct {
	OK         bool   `json:"ok"`
	Version    string `json:"version"`
	Generation string `json:"generation,omitempty"`
	Copied     bool   `json:"copied,omitempty" doc:"the store was restored or copied: nothing is done until gpubroker adopt"`
	Store      string `json:"store,omitempty" doc:"why the store cannot be written"`
}

type healthOutput struct {
	Status int
	Body   Health
}

// Version says which version runs.
type Version struct {
	Version string `json:"version"`
}

type versionOutput struct{ Body Version }

type adoptOutput struct {
	Body queue.Meta
}

func (s *Server) registerAdmin() {
	huma.Register(s.api, operation("create-token", http.MethodPost, "/api/v1/tokens", "Make a token", Admin, "admin"), s.createToken)
	huma.Register(s.api, operation("list-tokens", http.MethodGet, "/api/v1/tokens", "List tokens", Admin, "admin"), s.listTokens)
	huma.Register(s.api, operation("revoke-token", http.MethodDelete, "/api/v1/tokens/{id}", "Revoke a token", Admin, "admin"), s.revokeToken)
	huma.Register(s.api, operation("adopt-store", http.MethodPost, "/api/v1/adopt", "Make a restored or copied store this broker's own; restart it then", Admin, "admin"), s.adopt)
	huma.Register(s.api, operation("health", http.MethodGet, "/healthz", "Say how the broker is", "", "admin"), s.health)
	huma.Register(s.api, operation("version", http.MethodGet, "/api/v1/version", "Say which version this is", "", "admin"),
		func(context.Context, *struct{}) (*versionOutput, error) {
			out := &versionOutput{}
			out.Body.Version = s.opts.Version
			return out, nil
		})
}

func tokenOf(t *queue.Token) Token {
	return Token{
		ID: t.ID, Name: t.Name, Role: Role(t.Role), Projects: t.Projects, Created: t.Created,
		Expires: optional(t.Expires), Revoked: optional(t.Revoked),
	}
}

func (s *Server) createToken(ctx context.Context, in *tokenInput) (*tokenOutput, error) {
	now := time.Now().UTC()
	var expires time.Time
	if in.Body.Days > 0 {
		expires = now.AddDate(0, 0, in.Body.Days)
	}
	text, row := NewToken(in.Body.Name, in.Body.Role, in.Body.Projects, now, expires)
	err := s.broker.State().Do(ctx, func(tx *state.Tx) error { tx.PutToken(row); return nil })
	if err != nil {
		return nil, s.failure(ctx, err)
	}
	out := tokenOf(row)
	out.Text = text
	return &tokenOutput{out}, nil
}

func (s *Server) listTokens(context.Context, *struct{}) (*tokensOutput, error) {
	out := &tokensOutput{}
	out.Body.Tokens = []Token{}
	for t := range s.broker.State().View().Tokens.All() {
		out.Body.Tokens = append(out.Body.Tokens, tokenOf(t))
	}
	return out, nil
}

func (s *Server) revokeToken(ctx context.Context, in *tokenPath) (*tokenOutput, error) {
	var row *queue.Token
	err := s.broker.State().Do(ctx, func(tx *state.Tx) error {
		if row = tx.EditToken(in.ID); row != nil && row.Revoked.IsZero() {
			row.Revoked = tx.Now
		}
		return nil
	})
	if err != nil {
		return nil, s.failure(ctx, err)
	}
	if row == nil {
		return nil, huma.Error404NotFound("there is no token " + in.ID)
	}
	return &tokenOutput{tokenOf(row)}, nil
}

func (s *Server) adopt(ctx context.Context, _ *struct{}) (*adoptOutput, error) {
	meta, err := s.broker.AdoptStore(ctx)
	if err != nil {
		return nil, s.failure(ctx, err)
	}
	return &adoptOutput{meta}, nil
}

func (s *Server) health(context.Context, *struct{}) (*healthOutput, error) {
	meta := s.broker.Meta()
	out := &healthOutput{Status: http.StatusOK, Body: Health{OK: true, Version: s.opts.Version, Generation: meta.Generation, Copied: meta.Copied}}
	if err := s.broker.State().Health(); err != nil {
		out.Status, out.Body.OK, out.Body.Store = http.StatusServiceUnavailable, false, err.Error()
	}
	return out, nil
}
