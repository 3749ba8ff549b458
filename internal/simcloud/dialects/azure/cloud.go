package azure

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
)

// The account that every world has.
const (
	Subscription = "5f0c1a52-8d54-4a6c-9f0e-3b0f6f2a7c11"
	Tenant       = "72f988bf-86f1-41af-91ab-2d7cd011db47"
	ClientID     = "1950a258-227b-4e31-a9cf-717495945fc2"
)

// Cloud is one fake: a world's Azure. Its knobs are for tests.
type Cloud struct {
	// NetworkTime is how long networks, addresses and interfaces are in the making.
	NetworkTime time.Duration

	w *simcloud.World

	mu     sync.Mutex // taken before the world's lock, never after it
	groups map[string]*group
	gone   []*group // for lists that lag
	ops    map[string]*operation
	lives  map[string][]life // by the lower-case name of the group, for the activity log
	tokens map[string]token
	roles  map[string]role // by the lower-case id of the assignment
	denied []string        // actions that the application may not do
	failed int             // how many machines are accepted and then not placed
	serial int             // numbers what has no name
}

// New returns a fake without a world: the world's configuration holds its
// [Cloud.Dialect].
func New() *Cloud {
	return &Cloud{groups: map[string]*group{}, lives: map[string][]life{}, ops: map[string]*operation{}, tokens: map[string]token{}, roles: map[string]role{}}
}

// Dialect is Azure's words, for one world.
func Dialect() *simcloud.Dialect { return New().Dialect() }

// Dialect is this fake as a world's dialect.
func (c *Cloud) Dialect() *simcloud.Dialect {
	return &simcloud.Dialect{
		Name: "azure",
		API: func(w *simcloud.World) http.Handler {
			c.w = w
			return http.HandlerFunc(c.serve)
		},
		Metadata: func(_ *simcloud.World, id string) http.Handler {
			return &metadata{c: c, machine: id}
		},
		Left: func(*simcloud.World) []string { return c.left() },
		// Machines call the API over TLS too: whom this process trusts, they trust.
		Env: func(simapi.Machine) []string {
			var out []string
			for _, name := range []string{"CURL_CA_BUNDLE", "SSL_CERT_FILE"} {
				if file := os.Getenv(name); file != "" {
					out = append(out, name+"="+file)
				}
			}
			return out
		},
	}
}

// Deny takes an action such as "Microsoft.Network/virtualNetworks/write" from the
// application.
func (c *Cloud) Deny(action string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.denied = append(c.denied, action)
}

// FailAllocation accepts the next machine and then finds no place for it, as Azure
// does where capacity runs out between the two.
func (c *Cloud) FailAllocation() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed++
}

// Groups returns the names of the resource groups that there are, sorted.
func (c *Cloud) Groups() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	var names []string
	for _, g := range c.groups {
		names = append(names, g.name)
	}
	slices.Sort(names)
	return names
}

// left names the resource groups that hold no machine.
func (c *Cloud) left() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	var names []string
	for _, g := range c.groups {
		if len(g.vms) == 0 {
			names = append(names, "resource group "+g.name)
		}
	}
	slices.Sort(names)
	return names
}

// Machine returns the world's id of a VM that there is, "" for none.
func (c *Cloud) Machine(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range c.groups {
		if m := g.vms[strings.ToLower(name)]; m != nil {
			return m.machine
		}
	}
	return ""
}

// maxBody is the longest request body in bytes.
const maxBody = 1 << 20

func (c *Cloud) serve(rw http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(rw, r.Body, maxBody)
	path := strings.ToLower(r.URL.Path)
	rw.Header().Set("X-Ms-Request-Id", guid("request", strconv.Itoa(c.number())))
	switch {
	case strings.HasPrefix(path, "/subscriptions/"):
		c.arm(rw, r)
	case strings.HasSuffix(path, "/oauth2/v2.0/token") || strings.Contains(path, "/.well-known/") || strings.HasSuffix(path, "/discovery/instance"):
		c.login(rw, r)
	case path == "/api/retail/prices":
		c.retail(rw, r)
	case strings.HasPrefix(path, "/bootdiagnostics/"):
		c.serialLog(rw, r)
	default:
		fail(rw, &armError{Status: http.StatusNotFound, Code: "InvalidResourceType", Message: "nothing is served at " + r.URL.Path})
	}
}

func (c *Cloud) number() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serial++
	return c.serial
}

// armError is a failure in ARM's form
// (learn.microsoft.com/azure/azure-resource-manager/troubleshooting/common-deployment-errors).
type armError struct {
	Status     int           `json:"-"`
	RetryAfter time.Duration `json:"-"`
	Code       string        `json:"code"`
	Message    string        `json:"message"`
	Target     string        `json:"target,omitempty"`
}

func (e *armError) Error() string { return "azure: " + e.Code + ": " + e.Message }

func failf(status int, code, format string, args ...any) *armError {
	return &armError{Status: status, Code: code, Message: fmt.Sprintf(format, args...)}
}

// fail writes an error as ARM does.
func fail(rw http.ResponseWriter, err error) {
	e, ok := errors.AsType[*armError](err)
	if !ok {
		if s, is := errors.AsType[*simapi.Error](err); is {
			e = translate(s, simapi.Place{})
		} else {
			e = failf(http.StatusInternalServerError, "InternalServerError", "%v", err)
		}
	}
	if e.RetryAfter > 0 {
		rw.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds()))))
	}
	if e.Status == http.StatusUnauthorized {
		rw.Header().Set("WWW-Authenticate", `Bearer authorization_uri="https://login.microsoftonline.com/`+Tenant+`", error="invalid_token", error_description="The access token is not valid"`)
	}
	rw.Header().Set("X-Ms-Failure-Cause", "gateway")
	rw.Header().Set("Content-Type", "application/json; charset=utf-8")
	rw.WriteHeader(e.Status)
	_ = json.NewEncoder(rw).Encode(map[string]any{"error": e}) // the caller has gone
}

// wordsAt writes the failures of calls about a market.
func wordsAt(place simapi.Place) simcloud.Words {
	return func(rw http.ResponseWriter, err error) {
		if s, ok := errors.AsType[*simapi.Error](err); ok {
			err = translate(s, place)
		}
		fail(rw, err)
	}
}

// translate says the world's error in ARM's words.
func translate(s *simapi.Error, place simapi.Place) *armError {
	e := &armError{Status: s.Status, RetryAfter: s.RetryAfter, Code: "InternalServerError", Message: s.Message}
	set := func(status int, code, format string, args ...any) {
		e.Status, e.Code, e.Message = status, code, fmt.Sprintf(format, args...)
	}
	switch s.Code {
	case simapi.CodeCapacity:
		if place.Kind == "on-demand" && place.Zone != "" {
			set(http.StatusConflict, "ZonalAllocationFailed", "Allocation failed. We do not have sufficient capacity for the requested VM size in this zone. Read more about improving likelihood of allocation success at http://aka.ms/allocation-guidance")
			break
		}
		set(http.StatusConflict, "SkuNotAvailable", "The requested size for resource '/subscriptions/%s' is currently not available in location '%s' zones '%s' for subscription '%s'. Please try another size or deploy to a different location or zones. See https://aka.ms/azureskunotavailable for details.", Subscription, place.Region, place.Zone, Subscription)
	case simapi.CodeQuota:
		quota := familyOf(place.Type) + " Cores"
		if place.Kind == "spot" {
			quota = "LowPriorityCores"
		}
		set(http.StatusConflict, "OperationNotAllowed", "Operation could not be completed as it results in exceeding approved %s quota. Additional details - Deployment Model: Resource Manager, Location: %s, Current Limit: 100, Current Usage: 100, Additional Required: 8, (Minimum) New Limit Required: 108. Please read more about quota limits at https://docs.microsoft.com/en-us/azure/azure-supportability/per-vm-quota-requests", quota, place.Region)
	case simapi.CodePrice:
		set(http.StatusBadRequest, "SpotPriceGreaterThanProvidedMaxPrice", "Unable to perform operation 'Create VM' since the provided max price is lower than the current spot price for Azure Spot VM size '%s'. For more information, see http://aka.ms/AzureSpot/errormessages", place.Type)
	case simapi.CodeThrottled:
		set(http.StatusTooManyRequests, "TooManyRequests", "The request is being throttled as the limit has been reached for operation type - Write. For more information, see - https://aka.ms/srpthrottlinglimits")
	case simapi.CodeUnauthorized:
		set(http.StatusUnauthorized, "ExpiredAuthenticationToken", "The access token expiry UTC time is earlier than current UTC time.")
	case simapi.CodeNoFunds:
		set(http.StatusConflict, "ReadOnlyDisabledSubscription", "The subscription '%s' is disabled and therefore marked as read only. You cannot perform any write actions on this subscription until it is re-enabled.", Subscription)
	case simapi.CodeInvalid:
		set(http.StatusBadRequest, "InvalidParameter", "%s", s.Message)
	case simapi.CodeNoOffer:
		set(http.StatusBadRequest, "InvalidParameter", "The value '%s' provided for the VM size is not valid for location '%s'.", place.Type, place.Region)
		e.Target = "vmSize"
	case simapi.CodeNotFound:
		set(http.StatusNotFound, "ResourceNotFound", "The Resource 'Microsoft.Compute/virtualMachines' was not found. For more details please go to https://aka.ms/ARMResourceNotFoundFix")
	case simapi.CodeRefused, simapi.CodeMismatch:
		set(http.StatusConflict, "Conflict", "The request failed due to conflict with a concurrent request. To resolve it, please refer to https://aka.ms/activitylog to get more details on the conflicting requests.")
	case simapi.CodeUnavailable:
		set(http.StatusServiceUnavailable, "ServiceUnavailable", "The service is unavailable. Please retry.")
	default: // as it stands
	}
	return e
}

// body is a JSON answer.
func body(status int, v any) (simcloud.Reply, error) {
	data, err := json.Marshal(v)
	return simcloud.Reply{Status: status, Type: "application/json; charset=utf-8", Body: data}, err
}

// page cuts a list into pages of the world's size and links the next one.
func (c *Cloud) page(r *http.Request, all []any) (simcloud.Reply, error) {
	from, _ := strconv.Atoi(r.URL.Query().Get("$skiptoken"))
	from = min(max(from, 0), len(all))
	to := min(from+c.w.Config().PageSize, len(all))
	list := map[string]any{"value": append([]any{}, all[from:to]...)}
	if to < len(all) {
		q := r.URL.Query()
		q.Set("$skiptoken", strconv.Itoa(to))
		list["nextLink"] = base(r) + r.URL.EscapedPath() + "?" + encode(q)
	}
	return body(http.StatusOK, list)
}

// base is the address under which the caller reaches us.
func base(r *http.Request) string {
	scheme := "https"
	if r.TLS == nil && r.Header.Get("X-Forwarded-Proto") == "" && !strings.HasPrefix(r.URL.Scheme, "https") {
		scheme = "http"
	}
	return scheme + "://" + r.Host
}

// encode leaves the dollar of OData's names as it is.
func encode(q url.Values) string { return strings.ReplaceAll(q.Encode(), "%24", "$") }
