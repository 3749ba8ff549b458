package queue

import (
	"slices"

	"gpubroker/internal/reason"
)

// MaxNodes is the largest gang.
const MaxNodes = 1024

// Member is an attempt's place in a gang: a task that needs several machines at
// once has one attempt on each of them, all with the same number. That of rank 0
// leads: it is the task's attempt, which alone may commit, and its row says what
// the whole gang has come to.
type Member struct {
	Lead  string `json:"lead"` // the attempt of rank 0
	Rank  int    `json:"rank"` // 0 to Nodes-1
	Nodes int    `json:"nodes"`
	// At is where the other members reach it; nil until it is staged.
	At *Endpoint `json:"at,omitempty"`

	// What follows is on the leading row alone.

	// All are the members' attempts by rank.
	All []string `json:"all,omitempty"`
	// Hosts are where the members are reached, by rank, once all are staged: from then
	// on their commands begin.
	Hosts []Endpoint `json:"hosts,omitempty"`
	// End is the most telling end of a member so far; nil while none has ended.
	End *End `json:"end,omitempty"`
	// Unsealed are the machines of members whose end no agent has seen: something
	// of them may run until the machine is gone.
	Unsealed []string `json:"unsealed,omitempty"`
}

// Endpoint is where a member listens: an address of its machine that the other
// machines of the gang reach, and a port that it has found free.
type Endpoint struct {
	Address string `json:"address"`
	Port    int    `json:"port"`
}

// End is how a member ended.
type End struct {
	Rank     int           `json:"rank"`
	Outcome  Outcome       `json:"outcome"`
	ExitCode *int          `json:"exit_code,omitempty"`
	Reason   reason.Reason `json:"reason,omitzero"`
}

// telling orders outcomes by what they say of a gang, the most telling first.
// What was done to a machine tells more than what its loss made the others do: they
// fail for want of it. A member that was stopped for another's sake tells nothing.
var telling = [...]Outcome{CancelledOut, Preempted, Lost, LaunchFailed, Moved, SetupFailed, Failed, Stopped, Succeeded}

// Tell returns the more telling of a gang's end so far and one more end. That the
// leading member succeeded is the gang's success, whatever became of the others.
func (e *End) Tell(o End) *End {
	switch {
	case e == nil, o.Rank == 0 && o.Outcome == Succeeded:
		return &o
	case e.Rank == 0 && e.Outcome == Succeeded, slices.Index(telling[:], e.Outcome) <= slices.Index(telling[:], o.Outcome):
		return e
	}
	return &o
}

// Leads reports whether the attempt may be a task's own: it is alone, or of rank 0.
func (a *Attempt) Leads() bool { return a.Member == nil || a.Member.Rank == 0 }
