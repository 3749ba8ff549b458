package gcp

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// policy is a resource policy: where machines stand to one another.
type policy struct {
	id      uint64
	name    string
	region  string
	given   object
	created time.Time
}

func (p *policy) view() object {
	v := object{
		"kind": "compute#resourcePolicy", "id": strconv.FormatUint(p.id, 10), "name": p.name, "region": link("regions/" + p.region),
		"status": "READY", "creationTimestamp": stamp(p.created), "selfLink": link("regions/" + p.region + "/resourcePolicies/" + p.name),
	}
	for _, key := range []string{"groupPlacementPolicy", "description"} {
		if p.given[key] != nil {
			v[key] = p.given[key]
		}
	}
	return v
}

func noPolicy(region, name string) error {
	return &simapi.Error{Status: http.StatusNotFound, Code: simapi.CodeNotFound, Message: "The resource 'projects/" + Project + "/regions/" + region + "/resourcePolicies/" + name + "' was not found"}
}

func (h *handler) insertPolicy(rw http.ResponseWriter, r *http.Request) {
	region := r.PathValue("region")
	var body object
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		fail(rw, http.StatusBadRequest, "parseError", "Invalid JSON payload received.")
		return
	}
	name, _ := body["name"].(string)
	h.answer(rw, r, simcloud.Call{Op: "policy"}, func(time.Duration, bool) (any, error) {
		if !validName.MatchString(name) {
			return nil, bad("resource.name", name)
		}
		h.s.mu.Lock()
		defer h.s.mu.Unlock()
		now := h.w.Now()
		key := region + "/" + name
		if h.s.policies[key] != nil {
			return nil, &simapi.Error{Status: http.StatusConflict, Code: simapi.CodeMismatch, Message: "The resource '" + key + "' already exists"}
		}
		p := &policy{id: h.s.nextID(), name: name, region: region, given: body, created: now}
		h.s.policies[key] = p
		op := h.s.record(&operation{typ: opInsert, region: region, target: "regions/" + region + "/resourcePolicies/" + name, targetID: p.id, at: now, done: now})
		return op.view(now), nil
	})
}

func (h *handler) getPolicy(rw http.ResponseWriter, r *http.Request) {
	h.answer(rw, r, simcloud.Call{Op: "policy"}, func(time.Duration, bool) (any, error) {
		h.s.mu.Lock()
		defer h.s.mu.Unlock()
		if p := h.s.policies[r.PathValue("region")+"/"+r.PathValue("policy")]; p != nil {
			return p.view(), nil
		}
		return nil, noPolicy(r.PathValue("region"), r.PathValue("policy"))
	})
}

func (h *handler) aggregatedPolicies(rw http.ResponseWriter, r *http.Request) {
	h.answer(rw, r, simcloud.Call{Op: "policy"}, func(time.Duration, bool) (any, error) {
		h.s.mu.Lock()
		var all []item
		for _, p := range h.s.policies {
			all = append(all, item{"regions/" + p.region, p.view()})
		}
		h.s.mu.Unlock()
		slices.SortFunc(all, func(a, b item) int { return strings.Compare(field1(a.value, "name"), field1(b.value, "name")) })
		all, err := filtered(r, all)
		if err != nil {
			return nil, err
		}
		return h.aggregated(r, "resourcePolicies", "compute#resourcePolicyAggregatedList", all)
	})
}

// deletePolicy refuses while a machine that uses it is there.
func (h *handler) deletePolicy(rw http.ResponseWriter, r *http.Request) {
	where, name := r.PathValue("region"), r.PathValue("policy")
	h.answer(rw, r, simcloud.Call{Op: "policy"}, func(time.Duration, bool) (any, error) {
		h.s.mu.Lock()
		defer h.s.mu.Unlock()
		h.s.catchUp(h.w)
		p := h.s.policies[where+"/"+name]
		if p == nil {
			return nil, noPolicy(where, name)
		}
		for _, i := range h.s.instances {
			uses := slices.ContainsFunc(i.given.ResourcePolicies, func(l string) bool { return last(l) == name })
			if !uses || region(i.zone) != where {
				continue
			}
			if m, err := h.w.Machine(i.machine); err == nil && m.State != providers.Terminated {
				return nil, errInUse{"The resource_policy resource '" + p.name + "' is already being used by '" + i.name + "'"}
			}
		}
		delete(h.s.policies, where+"/"+name)
		now := h.w.Now()
		op := h.s.record(&operation{typ: opDelete, region: where, target: "regions/" + where + "/resourcePolicies/" + name, targetID: p.id, at: now, done: now})
		return op.view(now), nil
	})
}

// errInUse is a refusal that simcloud itself has no word for.
type errInUse struct{ message string }

func (e errInUse) Error() string { return e.message }

// aggregatedDisks shows the boot disks of machines and those that are left over.
func (h *handler) aggregatedDisks(rw http.ResponseWriter, r *http.Request) {
	h.answer(rw, r, simcloud.Call{Op: "list"}, func(age time.Duration, _ bool) (any, error) {
		machines := h.w.Machines(age)
		h.s.mu.Lock()
		h.s.catchUp(h.w)
		var all []item
		show := func(d disk, users []string) {
			v := object{
				"kind": "compute#disk", "id": strconv.FormatUint(d.id, 10), "name": d.name, "zone": link("zones/" + d.zone), "status": "READY", "sizeGb": "100",
				"creationTimestamp": stamp(d.created), "type": link("zones/" + d.zone + "/diskTypes/pd-balanced"), "selfLink": link("zones/" + d.zone + "/disks/" + d.name),
			}
			if len(d.labels) > 0 {
				v["labels"] = d.labels
			}
			if len(users) > 0 {
				v["users"] = users
			}
			all = append(all, item{"zones/" + d.zone, v})
		}
		for _, m := range machines {
			if i := h.s.byMachine[m.ID]; i != nil && m.State != providers.Terminated {
				show(disk{id: i.id, zone: i.zone, name: i.name, labels: i.given.Labels, created: m.Launched}, []string{link("zones/" + i.zone + "/instances/" + i.name)})
			}
		}
		for _, d := range h.s.disks {
			show(*d, nil)
		}
		h.s.mu.Unlock()
		all, err := filtered(r, all)
		if err != nil {
			return nil, err
		}
		return h.aggregated(r, "disks", "compute#diskAggregatedList", all)
	})
}

func (h *handler) deleteDisk(rw http.ResponseWriter, r *http.Request) {
	zone, name := r.PathValue("zone"), r.PathValue("disk")
	h.answer(rw, r, simcloud.Call{Op: "disk"}, func(time.Duration, bool) (any, error) {
		h.s.mu.Lock()
		defer h.s.mu.Unlock()
		h.s.catchUp(h.w)
		if i, _ := h.s.find(h.w, zone, name); i != nil {
			return nil, errInUse{"The disk resource '" + name + "' is already being used by 'projects/" + Project + "/zones/" + zone + "/instances/" + name + "'"}
		}
		n := slices.IndexFunc(h.s.disks, func(d *disk) bool { return d.zone == zone && d.name == name })
		if n < 0 {
			return nil, &simapi.Error{Status: http.StatusNotFound, Code: simapi.CodeNotFound, Message: "The resource 'projects/" + Project + "/zones/" + zone + "/disks/" + name + "' was not found"}
		}
		d := h.s.disks[n]
		h.s.disks = slices.Delete(h.s.disks, n, n+1)
		now := h.w.Now()
		op := h.s.record(&operation{typ: opDelete, zone: zone, target: "zones/" + zone + "/disks/" + name, targetID: d.id, at: now, done: now.Add(opTakes)})
		return op.view(now), nil
	})
}
