package gcp

import (
	"hash/fnv"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// family is a machine family: what its types bring and how it is billed.
type family struct {
	prefix    string
	core, ram string // SKU descriptions; none where the card's SKU is the whole
	gpu       string
	card      string // accelerator type that the types bring
	ssds      int    // local SSDs per card
}

// families are Google's own words: accelerator types and SKU descriptions as the
// mapping of Cyclenerd/google-cloud-pricing-cost-calculator has them.
var families = []family{
	{prefix: "e2", core: "E2 Instance Core", ram: "E2 Instance Ram"},
	{prefix: "n1", core: "N1 Predefined Instance Core", ram: "N1 Predefined Instance Ram"},
	{prefix: "n2", core: "N2 Instance Core", ram: "N2 Instance Ram"},
	{prefix: "g2-standard", core: "G2 Instance Core", ram: "G2 Instance Ram", gpu: "Nvidia L4 GPU", card: "nvidia-l4"},
	{prefix: "g4-standard", core: "G4 Instance Core", ram: "G4 Instance Ram", gpu: "RTX 6000 96GB", card: "nvidia-rtx-pro-6000"},
	{prefix: "a2-highgpu", core: "A2 Instance Core", ram: "A2 Instance Ram", gpu: "Nvidia Tesla A100 GPU", card: "nvidia-tesla-a100"},
	{prefix: "a2-ultragpu", core: "A2 Instance Core", ram: "A2 Instance Ram", gpu: "Nvidia Tesla A100 80GB GPU", card: "nvidia-a100-80gb", ssds: 1},
	{prefix: "a3-highgpu", core: "A3 Instance Core", ram: "A3 Instance Ram", gpu: "Nvidia H100 80GB GPU", card: "nvidia-h100-80gb", ssds: 2},
	{prefix: "a4-highgpu", gpu: "A4 Nvidia B200 (1 gpu slice)", card: "nvidia-b200"},
}

// attachable are the cards that n1 takes.
var attachable = []struct{ card, gpu string }{
	{"nvidia-tesla-t4", "Nvidia Tesla T4 GPU"},
	{"nvidia-tesla-v100", "Nvidia Tesla V100 GPU"},
	{"nvidia-tesla-p100", "Nvidia Tesla P100 GPU"},
	{"nvidia-tesla-p4", "Nvidia Tesla P4 GPU"},
}

// familyOf returns the family of one of the world's types, with the SKU of the
// card that is attached to it.
func familyOf(typ string) (family, bool) {
	host, attached := splitType(typ)
	for _, f := range families {
		if !strings.HasPrefix(host, f.prefix+"-") {
			continue
		}
		for _, a := range attachable {
			if a.card == attached.Type {
				f.gpu, f.card = a.gpu, a.card
			}
		}
		return f, true
	}
	return family{}, false
}

// cards is how many a type brings: "a3-highgpu-8g" 8, "…-t4x1" 1; for the others
// the world says it.
func (f family) cards(typ string) int {
	if _, a := splitType(typ); a.Count > 0 {
		return a.Count
	}
	n, err := strconv.Atoi(strings.TrimSuffix(last(strings.ReplaceAll(typ, "-", "/")), "g"))
	if err == nil && strings.HasSuffix(typ, "g") {
		return n
	}
	return 1
}

// number is an id that stays the same for the same words.
func number(words string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(words)) // it never fails
	return strconv.FormatUint(h.Sum64()>>2, 10)
}

const created = "1969-12-31T16:00:00.000-08:00"

func (h *handler) machineTypes(rw http.ResponseWriter, r *http.Request) {
	h.answer(rw, r, simcloud.Call{Op: "offers"}, func(age time.Duration, _ bool) (any, error) {
		var all []item
		seen := map[string]bool{}
		for _, o := range h.w.Offers("", age) {
			host, attached := splitType(o.Type)
			if seen[o.Zone+"/"+host] {
				continue
			}
			seen[o.Zone+"/"+host] = true
			v := object{
				"kind": "compute#machineType", "id": number("type " + host), "name": host, "zone": o.Zone, "creationTimestamp": created,
				"description": host, "guestCpus": int(o.VCPU), "memoryMb": int(o.Memory >> 20), "isSharedCpu": false, "imageSpaceGb": 0,
				"maximumPersistentDisks": 128, "maximumPersistentDisksSizeGb": "263168", "architecture": "X86_64",
				"selfLink": link("zones/" + o.Zone + "/machineTypes/" + host),
			}
			if f, ok := familyOf(host); ok && f.card != "" && attached.Count == 0 {
				n := int(o.GPUs)
				v["accelerators"] = []any{object{"guestAcceleratorType": f.card, "guestAcceleratorCount": n}}
				if f.ssds > 0 {
					v["bundledLocalSsds"] = object{"defaultInterface": "NVME", "partitionCount": f.ssds * n}
				}
			}
			all = append(all, item{"zones/" + o.Zone, v})
		}
		all, err := filtered(r, all)
		if err != nil {
			return nil, err
		}
		return h.aggregated(r, "machineTypes", "compute#machineTypeAggregatedList", all)
	})
}

func (h *handler) acceleratorTypes(rw http.ResponseWriter, r *http.Request) {
	h.answer(rw, r, simcloud.Call{Op: "offers"}, func(age time.Duration, _ bool) (any, error) {
		type key struct{ zone, card string }
		most := map[key]int{} // on one machine, of what the world offers
		names := map[string]string{}
		for _, o := range h.w.Offers("", age) {
			if f, ok := familyOf(o.Type); ok && f.card != "" {
				most[key{o.Zone, f.card}] = max(most[key{o.Zone, f.card}], int(o.GPUs))
				names[f.card] = f.gpu
			}
		}
		var all []item
		for k, n := range most {
			all = append(all, item{"zones/" + k.zone, object{
				"kind": "compute#acceleratorType", "id": number("card " + k.card), "name": k.card, "description": names[k.card], "creationTimestamp": created,
				"zone": link("zones/" + k.zone), "maximumCardsPerInstance": n, "selfLink": link("zones/" + k.zone + "/acceleratorTypes/" + k.card),
			}})
		}
		slices.SortFunc(all, func(a, b item) int { return strings.Compare(field1(a.value, "name"), field1(b.value, "name")) })
		all, err := filtered(r, all)
		if err != nil {
			return nil, err
		}
		return h.aggregated(r, "acceleratorTypes", "compute#acceleratorTypeAggregatedList", all)
	})
}

// quotas are those of a region, or of the project when it is empty. Google's are
// named for their kind: PREEMPTIBLE_NVIDIA_L4_GPUS.
func (h *handler) quotaList(region string) []any {
	out := []any{}
	for _, q := range h.w.Quotas() {
		if q.Region == region {
			out = append(out, object{"metric": q.Name, "limit": q.Limit, "usage": q.Used})
		}
	}
	return out
}

func (h *handler) project(rw http.ResponseWriter, r *http.Request) {
	h.answer(rw, r, simcloud.Call{Op: "quotas"}, func(time.Duration, bool) (any, error) {
		return object{
			"kind": "compute#project", "id": number(Project), "name": Project, "creationTimestamp": created, "quotas": h.quotaList(""),
			"defaultServiceAccount": "1-compute@developer.gserviceaccount.com", "selfLink": "https://www.googleapis.com/compute/v1/projects/" + Project,
			"commonInstanceMetadata": object{"kind": "compute#metadata", "fingerprint": "bWV0YWRhdGE="}, "defaultNetworkTier": "PREMIUM",
		}, nil
	})
}

func (h *handler) regionNames() []string {
	var out []string
	for _, z := range h.places() {
		if !slices.Contains(out, region(z)) {
			out = append(out, region(z))
		}
	}
	return out
}

func (h *handler) regionView(name string) object {
	var zones []string
	for _, z := range h.places() {
		if region(z) == name {
			zones = append(zones, link("zones/"+z))
		}
	}
	return object{
		"kind": "compute#region", "id": number("region " + name), "name": name, "description": name, "status": "UP", "creationTimestamp": created,
		"zones": zones, "quotas": h.quotaList(name), "selfLink": link("regions/" + name), "supportsPzs": false,
	}
}

func (h *handler) region(rw http.ResponseWriter, r *http.Request) {
	name := r.PathValue("region")
	h.answer(rw, r, simcloud.Call{Op: "quotas"}, func(time.Duration, bool) (any, error) {
		if !slices.Contains(h.regionNames(), name) {
			return nil, &simapi.Error{Status: http.StatusNotFound, Code: simapi.CodeNotFound, Message: "The resource 'projects/" + Project + "/regions/" + name + "' was not found"}
		}
		return h.regionView(name), nil
	})
}

func (h *handler) regions(rw http.ResponseWriter, r *http.Request) {
	h.answer(rw, r, simcloud.Call{Op: "quotas"}, func(time.Duration, bool) (any, error) {
		var all []item
		for _, name := range h.regionNames() {
			all = append(all, item{"", h.regionView(name)})
		}
		return h.flat(r, "regions", "compute#regionList", all)
	})
}

func (h *handler) zones(rw http.ResponseWriter, r *http.Request) {
	h.answer(rw, r, simcloud.Call{Op: "about"}, func(time.Duration, bool) (any, error) {
		var all []item
		for _, z := range h.places() {
			all = append(all, item{"", object{
				"kind": "compute#zone", "id": number("zone " + z), "name": z, "description": z, "status": "UP", "creationTimestamp": created,
				"region": link("regions/" + region(z)), "selfLink": link("zones/" + z), "supportsPzs": false,
			}})
		}
		return h.flat(r, "zones", "compute#zoneList", all)
	})
}

func (h *handler) flat(r *http.Request, what, kind string, all []item) (any, error) {
	all, err := filtered(r, all)
	if err != nil {
		return nil, err
	}
	page, next, err := pageOf(r, h.w.Config().PageSize, all)
	if err != nil {
		return nil, err
	}
	out := object{"kind": kind, "id": "projects/" + Project + "/" + what, "items": values(page), "selfLink": link(what)}
	if next != "" {
		out["nextPageToken"] = next
	}
	return out, nil
}

// spot reports whether a kind is Google's Spot.
func spot(k providers.Kind) bool { return k == providers.Spot }
