// Package lambda makes a simcloud world speak Lambda's Cloud API, version 1, as
// documents 1.6.0 and 1.10.0 describe it: instance types, launch, terminate,
// instances, images and SSH keys, with their codes in {"error": {code, message,
// suggestion}}.
//
// Point a client's base URL at http://ADDRESS/api/v1. The key is the world's token,
// as a bearer or as the user name of basic authentication; an empty token lets
// everybody in. The account has one SSH key, named [SSHKey].
//
// What the cloud has and this leaves out: filesystems, firewalls, restarts.
package lambda

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// SSHKey is the name of the account's SSH key.
const SSHKey = "broker"

// Dialect is the dialect.
func Dialect() *simcloud.Dialect {
	return &simcloud.Dialect{Name: "lambda", API: func(w *simcloud.World) http.Handler { return newServer(w) }}
}

// ID is what the API calls a machine of a world with a seed: 32 hexadecimal digits.
func ID(seed uint64, world string) string {
	number, ok := strings.CutPrefix(world, "sim-")
	n, err := strconv.ParseUint(number, 10, 32)
	if !ok || err != nil {
		return world
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "lambda/%d/%d", seed, n))
	return hex.EncodeToString(sum[:12]) + fmt.Sprintf("%08x", n)
}

// WorldID is the other way round: "" for an id that the API never gave out.
func WorldID(seed uint64, id string) string {
	if len(id) != 32 {
		return ""
	}
	n, err := strconv.ParseUint(id[24:], 16, 32)
	if err != nil {
		return ""
	}
	world := fmt.Sprintf("sim-%06d", n)
	if ID(seed, world) != id {
		return ""
	}
	return world
}

type server struct {
	w        *simcloud.World
	cfg      simcloud.Config
	launches atomic.Int64
}

// maxBody is a launch with the longest user data.
const maxBody = 3 << 20

func newServer(w *simcloud.World) http.Handler {
	s := &server{w: w, cfg: w.Config()}
	mux := http.NewServeMux()
	on := func(pattern string, f http.HandlerFunc) {
		method, path, _ := strings.Cut(pattern, " ")
		mux.HandleFunc(method+" /api/v1"+path, func(rw http.ResponseWriter, r *http.Request) {
			if !s.allowed(r) {
				words(rw, &simapi.Error{Status: http.StatusUnauthorized, Code: simapi.CodeUnauthorized})
				return
			}
			r.Body = http.MaxBytesReader(rw, r.Body, maxBody)
			f(rw, r)
		})
	}
	on("GET /instance-types", s.types)
	on("GET /instances", s.list)
	on("GET /instances/{id}", s.describe)
	on("POST /instance-operations/launch", s.launch)
	on("POST /instance-operations/terminate", s.terminate)
	on("GET /images", s.images)
	on("GET /ssh-keys", s.keys)
	mux.HandleFunc("/", func(rw http.ResponseWriter, _ *http.Request) {
		say(rw, http.StatusNotFound, "global/not-found", "The requested resource was not found.", "")
	})
	return mux
}

func (s *server) allowed(r *http.Request) bool {
	want := s.cfg.Tokens.API
	if user, _, ok := r.BasicAuth(); ok {
		return want == "" || user == want
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return want == "" || ok && token == want
}

// say writes an error in the API's form.
func say(rw http.ResponseWriter, status int, code, message, suggestion string) {
	body := map[string]map[string]string{"error": {"code": code, "message": message}}
	if suggestion != "" {
		body["error"]["suggestion"] = suggestion
	}
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(status)
	_ = json.NewEncoder(rw).Encode(body) // the caller has gone
}

// words says a failure as the API does.
func words(rw http.ResponseWriter, err error) {
	e, ok := errors.AsType[*simapi.Error](err)
	if !ok {
		e = &simapi.Error{Status: http.StatusInternalServerError, Code: simapi.CodeInternal, Message: err.Error()}
	}
	if e.RetryAfter > 0 {
		rw.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds()))))
	}
	switch e.Code {
	case simapi.CodeCapacity:
		say(rw, http.StatusBadRequest, "instance-operations/launch/insufficient-capacity", "Not enough capacity to fulfill launch request.", "Choose an instance type with more availability, or try again later.")
	case simapi.CodeQuota:
		say(rw, http.StatusBadRequest, "global/quota-exceeded", "Quota exceeded.", "Contact Support to increase your quota.")
	case simapi.CodeThrottled:
		// The edge answers, not the API.
		rw.Header().Set("Content-Type", "text/plain; charset=UTF-8")
		rw.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(rw, "error code: 1015")
	case simapi.CodeUnauthorized:
		say(rw, http.StatusUnauthorized, "global/invalid-api-key", "API key was invalid, expired, or deleted.", "Check your API key or create a new one, then try again.")
	case simapi.CodeNoFunds:
		say(rw, http.StatusForbidden, "global/account-inactive", "Your account is inactive.", "Make sure you have verified your email address and have a valid payment method. Contact Support if problems continue.")
	case simapi.CodeInvalid, simapi.CodePrice, simapi.CodeMismatch, simapi.CodeEndFixed:
		say(rw, http.StatusBadRequest, "global/invalid-parameters", "Invalid request data: "+e.Message, "")
	case simapi.CodeNoOffer:
		say(rw, http.StatusNotFound, "global/object-does-not-exist", "Specified instance type does not exist.", "Choose another instance type.")
	case simapi.CodeNotFound:
		say(rw, http.StatusNotFound, "global/object-does-not-exist", "Specified instance does not exist.", "")
	case simapi.CodeRefused:
		say(rw, http.StatusConflict, "global/conflict", "The request conflicts with the current state of the resource.", "")
	case simapi.CodeUnavailable:
		say(rw, http.StatusServiceUnavailable, "provider/internal-unavailable", "Provider unavailable", "Try again shortly")
	default:
		say(rw, cmp.Or(e.Status, http.StatusInternalServerError), "global/internal-error", "An internal error occurred.", "")
	}
}

// answer makes a call with the fault that hits it; what it returns stands under
// "data".
func (s *server) answer(rw http.ResponseWriter, r *http.Request, c simcloud.Call, effect func(age time.Duration, dud bool) (any, error)) {
	s.w.Answer(rw, r, c, words, func(age time.Duration, dud bool) (simcloud.Reply, error) {
		v, err := effect(age, dud)
		if err != nil {
			return simcloud.Reply{}, err
		}
		data, err := json.Marshal(map[string]any{"data": v})
		return simcloud.Reply{Type: "application/json", Body: data}, err
	})
}

type region struct {
	Name        string `json:"name"`
	Description string `json:"description"`
}

type specs struct {
	VCPUs   int64 `json:"vcpus"`
	Memory  int64 `json:"memory_gib"`
	Storage int64 `json:"storage_gib"`
	GPUs    int64 `json:"gpus"`
}

type instanceType struct {
	Name           string `json:"name"`
	Description    string `json:"description"`
	GPUDescription string `json:"gpu_description"`
	Cents          int64  `json:"price_cents_per_hour"`
	Specs          specs  `json:"specs"`
}

func typeOf(o simapi.Offer) instanceType {
	t := instanceType{
		Name: o.Type, GPUDescription: o.GPUName, Cents: int64(o.Price) / 10_000_000,
		Specs: specs{int64(o.VCPU), o.Memory / gib, o.Disk / gib, int64(o.GPUs)},
	}
	t.Description = fmt.Sprintf("%dx %s", t.Specs.GPUs, o.GPUName)
	if o.GPUs == 0 {
		t.GPUDescription, t.Description = "N/A", fmt.Sprintf("%d vCPU, no GPU", t.Specs.VCPUs)
	}
	return t
}

func (s *server) types(rw http.ResponseWriter, r *http.Request) {
	s.answer(rw, r, simcloud.Call{Op: "offers"}, func(age time.Duration, _ bool) (any, error) {
		type item struct {
			Type    instanceType `json:"instance_type"`
			Regions []region     `json:"regions_with_capacity_available"`
		}
		out := map[string]*item{}
		for _, o := range s.w.Offers("", age) {
			t := out[o.Type]
			if t == nil {
				t = &item{typeOf(o), []region{}}
				out[o.Type] = t
			}
			if o.Available != providers.Full {
				t.Regions = append(t.Regions, place(o.Region))
			}
		}
		return out, nil
	})
}

func place(name string) region { return region{name, cmp.Or(regions[name], name)} }

type tag struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// nameKey is where a machine of the world keeps its name, among its tags.
const nameKey = "name"

var tagKey = regexp.MustCompile(`^[a-z][a-z0-9-:]+$`)

func invalid(format string, args ...any) *simapi.Error {
	return &simapi.Error{Status: http.StatusBadRequest, Code: simapi.CodeInvalid, Message: fmt.Sprintf(format, args...)}
}

func (s *server) launch(rw http.ResponseWriter, r *http.Request) {
	var in struct {
		Region      string            `json:"region_name"`
		Type        string            `json:"instance_type_name"`
		SSHKeys     []string          `json:"ssh_key_names"`
		FileSystems []string          `json:"file_system_names"`
		Name        string            `json:"name"`
		Hostname    string            `json:"hostname"`
		Image       map[string]string `json:"image"`
		UserData    string            `json:"user_data"`
		Tags        []tag             `json:"tags"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		words(rw, invalid("%v", err))
		return
	}
	where := simapi.Place{Region: in.Region, Type: in.Type, Kind: providers.OnDemand}
	s.answer(rw, r, simcloud.Call{Op: "launch", Place: where}, func(_ time.Duration, dud bool) (any, error) {
		tags := map[string]string{}
		for _, t := range in.Tags {
			if !tagKey.MatchString(t.Key) || len(t.Key) > 55 || len(t.Value) > 128 || tags[t.Key] != "" {
				return nil, invalid("tag %q", t.Key)
			}
			tags[t.Key] = t.Value
		}
		switch {
		case len(in.Name) > 64:
			return nil, invalid("name is longer than 64 characters")
		case len(in.SSHKeys) != 1:
			return nil, invalid("exactly one SSH key must be specified")
		case in.SSHKeys[0] != SSHKey:
			return nil, &simapi.Error{Status: http.StatusNotFound, Code: simapi.CodeNotFound}
		case len(in.UserData) > 1_000_000:
			return nil, invalid("user_data is longer than 1 MB")
		case len(in.FileSystems) > 0:
			return nil, invalid("this account has no filesystems")
		}
		tags[nameKey] = in.Name
		m, err := s.w.LaunchAs(simapi.Launch{
			Place: where, Request: fmt.Sprintf("lambda-%d", s.launches.Add(1)), UserData: in.UserData, Tags: tags,
		}, dud)
		if err != nil {
			return nil, err
		}
		return map[string]any{"instance_ids": []string{ID(s.cfg.Seed, m.ID)}}, nil
	})
}

type instance struct {
	ID          string               `json:"id"`
	Name        string               `json:"name,omitempty"`
	IP          string               `json:"ip,omitempty"`
	PrivateIP   string               `json:"private_ip,omitempty"`
	Status      string               `json:"status"`
	SSHKeys     []string             `json:"ssh_key_names"`
	FileSystems []string             `json:"file_system_names"`
	Region      region               `json:"region"`
	Type        instanceType         `json:"instance_type"`
	Hostname    string               `json:"hostname,omitempty"`
	IsReserved  bool                 `json:"is_reserved"`
	Actions     map[string]available `json:"actions"`
	Tags        []tag                `json:"tags,omitempty"`
}

type available struct {
	Available bool   `json:"available"`
	Code      string `json:"reason_code,omitempty"`
	Reason    string `json:"reason_description,omitempty"`
}

var statuses = map[providers.InstanceState]string{
	providers.Pending: "booting", providers.Running: "active", providers.Stopping: "terminating", providers.Terminated: "terminated",
}

func (s *server) instance(m simapi.Machine, offers []simapi.Offer) instance {
	i := instance{
		ID: ID(s.cfg.Seed, m.ID), Name: m.Tags[nameKey], Status: statuses[m.State], SSHKeys: []string{SSHKey}, FileSystems: []string{},
		Region: place(m.Region), Actions: map[string]available{},
	}
	for _, o := range offers {
		if o.Place == m.Place {
			i.Type = typeOf(o)
		}
	}
	i.Type.Cents = int64(m.Price) / 10_000_000
	if m.State == providers.Running {
		i.IP, i.PrivateIP = "198.51.100."+strconv.Itoa(m.Number%250+2), m.Address
		i.Hostname = i.IP
	}
	for _, action := range []string{"migrate", "rebuild", "restart", "cold_reboot", "terminate"} {
		can := available{Available: true}
		switch {
		case m.State == providers.Stopping, m.State == providers.Terminated:
			can = available{false, "vm-is-terminating", "Instance is terminating."}
		case m.State == providers.Pending && action != "terminate":
			can = available{false, "vm-has-not-launched", "Instance has not launched yet."}
		}
		i.Actions[action] = can
	}
	for key, value := range m.Tags {
		if key != nameKey {
			i.Tags = append(i.Tags, tag{key, value})
		}
	}
	slices.SortFunc(i.Tags, func(a, b tag) int { return strings.Compare(a.Key, b.Key) })
	return i
}

// list shows the running instances: those that have ended are no longer among
// them.
func (s *server) list(rw http.ResponseWriter, r *http.Request) {
	s.answer(rw, r, simcloud.Call{Op: "list"}, func(age time.Duration, _ bool) (any, error) {
		out := []instance{}
		offers := s.w.Offers("", 0)
		for _, m := range s.w.Machines(age) {
			if m.State != providers.Terminated {
				out = append(out, s.instance(m, offers))
			}
		}
		return out, nil
	})
}

func (s *server) describe(rw http.ResponseWriter, r *http.Request) {
	id := WorldID(s.cfg.Seed, r.PathValue("id"))
	s.answer(rw, r, simcloud.Call{Op: "describe", Machine: id}, func(time.Duration, bool) (any, error) {
		m, err := s.w.Machine(id)
		if err != nil {
			return nil, err
		}
		return s.instance(m, s.w.Offers("", 0)), nil
	})
}

func (s *server) terminate(rw http.ResponseWriter, r *http.Request) {
	var in struct {
		IDs []string `json:"instance_ids"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || len(in.IDs) == 0 {
		words(rw, invalid("instance_ids"))
		return
	}
	first := WorldID(s.cfg.Seed, in.IDs[0])
	s.answer(rw, r, simcloud.Call{Op: "terminate", Machine: first}, func(time.Duration, bool) (any, error) {
		out := []instance{}
		offers := s.w.Offers("", 0)
		for _, id := range in.IDs {
			world := WorldID(s.cfg.Seed, id)
			if err := s.w.Terminate(world); err != nil {
				return nil, err
			}
			m, err := s.w.Machine(world)
			if err != nil {
				return nil, err
			}
			out = append(out, s.instance(m, offers))
		}
		return map[string]any{"terminated_instances": out}, nil
	})
}

func (s *server) images(rw http.ResponseWriter, r *http.Request) {
	type image struct {
		ID           string    `json:"id"`
		Created      time.Time `json:"created_time"`
		Updated      time.Time `json:"updated_time"`
		Name         string    `json:"name"`
		Description  string    `json:"description"`
		Family       string    `json:"family"`
		Version      string    `json:"version"`
		Architecture string    `json:"architecture"`
		Region       region    `json:"region"`
	}
	s.answer(rw, r, simcloud.Call{Op: "about"}, func(time.Duration, bool) (any, error) {
		out := []image{}
		made := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
		for _, name := range worldRegions {
			sum := sha256.Sum256([]byte("image/" + name))
			out = append(out, image{
				ID: hex.EncodeToString(sum[:16]), Created: made, Updated: made, Name: "lambda-stack-24.04", Description: "Lambda Stack",
				Family: "lambda-stack-24-04", Version: "24.04", Architecture: "x86_64", Region: place(name),
			})
		}
		return out, nil
	})
}

func (s *server) keys(rw http.ResponseWriter, r *http.Request) {
	s.answer(rw, r, simcloud.Call{Op: "about"}, func(time.Duration, bool) (any, error) {
		return []map[string]string{{
			"id": "ddf9a910ceb744a0bb95242cbba6cb50", "name": SSHKey,
			"public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICN+lJwsONkwrdsSnQsu1ydUkIuIg5oOC+Eslvmtt60T noname",
		}}, nil
	})
}
