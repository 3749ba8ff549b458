package azure

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// vm is a virtual machine. One without a machine in the world has found no place.
type vm struct {
	name, machine string
	place         simapi.Place
	body          object // as ARM keeps it
	principal     string // of its own identity
	created       time.Time
	deleted       bool
	deallocated   bool
	failed        *armError
	started       bool   // its scheduled event was acknowledged
	request       string // of the world
}

// customDataLimit is the longest custom data in bytes, decoded
// (learn.microsoft.com/azure/virtual-machines/custom-data).
const customDataLimit = 65535

func (c *Cloud) virtualMachines(rw http.ResponseWriter, r *http.Request, res resource) {
	words := wordsAt(simapi.Place{})
	action := ""
	if len(res.rest) > 0 {
		action = res.rest[0]
	}
	switch {
	case res.name == "" && r.Method == http.MethodGet:
		c.w.Answer(rw, r, simcloud.Call{Op: "list"}, words, func(age time.Duration, _ bool) (simcloud.Reply, error) { return c.listVMs(r, res, age) })
	case action == "" && r.Method == http.MethodPut:
		c.createVM(rw, r, res)
	case (action == "" || action == "instanceview") && r.Method == http.MethodGet:
		c.onVM(rw, r, res, "describe", func(m *vm) (simcloud.Reply, error) {
			if action != "" {
				return body(http.StatusOK, at(c.viewVM(m, time.Time{}, true), "properties", "instanceView"))
			}
			return body(http.StatusOK, c.viewVM(m, time.Time{}, strings.EqualFold(r.URL.Query().Get("$expand"), "instanceView")))
		})
	case action == "" && r.Method == http.MethodDelete:
		c.onVM(rw, r, res, "terminate", func(m *vm) (simcloud.Reply, error) {
			m.deleted = true
			if m.machine != "" {
				_ = c.w.Terminate(m.machine) // one that is gone already is what was asked for
			}
			c.begin(r, rw, "/providers/Microsoft.Compute/locations/"+m.place.Region+"/operations", 10*time.Second, true, func(time.Time) (bool, *armError) { return c.over(m), nil })
			return simcloud.Reply{Status: http.StatusAccepted}, nil
		})
	case action == "simulateeviction" && r.Method == http.MethodPost:
		c.onVM(rw, r, res, "evict", func(m *vm) (simcloud.Reply, error) {
			if m.place.Kind != providers.Spot {
				return simcloud.Reply{}, failf(http.StatusConflict, "OperationNotAllowed", "Simulate eviction is supported only for Azure Spot Virtual Machines.")
			}
			_, err := c.w.Do(simapi.Action{Preempt: &simapi.Preempt{Pick: simapi.Pick{Machine: m.machine}}})
			return simcloud.Reply{Status: http.StatusNoContent}, err
		})
	case action == "retrievebootdiagnosticsdata" && r.Method == http.MethodPost:
		c.onVM(rw, r, res, "console", func(m *vm) (simcloud.Reply, error) {
			if on, _ := at(m.body, "properties", "diagnosticsProfile", "bootDiagnostics", "enabled").(bool); !on {
				return simcloud.Reply{}, failf(http.StatusConflict, "OperationNotAllowed", "Boot diagnostics is not enabled for VM '%s'.", m.name)
			}
			here := base(r) + "/bootdiagnostics/" + m.machine
			return body(http.StatusOK, object{"consoleScreenshotBlobUri": here + "/screenshot.bmp?sig=" + m.signature(), "serialConsoleLogBlobUri": here + "/serialconsole.log?sig=" + m.signature()})
		})
	default:
		fail(rw, failf(http.StatusMethodNotAllowed, "MethodNotAllowed", "The HTTP method '%s' is not supported at scope '%s'.", r.Method, r.URL.Path))
	}
}

// signature is what opens a machine's blobs.
func (m *vm) signature() string {
	return strings.ReplaceAll(guid("signature", m.machine, m.created.String()), "-", "")
}

// serialLog is the blob with what a machine wrote on its console.
func (c *Cloud) serialLog(rw http.ResponseWriter, r *http.Request) {
	machine, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/bootdiagnostics/"), "/")
	_, m := (&metadata{c: c, machine: machine}).find()
	if m == nil || r.URL.Query().Get("sig") != m.signature() {
		rw.Header().Set("X-Ms-Error-Code", "AuthenticationFailed")
		rw.WriteHeader(http.StatusForbidden)
		return
	}
	log, _ := c.w.Console(machine) // one that is gone wrote nothing
	rw.Header().Set("Content-Type", "application/octet-stream")
	_, _ = rw.Write(log) // the caller has gone
}

// onVM makes a call about a machine that must exist. do is called locked.
func (c *Cloud) onVM(rw http.ResponseWriter, r *http.Request, res resource, op string, do func(*vm) (simcloud.Reply, error)) {
	c.w.Answer(rw, r, simcloud.Call{Op: op, Machine: c.idOf(res)}, wordsAt(simapi.Place{}), func(time.Duration, bool) (simcloud.Reply, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.settle()
		g := c.groups[res.groupKey]
		if g == nil {
			return simcloud.Reply{}, groupMissing(res.group)
		}
		m := g.vms[res.key]
		if m == nil {
			return simcloud.Reply{}, missing(res)
		}
		return do(m)
	})
}

func (c *Cloud) idOf(res resource) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.groups[res.groupKey]; g != nil && g.vms[res.key] != nil {
		return g.vms[res.key].machine
	}
	return ""
}

// createVM makes a machine
// (learn.microsoft.com/rest/api/compute/virtual-machines/create-or-update).
func (c *Cloud) createVM(rw http.ResponseWriter, r *http.Request, res resource) {
	in, bad := read(r)
	if bad != nil {
		fail(rw, bad)
		return
	}
	want, bad := c.placeOf(in)
	if bad != nil {
		fail(rw, bad)
		return
	}
	c.w.Answer(rw, r, simcloud.Call{Op: "launch", Place: want}, wordsAt(want), func(_ time.Duration, dud bool) (simcloud.Reply, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.settle()
		g, bad := c.open(res)
		if bad != nil {
			return simcloud.Reply{}, bad
		}
		if m := g.vms[res.key]; m != nil {
			switch {
			case r.Header.Get("If-None-Match") == "*":
				return simcloud.Reply{}, failf(http.StatusPreconditionFailed, "PreconditionFailed", "The resource '%s' already exists.", res.name)
			case m.place != want:
				return simcloud.Reply{}, failf(http.StatusConflict, "PropertyChangeNotAllowed", "Changing property 'location', 'zones' or 'priority' is not allowed.")
			}
			return body(http.StatusOK, c.viewVM(m, time.Time{}, false))
		}
		launch, bad := c.wish(in, g, res, want)
		if bad != nil {
			return simcloud.Reply{}, bad
		}
		m := &vm{name: res.name, place: want, created: c.w.Now(), request: launch.Request}
		if c.failed > 0 {
			c.failed--
			m.failed = failf(http.StatusConflict, "AllocationFailed", "Allocation failed. We do not have sufficient capacity for the requested VM size in this region. Read more about improving likelihood of allocation success at http://aka.ms/allocation-guidance")
		} else {
			made, err := c.w.LaunchAs(launch, dud)
			if err != nil {
				return simcloud.Reply{}, err
			}
			m.machine = made.ID
			c.lives[res.groupKey] = append(c.lives[res.groupKey], life{g.name, res.name, made.ID})
		}
		m.keep(in, g)
		g.vms[res.key] = m
		c.begin(r, rw, "/providers/Microsoft.Compute/locations/"+g.location+"/operations", 10*time.Second, true, func(time.Time) (bool, *armError) {
			return !slices.Contains([]string{"Creating"}, c.provisioning(m, time.Time{})), m.failed
		})
		return body(http.StatusCreated, c.viewVM(m, time.Time{}, false))
	})
}

// placeOf reads the market out of a machine's body. Without a zone Azure chooses.
func (c *Cloud) placeOf(in object) (simapi.Place, *armError) {
	p := simapi.Place{Region: normal(text(in, "location")), Type: text(in, "properties", "hardwareProfile", "vmSize"), Kind: providers.OnDemand}
	switch priority := text(in, "properties", "priority"); priority {
	case "", "Regular":
	case "Spot", "Low":
		p.Kind = providers.Spot
	default:
		return p, failf(http.StatusBadRequest, "InvalidParameter", "Value '%s' of parameter priority is invalid.", priority)
	}
	if z := list(in, "zones"); len(z) > 0 {
		p.Zone, _ = z[0].(string)
		return p, nil
	}
	for _, o := range c.w.Offers(p.Region, 0) {
		if o.Type == p.Type && o.Kind == p.Kind && o.Available == providers.Open {
			p.Zone = o.Zone
			break
		}
	}
	return p, nil
}

// wish checks a new machine's body and turns it into the world's words.
func (c *Cloud) wish(in object, g *group, res resource, place simapi.Place) (simapi.Launch, *armError) {
	invalid := func(target, format string, args ...any) *armError {
		e := failf(http.StatusBadRequest, "InvalidParameter", format, args...)
		e.Target = target
		return e
	}
	launch := simapi.Launch{Place: place, Tags: map[string]string{}}
	nics := list(in, "properties", "networkProfile", "networkInterfaces")
	script, err := base64.StdEncoding.DecodeString(text(in, "properties", "osProfile", "customData"))
	switch {
	case place.Region != g.location && place.Region == "":
		return launch, failf(http.StatusBadRequest, "LocationRequired", "The location property is required for this definition.")
	case len(nics) == 0:
		return launch, invalid("networkInterfaces", "The virtual machine must have at least one network interface.")
	case at(in, "properties", "storageProfile", "imageReference") == nil:
		return launch, invalid("imageReference", "Required parameter 'imageReference' is missing (null).")
	case text(in, "properties", "osProfile", "adminUsername") == "":
		return launch, invalid("adminUsername", "Required parameter 'adminUsername' is missing (null).")
	case text(in, "properties", "osProfile", "adminPassword") == "" && len(list(in, "properties", "osProfile", "linuxConfiguration", "ssh", "publicKeys")) == 0:
		return launch, invalid("linuxConfiguration.ssh.publicKeys", "Authentication using either SSH or by user name and password must be enabled in Linux profile.")
	case len(text(in, "properties", "osProfile", "computerName")) > 64:
		return launch, invalid("computerName", "Linux host name cannot exceed 64 characters in length.")
	case err != nil:
		return launch, invalid("customData", "Custom data in OSProfile must be in Base64 encoding.")
	case len(script) > customDataLimit:
		return launch, invalid("customData", "Custom data in OSProfile is too long: %d bytes.", len(script))
	}
	for _, n := range nics {
		if bad := c.refer(text(n, "id")); bad != nil {
			return launch, bad
		}
	}
	launch.UserData = string(script)
	if gb, ok := at(in, "properties", "storageProfile", "osDisk", "diskSizeGB").(json.Number); ok {
		n, _ := gb.Int64()
		launch.Disk = n << 30
	}
	if max, ok := at(in, "properties", "billingProfile", "maxPrice").(json.Number); ok && max != "-1" {
		rate, err := money.RateOf(max.String())
		switch {
		case place.Kind != providers.Spot:
			return launch, failf(http.StatusBadRequest, "MaxPriceIsSupportedOnlyForAzureSpotVirtualMachines", "Max price is supported only for Azure Spot Virtual Machines.")
		case err != nil || rate <= 0 || rate%10_000 != 0: // five decimals: learn.microsoft.com/azure/virtual-machines/spot-vms
			return launch, failf(http.StatusBadRequest, "MaxPriceValueInvalid", "Max price value is invalid. The only supported values for max price are -1 or a decimal greater than zero.")
		}
		launch.PriceMax = rate + Disk + Address
	}
	if place.Kind != providers.Spot && text(in, "properties", "evictionPolicy") != "" {
		return launch, failf(http.StatusBadRequest, "EvictionPolicyCanBeSetOnlyOnAzureSpotVirtualMachines", "Eviction policy can be set only on Azure Spot Virtual Machines.")
	}
	tags, _ := in["tags"].(object)
	for _, set := range []object{g.tags, tags} {
		for k, v := range set {
			launch.Tags[k], _ = v.(string)
		}
	}
	// The world's own views name a machine by the request in its tags, where there
	// is one that it has not seen yet.
	launch.Request = launch.Tags[providers.TagRequest]
	if launch.Request == "" {
		launch.Request = strings.ToLower(res.group + "/" + res.name)
	}
	if _, err := c.w.Machine("request:" + launch.Request); err == nil {
		c.serial++
		launch.Request += "#" + strconv.Itoa(c.serial)
	}
	return launch, nil
}

// keep makes what ARM keeps of a request's body: secrets are not given back.
func (m *vm) keep(in object, g *group) {
	id := g.id() + "/providers/Microsoft.Compute/virtualMachines/" + m.name
	in["id"], in["name"], in["type"], in["location"], in["etag"] = id, m.name, "Microsoft.Compute/virtualMachines", m.place.Region, `"1"`
	props := under(in, "properties")
	props["vmId"] = guid("vm", id, m.created.String())
	props["timeCreated"] = m.created.Format(time.RFC3339Nano)
	if os, ok := props["osProfile"].(object); ok {
		delete(os, "customData")
		delete(os, "adminPassword")
		os["requireGuestProvisionSignal"] = true
	}
	if disk, ok := at(props, "storageProfile", "osDisk").(object); ok {
		disk["osType"] = "Linux"
		if text(disk, "name") == "" {
			disk["name"] = m.name + "_OsDisk_1_" + strings.ReplaceAll(guid("disk", id), "-", "")
		}
	}
	if strings.Contains(text(in, "identity", "type"), "SystemAssigned") {
		m.principal = guid("principal", id, m.created.String())
		who := under(in, "identity")
		who["principalId"], who["tenantId"] = m.principal, Tenant
	}
	m.body = in
}

// provisioning is a machine's provisioning state at a moment, now when it is zero.
func (c *Cloud) provisioning(m *vm, t time.Time) string {
	w := c.inWorld(m)
	by := func(x time.Time) bool { return !x.IsZero() && (t.IsZero() || !x.After(t)) }
	switch {
	case m.failed != nil:
		return "Failed"
	case m.deallocated:
		return "Succeeded"
	case m.deleted && t.IsZero(), w.State == providers.Stopping && t.IsZero(), w.State == providers.Terminated && t.IsZero():
		return "Deleting"
	case by(w.Running):
		return "Succeeded"
	default:
		return "Creating"
	}
}

func (c *Cloud) inWorld(m *vm) simapi.Machine {
	if m.machine == "" {
		return simapi.Machine{}
	}
	w, _ := c.w.Machine(m.machine) // one that is gone shows nothing
	return w
}

func (c *Cloud) viewVM(m *vm, t time.Time, expand bool) object {
	v, _ := copied(m.body).(object)
	state := c.provisioning(m, t)
	props := under(v, "properties")
	props["provisioningState"] = state
	if !expand {
		return v
	}
	now := c.w.Now().Format(time.RFC3339Nano)
	status := func(code, display string) object {
		return object{"code": code, "level": "Info", "displayStatus": display, "time": now}
	}
	statuses := []any{status("ProvisioningState/"+strings.ToLower(state), "Provisioning "+strings.ToLower(state))}
	power := "running"
	inside, err := c.w.Inside(m.machine)
	switch {
	case m.failed != nil:
		failed := status("ProvisioningState/failed/"+m.failed.Code, "Provisioning failed")
		failed["level"], failed["message"] = "Error", m.failed.Message
		statuses, power = []any{failed}, ""
	case m.deallocated:
		power = "deallocated"
	case state == "Creating":
		power = "starting"
	case err == nil && inside.Off:
		power = "stopped"
	}
	if power != "" {
		statuses = append(statuses, object{"code": "PowerState/" + power, "level": "Info", "displayStatus": "VM " + power})
	}
	props["instanceView"] = object{"computerName": text(m.body, "properties", "osProfile", "computerName"), "hyperVGeneration": "V2", "statuses": statuses}
	return v
}

// listVMs lists the machines of a group or of the subscription, as they were the
// world's lag ago.
func (c *Cloud) listVMs(r *http.Request, res resource, age time.Duration) (simcloud.Reply, error) {
	t := c.w.Now().Add(-c.w.Config().ListLag.D() - age)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	var found []*vm
	for key, g := range c.groups {
		if res.group != "" && key != res.groupKey {
			continue
		}
		for _, m := range g.vms {
			if !m.created.After(t) {
				found = append(found, m)
			}
		}
	}
	if res.group != "" && c.groups[res.groupKey] == nil {
		return simcloud.Reply{}, groupMissing(res.group)
	}
	slices.SortFunc(found, func(a, b *vm) int { return strings.Compare(a.name, b.name) })
	var out []any
	for _, m := range found {
		out = append(out, c.viewVM(m, t, false))
	}
	return c.page(r, out)
}

// roleAssignment gives a principal a role at a scope
// (learn.microsoft.com/rest/api/authorization/role-assignments/create).
func (c *Cloud) roleAssignment(rw http.ResponseWriter, r *http.Request, res resource) {
	if r.Method != http.MethodPut {
		fail(rw, failf(http.StatusMethodNotAllowed, "MethodNotAllowed", "The HTTP method '%s' is not supported at scope '%s'.", r.Method, r.URL.Path))
		return
	}
	in, bad := read(r)
	if bad != nil {
		fail(rw, bad)
		return
	}
	// It is the last step of a launch, so that faults of that operation reach one
	// that finds its machine already there.
	c.w.Answer(rw, r, simcloud.Call{Op: "launch"}, wordsAt(simapi.Place{}), func(time.Duration, bool) (simcloud.Reply, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.settle()
		scope, _, _ := strings.Cut(strings.ToLower(r.URL.Path), "/providers/microsoft.authorization/")
		if res.group != "" && c.groups[res.groupKey] == nil {
			return simcloud.Reply{}, groupMissing(res.group)
		}
		who := text(in, "properties", "principalId")
		known := false
		for _, g := range c.groups {
			for _, m := range g.vms {
				known = known || m.principal == who
			}
		}
		key := strings.ToLower(r.URL.Path)
		old, there := c.roles[key]
		switch {
		case who == "" || text(in, "properties", "roleDefinitionId") == "":
			return simcloud.Reply{}, failf(http.StatusBadRequest, "InvalidCreateRoleAssignmentRequest", "The properties roleDefinitionId and principalId are required.")
		case !known:
			return simcloud.Reply{}, failf(http.StatusBadRequest, "PrincipalNotFound", "Principal %s does not exist in the directory %s.", strings.ReplaceAll(who, "-", ""), Tenant)
		case there && old.principal != who:
			return simcloud.Reply{}, failf(http.StatusConflict, "RoleAssignmentUpdateNotPermitted", "Tenant ID, application ID, principal ID, and scope are not allowed to be updated.")
		case there:
			return body(http.StatusOK, old.body)
		}
		props := under(in, "properties")
		props["scope"] = strings.TrimSuffix(r.URL.Path, r.URL.Path[len(scope):])
		in["id"], in["name"], in["type"] = r.URL.Path, res.name, "Microsoft.Authorization/roleAssignments"
		c.roles[key] = role{scope, who, in}
		return body(http.StatusCreated, in)
	})
}
