package providers

import (
	"cmp"
	"strings"
	"time"

	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
)

// Kind is how capacity is bought.
type Kind string

// The kinds of capacity.
const (
	Spot     Kind = "spot"      // may be taken back by the provider
	OnDemand Kind = "on-demand" // stays until we end it
)

// Market is where an offer is bought. It is comparable, and its text form
// "provider/region/zone/type/kind" is its key everywhere.
type Market struct {
	Provider string `json:"provider"`
	Region   string `json:"region,omitzero"`
	Zone     string `json:"zone,omitzero"`
	Type     string `json:"type"`
	Kind     Kind   `json:"kind"`
}

// String returns the market's key.
func (m Market) String() string {
	return strings.Join([]string{m.Provider, m.Region, m.Zone, m.Type, string(m.Kind)}, "/")
}

// Compare orders markets by provider, region, zone, type and kind.
func (m Market) Compare(o Market) int {
	return cmp.Or(
		cmp.Compare(m.Provider, o.Provider), cmp.Compare(m.Region, o.Region),
		cmp.Compare(m.Zone, o.Zone), cmp.Compare(m.Type, o.Type), cmp.Compare(m.Kind, o.Kind),
	)
}

// Availability is what the provider says about an offer now.
type Availability string

// The availabilities. Most clouds say nothing until a launch is tried.
const (
	Unsaid Availability = ""
	Open   Availability = "open"
	Full   Availability = "full"
)

// Shape is what an instance type is, wherever it is rented. Zero means unknown
// for every number except GPUs, where zero is a machine without one.
type Shape struct {
	GPU        string  `json:"gpu,omitzero"`        // canonical id of package gpu; "" without a GPU or when unknown
	GPUName    string  `json:"gpu_name,omitzero"`   // the provider's own words
	GPUs       float64 `json:"gpus"`                // per machine; below 1 is a share of one GPU
	GPUMemory  int64   `json:"gpu_memory,omitzero"` // bytes per GPU
	VCPU       float64 `json:"vcpu,omitzero"`
	Memory     int64   `json:"memory,omitzero"` // bytes
	Disk       int64   `json:"disk,omitzero"`   // bytes on the root or local disk that come with the price
	NetworkBps int64   `json:"network_bps,omitzero"`
	Arch       string  `json:"arch,omitzero"` // amd64, arm64
	// Fabric is true when all GPUs of the machine reach each other at full speed,
	// RDMA when such machines can be joined so. Adapters leave both unknown; the
	// market fills in what the facts say.
	Fabric gpu.Known[bool] `json:"fabric,omitzero"`
	RDMA   gpu.Known[bool] `json:"rdma,omitzero"`
}

// Offer is one thing to rent.
type Offer struct {
	Market
	Shape
	Price     money.Rate     `json:"price"`          // whole machine, per hour, disk and address included
	Parts     []PricePart    `json:"parts,omitzero"` // what the price sums, when known
	Currency  money.Currency `json:"currency"`
	Available Availability   `json:"available,omitzero"`
	Capacity  int            `json:"capacity,omitzero"` // machines still to be had, 0 when unknown
	Seen      time.Time      `json:"seen"`              // when the provider said so
	Source    string         `json:"source"`            // where the price is from
}

// PricePart is a share of an offer's price.
type PricePart struct {
	Name  string     `json:"name"` // compute, disk, address
	Price money.Rate `json:"price"`
}

// Scope narrows a list of offers. The zero Scope is everything.
type Scope struct {
	Region string
}
