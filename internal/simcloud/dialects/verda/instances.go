package verda

import (
	"encoding/json"
	"fmt"
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

// instance is what Verda knows of a machine beside the world.
type instance struct {
	hostname    string
	description string
	image       string
	tags        []tag
	keys        []string
	script      string
	osVolume    string
}

type tag struct {
	ID    string `json:"id"`
	Key   string `json:"key"`
	Value string `json:"value"`
}

// The kinds of ids.
const (
	kindInstance = iota + 1
	kindVolume
	kindScript
	kindType
	kindImage
	kindKey
	kindTag
)

func uuid(kind, n int) string { return fmt.Sprintf("%08x-5eed-4000-8000-%012d", kind, n) }

// WorldID is the world's id of the machine with an id of this API.
func WorldID(id string) string {
	n, err := strconv.Atoi(strings.TrimLeft(id[strings.LastIndexByte(id, '-')+1:], "0"))
	if err != nil || id != uuid(kindInstance, n) {
		return id
	}
	return fmt.Sprintf("sim-%06d", n)
}

type wireInstance struct {
	ID          string      `json:"id"`
	IP          *string     `json:"ip"`
	Status      string      `json:"status"`
	Created     time.Time   `json:"created_at"`
	CPU         described   `json:"cpu"`
	GPU         described   `json:"gpu"`
	GPUMemory   described   `json:"gpu_memory"`
	Memory      described   `json:"memory"`
	Storage     described   `json:"storage"`
	Hostname    string      `json:"hostname"`
	Description string      `json:"description"`
	Location    string      `json:"location"`
	Price       json.Number `json:"price_per_hour"`
	Spot        bool        `json:"is_spot"`
	Type        string      `json:"instance_type"`
	Image       string      `json:"image"`
	OS          string      `json:"os_name"`
	Script      *string     `json:"startup_script_id"`
	Keys        []string    `json:"ssh_key_ids"`
	OSVolume    *string     `json:"os_volume_id"`
	Jupyter     string      `json:"jupyter_token"`
	Contract    string      `json:"contract"`
	Pricing     string      `json:"pricing"`
	Volumes     []string    `json:"volume_ids"`
	Tags        []tag       `json:"tags"`
}

// The statuses that machines here go through.
const (
	statusOrdered      = "ordered"
	statusProvisioning = "provisioning"
	statusRunning      = "running"
	statusDeleting     = "deleting"
	statusDiscontinued = "discontinued"
)

// orderTime is how long a machine is only ordered: until then it can be deleted,
// and after it not before it runs.
const orderTime = 200 * time.Millisecond

func (s *server) status(m simapi.Machine) string {
	switch m.State {
	case providers.Running:
		return statusRunning
	case providers.Stopping:
		return statusDeleting
	case providers.Terminated:
		return statusDiscontinued
	default:
		if s.w.Now().Sub(m.Launched) < orderTime {
			return statusOrdered
		}
		return statusProvisioning
	}
}

// show is a machine as the API shows it. Machines that were rented past the API
// have no more than the world knows.
func (s *server) show(m simapi.Machine) wireInstance {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := wireInstance{
		ID: uuid(kindInstance, m.Number), Status: s.status(m), Created: m.Launched, Location: m.Region, Type: m.Type,
		Spot: m.Kind == providers.Spot, Price: number(m.Price - diskRate(DiskGB)), Contract: "PAY_AS_YOU_GO", Pricing: "FIXED_PRICE",
		Volumes: []string{}, Keys: []string{}, Tags: []tag{}, Hostname: m.Request, Storage: described{Description: "dynamic"},
	}
	if v.Spot {
		v.Contract = "SPOT"
	}
	for _, o := range s.w.Offers(m.Region, 0) {
		if o.Place == m.Place {
			v.CPU, v.GPU, v.GPUMemory, v.Memory = parts(o.Shape)
		}
	}
	if v.Status == statusRunning {
		v.IP = &m.Address
	}
	i := s.instances[m.ID]
	if i == nil {
		return v
	}
	v.Hostname, v.Description, v.Image, v.OS = i.hostname, i.description, i.image, i.image
	v.Keys, v.Tags = i.keys, slices.Clone(i.tags)
	if i.script != "" {
		v.Script = new(i.script)
	}
	if vol := s.volumes[i.osVolume]; vol != nil && vol.instance == v.ID && v.Status != statusOrdered {
		v.OSVolume = new(vol.id)
	}
	return v
}

// list shows the machines of one status, or all that are not deleted.
func (s *server) list(rw http.ResponseWriter, r *http.Request) {
	want := r.URL.Query().Get("status")
	s.read(rw, r, simcloud.Call{Op: "list"}, func(age time.Duration) (any, error) {
		out := []wireInstance{}
		for _, m := range s.w.Machines(age) {
			if v := s.show(m); v.Status == want || want == "" && v.Status != statusDiscontinued {
				out = append(out, v)
			}
		}
		return out, nil
	})
}

func (s *server) get(rw http.ResponseWriter, r *http.Request) {
	id := WorldID(r.PathValue("id"))
	s.read(rw, r, simcloud.Call{Op: "describe", Machine: id}, func(time.Duration) (any, error) {
		m, err := s.w.Machine(id)
		if err != nil {
			return nil, notFound("instance")
		}
		return s.show(m), nil
	})
}

type createRequest struct {
	Type        string   `json:"instance_type"`
	Image       string   `json:"image"`
	Hostname    string   `json:"hostname"`
	Description string   `json:"description"`
	Keys        []string `json:"ssh_key_ids"`
	Location    string   `json:"location_code"`
	Contract    string   `json:"contract"`
	Script      *string  `json:"startup_script_id"`
	Spot        bool     `json:"is_spot"`
	Tags        []tag    `json:"tags"`
	OSVolume    *struct {
		Name   string `json:"name"`
		Size   int64  `json:"size"`
		OnSpot string `json:"on_spot_discontinue"`
	} `json:"os_volume"`
}

var hostname = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// The limits of tags (verdacloud-sdk-go, tags_types.go).
const (
	maxTags     = 10
	maxTagKey   = 63
	maxTagValue = 127
)

func (s *server) check(in createRequest) error {
	switch {
	case in.Type == "" || in.Description == "":
		return invalid("instance_type and description are required")
	case !hostname.MatchString(in.Hostname):
		return invalid("Invalid hostname")
	case !slices.Contains([]string{imageBare, imageCUDA, imageOld}, in.Image):
		return invalid("Operating system is not valid for this instance type")
	case len(in.Keys) == 0:
		return invalid("SSH keys can be an array of UUID's, a single UUID string, null value or not defined")
	case slices.ContainsFunc(in.Keys, func(k string) bool { return k != sshKey() }):
		return invalid("Invalid SSH key id")
	case len(in.Tags) > maxTags:
		return invalid("at most %d tags", maxTags)
	case in.OSVolume != nil && (in.OSVolume.Name == "" || in.OSVolume.Size < 50):
		return invalid("os_volume needs a name and a size of at least 50 GB")
	}
	for _, t := range in.Tags {
		if t.Key == "" || len(t.Key) > maxTagKey || len(t.Value) > maxTagValue {
			return invalid("Invalid tag %q", t.Key)
		}
	}
	return nil
}

// create rents a machine and answers its id as plain text. The same request sent
// twice makes two.
func (s *server) create(rw http.ResponseWriter, r *http.Request) {
	var in createRequest
	if err := decode(r, &in); err != nil {
		words(rw, err)
		return
	}
	place := simapi.Place{Region: in.Location, Type: in.Type, Kind: providers.OnDemand}
	if in.Spot {
		place.Kind = providers.Spot
	}
	s.w.Answer(rw, r, simcloud.Call{Op: "launch", Place: place}, words, func(_ time.Duration, dud bool) (simcloud.Reply, error) {
		m, err := s.rent(in, place, dud)
		if err != nil {
			return simcloud.Reply{}, err
		}
		return simcloud.Reply{Status: http.StatusAccepted, Type: "text/plain", Body: []byte(uuid(kindInstance, m.Number))}, nil
	})
}

func (s *server) rent(in createRequest, place simapi.Place, dud bool) (simapi.Machine, error) {
	if err := s.check(in); err != nil {
		return simapi.Machine{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	launch := simapi.Launch{Place: place, Request: in.Hostname, Tags: map[string]string{}}
	if in.Script != nil {
		sc := s.scripts[*in.Script]
		if sc == nil {
			return simapi.Machine{}, invalid("Invalid startup script id")
		}
		launch.UserData = sc.Script
	}
	i := &instance{hostname: in.Hostname, description: in.Description, image: in.Image, keys: in.Keys}
	for _, t := range in.Tags {
		launch.Tags[strings.ToLower(t.Key)] = t.Value
		i.tags = append(i.tags, s.newTag(t))
	}
	// The world knows a machine by its request, of which Verda knows nothing.
	for n := 2; ; n++ {
		if _, err := s.w.Machine("request:" + launch.Request); err != nil {
			break
		}
		launch.Request = fmt.Sprintf("%s#%d", in.Hostname, n)
	}
	m, err := s.w.LaunchAs(launch, dud)
	if err != nil {
		return m, err
	}
	s.instances[m.ID] = i
	v := &volume{size: DiskGB, name: "OS volume", onSpot: keepDetached}
	if in.OSVolume != nil {
		v.name, v.size = in.OSVolume.Name, in.OSVolume.Size
		if in.OSVolume.OnSpot != "" {
			v.onSpot = in.OSVolume.OnSpot
		}
	}
	s.addVolume(v, m)
	i.osVolume = v.id
	if in.Script != nil {
		i.script = *in.Script
	}
	return m, nil
}

func (s *server) newTag(t tag) tag {
	s.seq++
	return tag{ID: uuid(kindTag, s.seq), Key: strings.ToLower(t.Key), Value: t.Value}
}

func (s *server) addTag(rw http.ResponseWriter, r *http.Request) {
	var in tag
	if err := decode(r, &in); err != nil {
		words(rw, err)
		return
	}
	s.change(rw, r, func() (simcloud.Reply, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		i := s.instances[WorldID(r.PathValue("id"))]
		switch {
		case i == nil:
			return simcloud.Reply{}, notFound("instance")
		case len(i.tags) >= maxTags:
			return simcloud.Reply{}, invalid("at most %d tags", maxTags)
		case slices.ContainsFunc(i.tags, func(t tag) bool { return t.Key == strings.ToLower(in.Key) }):
			return simcloud.Reply{Status: http.StatusConflict, Type: "application/json", Body: []byte(`{"code":"conflict","message":"Tag key already exists"}`)}, nil
		}
		t := s.newTag(in)
		i.tags = append(i.tags, t)
		data, err := json.Marshal(t)
		return simcloud.Reply{Status: http.StatusCreated, Type: "application/json", Body: data}, err
	})
}

type actionResult struct {
	Action     string `json:"action"`
	Instance   string `json:"instanceId"`
	Status     string `json:"status"`
	Error      string `json:"error,omitempty"`
	StatusCode int    `json:"statusCode,omitempty"`
}

// action does what is asked for with each machine: 202 when all went well, 207
// when some did, and the error itself when there is one machine only.
func (s *server) action(rw http.ResponseWriter, r *http.Request) {
	var in struct {
		Action      string    `json:"action"`
		ID          []string  `json:"id"`
		Volumes     *[]string `json:"volume_ids"`
		Permanently bool      `json:"delete_permanently"`
	}
	if err := decode(r, &in); err != nil {
		words(rw, err)
		return
	}
	if len(in.ID) == 0 || in.Action != "delete" && in.Action != "discontinue" {
		words(rw, invalid("Invalid action"))
		return
	}
	s.w.Answer(rw, r, simcloud.Call{Op: "terminate", Machine: WorldID(in.ID[0])}, words, func(time.Duration, bool) (simcloud.Reply, error) {
		status := http.StatusAccepted
		results := []actionResult{}
		for _, id := range in.ID {
			res := actionResult{Action: in.Action, Instance: id, Status: "success"}
			if err := s.remove(id, in.Volumes, in.Permanently); err != nil {
				if len(in.ID) == 1 {
					return simcloud.Reply{}, err
				}
				status = http.StatusMultiStatus
				res.Status, res.Error, res.StatusCode = "error", err.Message, said[err.Code].status
			}
			results = append(results, res)
		}
		data, err := json.Marshal(results)
		return simcloud.Reply{Status: status, Type: "application/json", Body: data}, err
	})
}

func (s *server) remove(id string, volumes *[]string, permanently bool) *simapi.Error {
	m, err := s.w.Machine(WorldID(id))
	if err != nil {
		return notFound("instance")
	}
	switch status := s.status(m); status {
	case statusProvisioning, statusDiscontinued, statusDeleting:
		return forbidden("Can't discontinue a " + status + " instance")
	}
	if err := s.w.Terminate(m.ID); err != nil {
		return forbidden("Can't discontinue a discontinued instance")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.volumes {
		if v.instance != id {
			continue
		}
		v.instance = ""
		if volumes == nil || slices.Contains(*volumes, v.id) {
			s.dropVolume(v, permanently && volumes != nil)
		}
	}
	return nil
}
