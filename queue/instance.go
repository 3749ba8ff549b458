package queue

import (
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/reason"
)

// Instance is our record of a machine. It is stored before the machine is asked
// for, and closed only on the provider's word.
type Instance struct {
	ID      string `json:"id"` // ours: the request id and tag
	Version int64  `json:"version"`

	State InstanceState `json:"state"`
	Gone  reason.Reason `json:"gone,omitzero"` // why it ended

	Project string `json:"project"` // the only project it serves
	// Payer is the job whose own budget pays for it, and which alone it serves;
	// "" when the project pays.
	Payer string `json:"payer,omitzero"`

	Provider  string  `json:"provider"`
	Region    string  `json:"region,omitzero"`
	Zone      string  `json:"zone,omitzero"`
	Type      string  `json:"type"`
	Kind      string  `json:"kind"` // spot, on-demand
	GPU       string  `json:"gpu,omitzero"`
	GPUs      float64 `json:"gpus"`
	GPUName   string  `json:"gpu_name,omitzero"`
	GPUMemory int64   `json:"gpu_memory,omitzero"` // bytes per GPU; 0 unknown, as below
	VCPU      float64 `json:"vcpu,omitzero"`
	Memory    int64   `json:"memory,omitzero"`
	Disk      int64   `json:"disk,omitzero"`
	Arch      string  `json:"arch,omitzero"`
	Slots     int     `json:"slots"`             // tasks it can run at once
	SlotKey   string  `json:"slot_key,omitzero"` // the needs that its slots are cut for
	// Group is the gang that it was first rented for: its provider is asked to put
	// machines of one group close together.
	Group string `json:"group,omitzero"`
	// Takes is the attempt that still runs elsewhere and whose task moves here.
	Takes   string `json:"takes,omitzero"`
	CloudID string `json:"cloud_id,omitzero"`
	Address string `json:"address,omitzero"`

	Price    money.Rate    `json:"price"`              // at the decision
	Bound    money.Rate    `json:"bound"`              // the price that its reservations assume, for life
	OnDemand money.Rate    `json:"on_demand,omitzero"` // the same type on demand at the decision; 0 unknown
	Billing  money.Billing `json:"billing"`
	SelfEnd  string        `json:"self_end"`

	Requested time.Time `json:"requested"`
	Launched  time.Time `json:"launched,omitzero"` // the provider accepted
	Ready     time.Time `json:"ready,omitzero"`    // the agent called in
	Idle      time.Time `json:"idle,omitzero"`     // since when it has had no attempt
	DrainBy   time.Time `json:"drain_by,omitzero"` // it is taken then
	Ended     time.Time `json:"ended,omitzero"`    // the provider's word

	// Lease is until when money is reserved; End is what the provider has
	// confirmed as its own end (SelfEnd rolling and fixed).
	Lease time.Time `json:"lease"`
	// Overdue is when its cost beyond the lease was last booked: nothing ended it.
	Overdue time.Time `json:"overdue,omitzero"`
	End     time.Time `json:"end,omitzero"`
	Boot    time.Time `json:"boot"` // the agent must have called in by then

	// Unknown is when a launch was found to have an unknown outcome: the provider's
	// list, read past its lag, decides.
	Unknown   time.Time `json:"unknown,omitzero"`
	Missing   time.Time `json:"missing,omitzero"`    // since when the provider's list has lacked it
	DeleteErr string    `json:"delete_err,omitzero"` // last refusal: it may still be billing

	JoinHash   string `json:"join_hash,omitzero"`  // digest of the join token
	Nonce      string `json:"nonce,omitzero"`      // the first that joined
	Credential string `json:"credential,omitzero"` // digest of the agent's credential

	Settled time.Time    `json:"settled,omitzero"`
	Cost    money.Amount `json:"cost,omitzero"` // once settled: what the provider charged
}
