package verda

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// What happens to a volume when its spot machine ends.
const (
	keepDetached = "keep_detached"
	toTrash      = "move_to_trash"
)

type script struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Script  string    `json:"script"`
	Created time.Time `json:"created_at"`
}

// volume is one disk. One in the trash is paid for, but not listed.
type volume struct {
	id       string
	name     string
	size     int64
	location string
	created  time.Time
	instance string // attached to; "" when detached
	onSpot   string
	trash    bool
}

func (s *server) addVolume(v *volume, m simapi.Machine) {
	s.seq++
	v.id, v.location, v.created, v.instance = uuid(kindVolume, s.seq), m.Region, m.Launched, uuid(kindInstance, m.Number)
	s.volumes[v.id] = v
}

func (s *server) dropVolume(v *volume, permanently bool) {
	if permanently {
		delete(s.volumes, v.id)
		return
	}
	v.trash = true
}

// settle does to the volumes of machines that ended by themselves what was asked
// for at their launch.
func (s *server) settle() {
	for _, v := range s.volumes {
		if v.instance == "" {
			continue
		}
		m, err := s.w.Machine(WorldID(v.instance))
		if err == nil && m.State != providers.Terminated {
			continue
		}
		v.instance = ""
		if v.onSpot != keepDetached {
			s.dropVolume(v, v.onSpot != toTrash)
		}
	}
}

// left names the scripts and the volumes that no machine has.
func (s *server) left(*simcloud.World) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	var out []string
	for _, sc := range s.scripts {
		out = append(out, "script "+sc.Name)
	}
	for _, v := range s.volumes {
		if v.instance == "" {
			out = append(out, "volume "+v.name)
		}
	}
	slices.Sort(out)
	return out
}

type wireVolume struct {
	ID       string      `json:"id"`
	Name     string      `json:"name"`
	Size     int64       `json:"size"`
	Type     string      `json:"type"`
	Status   string      `json:"status"`
	Created  time.Time   `json:"created_at"`
	Instance *string     `json:"instance_id"`
	Location string      `json:"location"`
	Contract string      `json:"contract"`
	OS       bool        `json:"is_os_volume"`
	Hourly   json.Number `json:"base_hourly_cost"`
	Currency string      `json:"currency"`
}

func (v *volume) show() wireVolume {
	w := wireVolume{
		ID: v.id, Name: v.name, Size: v.size, Type: "NVMe", Status: "detached", Created: v.created, Location: v.location,
		Contract: "PAY_AS_YOU_GO", OS: true, Hourly: number(diskRate(v.size)), Currency: "usd",
	}
	if v.instance != "" {
		w.Status, w.Instance = "attached", new(v.instance)
	}
	return w
}

func (s *server) listVolumes(rw http.ResponseWriter, r *http.Request) {
	want := r.URL.Query().Get("status")
	s.read(rw, r, simcloud.Call{Op: "list"}, func(time.Duration) (any, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.settle()
		out := []wireVolume{}
		for _, v := range s.volumes {
			if w := v.show(); !v.trash && (want == "" || w.Status == want) {
				out = append(out, w)
			}
		}
		slices.SortFunc(out, func(a, b wireVolume) int { return strings.Compare(a.ID, b.ID) })
		return out, nil
	})
}

func (s *server) getVolume(rw http.ResponseWriter, r *http.Request) {
	s.read(rw, r, simcloud.Call{Op: opSide}, func(time.Duration) (any, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.settle()
		v := s.volumes[r.PathValue("id")]
		if v == nil {
			return nil, notFound("volume")
		}
		return v.show(), nil
	})
}

func (s *server) volumeAction(rw http.ResponseWriter, r *http.Request) {
	var in struct {
		ID        string `json:"id"`
		Action    string `json:"action"`
		Permanent bool   `json:"is_permanent"`
	}
	if err := decode(r, &in); err != nil {
		words(rw, err)
		return
	}
	if in.Action != "delete" {
		words(rw, invalid("Invalid action"))
		return
	}
	s.endVolume(rw, r, in.ID, in.Permanent)
}

func (s *server) deleteVolume(rw http.ResponseWriter, r *http.Request) {
	s.endVolume(rw, r, r.PathValue("id"), r.URL.Query().Get("force") == "true")
}

func (s *server) endVolume(rw http.ResponseWriter, r *http.Request, id string, permanently bool) {
	s.change(rw, r, func() (simcloud.Reply, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.settle()
		v := s.volumes[id]
		switch {
		case v == nil:
			return simcloud.Reply{}, notFound("volume")
		case v.instance != "":
			return simcloud.Reply{}, forbidden("Can't delete an attached volume")
		}
		s.dropVolume(v, permanently)
		return simcloud.Reply{Status: http.StatusAccepted}, nil
	})
}

func (s *server) listScripts(rw http.ResponseWriter, r *http.Request) {
	s.read(rw, r, simcloud.Call{Op: "list"}, func(time.Duration) (any, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		out := []script{}
		for _, sc := range s.scripts {
			out = append(out, *sc)
		}
		slices.SortFunc(out, func(a, b script) int { return strings.Compare(a.ID, b.ID) })
		return out, nil
	})
}

func (s *server) addScript(rw http.ResponseWriter, r *http.Request) {
	var in script
	if err := decode(r, &in); err != nil {
		words(rw, err)
		return
	}
	s.change(rw, r, func() (simcloud.Reply, error) {
		if in.Name == "" || in.Script == "" {
			return simcloud.Reply{}, invalid("name and script are required")
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.seq++
		in.ID, in.Created = uuid(kindScript, s.seq), s.w.Now()
		s.scripts[in.ID] = &in
		return simcloud.Reply{Status: http.StatusCreated, Type: "text/plain", Body: []byte(in.ID)}, nil
	})
}

func (s *server) deleteScript(rw http.ResponseWriter, r *http.Request) {
	s.change(rw, r, func() (simcloud.Reply, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.scripts[r.PathValue("id")] == nil {
			return simcloud.Reply{}, notFound("startup script")
		}
		delete(s.scripts, r.PathValue("id"))
		return simcloud.Reply{Status: http.StatusNoContent}, nil
	})
}
