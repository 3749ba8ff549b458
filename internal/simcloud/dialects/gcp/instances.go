package gcp

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// instanceBody is what the fake reads of an instance resource.
type instanceBody struct {
	Name              string            `json:"name"`
	Description       string            `json:"description,omitempty"`
	MachineType       string            `json:"machineType"`
	Labels            map[string]string `json:"labels"`
	Metadata          metadataBody      `json:"metadata"`
	Disks             []map[string]any  `json:"disks"`
	NetworkInterfaces []map[string]any  `json:"networkInterfaces"`
	Scheduling        schedulingBody    `json:"scheduling"`
	GuestAccelerators []accelerator     `json:"guestAccelerators"`
	ServiceAccounts   []serviceAccount  `json:"serviceAccounts"`
	ResourcePolicies  []string          `json:"resourcePolicies"`
	Tags              map[string]any    `json:"tags"`
}

type metadataBody struct {
	Items []metadataItem `json:"items"`
}

type metadataItem struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

type schedulingBody struct {
	ProvisioningModel         string        `json:"provisioningModel,omitempty"`
	Preemptible               bool          `json:"preemptible,omitempty"`
	InstanceTerminationAction string        `json:"instanceTerminationAction,omitempty"`
	OnHostMaintenance         string        `json:"onHostMaintenance,omitempty"`
	AutomaticRestart          *bool         `json:"automaticRestart,omitempty"`
	MaxRunDuration            *durationBody `json:"maxRunDuration,omitempty"`
	TerminationTime           string        `json:"terminationTime,omitempty"`
}

type durationBody struct {
	Seconds json.Number `json:"seconds"`
}

type accelerator struct {
	Type  string `json:"acceleratorType"`
	Count int    `json:"acceleratorCount"`
}

type serviceAccount struct {
	Email  string   `json:"email"`
	Scopes []string `json:"scopes"`
}

// bodyOf is the resource of a machine that was rented past the API.
func bodyOf(m simapi.Machine) instanceBody {
	typ, attached := splitType(m.Type)
	b := instanceBody{Name: m.ID, MachineType: "zones/" + m.Zone + "/machineTypes/" + typ, Labels: maps.Clone(m.Tags)}
	if attached.Count > 0 {
		b.GuestAccelerators = []accelerator{attached}
	}
	b.Scheduling.ProvisioningModel = "STANDARD"
	if m.Kind == providers.Spot {
		b.Scheduling.ProvisioningModel = "SPOT"
	}
	return b
}

// place is the market that a resource asks for, in the world's words.
func (b instanceBody) place(zone string) simapi.Place {
	p := simapi.Place{Region: region(zone), Zone: zone, Type: last(b.MachineType), Kind: providers.OnDemand}
	if b.Scheduling.ProvisioningModel == "SPOT" || b.Scheduling.Preemptible {
		p.Kind = providers.Spot
	}
	if strings.HasPrefix(p.Type, "n1-") {
		for _, a := range b.GuestAccelerators {
			p.Type += "+" + last(a.Type) + "x" + strconv.Itoa(a.Count)
		}
	}
	return p
}

// splitType reads the world's type name "n1-standard-8+nvidia-tesla-t4x1".
func splitType(typ string) (string, accelerator) {
	host, card, ok := strings.Cut(typ, "+")
	if !ok {
		return typ, accelerator{}
	}
	i := strings.LastIndex(card, "x")
	n, err := strconv.Atoi(card[i+1:])
	if i < 0 || err != nil {
		return typ, accelerator{}
	}
	return host, accelerator{card[:i], n}
}

var (
	validName  = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	validUUID  = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	validKey   = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)
	validLabel = regexp.MustCompile(`^[a-z0-9_-]{0,63}$`)
)

// check finds what Google refuses before it makes an operation.
func (b instanceBody) check() error {
	if !validName.MatchString(b.Name) {
		return bad("resource.name", b.Name)
	}
	if len(b.Labels) > 64 {
		return bad("resource.labels", "too many")
	}
	for key, value := range b.Labels {
		if !validKey.MatchString(key) || !validLabel.MatchString(value) {
			return bad("resource.labels", key+": "+value)
		}
	}
	total := 0
	for _, i := range b.Metadata.Items {
		if len(i.Value) > 256<<10 {
			return bad("resource.metadata", i.Key+" is larger than 262144 characters")
		}
		total += len(i.Key) + len(i.Value)
	}
	if total > 512<<10 {
		return bad("resource.metadata", "the total is larger than 524288 characters")
	}
	if len(b.Disks) == 0 {
		return bad("resource.disks", "[]")
	}
	if len(b.NetworkInterfaces) == 0 {
		return bad("resource.networkInterfaces", "[]")
	}
	s := b.Scheduling
	if s.MaxRunDuration != nil {
		seconds, err := s.MaxRunDuration.Seconds.Int64()
		if err != nil || seconds < 30 || seconds > 120*24*3600 {
			return bad("resource.scheduling.maxRunDuration", s.MaxRunDuration.Seconds.String())
		}
		if s.InstanceTerminationAction == "" {
			return bad("resource.scheduling.instanceTerminationAction", "")
		}
	}
	if (s.ProvisioningModel == "SPOT" || len(b.GuestAccelerators) > 0) && s.OnHostMaintenance == "MIGRATE" {
		return bad("resource.scheduling.onHostMaintenance", s.OnHostMaintenance)
	}
	return nil
}

func (b instanceBody) startup() string {
	for _, i := range b.Metadata.Items {
		if i.Key == "startup-script" {
			return i.Value
		}
	}
	return ""
}

func (h *handler) insert(rw http.ResponseWriter, r *http.Request) {
	zone := r.PathValue("zone")
	var body instanceBody
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		fail(rw, http.StatusBadRequest, "parseError", "Invalid JSON payload received. "+err.Error())
		return
	}
	requestID := r.URL.Query().Get("requestId")
	if requestID != "" && !validUUID.MatchString(requestID) {
		fail(rw, http.StatusBadRequest, "invalid", "Invalid value for field 'requestId': '"+requestID+"'. Must be a match of regex '[0-9a-f]{8}-…'")
		return
	}
	say := func(rw http.ResponseWriter, err error) {
		f := failedInsert(body, zone, err)
		if f == nil {
			words(rw, err)
			return
		}
		now := h.w.Now()
		h.s.mu.Lock()
		defer h.s.mu.Unlock()
		op := h.s.record(&operation{
			typ: opInsert, zone: zone, target: "zones/" + zone + "/instances/" + body.Name, targetID: h.s.nextID(),
			requestID: requestID, at: now, done: now.Add(opTakes), failed: f,
		})
		h.s.byRequestID[requestID] = op
		writeJSON(rw, http.StatusOK, op.view(now))
	}
	h.answerWords(rw, r, simcloud.Call{Op: "launch", Place: body.place(zone)}, say, func(_ time.Duration, dud bool) (any, error) {
		return h.launch(zone, requestID, body, dud)
	})
}

func (h *handler) launch(zone, requestID string, body instanceBody, dud bool) (any, error) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.s.catchUp(h.w)
	now := h.w.Now()
	if op := h.s.byRequestID[requestID]; requestID != "" && op != nil {
		return op.view(now), nil
	}
	if err := body.check(); err != nil {
		return nil, err
	}
	if !slices.Contains(h.places(), zone) {
		return nil, &simapi.Error{Status: http.StatusNotFound, Code: simapi.CodeNotFound, Message: "The resource 'projects/" + Project + "/zones/" + zone + "' was not found"}
	}
	for _, p := range body.ResourcePolicies {
		if h.s.policies[region(zone)+"/"+last(p)] == nil {
			return nil, bad("resource.resourcePolicies", p)
		}
	}
	if i, _ := h.s.find(h.w, zone, body.Name); i != nil {
		return nil, &simapi.Error{Status: http.StatusConflict, Code: simapi.CodeMismatch, Message: "The resource 'projects/" + Project + "/zones/" + zone + "/instances/" + body.Name + "' already exists"}
	}
	i := &instance{id: h.s.nextID(), name: body.Name, zone: zone, given: body}
	launch := simapi.Launch{Place: body.place(zone), Request: requestOf(zone, body.Name, i.id), UserData: body.startup(), Tags: body.Labels}
	if d := body.Scheduling.MaxRunDuration; d != nil {
		seconds, _ := d.Seconds.Int64() // checked above
		launch.EndAt = now.Add(h.w.Config().Boot.D() + time.Duration(seconds)*time.Second)
	}
	m, err := h.w.LaunchAs(launch, dud)
	if err != nil {
		return nil, err
	}
	i.machine = m.ID
	op := h.s.operation(i, opInsert, now)
	op.done, op.requestID = now.Add(opTakes), requestID
	h.s.add(i, op)
	if requestID != "" {
		h.s.byRequestID[requestID] = op
	}
	return op.view(now), nil
}

// status is the word for a machine's state. Locked.
func (i *instance) status(m simapi.Machine, now time.Time) string {
	switch {
	case !i.dark.IsZero() && m.State == providers.Running:
		return "TERMINATED"
	case m.State == providers.Stopping, !i.taken.IsZero():
		return "STOPPING"
	case m.State == providers.Running:
		return "RUNNING"
	case now.Before(m.Launched.Add(opStarts)):
		return "PROVISIONING"
	default:
		return "STAGING"
	}
}

// view is the instance resource. Locked.
func (i *instance) view(m simapi.Machine, now time.Time) object {
	b := i.given
	self := "zones/" + i.zone + "/instances/" + i.name
	v := object{
		"kind": "compute#instance", "id": strconv.FormatUint(i.id, 10), "name": i.name, "zone": link("zones/" + i.zone), "selfLink": link(self),
		"creationTimestamp": stamp(m.Launched), "status": i.status(m, now), "machineType": link("zones/" + i.zone + "/machineTypes/" + last(b.MachineType)),
		"cpuPlatform": "Unknown CPU Platform", "deletionProtection": false, "startRestricted": false, "canIpForward": false,
		"fingerprint": "c2ltIGZpbmdlcnByaW50", "labelFingerprint": "bGFiZWxz",
		"metadata": object{"kind": "compute#metadata", "fingerprint": "bWV0YWRhdGE=", "items": b.Metadata.Items},
	}
	if len(b.Labels) > 0 {
		v["labels"] = b.Labels
	}
	if !m.Running.IsZero() {
		v["lastStartTimestamp"] = stamp(m.Running)
	}
	if !i.dark.IsZero() {
		v["lastStopTimestamp"] = stamp(i.dark)
	}
	scheduling := object{"provisioningModel": "STANDARD", "preemptible": false, "automaticRestart": true, "onHostMaintenance": "MIGRATE"}
	if b.Scheduling.ProvisioningModel == "SPOT" || b.Scheduling.Preemptible {
		scheduling = object{"provisioningModel": "SPOT", "preemptible": true, "automaticRestart": false, "onHostMaintenance": "TERMINATE", "instanceTerminationAction": "STOP"}
	}
	if a := b.Scheduling.InstanceTerminationAction; a != "" {
		scheduling["instanceTerminationAction"] = a
	}
	if s := b.Scheduling.OnHostMaintenance; s != "" {
		scheduling["onHostMaintenance"] = s
	}
	if s := b.Scheduling.AutomaticRestart; s != nil {
		scheduling["automaticRestart"] = *s
	}
	if d := b.Scheduling.MaxRunDuration; d != nil {
		scheduling["maxRunDuration"] = object{"seconds": d.Seconds.String()}
	}
	v["scheduling"] = scheduling
	status := object{}
	if m.State == providers.Running && !m.EndAt.IsZero() {
		status["scheduling"] = object{"terminationTimestamp": stamp(m.EndAt)}
	}
	v["resourceStatus"] = status
	var cards []any
	for _, a := range i.accelerators(m.Type) {
		cards = append(cards, object{"acceleratorType": link("zones/" + i.zone + "/acceleratorTypes/" + last(a.Type)), "acceleratorCount": a.Count})
	}
	if len(cards) > 0 {
		v["guestAccelerators"] = cards
	}
	v["disks"] = []any{object{
		"kind": "compute#attachedDisk", "type": "PERSISTENT", "mode": "READ_WRITE", "boot": true, "autoDelete": autoDelete(b.Disks), "index": 0,
		"deviceName": "persistent-disk-0", "source": link("zones/" + i.zone + "/disks/" + i.name), "interface": "SCSI", "diskSizeGb": diskSize(b.Disks),
	}}
	nic := object{
		"kind": "compute#networkInterface", "name": "nic0", "network": link("global/networks/default"),
		"subnetwork": link("regions/" + region(i.zone) + "/subnetworks/default"), "networkIP": m.Address,
	}
	if len(b.NetworkInterfaces) > 0 && b.NetworkInterfaces[0]["accessConfigs"] != nil {
		nic["accessConfigs"] = []any{object{"kind": "compute#accessConfig", "type": "ONE_TO_ONE_NAT", "name": "External NAT", "natIP": "198.51.100." + strconv.Itoa(m.Number%250+1), "networkTier": "PREMIUM"}}
	}
	v["networkInterfaces"] = []any{nic}
	if len(b.ServiceAccounts) > 0 {
		v["serviceAccounts"] = b.ServiceAccounts
	}
	if len(b.ResourcePolicies) > 0 {
		var links []string
		for _, p := range b.ResourcePolicies {
			links = append(links, link("regions/"+region(i.zone)+"/resourcePolicies/"+last(p)))
		}
		v["resourcePolicies"] = links
	}
	return v
}

// accelerators are those of the request, or those that the type brings.
func (i *instance) accelerators(typ string) []accelerator {
	if len(i.given.GuestAccelerators) > 0 {
		return i.given.GuestAccelerators
	}
	if f, ok := familyOf(typ); ok && f.card != "" {
		return []accelerator{{f.card, f.cards(typ)}}
	}
	return nil
}

func autoDelete(disks []map[string]any) bool {
	return len(disks) > 0 && disks[0]["autoDelete"] == true
}

func diskSize(disks []map[string]any) string {
	if len(disks) > 0 {
		if init, ok := disks[0]["initializeParams"].(map[string]any); ok && init["diskSizeGb"] != nil {
			return fmt.Sprint(init["diskSizeGb"])
		}
	}
	return "10"
}

func noInstance(zone, name string) error {
	return &simapi.Error{
		Status: http.StatusNotFound, Code: simapi.CodeNotFound,
		Message: "The resource 'projects/" + Project + "/zones/" + zone + "/instances/" + name + "' was not found",
	}
}

// named is a call that names an instance.
func (h *handler) named(op string, r *http.Request) simcloud.Call {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.s.catchUp(h.w)
	c := simcloud.Call{Op: op, Place: simapi.Place{Region: region(r.PathValue("zone")), Zone: r.PathValue("zone")}}
	if i, _ := h.s.find(h.w, r.PathValue("zone"), r.PathValue("instance")); i != nil {
		c.Machine = i.machine
	}
	return c
}

func (h *handler) get(rw http.ResponseWriter, r *http.Request) {
	zone, name := r.PathValue("zone"), r.PathValue("instance")
	h.answer(rw, r, h.named("describe", r), func(time.Duration, bool) (any, error) {
		h.s.mu.Lock()
		defer h.s.mu.Unlock()
		h.s.catchUp(h.w)
		i, m := h.s.find(h.w, zone, name)
		if i == nil {
			return nil, noInstance(zone, name)
		}
		return i.view(m, h.w.Now()), nil
	})
}

func (h *handler) delete(rw http.ResponseWriter, r *http.Request) {
	zone, name := r.PathValue("zone"), r.PathValue("instance")
	h.answer(rw, r, h.named("terminate", r), func(time.Duration, bool) (any, error) {
		h.s.mu.Lock()
		defer h.s.mu.Unlock()
		h.s.catchUp(h.w)
		i, m := h.s.find(h.w, zone, name)
		if i == nil {
			return nil, noInstance(zone, name)
		}
		if token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "+machineToken); strings.HasPrefix(r.Header.Get("Authorization"), "Bearer "+machineToken) && token != i.machine {
			return nil, &simapi.Error{Status: http.StatusUnauthorized, Code: simapi.CodeUnauthorized, Message: "the token is another machine's"}
		}
		now := h.w.Now()
		if m.State != providers.Stopping {
			h.s.ends(i, opDelete, now)
			if err := h.w.Terminate(i.machine); err != nil {
				return nil, err
			}
		}
		op := i.end
		if op.typ != opDelete { // it ends already for another reason
			op = h.s.operation(i, opDelete, now)
			op.done = now.Add(opTakes)
		}
		h.s.catchUp(h.w)
		return op.view(now), nil
	})
}

func (h *handler) serialPort(rw http.ResponseWriter, r *http.Request) {
	zone, name := r.PathValue("zone"), r.PathValue("instance")
	h.answer(rw, r, h.named("console", r), func(time.Duration, bool) (any, error) {
		h.s.mu.Lock()
		defer h.s.mu.Unlock()
		i, _ := h.s.find(h.w, zone, name)
		if i == nil {
			return nil, noInstance(zone, name)
		}
		text, err := h.w.Console(i.machine)
		if err != nil {
			return nil, err
		}
		return object{
			"kind": "compute#serialPortOutput", "contents": string(text), "start": "0", "next": strconv.Itoa(len(text)),
			"selfLink": link("zones/" + zone + "/instances/" + name + "/serialPort"),
		}, nil
	})
}

// listed returns the instances that lists show, as they were a while ago.
func (h *handler) listed(r *http.Request, age time.Duration) ([]item, error) {
	now := h.w.Now()
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.s.catchUp(h.w)
	var all []item
	for _, m := range h.w.Machines(age) {
		if i := h.s.byMachine[m.ID]; i != nil && m.State != providers.Terminated {
			all = append(all, item{"zones/" + i.zone, i.view(m, now)})
		}
	}
	return filtered(r, all)
}

func (h *handler) aggregatedInstances(rw http.ResponseWriter, r *http.Request) {
	h.answer(rw, r, simcloud.Call{Op: "list"}, func(age time.Duration, _ bool) (any, error) {
		all, err := h.listed(r, age)
		if err != nil {
			return nil, err
		}
		return h.aggregated(r, "instances", "compute#instanceAggregatedList", all)
	})
}

func (h *handler) listInstances(rw http.ResponseWriter, r *http.Request) {
	zone := r.PathValue("zone")
	h.answer(rw, r, simcloud.Call{Op: "list"}, func(age time.Duration, _ bool) (any, error) {
		all, err := h.listed(r, age)
		if err != nil {
			return nil, err
		}
		all = slices.DeleteFunc(all, func(i item) bool { return i.scope != "zones/"+zone })
		page, next, err := pageOf(r, h.w.Config().PageSize, all)
		if err != nil {
			return nil, err
		}
		out := object{"kind": "compute#instanceList", "id": "projects/" + Project + "/zones/" + zone + "/instances", "selfLink": link("zones/" + zone + "/instances")}
		if len(page) > 0 {
			out["items"] = values(page)
		}
		if next != "" {
			out["nextPageToken"] = next
		}
		return out, nil
	})
}
