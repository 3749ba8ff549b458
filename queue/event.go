package queue

import (
	"encoding/json"
	"time"

	"gpubroker/internal/reason"
)

// Event is something that happened, for people and for views: it is never read
// back to decide.
type Event struct {
	Seq      int64         `json:"seq"` // ascending without order between replicas' clocks
	At       time.Time     `json:"at"`
	Kind     string        `json:"kind"` // "task.running", "instance.gone", "budget.short", …
	Project  string        `json:"project,omitzero"`
	Job      string        `json:"job,omitzero"`
	Index    *int          `json:"index,omitzero"`
	Attempt  string        `json:"attempt,omitzero"`
	Instance string        `json:"instance,omitzero"`
	Reason   reason.Reason `json:"reason,omitzero"`
}

// Cooldown is a part of the market that is left alone for a while.
type Cooldown struct {
	Key    string        `json:"key"` // "offer:MARKET", "family:…", "region:…", "provider:NAME"
	Until  time.Time     `json:"until"`
	Last   time.Time     `json:"last"`  // when it was last hit
	Count  int           `json:"count"` // hits in a row
	Reason reason.Reason `json:"reason"`
}

// Setting is one named document: learned hazards, adoption, and the like.
type Setting struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
}

// Token is an API token, known by the digest of its secret.
type Token struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Hash     string    `json:"hash"`
	Role     string    `json:"role"`              // admin, submit, finance, view
	Projects []string  `json:"projects,omitzero"` // empty means all
	Created  time.Time `json:"created"`
	Expires  time.Time `json:"expires,omitzero"`
	Revoked  time.Time `json:"revoked,omitzero"`
}
