package runpod

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

type podGPU struct {
	ID     string  `json:"id"`
	Count  int     `json:"count"`
	VCPUs  float64 `json:"vcpuCount"`
	Memory float64 `json:"memory"`
}

type podCPU struct {
	ID     string `json:"id"`
	VCPUs  int    `json:"vcpuCount"`
	Memory int64  `json:"memory"`
}

type endpoint struct {
	Host     string `json:"host"`
	Port     int    `json:"port"`
	Username string `json:"username"`
	Command  string `json:"command"`
}

type pod struct {
	ID         string            `json:"id"`
	Name       string            `json:"name"`
	Status     string            `json:"status"`
	Actions    []string          `json:"actions"`
	Image      string            `json:"image"`
	Args       string            `json:"args"`
	Disk       int64             `json:"disk"`
	Mounts     struct{}          `json:"mounts"`
	Ports      []string          `json:"ports"`
	Env        map[string]string `json:"env"`
	Registry   *string           `json:"registry"`
	GPU        *podGPU           `json:"gpu,omitempty"`
	CPU        *podCPU           `json:"cpu,omitempty"`
	Cloud      string            `json:"cloud"`
	DataCenter *string           `json:"dataCenterId"`
	CUDA       *string           `json:"cudaVersion"`
	SSH        struct {
		Proxy  *endpoint `json:"proxy"`
		Direct *endpoint `json:"direct"`
	} `json:"ssh"`
	Template *string     `json:"template"`
	Cost     json.Number `json:"cost"`
	Locked   bool        `json:"locked"`
	Runtime  *struct {
		Uptime int64 `json:"uptime"`
	} `json:"runtime"`
	Created time.Time  `json:"createdAt"`
	Started *time.Time `json:"startedAt"`
	Network struct {
		Enabled bool `json:"enabled"`
	} `json:"globalNetworking"`
}

// status is what the API calls the state of a machine.
func status(m simapi.Machine) string {
	switch {
	case taken(m):
		return "EXITED"
	case m.State == providers.Terminated, m.State == providers.Stopping:
		return "TERMINATED"
	case m.State == providers.Running:
		return "RUNNING"
	}
	return "PROVISIONING"
}

func (s *server) pod(m simapi.Machine) pod {
	s.mu.Lock()
	own := s.pods[m.ID]
	s.mu.Unlock()
	if own == nil { // rented through the world itself
		own = &spec{Name: m.Request, Image: "somebody/else:1", Disk: 20, Env: m.Tags}
	}
	p := pod{
		ID: ID(s.cfg.Seed, m.ID), Name: own.Name, Status: status(m), Actions: []string{"stop", "restart", "terminate"}, Image: own.Image, Args: own.Args,
		Disk: own.Disk, Ports: []string{}, Env: own.Env, Cloud: strings.ToUpper(m.Zone), DataCenter: &m.Region, Cost: "0.0", Created: m.Launched,
	}
	if p.Env == nil {
		p.Env = map[string]string{}
	}
	if own.Registry != "" {
		p.Registry = &own.Registry
	}
	if n, id, cpu := parse(m.Type); cpu {
		p.CPU = &podCPU{id, n, int64(n) * 2}
	} else {
		p.GPU = &podGPU{id, n, float64(8 * n), float64(32 * n)}
		p.CUDA = new("12.8")
	}
	switch p.Status {
	case "EXITED", "TERMINATED":
		p.Actions = []string{"terminate"}
	default:
		p.Cost = json.Number(m.Price.String())
	}
	p.SSH.Proxy = &endpoint{"ssh.runpod.io", 22, p.ID + "-64411eb2", "ssh " + p.ID + "-64411eb2@ssh.runpod.io"}
	if p.Status == "RUNNING" {
		p.Started = &m.Running
		p.Runtime = &struct {
			Uptime int64 `json:"uptime"`
		}{int64(s.w.Now().Sub(m.Running).Seconds())}
		host := "195.26.233." + strconv.Itoa(m.Number%250+2)
		p.SSH.Direct = &endpoint{host, 34446, "root", "ssh root@" + host + " -p 34446"}
	}
	return p
}

// list shows the newest pods first, page by page.
func (s *server) list(rw http.ResponseWriter, r *http.Request) {
	limit, after := s.cfg.PageSize, -1
	if q := r.URL.Query().Get("limit"); q != "" {
		n, err := strconv.Atoi(q)
		if err != nil || n < 1 || n > 1000 {
			words(rw, invalid("limit"))
			return
		}
		limit = min(limit, n)
	}
	if q, given := strings.CutPrefix(r.URL.Query().Get("cursor"), "before-"); given || q != "" {
		n, err := strconv.Atoi(q)
		if err != nil || !given {
			words(rw, invalid("cursor"))
			return
		}
		after = n
	}
	s.answer(rw, r, simcloud.Call{Op: "list"}, http.StatusOK, func(age time.Duration, _ bool) (any, error) {
		type pagination struct {
			Next *string `json:"nextCursor"`
			More bool    `json:"hasNextPage"`
		}
		var page struct {
			Pods       []pod      `json:"pods"`
			Pagination pagination `json:"pagination"`
		}
		page.Pods = []pod{}
		all := s.w.Machines(age)
		slices.Reverse(all)
		last := 0
		for _, m := range all {
			switch {
			case after >= 0 && m.Number >= after, status(m) == "TERMINATED", s.isDeleted(m.ID):
			case len(page.Pods) == limit:
				page.Pagination = pagination{new(fmt.Sprintf("before-%d", last)), true}
				return page, nil
			default:
				page.Pods, last = append(page.Pods, s.pod(m)), m.Number
			}
		}
		return page, nil
	})
}

func (s *server) isDeleted(world string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods[world] != nil && s.pods[world].deleted
}

func (s *server) get(rw http.ResponseWriter, r *http.Request) {
	world := WorldID(s.cfg.Seed, r.PathValue("id"))
	s.answer(rw, r, simcloud.Call{Op: "describe", Machine: world}, http.StatusOK, func(time.Duration, bool) (any, error) {
		m, err := s.w.Machine(world)
		if err != nil {
			return nil, err
		}
		if taken(m) && s.isDeleted(world) {
			return nil, notFound()
		}
		return s.pod(m), nil
	})
}

func (s *server) remove(rw http.ResponseWriter, r *http.Request) {
	world := WorldID(s.cfg.Seed, r.PathValue("id"))
	s.answer(rw, r, simcloud.Call{Op: "terminate", Machine: world}, http.StatusNoContent, func(time.Duration, bool) (any, error) {
		return nil, s.end(world)
	})
}

// end deletes a pod: one that was taken is only forgotten.
func (s *server) end(world string) error {
	m, err := s.w.Machine(world)
	switch {
	case err != nil:
		return err
	case !taken(m):
		return s.w.Terminate(world)
	case s.isDeleted(world):
		return notFound()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pods[world] == nil {
		s.pods[world] = &spec{}
	}
	s.pods[world].deleted = true
	return nil
}

// request is the body of a create. Unknown fields are refused by name.
type request struct {
	Name  string `json:"name"`
	Image string `json:"image"`
	Cloud string `json:"cloud"`
	GPU   *struct {
		ID     string `json:"id"`
		Count  int    `json:"count"`
		CUDA   string `json:"minCudaVersion"`
		Memory int    `json:"minRamPerGpu"`
		VCPUs  int    `json:"minVcpuCountPerGpu"`
	} `json:"gpu"`
	CPU *struct {
		ID    string `json:"id"`
		VCPUs int    `json:"vcpuCount"`
	} `json:"cpu"`
	DataCenters []string          `json:"dataCenterIds"`
	Disk        int64             `json:"disk"`
	Args        string            `json:"args"`
	Env         map[string]string `json:"env"`
	Ports       []string          `json:"ports"`
	Registry    string            `json:"registry"`
}

func (s *server) create(rw http.ResponseWriter, r *http.Request) {
	var in request
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		words(rw, invalid("%v", err))
		return
	}
	p := simapi.Place{Zone: strings.ToLower(in.Cloud), Kind: providers.OnDemand}
	if p.Zone == "" {
		p.Zone = "secure"
	}
	switch {
	case in.Name == "" || in.Image == "" || in.Disk < 1:
		words(rw, invalid("$: missing property"))
		return
	case (in.GPU == nil) == (in.CPU == nil):
		problem(rw, http.StatusBadRequest, "exactly one of gpu or cpu must be set")
		return
	case in.GPU != nil:
		p.Type = gpuName(max(in.GPU.Count, 1), in.GPU.ID)
	default:
		p.Type = cpuName(in.CPU.VCPUs, in.CPU.ID)
	}
	if len(in.DataCenters) == 1 {
		p.Region = in.DataCenters[0]
	}
	own := &spec{Name: in.Name, Image: in.Image, Args: in.Args, Disk: in.Disk, Env: in.Env, Registry: in.Registry}
	s.answer(rw, r, simcloud.Call{Op: "launch", Place: p}, http.StatusCreated, func(_ time.Duration, dud bool) (any, error) {
		m, err := s.rent(s.place(p, in.DataCenters), own, 0, dud)
		if err != nil {
			return nil, err
		}
		return s.pod(m), nil
	})
}

// place chooses where a pod goes: the cheapest of the data centers that are asked
// for, of all where none is, that has room.
func (s *server) place(p simapi.Place, centers []string) simapi.Place {
	var best *simapi.Offer
	for _, o := range s.w.Offers("", 0) {
		if o.Zone != p.Zone || o.Type != p.Type || o.Kind != p.Kind || len(centers) > 0 && !slices.Contains(centers, o.Region) {
			continue
		}
		if best == nil || best.Available == providers.Full || o.Available != providers.Full && o.Price < best.Price {
			best = &o
		}
	}
	if best == nil {
		return p
	}
	return best.Place
}
