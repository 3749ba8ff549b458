package azure

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
)

// resource is a path of ARM, taken apart. Names are case-insensitive there; key
// holds the lower case, name what the caller wrote.
type resource struct {
	group, groupKey string
	location        string // of /providers/{namespace}/locations/{location}/…
	namespace, kind string // lower case
	name, key       string
	rest            []string // what follows, lower case
}

func parse(path string) (resource, *armError) {
	seg := strings.Split(strings.Trim(path, "/"), "/")
	if len(seg) < 2 || seg[1] == "" {
		return resource{}, failf(http.StatusBadRequest, "MissingSubscription", "The request did not have a subscription or a valid tenant level resource provider.")
	}
	if !strings.EqualFold(seg[1], Subscription) {
		return resource{}, failf(http.StatusNotFound, "SubscriptionNotFound", "The subscription '%s' could not be found.", seg[1])
	}
	var res resource
	seg = seg[2:]
	if len(seg) >= 1 && strings.EqualFold(seg[0], "resourcegroups") {
		res.kind = "resourcegroups"
		if len(seg) == 1 {
			return res, nil
		}
		res.group, res.groupKey = seg[1], strings.ToLower(seg[1])
		seg = seg[2:]
	}
	if len(seg) >= 2 && strings.EqualFold(seg[0], "providers") {
		res.namespace = strings.ToLower(seg[1])
		seg = seg[2:]
		res.kind = ""
		if len(seg) >= 2 && strings.EqualFold(seg[0], "locations") {
			res.location = strings.ToLower(seg[1])
			seg = seg[2:]
		}
		if len(seg) >= 1 {
			res.kind = strings.ToLower(seg[0])
		}
		if len(seg) >= 2 {
			res.name, res.key = seg[1], strings.ToLower(seg[1])
		}
		if len(seg) >= 3 {
			for _, s := range seg[2:] {
				res.rest = append(res.rest, strings.ToLower(s))
			}
		}
		return res, nil
	}
	if len(seg) > 0 && res.kind == "" { // /operationresults/{id}
		res.kind = strings.ToLower(seg[0])
		if len(seg) > 1 {
			res.name, res.key = seg[1], strings.ToLower(seg[1])
		}
	}
	return res, nil
}

// spelling is how ARM writes the types that there are.
var spelling = map[string]string{
	"microsoft.network/virtualnetworks":       "Microsoft.Network/virtualNetworks",
	"microsoft.network/networksecuritygroups": "Microsoft.Network/networkSecurityGroups",
	"microsoft.network/publicipaddresses":     "Microsoft.Network/publicIPAddresses",
	"microsoft.network/networkinterfaces":     "Microsoft.Network/networkInterfaces",
	"microsoft.compute/virtualmachines":       "Microsoft.Compute/virtualMachines",
	"microsoft.compute/skus":                  "Microsoft.Compute/skus",
	"microsoft.compute/usages":                "Microsoft.Compute/locations/usages",
	"microsoft.compute/placementscores":       "Microsoft.Compute/locations/placementScores",
	"microsoft.authorization/roleassignments": "Microsoft.Authorization/roleAssignments",
	"microsoft.authorization/permissions":     "Microsoft.Authorization/permissions",
	"microsoft.insights/eventtypes":           "Microsoft.Insights/eventtypes/values",
}

// action is what a call needs to be permitted.
func (res resource) action(method string) string {
	verb := map[string]string{http.MethodPut: "write", http.MethodPatch: "write", http.MethodDelete: "delete", http.MethodPost: "action"}[method]
	if verb == "" {
		verb = "read"
	}
	what := "Microsoft.Resources/subscriptions/resourceGroups"
	if res.namespace != "" {
		what = spelling[res.namespace+"/"+res.kind]
	}
	if verb == "action" && len(res.rest) > 0 {
		what += "/" + res.rest[len(res.rest)-1]
	}
	return what + "/" + verb
}

// arm routes a call of Azure Resource Manager.
func (c *Cloud) arm(rw http.ResponseWriter, r *http.Request) {
	res, bad := parse(r.URL.Path)
	if bad == nil && r.URL.Query().Get("api-version") == "" {
		bad = failf(http.StatusBadRequest, "MissingApiVersionParameter", "The api-version query parameter (?api-version=) is required for all requests.")
	}
	if bad == nil {
		bad = c.authorize(r, res.action(r.Method))
	}
	if bad != nil {
		fail(rw, bad)
		return
	}
	kind := res.kind
	if res.namespace != "" {
		kind = res.namespace + "/" + res.kind
	}
	switch {
	case kind == "resourcegroups":
		c.resourceGroups(rw, r, res)
	case kind == "microsoft.compute/virtualmachines":
		c.virtualMachines(rw, r, res)
	case res.namespace == "microsoft.network" && spelling[kind] != "" && res.group != "":
		c.network(rw, r, res)
	case kind == "microsoft.compute/skus":
		c.skus(rw, r)
	case kind == "microsoft.compute/usages":
		c.usages(rw, r, res)
	case kind == "microsoft.compute/placementscores" && r.Method == http.MethodPost:
		c.scores(rw, r)
	case kind == "microsoft.authorization/permissions":
		c.permissions(rw, r)
	case kind == "microsoft.insights/eventtypes":
		c.activities(rw, r)
	case kind == "microsoft.authorization/roleassignments" && res.name != "":
		c.roleAssignment(rw, r, res)
	case strings.HasSuffix(kind, "/operations") || strings.HasSuffix(kind, "operationresults"):
		c.poll(rw, r, res)
	default:
		fail(rw, failf(http.StatusNotFound, "InvalidResourceType", "The resource type could not be found in the namespace '%s' for api version '%s'.", res.namespace, r.URL.Query().Get("api-version")))
	}
}

// operation is one that goes on after its call was answered
// (learn.microsoft.com/azure/azure-resource-manager/management/async-operations).
type operation struct {
	started time.Time
	// state is called locked: whether it is over, and how it failed.
	state func(now time.Time) (done bool, failed *armError)
}

// begin starts an operation and returns the headers that lead to it. It is called
// locked.
func (c *Cloud) begin(r *http.Request, rw http.ResponseWriter, path string, wait time.Duration, async bool, state func(time.Time) (bool, *armError)) {
	c.serial++
	id := guid("operation", strconv.Itoa(c.serial))
	c.ops[id] = &operation{started: c.w.Now(), state: state}
	link := base(r) + "/subscriptions/" + Subscription + path + "/" + id + "?api-version=" + r.URL.Query().Get("api-version")
	if async {
		rw.Header().Set("Azure-AsyncOperation", link)
	} else {
		rw.Header().Set("Location", link)
	}
	if wait > 0 {
		rw.Header().Set("Retry-After", strconv.Itoa(int(wait.Seconds())))
	}
}

// poll answers how an operation stands: a status object under Azure-AsyncOperation,
// 202 until it is over under Location.
func (c *Cloud) poll(rw http.ResponseWriter, r *http.Request, res resource) {
	c.w.Answer(rw, r, simcloud.Call{Op: "poll"}, wordsAt(simapi.Place{}), func(time.Duration, bool) (simcloud.Reply, error) {
		now := c.w.Now()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.settle()
		op := c.ops[res.key]
		if op == nil {
			return simcloud.Reply{}, failf(http.StatusNotFound, "OperationNotFound", "The operation '%s' is not found.", res.name)
		}
		done, failed := op.state(now)
		if res.namespace == "" {
			if !done {
				rw.Header().Set("Location", base(r)+r.URL.RequestURI())
				rw.Header().Set("Retry-After", "15")
				return simcloud.Reply{Status: http.StatusAccepted}, nil
			}
			return simcloud.Reply{Status: http.StatusOK}, nil
		}
		v := map[string]any{"startTime": op.started.Format(time.RFC3339Nano), "status": "InProgress", "name": res.name}
		switch {
		case failed != nil:
			v["status"], v["error"], v["endTime"] = "Failed", failed, now.Format(time.RFC3339Nano)
		case done:
			v["status"], v["endTime"] = "Succeeded", now.Format(time.RFC3339Nano)
		}
		return body(http.StatusOK, v)
	})
}

// object is a JSON object.
type object = map[string]any

// read decodes a request's body.
func read(r *http.Request) (object, *armError) {
	var v object
	d := json.NewDecoder(r.Body)
	d.UseNumber()
	if err := d.Decode(&v); err != nil || v == nil {
		return nil, failf(http.StatusBadRequest, "InvalidRequestContent", "The request content was invalid and could not be deserialized: '%v'.", err)
	}
	return v, nil
}

// at walks down an object; what is not there is nil.
func at(v any, path ...string) any {
	for _, key := range path {
		o, ok := v.(object)
		if !ok {
			return nil
		}
		v = o[key]
	}
	return v
}

func text(v any, path ...string) string {
	s, _ := at(v, path...).(string)
	return s
}

func list(v any, path ...string) []any {
	l, _ := at(v, path...).([]any)
	return l
}

// copied is a deep copy.
func copied(v any) any {
	switch v := v.(type) {
	case object:
		out := make(object, len(v))
		for k, x := range v {
			out[k] = copied(x)
		}
		return out
	case []any:
		out := slices.Clone(v)
		for i := range out {
			out[i] = copied(out[i])
		}
		return out
	}
	return v
}

// under returns an object's member, which is made where it is missing.
func under(o object, key string) object {
	if m, ok := o[key].(object); ok {
		return m
	}
	m := object{}
	o[key] = m
	return m
}

// normal is a location in ARM's one-word form: "East US" is "eastus".
func normal(location string) string {
	return strings.ToLower(strings.ReplaceAll(location, " ", ""))
}
