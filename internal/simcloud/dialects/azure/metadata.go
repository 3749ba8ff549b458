package azure

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/simcloud"
)

// metadata is the Instance Metadata Service of one machine
// (learn.microsoft.com/azure/virtual-machines/instance-metadata-service and
// …/linux/scheduled-events).
type metadata struct {
	c       *Cloud
	machine string // the world's id
}

// ServeHTTP answers the machine itself: a header proves that no page and no proxy
// asks in its place.
func (d *metadata) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	reply := func(status int, v any) {
		rw.Header().Set("Content-Type", "application/json; charset=utf-8")
		rw.WriteHeader(status)
		_ = json.NewEncoder(rw).Encode(v) // the caller has gone
	}
	if r.Header.Get("Metadata") != "true" || r.Header.Get("X-Forwarded-For") != "" {
		reply(http.StatusBadRequest, object{"error": "Bad request. Required metadata header not specified"})
		return
	}
	if r.URL.Query().Get("api-version") == "" {
		reply(http.StatusBadRequest, object{"error": "Bad request. api-version was not specified in the request", "newest-versions": []string{"2021-12-13", "2021-02-01"}})
		return
	}
	g, m := d.find()
	inside, err := d.c.w.Inside(d.machine)
	if m == nil || err != nil {
		reply(http.StatusGone, object{"error": "the machine is no more"})
		return
	}
	path := strings.TrimPrefix(r.URL.Path, "/metadata/")
	switch {
	case path == "instance" || strings.HasPrefix(path, "instance/"):
		d.instance(rw, reply, g, m, strings.TrimPrefix(strings.TrimPrefix(path, "instance"), "/"), r.URL.Query())
	case path == "scheduledevents":
		d.events(rw, r, reply, m, inside)
	case path == "identity/oauth2/token":
		if m.principal == "" {
			reply(http.StatusBadRequest, object{"error": "invalid_request", "error_description": "Identity not found"})
			return
		}
		now := d.c.w.Now()
		reply(http.StatusOK, object{
			"access_token": d.c.issue(m.principal), "client_id": guid("client", m.principal), "expires_in": strconv.Itoa(int(tokenLife.Seconds())),
			"expires_on": strconv.FormatInt(now.Add(tokenLife).Unix(), 10), "not_before": strconv.FormatInt(now.Unix(), 10),
			"resource": r.URL.Query().Get("resource"), "token_type": "Bearer",
		})
	default:
		reply(http.StatusNotFound, object{"error": "Not found"})
	}
}

func (d *metadata) find() (*group, *vm) {
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	for _, g := range d.c.groups {
		for _, m := range g.vms {
			if m.machine == d.machine {
				return g, m
			}
		}
	}
	return nil, nil
}

// instance answers a node of the document: a leaf as text where that is asked for.
func (d *metadata) instance(rw http.ResponseWriter, reply func(int, any), g *group, m *vm, path string, q url.Values) {
	zone := m.place.Zone
	priority := text(m.body, "properties", "priority")
	var node any = object{"compute": object{
		"azEnvironment": "AzurePublicCloud", "location": m.place.Region, "name": m.name, "osType": "Linux", "priority": priority,
		"evictionPolicy": text(m.body, "properties", "evictionPolicy"), "provider": "Microsoft.Compute", "resourceGroupName": g.name,
		"resourceId": text(m.body, "id"), "subscriptionId": Subscription, "vmId": text(m.body, "properties", "vmId"), "vmSize": m.place.Type, "zone": zone,
	}}
	for step := range strings.SplitSeq(path, "/") {
		if step == "" {
			continue
		}
		if node = at(node, step); node == nil {
			reply(http.StatusNotFound, object{"error": "Not found"})
			return
		}
	}
	if s, ok := node.(string); ok && q.Get("format") == "text" {
		rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = rw.Write([]byte(s)) // the caller has gone
		return
	}
	reply(http.StatusOK, node)
}

// events are the scheduled events: a preemption stands here from its announcement
// on, and is acknowledged by a POST.
func (d *metadata) events(rw http.ResponseWriter, r *http.Request, reply func(int, any), m *vm, inside simcloud.Inside) {
	event := guid("event", d.machine)
	if r.Method == http.MethodPost {
		var in struct {
			StartRequests []struct{ EventID string }
		}
		if json.NewDecoder(r.Body).Decode(&in) != nil || len(in.StartRequests) == 0 || in.StartRequests[0].EventID != event || inside.Notice == nil {
			reply(http.StatusBadRequest, object{"error": "the event is not known"})
			return
		}
		d.c.mu.Lock()
		m.started = true
		d.c.mu.Unlock()
		rw.WriteHeader(http.StatusOK)
		return
	}
	doc := object{"DocumentIncarnation": 1, "Events": []any{}}
	if n := inside.Notice; n != nil {
		d.c.mu.Lock()
		status, before := "Scheduled", n.Time.UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT")
		if m.started || !n.Time.After(time.Now()) {
			status, before = "Started", ""
		}
		d.c.mu.Unlock()
		doc["DocumentIncarnation"] = 2
		doc["Events"] = []any{object{
			"EventId": event, "EventType": "Preempt", "ResourceType": "VirtualMachine", "Resources": []any{m.name}, "EventStatus": status,
			"NotBefore": before, "Description": "", "EventSource": "Platform", "DurationInSeconds": -1,
		}}
	}
	reply(http.StatusOK, doc)
}
