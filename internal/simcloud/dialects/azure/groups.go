package azure

import (
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// group is a resource group with what is in it.
type group struct {
	name, location          string
	tags                    object
	created, deleting, gone time.Time
	items                   map[string]*item // by "namespace/kind/name", lower case
	vms                     map[string]*vm   // by name, lower case
}

// item is a network resource.
type item struct {
	body  object
	ready time.Time
}

func (g *group) id() string { return "/subscriptions/" + Subscription + "/resourceGroups/" + g.name }

func (g *group) view() object {
	state := "Succeeded"
	if !g.deleting.IsZero() {
		state = "Deleting"
	}
	v := object{"id": g.id(), "name": g.name, "type": "Microsoft.Resources/resourceGroups", "location": g.location, "properties": object{"provisioningState": state}}
	if len(g.tags) > 0 {
		v["tags"] = maps.Clone(g.tags)
	}
	return v
}

// settle lives up to the present: machines that the world has ended vanish, and
// with the last of them a group that is being deleted. It is called locked.
func (c *Cloud) settle() {
	for key, g := range c.groups {
		for name, m := range g.vms {
			if c.over(m) {
				delete(g.vms, name)
			}
		}
		if !g.deleting.IsZero() && len(g.vms) == 0 {
			g.gone = c.w.Now()
			delete(c.groups, key)
			c.gone = append(c.gone, g)
			maps.DeleteFunc(c.roles, func(_ string, a role) bool {
				return a.scope == strings.ToLower(g.id()) || strings.HasPrefix(a.scope, strings.ToLower(g.id())+"/")
			})
		}
	}
	if len(c.gone) > 1000 {
		c.gone = slices.Clone(c.gone[500:])
	}
}

// over reports whether a machine is no more. One that is only to be deallocated
// when it is taken, or that never found a place, stays as a resource.
func (c *Cloud) over(m *vm) bool {
	if m.machine == "" {
		return m.deleted
	}
	w, err := c.w.Machine(m.machine)
	if err != nil {
		return true
	}
	if w.State != providers.Terminated {
		return false
	}
	taken := w.Cause == providers.CausePreempted || w.Cause == providers.CausePrice
	if taken && !m.deleted && text(m.body, "properties", "evictionPolicy") != "Delete" {
		m.deallocated = true
		return false
	}
	return true
}

func groupMissing(name string) *armError {
	return failf(http.StatusNotFound, "ResourceGroupNotFound", "Resource group '%s' could not be found.", name)
}

// open returns the group in which something is to be made. It is called locked,
// settled.
func (c *Cloud) open(res resource) (*group, *armError) {
	g := c.groups[res.groupKey]
	switch {
	case g == nil:
		return nil, groupMissing(res.group)
	case !g.deleting.IsZero():
		return nil, failf(http.StatusConflict, "ResourceGroupBeingDeleted", "The resource group '%s' is in deprovisioning state and cannot perform this operation.", g.name)
	}
	return g, nil
}

// oneOf is the world's id of a machine in a group, for faults that name one.
func (c *Cloud) oneOf(groupKey string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.groups[groupKey]; g != nil {
		for _, m := range g.vms {
			return m.machine
		}
	}
	return ""
}

func (c *Cloud) resourceGroups(rw http.ResponseWriter, r *http.Request, res resource) {
	words := wordsAt(simapi.Place{})
	switch {
	case res.group == "" && r.Method == http.MethodGet:
		c.w.Answer(rw, r, simcloud.Call{Op: "list"}, words, func(age time.Duration, _ bool) (simcloud.Reply, error) { return c.listGroups(r, age) })
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		c.w.Answer(rw, r, simcloud.Call{Op: "describe", Machine: c.oneOf(res.groupKey)}, words, func(time.Duration, bool) (simcloud.Reply, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.settle()
			g := c.groups[res.groupKey]
			if g == nil {
				return simcloud.Reply{}, groupMissing(res.group)
			}
			if r.Method == http.MethodHead {
				return simcloud.Reply{Status: http.StatusNoContent}, nil
			}
			return body(http.StatusOK, g.view())
		})
	case r.Method == http.MethodPut || r.Method == http.MethodPatch:
		// What is not the machine itself is no launch: faults of that operation
		// hit the machine alone.
		c.w.Answer(rw, r, simcloud.Call{Op: "group"}, words, func(time.Duration, bool) (simcloud.Reply, error) { return c.putGroup(r, res) })
	case r.Method == http.MethodDelete:
		c.w.Answer(rw, r, simcloud.Call{Op: "terminate", Machine: c.oneOf(res.groupKey)}, words, func(time.Duration, bool) (simcloud.Reply, error) {
			return c.deleteGroup(rw, r, res)
		})
	default:
		fail(rw, failf(http.StatusMethodNotAllowed, "MethodNotAllowed", "The HTTP method '%s' is not supported at scope '%s'.", r.Method, r.URL.Path))
	}
}

var groupName = regexp.MustCompile(`^[-\w._()]{0,89}[-\w_()]$`)

func (c *Cloud) putGroup(r *http.Request, res resource) (simcloud.Reply, error) {
	in, bad := read(r)
	if bad != nil {
		return simcloud.Reply{}, bad
	}
	if !groupName.MatchString(res.group) {
		return simcloud.Reply{}, failf(http.StatusBadRequest, "InvalidResourceGroup", "The provided resource group name '%s' has an invalid format.", res.group)
	}
	tags, _ := in["tags"].(object)
	if len(tags) > 50 {
		return simcloud.Reply{}, failf(http.StatusBadRequest, "InvalidTagCount", "A resource can have at most 50 tags.")
	}
	for k, v := range tags {
		if s, ok := v.(string); !ok || len(k) > 512 || len(s) > 256 || strings.ContainsAny(k, `<>%&\?/`) {
			return simcloud.Reply{}, failf(http.StatusBadRequest, "InvalidTagNameCharacters", "The tag name or value of '%s' is not valid.", k)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	g := c.groups[res.groupKey]
	location := normal(text(in, "location"))
	switch {
	case g != nil && !g.deleting.IsZero():
		_, busy := c.open(res)
		return simcloud.Reply{}, busy
	case g != nil && r.Method == http.MethodPut && g.location != location:
		return simcloud.Reply{}, failf(http.StatusConflict, "InvalidResourceGroupLocation", "Invalid resource group location '%s'. The Resource group already exists in location '%s'.", location, g.location)
	case g != nil:
		g.tags = tags
		return body(http.StatusOK, g.view())
	case r.Method == http.MethodPatch:
		return simcloud.Reply{}, groupMissing(res.group)
	case !slices.Contains(c.locations(), location):
		return simcloud.Reply{}, failf(http.StatusBadRequest, "LocationNotAvailableForResourceGroup", "The provided location '%s' is not available for resource group.", location)
	}
	g = &group{name: res.group, location: location, tags: tags, created: c.w.Now(), items: map[string]*item{}, vms: map[string]*vm{}}
	c.groups[res.groupKey] = g
	return body(http.StatusCreated, g.view())
}

func (c *Cloud) locations() []string {
	var all []string
	for _, o := range c.w.Offers("", 0) {
		if !slices.Contains(all, o.Region) {
			all = append(all, o.Region)
		}
	}
	return all
}

func (c *Cloud) deleteGroup(rw http.ResponseWriter, r *http.Request, res resource) (simcloud.Reply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	g := c.groups[res.groupKey]
	if g == nil {
		return simcloud.Reply{}, groupMissing(res.group)
	}
	if g.deleting.IsZero() {
		g.deleting = c.w.Now()
	}
	for _, m := range g.vms {
		m.deleted = true
		if m.machine != "" {
			_ = c.w.Terminate(m.machine) // one that is gone already is what was asked for
		}
	}
	c.begin(r, rw, "/operationresults", 15*time.Second, false, func(time.Time) (bool, *armError) { return c.groups[res.groupKey] != g, nil })
	return simcloud.Reply{Status: http.StatusAccepted}, nil
}

// tagFilter reads the one filter that the list of groups takes
// (learn.microsoft.com/rest/api/resources/resource-groups/list).
var tagFilter = regexp.MustCompile(`^\s*tagName\s+eq\s+'([^']*)'(?:\s+and\s+tagValue\s+eq\s+'([^']*)')?\s*$`)

func (c *Cloud) listGroups(r *http.Request, age time.Duration) (simcloud.Reply, error) {
	var name, value string
	if f := r.URL.Query().Get("$filter"); f != "" {
		m := tagFilter.FindStringSubmatch(f)
		if m == nil {
			return simcloud.Reply{}, failf(http.StatusBadRequest, "InvalidFilterInQueryString", "Invalid $filter '%s' specified in the query string.", f)
		}
		name, value = m[1], m[2]
	}
	t := c.w.Now().Add(-c.w.Config().ListLag.D() - age)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	var found []*group
	for g := range all(c.groups, c.gone) {
		if g.created.After(t) || !g.gone.IsZero() && !g.gone.After(t) {
			continue
		}
		have, ok := tagOf(g.tags, name)
		if name == "" || ok && (value == "" || have == value) {
			found = append(found, g)
		}
	}
	slices.SortFunc(found, func(a, b *group) int { return strings.Compare(a.name, b.name) })
	var out []any
	for _, g := range found {
		v := g.view()
		if !g.deleting.IsZero() && g.deleting.After(t) {
			v["properties"] = object{"provisioningState": "Succeeded"}
		}
		out = append(out, v)
	}
	return c.page(r, out)
}

func all(live map[string]*group, gone []*group) func(yield func(*group) bool) {
	return func(yield func(*group) bool) {
		for _, g := range live {
			if !yield(g) {
				return
			}
		}
		for _, g := range gone {
			if !yield(g) {
				return
			}
		}
	}
}

// tagOf looks a tag up; their names are case-insensitive.
func tagOf(tags object, name string) (string, bool) {
	for k, v := range tags {
		if strings.EqualFold(k, name) {
			s, _ := v.(string)
			return s, true
		}
	}
	return "", false
}
