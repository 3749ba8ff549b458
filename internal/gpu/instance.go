package gpu

import (
	"slices"
	"strconv"
	"strings"
)

// InstanceType holds the facts of a cloud's machine type that decide where
// work fits beyond its GPU.
type InstanceType struct {
	Cloud, Name string
	GPU         string         // canonical id, "" when the type has none that we know
	GPUs        Known[float64] // GPUs per machine, below 1 for a fraction
	VCPU        Known[int]
	MemoryGiB   Known[float64]
	// LocalNVMeGB is local scratch; unknown also where disks are attached on request.
	LocalNVMeGB Known[float64]
	NetworkGbps Known[float64]
	RDMA        Known[bool]
	RDMAGbps    Known[float64]
	// Link is what joins the GPUs of the machine: "single", "PCIe", "NVLink4+NVSwitch".
	Link       Known[string]
	LinkGBs    Known[float64] // per GPU, both directions
	Fractional bool
	Notes      string
	Source     string
}

// FullFabric says that all GPUs of the machine reach each other at full speed
// over NVLink or Infinity Fabric; a machine with one GPU has no need of it.
func (i InstanceType) FullFabric() Known[bool] { return FullFabric(i.Link) }

// FullFabric reads the words for a machine's GPU link. Bridged pairs and PCIe
// are no full fabric.
func FullFabric(link Known[string]) Known[bool] {
	l, ok := link.Get()
	if !ok {
		return Known[bool]{}
	}
	l = strings.ToLower(l)
	return Of((strings.HasPrefix(l, "nvlink") || strings.HasPrefix(l, "infinity fabric")) && !strings.Contains(l, "pair") && !strings.Contains(l, "bridge"))
}

// Joined says of a machine whether its GPUs share a full fabric, and whether such
// machines can be joined by RDMA: from the facts of its cloud's type, or else, for
// the fabric, from how its GPU is built. Boards of SXM modules join all that they
// carry; AMD's mesh is whole with all eight.
func (t *Table) Joined(cloud, name, id string, gpus float64) (fabric, rdma Known[bool]) {
	it, known := t.InstanceType(cloud, name)
	fabric, rdma = it.FullFabric(), it.RDMA
	switch f, _ := t.Lookup(id); {
	case gpus <= 1:
		fabric = Of(true) // there is nothing to join
	case known && it.Link.known:
	default:
		fabric = f.board(gpus)
	}
	return fabric, rdma
}

// octet is how many GPUs AMD's mesh joins, each to all others.
const octet = 8

// board says whether so many of a GPU on one machine share a full fabric.
func (f Fact) board(gpus float64) Known[bool] {
	link, ok := f.Link.Get()
	if !ok {
		return Known[bool]{}
	}
	link = strings.ToLower(link)
	switch {
	case strings.Contains(link, "up to"): // bridged or not, which nobody says
		return Known[bool]{}
	case strings.HasPrefix(link, "infinity fabric"):
		return Of(gpus == octet)
	}
	return Of(strings.HasPrefix(link, "nvlink") && !strings.Contains(link, "bridge"))
}

// Among says whether n of a machine's GPUs share a full fabric. A pair of AMD's
// mesh has one of its seven links only (MI300X: 128 of 896 GB/s), so that nothing
// under the whole octet counts as one.
func (f Fact) Among(n, gpus float64, machine Known[bool]) Known[bool] {
	switch link, _ := f.Link.Get(); {
	case n <= 1:
		return Of(true)
	case n < gpus && strings.HasPrefix(strings.ToLower(link), "infinity fabric"):
		return Of(false)
	}
	return machine
}

func parseInstance(r *row) InstanceType {
	it := InstanceType{
		Cloud: r.text("cloud"), Name: r.text("instance_type"), GPU: r.text("gpu"),
		GPUs: plain(r, "gpu_count"), MemoryGiB: plain(r, "mem_gib"), LocalNVMeGB: plain(r, "local_nvme_gb"),
		NetworkGbps: plain(r, "network_gbps"), RDMAGbps: plain(r, "rdma_gbps"),
		Link: r.word("gpu_link"), LinkGBs: plain(r, "gpu_link_gbs_per_gpu"),
		Fractional: r.text("fractional") != "no", Notes: r.text("notes"), Source: r.text("source"),
	}
	if v, ok := plain(r, "vcpu").Get(); ok {
		it.VCPU = Of(int(v))
	}
	// TCPX is faster than plain TCP but is no RDMA.
	if s := r.text("rdma"); s != "" {
		it.RDMA = Of(s != "no" && !strings.Contains(s, "TCPX"))
	}
	return it
}

// plain reads a number; words such as "attachable" or "1..4" leave it unknown.
func plain(r *row, column string) Known[float64] {
	v, err := strconv.ParseFloat(r.text(column), 64)
	if err != nil {
		return Known[float64]{}
	}
	return Of(v)
}

// InstanceType returns the facts of a machine type of aws, gcp or azure.
func (t *Table) InstanceType(cloud, name string) (InstanceType, bool) {
	it, ok := t.instances[[2]string{cloud, strings.ToLower(name)}]
	return it, ok
}

// InstanceTypes returns the machine types known of a cloud, by name.
func (t *Table) InstanceTypes(cloud string) []InstanceType {
	var all []InstanceType
	for k, it := range t.instances {
		if k[0] == cloud {
			all = append(all, it)
		}
	}
	slices.SortFunc(all, func(a, b InstanceType) int { return strings.Compare(a.Name, b.Name) })
	return all
}
