package aws

import (
	"cmp"
	"encoding/base64"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// state is a state in EC2's words and numbers.
func state(s providers.InstanceState) []node {
	code, word := map[providers.InstanceState]int{providers.Running: 16, providers.Stopping: 32, providers.Terminated: 48}[s], string(s)
	if s == providers.Stopping {
		word = "shutting-down"
	}
	return []node{tx("code", code), tx("name", word)}
}

// reasons are why a machine ended: the code of StateReason, its text, and the
// words of StateTransitionReason.
func reasons(m simapi.Machine, at time.Time) (code, text, transition string) {
	when := " (" + at.UTC().Format("2006-01-02 15:04:05") + " GMT)"
	switch m.Cause {
	case providers.CauseUnknown:
		return "", "", ""
	case providers.CausePreempted, providers.CausePrice:
		return "Server.SpotInstanceTermination", "Server.SpotInstanceTermination: Spot instance termination", "Service initiated" + when
	case providers.CauseGuest:
		return "Client.InstanceInitiatedShutdown", "Client.InstanceInitiatedShutdown: Instance initiated shutdown", ""
	case providers.CauseError:
		return "Server.InternalError", "Server.InternalError: Internal error on launch", "Server.InternalError"
	default: // a schedule ends it by the same call as a user
		return "Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown", "User initiated" + when
	}
}

// instance is an instance as EC2 shows it.
func (q *request) instance(m simapi.Machine, x extra) []node {
	ended := m.Ended
	if ended.IsZero() {
		ended = q.w.Now()
	}
	code, text, transition := reasons(m, ended)
	kind := arch(providers.Shape{})
	out := []node{
		tx("instanceId", InstanceID(m.ID)), tx("imageId", cmp.Or(x.image.id, OwnImage(m.Region))), el("instanceState", state(m.State)...),
		tx("privateDnsName", ""), tx("dnsName", ""), tx("reason", transition), tx("amiLaunchIndex", x.index), el("productCodes"),
		tx("instanceType", m.Type), tx("launchTime", m.Launched),
		el("placement", tx("availabilityZone", m.Zone), tx("groupName", x.group), tx("tenancy", "default")),
		el("monitoring", tx("state", "disabled")), tx("architecture", cmp.Or(x.image.arch, kind)),
		tx("rootDeviceType", "ebs"), tx("rootDeviceName", "/dev/sda1"), tx("virtualizationType", "hvm"), tx("hypervisor", "xen"),
		tx("clientToken", x.token),
	}
	if m.State != providers.Terminated {
		out = append(out, tx("subnetId", SubnetID(m.Zone)), tx("vpcId", vpcID(m.Region)), tx("privateIpAddress", m.Address))
		if !x.private {
			out = append(out, tx("ipAddress", strings.Replace(m.Address, "10.0.", "198.51.", 1)))
		}
	}
	if code != "" {
		out = append(out, el("stateReason", tx("code", code), tx("message", text)))
	}
	if m.Kind == providers.Spot {
		out = append(out, tx("instanceLifecycle", "spot"), tx("spotInstanceRequestId", "sir-"+InstanceID(m.ID)[11:]))
	}
	for _, o := range q.w.Offers(m.Region, 0) {
		if o.Place == m.Place {
			cores := max(int(o.VCPU)/2, 1)
			out = append(out, el("cpuOptions", tx("coreCount", cores), tx("threadsPerCore", max(int(o.VCPU)/cores, 1))))
		}
	}
	var tags [][]node
	all := q.tags(m, x)
	for _, k := range slices.Sorted(maps.Keys(all)) {
		tags = append(tags, []node{tx("key", k), tx("value", all[k])})
	}
	return append(out, set("tagSet", tags...))
}

// tags are the launch's, and those that were set since.
func (q *request) tags(m simapi.Machine, x extra) map[string]string {
	out := maps.Clone(m.Tags)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, x.tags)
	return out
}

func (q *request) describeInstances() {
	ids, filters := q.list("InstanceId"), q.filters()
	c := simcloud.Call{Op: "list"}
	for _, f := range filters {
		if f.name == "instance-id" || strings.HasPrefix(f.name, "tag:") && len(filters) > 1 {
			c.Op = "describe" // one machine is looked for
		}
	}
	if len(ids) > 0 {
		c = simcloud.Call{Op: "describe", Machine: WorldID(ids[0])}
	}
	q.serve(c, func(age time.Duration, _ bool) ([]node, error) {
		machines, err := q.wanted(ids, age)
		if err != nil {
			return nil, err
		}
		type one struct {
			reservation string
			nodes       []node
		}
		var found []one
		for _, m := range machines {
			x := q.extra(m.ID)
			ok, err := pass(filters, func(name string) ([]string, bool) { return q.has(m, x, name) })
			if err != nil {
				return nil, err
			}
			if ok && m.Region == q.region {
				found = append(found, one{x.reservation, q.instance(m, x)})
			}
		}
		low := 5
		if len(ids) > 0 && q.form.Get("MaxResults") != "" {
			return nil, errorf(http.StatusBadRequest, "InvalidParameterCombination", "The parameter instancesSet cannot be used with the parameter maxResults")
		}
		from, to, next, err := q.formPage(len(found), low, 1000)
		if err != nil {
			return nil, err
		}
		if len(ids) > 0 {
			from, to, next = 0, len(found), ""
		}
		var reservations [][]node
		for i := from; i < to; {
			j := i
			var items [][]node
			for ; j < to && found[j].reservation == found[i].reservation; j++ {
				items = append(items, found[j].nodes)
			}
			reservations = append(reservations, []node{
				tx("reservationId", found[i].reservation), tx("ownerId", account), el("groupSet"), set("instancesSet", items...),
			})
			i = j
		}
		return append([]node{set("reservationSet", reservations...)}, opt("nextToken", next)...), nil
	})
}

// wanted are the machines by their ids, as they are now, or all that a list
// shows.
func (q *request) wanted(ids []string, age time.Duration) ([]simapi.Machine, error) {
	if len(ids) == 0 {
		return q.w.Machines(age), nil
	}
	var out []simapi.Machine
	for _, id := range ids {
		if !strings.HasPrefix(id, "i-") {
			return nil, errorf(http.StatusBadRequest, "InvalidInstanceID.Malformed", "Invalid id: %q", id)
		}
		m, err := q.w.Machine(WorldID(id))
		if err != nil || m.Region != q.region {
			return nil, noInstance(id)
		}
		out = append(out, m)
	}
	return out, nil
}

// has is what an instance has under a filter's name.
func (q *request) has(m simapi.Machine, x extra, name string) ([]string, bool) {
	switch name {
	case "instance-id":
		return []string{InstanceID(m.ID)}, true
	case "instance-state-name":
		return []string{state(m.State)[1].text}, true
	case "instance-type":
		return []string{m.Type}, true
	case "availability-zone":
		return []string{m.Zone}, true
	case "client-token":
		return []string{x.token}, true
	case "reservation-id":
		return []string{x.reservation}, true
	case "placement-group-name":
		return []string{x.group}, true
	case "instance-lifecycle":
		if m.Kind == providers.Spot {
			return []string{"spot"}, true
		}
		return nil, true
	}
	return tagged(q.tags(m, x), name)
}

// terminateInstances ends machines. One that is over already is no error while
// EC2 remembers it.
func (q *request) terminateInstances() {
	ids := q.list("InstanceId")
	c := simcloud.Call{Op: "terminate"}
	if len(ids) > 0 {
		c.Machine = WorldID(ids[0])
	}
	q.serve(c, func(time.Duration, bool) ([]node, error) {
		machines, err := q.wanted(ids, 0)
		switch {
		case err != nil:
			return nil, err
		case len(ids) == 0:
			return nil, errorf(http.StatusBadRequest, "MissingParameter", "The request must contain the parameter InstanceId")
		case q.form.Get("DryRun") == "true":
			return nil, errorf(http.StatusPreconditionFailed, "DryRunOperation", "Request would have succeeded, but DryRun flag is set.")
		}
		var items [][]node
		for _, m := range machines {
			err := q.w.Terminate(m.ID)
			if e, ok := errors.AsType[*simapi.Error](err); ok && e.Code == simapi.CodeNotFound {
				err = nil
			}
			if err != nil {
				return nil, err
			}
			now, err := q.w.Machine(m.ID)
			if err != nil {
				return nil, err
			}
			items = append(items, []node{
				tx("instanceId", InstanceID(m.ID)), el("currentState", state(now.State)...), el("previousState", state(m.State)...),
			})
		}
		return []node{set("instancesSet", items...)}, nil
	})
}

func (q *request) createTags() {
	ids := q.list("ResourceId")
	q.serve(simcloud.Call{Op: "tag"}, func(time.Duration, bool) ([]node, error) {
		machines, err := q.wanted(ids, 0)
		if err != nil {
			return nil, err
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		for _, m := range machines {
			x := q.extras[m.ID]
			x.tags = maps.Clone(x.tags)
			if x.tags == nil {
				x.tags = map[string]string{}
			}
			for n := 1; ; n++ {
				key := q.form.Get("Tag." + strconv.Itoa(n) + ".Key")
				if key == "" {
					break
				}
				x.tags[key] = q.form.Get("Tag." + strconv.Itoa(n) + ".Value")
			}
			q.extras[m.ID] = x
		}
		return []node{tx("return", true)}, nil
	})
}

func (q *request) getConsoleOutput() {
	id := q.form.Get("InstanceId")
	q.serve(simcloud.Call{Op: "console", Machine: WorldID(id)}, func(time.Duration, bool) ([]node, error) {
		if _, err := q.wanted([]string{id}, 0); err != nil {
			return nil, err
		}
		text, err := q.w.Console(WorldID(id))
		if err != nil {
			return nil, err
		}
		return []node{tx("instanceId", id), tx("timestamp", q.w.Now()), tx("output", base64.StdEncoding.EncodeToString(text))}, nil
	})
}

// group is a placement group.
type group struct {
	strategy string
	tags     map[string]string
}

func (q *request) createPlacementGroup() {
	q.serve(simcloud.Call{Op: "group"}, func(time.Duration, bool) ([]node, error) {
		key := name{q.region, q.form.Get("GroupName")}
		q.mu.Lock()
		defer q.mu.Unlock()
		switch _, there := q.groups[key]; {
		case key.name == "" || len(key.name) > 255:
			return nil, errorf(http.StatusBadRequest, "InvalidParameterValue", "Value (%s) for parameter groupName is invalid.", key.name)
		case there:
			return nil, errorf(http.StatusBadRequest, "InvalidPlacementGroup.Duplicate", "The Placement Group '%s' already exists.", key.name)
		}
		tags := map[string]string{}
		for m := 1; q.form.Get("TagSpecification.1.Tag."+strconv.Itoa(m)+".Key") != ""; m++ {
			tags[q.form.Get("TagSpecification.1.Tag."+strconv.Itoa(m)+".Key")] = q.form.Get("TagSpecification.1.Tag." + strconv.Itoa(m) + ".Value")
		}
		q.groups[key] = group{q.form.Get("Strategy"), tags}
		return []node{el("placementGroup", tx("groupName", key.name), tx("strategy", q.form.Get("Strategy")), tx("state", "available"))}, nil
	})
}

func (q *request) describePlacementGroups() {
	q.serve(simcloud.Call{Op: "group"}, func(time.Duration, bool) ([]node, error) {
		q.mu.Lock()
		defer q.mu.Unlock()
		var items [][]node
		for key, g := range q.groups {
			ok, err := pass(q.filters(), func(filter string) ([]string, bool) {
				if filter == "group-name" {
					return []string{key.name}, true
				}
				return tagged(g.tags, filter)
			})
			if err != nil {
				return nil, err
			}
			if ok && key.region == q.region {
				items = append(items, []node{tx("groupName", key.name), tx("strategy", g.strategy), tx("state", "available")})
			}
		}
		return []node{set("placementGroupSet", items...)}, nil
	})
}

func (q *request) deletePlacementGroup() {
	q.serve(simcloud.Call{Op: "group"}, func(time.Duration, bool) ([]node, error) {
		key := name{q.region, q.form.Get("GroupName")}
		if q.form.Get("DryRun") == "true" {
			return nil, errorf(http.StatusPreconditionFailed, "DryRunOperation", "Request would have succeeded, but DryRun flag is set.")
		}
		live := map[string]bool{}
		for _, m := range q.w.Truth() {
			live[m.ID] = m.State != providers.Terminated && m.Region == q.region
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		if _, there := q.groups[key]; !there {
			return nil, errorf(http.StatusBadRequest, "InvalidPlacementGroup.Unknown", "The Placement Group '%s' is unknown.", key.name)
		}
		for id, x := range q.extras {
			if x.group == key.name && live[id] {
				return nil, errorf(http.StatusBadRequest, "InvalidPlacementGroup.InUse", "The placement group %s is in use and may not be deleted.", key.name)
			}
		}
		delete(q.groups, key)
		return []node{tx("return", true)}, nil
	})
}
