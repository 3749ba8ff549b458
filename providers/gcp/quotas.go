package gcp

import (
	"context"
	"slices"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"

	"gpubroker/internal/gpu"
	"gpubroker/providers"
)

// quotaCards are the GPUs that quotas name, by the middle of their names: NVIDIA_…_GPUS.
var quotaCards = map[string][]string{
	"L4": {"l4"}, "A100": {"a100-sxm-40gb"}, "A100_80GB": {"a100-sxm-80gb"}, "H100": {"h100-sxm-80gb"},
	"H200": {"h200-sxm-141gb"}, "B200": {"b200"}, "T4": {"t4"}, "P4": {"p4"}, "V100": {"v100-sxm-16gb"}, "P100": {"p100-pcie-16gb"},
}

// Quotas returns the project's limits on GPUs and machines. Those on processors do
// not say which families they count; a launch tells when one is exceeded.
func (a *Adapter) Quotas(ctx context.Context) ([]providers.Quota, error) {
	var out []providers.Quota
	err := pages(ctx, a, "/regions", "", func() *computepb.RegionList { return new(computepb.RegionList) }, func(p *computepb.RegionList) {
		for _, r := range p.GetItems() {
			if !a.set.wants(r.GetName()) {
				continue
			}
			for _, q := range r.GetQuotas() {
				if own, ok := quotaOf(q); ok {
					own.Region = r.GetName()
					out = append(out, own)
				}
			}
		}
	})
	if err != nil {
		return nil, a.failed("quotas", "", err, false)
	}
	p, err := a.projects.Get(ctx, &computepb.GetProjectRequest{Project: a.set.Project})
	if err != nil {
		return nil, a.failed("quotas", "", err, false)
	}
	for _, q := range p.GetQuotas() {
		if own, ok := quotaOf(q); ok {
			out = append(out, own)
		}
	}
	return out, nil
}

// quotaOf reads a quota that bounds launches; false for the others.
func quotaOf(q *computepb.Quota) (providers.Quota, bool) {
	name := q.GetMetric()
	out := providers.Quota{Name: name, Limit: max(q.GetLimit(), 0), Used: max(q.GetUsage(), 0)}
	rest, preemptible := strings.CutPrefix(name, "PREEMPTIBLE_")
	out.Kind = providers.OnDemand
	if preemptible {
		out.Kind = providers.Spot
	}
	switch {
	case name == "GPUS_ALL_REGIONS":
		out.Unit, out.Kind, out.Types = providers.UnitGPU, "", gpuTypes("")
	case name == "INSTANCES":
		out.Unit, out.Kind = providers.UnitMachine, ""
	case strings.HasPrefix(rest, "NVIDIA_") && strings.HasSuffix(rest, "_GPUS"):
		card := strings.TrimSuffix(strings.TrimPrefix(rest, "NVIDIA_"), "_GPUS")
		out.Unit = providers.UnitGPU
		for _, id := range quotaCards[card] {
			out.Types = append(out.Types, gpuTypes(id)...)
		}
		if len(out.Types) == 0 {
			return out, false // of a card, or a workstation licence, that is not rented here
		}
	default:
		return out, false
	}
	return out, true
}

// gpuTypes are the types of markets with a GPU, or with any.
func gpuTypes(id string) []string {
	var out []string
	for _, t := range gpu.Builtin().InstanceTypes("gcp") {
		if (id == "" || t.GPU == id) && !strings.Contains(t.Name, " ") {
			out = append(out, t.Name)
		}
	}
	for _, at := range tables().attachments {
		if own, err := gpu.Builtin().Identify("gcp", "", at.card, 0); err == nil && (id == "" || own == id) {
			for _, host := range n1Hosts() {
				if host.vcpu <= at.vcpu && host.memoryMiB <= at.memoryGiB*1024 {
					out = append(out, machine{host.name, at.card, at.count}.String())
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
