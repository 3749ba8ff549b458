package gcp

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// Project is the project that the fake knows.
const Project = "sim-project"

// Server is the fake's own memory beside the world: what the API stores and the
// world does not. It serves one world.
type Server struct {
	mu          sync.Mutex
	seq         int64 // of the last world event that was read
	serial      uint64
	byMachine   map[string]*instance // by the world's id
	instances   []*instance          // by age
	operations  []*operation         // by age
	byRequestID map[string]*operation
	disks       []*disk // those that belong to no machine
	policies    map[string]*policy
	unreachable map[string]bool // zones that lists do not reach
}

// New returns a server for one world.
func New() *Server {
	return &Server{
		byMachine: map[string]*instance{}, byRequestID: map[string]*operation{}, policies: map[string]*policy{},
		unreachable: map[string]bool{},
	}
}

// Dialect returns the dialect of a fresh server.
func Dialect() *simcloud.Dialect { return New().Dialect() }

// Dialect is the server's words for its world.
func (s *Server) Dialect() *simcloud.Dialect {
	return &simcloud.Dialect{
		Name: "gcp", API: s.api, Metadata: s.metadata, Left: s.left,
		// The variable of Google's libraries takes a host; the agent's takes the URL.
		Env: func(simapi.Machine) []string { return []string{"GOOGLE_CLOUD_PROJECT=" + Project} },
	}
}

// WorldID returns the world's id of the newest machine with an instance name, ""
// when there was none.
func (s *Server) WorldID(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range slices.Backward(s.instances) {
		if i.name == name {
			return i.machine
		}
	}
	return ""
}

// LeaveDisk puts a disk into a zone that belongs to no machine, as a failed
// insert may.
func (s *Server) LeaveDisk(zone, name string, labels map[string]string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.disks = append(s.disks, &disk{id: s.nextID(), zone: zone, name: name, labels: labels, created: at})
}

// left names the disks that belong to no machine and the resource policies.
func (s *Server) left(*simcloud.World) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []string{}
	for _, d := range s.disks {
		out = append(out, "disk "+d.zone+"/"+d.name)
	}
	for key := range s.policies {
		out = append(out, "resource policy "+key)
	}
	slices.Sort(out)
	return out
}

// Unreachable makes aggregated lists go without a zone, with a warning, or with
// it again.
func (s *Server) Unreachable(zone string, yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unreachable[zone] = yes
}

// nextID is a number as Google gives them: large, and different for everything.
func (s *Server) nextID() uint64 {
	s.serial++
	return 4_000_000_000_000_000_000 + s.serial
}

// instance is what the API stores of a machine.
type instance struct {
	id      uint64
	name    string
	zone    string
	machine string // the world's id
	given   instanceBody
	insert  *operation
	end     *operation // what ends it; nil while nothing does
	taken   time.Time  // since when it is being preempted
	dark    time.Time  // since when it is powered off
}

type disk struct {
	id      uint64
	zone    string
	name    string
	labels  map[string]string
	created time.Time
}

// requestOf names a machine to the world; an instance name may be used again once
// its machine is gone.
func requestOf(zone, name string, id uint64) string { return fmt.Sprintf("%s/%s/%d", zone, name, id) }

func nameOf(m simapi.Machine) (string, bool) {
	parts := strings.Split(m.Request, "/")
	if len(parts) != 3 {
		return "", false
	}
	return parts[1], true
}

// catchUp reads what has happened in the world since the last call. Locked.
func (s *Server) catchUp(w *simcloud.World) {
	for _, e := range w.Events(s.seq) {
		s.seq = e.Seq
		i := s.byMachine[e.Machine]
		if e.Machine == "" {
			continue
		}
		if i == nil {
			if i = s.adopt(w, e.Machine); i == nil {
				continue
			}
		}
		switch e.Kind {
		case "notice":
			i.taken = e.At
			s.ends(i, opPreempted, e.At)
		case "stopping":
			s.ends(i, endedBy(providers.Cause(e.Text)), e.At)
		case "terminated":
			if i.end != nil {
				i.end.done = e.At
			}
		case "dark":
			i.dark = e.At
			op := s.operation(i, opGuest, e.At)
			op.done = e.At
		}
	}
}

// adopt is for machines that were rented past the API. Locked.
func (s *Server) adopt(w *simcloud.World, machine string) *instance {
	m, err := w.Machine(machine)
	if err != nil {
		return nil
	}
	name, ok := nameOf(m)
	if !ok {
		name = "vm-" + m.ID
	}
	i := &instance{id: s.nextID(), name: name, zone: m.Zone, machine: m.ID, given: bodyOf(m)}
	s.add(i, s.operation(i, opInsert, m.Launched))
	i.insert.done = m.Launched
	return i
}

// add records a new machine with the operation that made it. Locked.
func (s *Server) add(i *instance, op *operation) {
	i.insert = op
	s.byMachine[i.machine] = i
	s.instances = append(s.instances, i)
}

// ends records what ends a machine; the first cause stands. Locked.
func (s *Server) ends(i *instance, typ string, at time.Time) {
	if i.end == nil {
		i.end = s.operation(i, typ, at)
	}
}

// find returns a machine by its name and the world's view of it; nil when it is
// gone. Locked.
func (s *Server) find(w *simcloud.World, zone, name string) (*instance, simapi.Machine) {
	for _, i := range slices.Backward(s.instances) {
		if i.zone != zone || i.name != name {
			continue
		}
		if m, err := w.Machine(i.machine); err == nil && m.State != providers.Terminated {
			return i, m
		}
	}
	return nil, simapi.Machine{}
}

func link(path string) string {
	return "https://www.googleapis.com/compute/v1/projects/" + Project + "/" + path
}

func stamp(t time.Time) string {
	// Google writes Pacific time with milliseconds.
	return t.In(time.FixedZone("", -8*3600)).Format("2006-01-02T15:04:05.000-07:00")
}

func last(path string) string { return path[strings.LastIndex(path, "/")+1:] }

func region(zone string) string {
	if i := strings.LastIndex(zone, "-"); i > 0 {
		return zone[:i]
	}
	return zone
}

// object is a JSON object.
type object = map[string]any

// handler answers one world.
type handler struct {
	s *Server
	w *simcloud.World
}

func (s *Server) api(w *simcloud.World) http.Handler {
	h := &handler{s, w}
	mux := http.NewServeMux()
	compute := func(pattern string, f http.HandlerFunc) {
		method, path, _ := strings.Cut(pattern, " ")
		mux.Handle(method+" /compute/v1/projects/{project}"+path, h.guard(h.inProject(f)))
	}
	compute("GET ", h.project)
	compute("GET /regions", h.regions)
	compute("GET /regions/{region}", h.region)
	compute("GET /zones", h.zones)
	compute("GET /aggregated/machineTypes", h.machineTypes)
	compute("GET /aggregated/acceleratorTypes", h.acceleratorTypes)
	compute("GET /aggregated/instances", h.aggregatedInstances)
	compute("GET /aggregated/disks", h.aggregatedDisks)
	compute("GET /aggregated/operations", h.aggregatedOperations)
	compute("POST /zones/{zone}/instances", h.insert)
	compute("GET /zones/{zone}/instances", h.listInstances)
	compute("GET /zones/{zone}/instances/{instance}", h.get)
	compute("DELETE /zones/{zone}/instances/{instance}", h.delete)
	compute("GET /zones/{zone}/instances/{instance}/serialPort", h.serialPort)
	compute("DELETE /zones/{zone}/disks/{disk}", h.deleteDisk)
	compute("GET /zones/{zone}/operations", h.zoneOperations)
	compute("GET /zones/{zone}/operations/{operation}", h.getOperation)
	compute("POST /zones/{zone}/operations/{operation}/wait", h.waitOperation)
	compute("GET /regions/{region}/operations/{operation}", h.getOperation)
	compute("POST /regions/{region}/operations/{operation}/wait", h.waitOperation)
	compute("POST /regions/{region}/resourcePolicies", h.insertPolicy)
	compute("GET /regions/{region}/resourcePolicies/{policy}", h.getPolicy)
	compute("DELETE /regions/{region}/resourcePolicies/{policy}", h.deletePolicy)
	compute("GET /aggregated/resourcePolicies", h.aggregatedPolicies)
	mux.Handle("GET /v1/services/{service}/skus", h.guard(h.skus))
	mux.Handle("POST /v1/projects/{project}", h.guard(h.testPermissions))
	mux.HandleFunc("POST /token", h.token)
	mux.HandleFunc("/", func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/html; charset=UTF-8")
		rw.WriteHeader(http.StatusNotFound)
		_, _ = rw.Write([]byte("<!DOCTYPE html><title>Error 404 (Not Found)!!1</title>"))
	})
	return mux
}

// inProject refuses other projects.
func (h *handler) inProject(next http.HandlerFunc) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		if p := r.PathValue("project"); p != Project {
			fail(rw, http.StatusNotFound, "notFound", "The resource 'projects/"+p+"' was not found")
			return
		}
		next(rw, r)
	}
}
