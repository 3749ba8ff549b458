package azure

import (
	"net/http"
	"strings"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
)

// network answers calls about virtual networks, security groups, addresses and
// interfaces: what a machine needs beside itself.
func (c *Cloud) network(rw http.ResponseWriter, r *http.Request, res resource) {
	words := wordsAt(simapi.Place{})
	key := res.namespace + "/" + res.kind + "/" + res.key
	switch r.Method {
	case http.MethodPut:
		c.w.Answer(rw, r, simcloud.Call{Op: "network"}, words, func(time.Duration, bool) (simcloud.Reply, error) { return c.putItem(rw, r, res, key) })
	case http.MethodGet:
		c.w.Answer(rw, r, simcloud.Call{Op: "network"}, words, func(time.Duration, bool) (simcloud.Reply, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.settle()
			g := c.groups[res.groupKey]
			if g == nil {
				return simcloud.Reply{}, groupMissing(res.group)
			}
			it := g.items[key]
			if it == nil {
				return simcloud.Reply{}, missing(res)
			}
			return body(http.StatusOK, c.viewItem(it))
		})
	default:
		fail(rw, failf(http.StatusMethodNotAllowed, "MethodNotAllowed", "The HTTP method '%s' is not supported at scope '%s'.", r.Method, r.URL.Path))
	}
}

func missing(res resource) *armError {
	return failf(http.StatusNotFound, "ResourceNotFound", "The Resource '%s/%s' under resource group '%s' was not found. For more details please go to https://aka.ms/ARMResourceNotFoundFix", spelling[res.namespace+"/"+res.kind], res.name, res.group)
}

func (c *Cloud) viewItem(it *item) object {
	v, _ := copied(it.body).(object)
	state := "Succeeded"
	if it.ready.After(c.w.Now()) {
		state = "Updating"
	}
	under(v, "properties")["provisioningState"] = state
	return v
}

func (c *Cloud) putItem(rw http.ResponseWriter, r *http.Request, res resource, key string) (simcloud.Reply, error) {
	in, bad := read(r)
	if bad != nil {
		return simcloud.Reply{}, bad
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	g, bad := c.open(res)
	if bad != nil {
		return simcloud.Reply{}, bad
	}
	if text(in, "location") == "" {
		return simcloud.Reply{}, failf(http.StatusBadRequest, "LocationRequired", "The location property is required for this definition.")
	}
	var refs []string
	collect(in["properties"], &refs)
	for _, id := range refs {
		if bad := c.refer(id); bad != nil {
			return simcloud.Reply{}, bad
		}
	}
	kind := spelling[res.namespace+"/"+res.kind]
	id := g.id() + "/providers/" + kind + "/" + res.name
	in["id"], in["name"], in["type"], in["etag"] = id, res.name, kind, `W/"`+guid(id)+`"`
	in["location"] = normal(text(in, "location"))
	props := under(in, "properties")
	props["resourceGuid"] = guid("resource", id)
	for _, member := range []string{"subnets", "ipConfigurations"} {
		for _, sub := range list(props, member) {
			if o, ok := sub.(object); ok {
				o["id"] = id + "/" + member + "/" + text(o, "name")
				under(o, "properties")["provisioningState"] = "Succeeded"
			}
		}
	}
	if res.kind == "publicipaddresses" {
		props["ipAddress"] = "203.0.113.7" // RFC 5737
	}
	status := http.StatusCreated
	if g.items[key] != nil {
		status = http.StatusOK
	}
	it := &item{body: in, ready: c.w.Now().Add(c.NetworkTime)}
	g.items[key] = it
	c.begin(r, rw, "/providers/Microsoft.Network/locations/"+g.location+"/operations", 0, true, func(now time.Time) (bool, *armError) { return !it.ready.After(now), nil })
	return body(status, func() object {
		v := c.viewItem(it)
		under(v, "properties")["provisioningState"] = "Updating"
		return v
	}())
}

// collect finds the ids of other resources that a body names.
func collect(v any, into *[]string) {
	switch v := v.(type) {
	case object:
		for k, x := range v {
			if s, ok := x.(string); ok && k == "id" && strings.HasPrefix(s, "/subscriptions/") {
				*into = append(*into, s)
				continue
			}
			collect(x, into)
		}
	case []any:
		for _, x := range v {
			collect(x, into)
		}
	}
}

// refer checks that a network resource exists and is ready. What is outside of
// groups that are kept here, a subnet of the account's own, is believed.
func (c *Cloud) refer(id string) *armError {
	res, bad := parse(id)
	if bad != nil || res.namespace != "microsoft.network" {
		return nil
	}
	g := c.groups[res.groupKey]
	if g == nil && res.kind == "virtualnetworks" {
		return nil
	}
	var it *item
	if g != nil {
		it = g.items[res.namespace+"/"+res.kind+"/"+res.key]
	}
	switch {
	case it == nil:
		return failf(http.StatusBadRequest, "InvalidResourceReference", "Resource %s referenced by another resource was not found. Please make sure that the referenced resource exists, and that both resources are in the same region.", id)
	case it.ready.After(c.w.Now()):
		return failf(http.StatusTooManyRequests, "ReferencedResourceNotProvisioned", "Cannot proceed with operation because resource %s used by another resource is not in Succeeded state.", id)
	case len(res.rest) == 2 && res.rest[0] == "subnets":
		for _, s := range list(it.body, "properties", "subnets") {
			if strings.EqualFold(text(s, "name"), res.rest[1]) {
				return nil
			}
		}
		return failf(http.StatusBadRequest, "InvalidResourceReference", "Resource %s referenced by another resource was not found.", id)
	}
	return nil
}
