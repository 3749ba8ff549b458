package vast

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// The numbers of contracts: those of machines follow the world's, those of
// instances that never ran are counted apart.
const (
	firstContract = 9_000_000
	firstLost     = 8_000_000
)

// contract is an instance: a machine of the world, or one that was left behind
// stopped.
type contract struct {
	id     int
	world  string // the machine's id; "" where there never was one
	ask    int
	row    map[string]any // what the ask looked like
	label  string
	image  string
	script string
	bid    money.Rate // 0 on demand
	begun  time.Time
	gone   bool // destroyed
}

// WorldID is the world's id of the machine with an id of this API.
func WorldID(id string) string {
	n, err := strconv.Atoi(id)
	if err != nil || n <= firstContract {
		return id
	}
	return fmt.Sprintf("sim-%06d", n-firstContract)
}

// holds reports whether the contract keeps its ask from others.
func (c *contract) holds(w *simcloud.World) bool {
	m, err := w.Machine(c.world)
	return err == nil && m.State != providers.Terminated
}

type createRequest struct {
	Image   string            `json:"image"`
	Label   string            `json:"label"`
	Disk    int64             `json:"disk"`
	OnStart string            `json:"onstart"`
	Runtype string            `json:"runtype"`
	Price   *json.Number      `json:"price"`
	Env     map[string]string `json:"env"`
	Cancel  bool              `json:"cancel_unavail"`
}

// The limits of a create (vast-ai/docs, create_instance.yaml).
const (
	maxLabel   = 256
	maxOnStart = 4096
	minDisk    = 8
)

func (s *server) create(rw http.ResponseWriter, r *http.Request) {
	var in createRequest
	if err := decode(r, &in); err != nil {
		words(rw, err)
		return
	}
	s.mu.Lock()
	a, ok := s.find(r.PathValue("id"))
	s.mu.Unlock()
	c := simcloud.Call{Op: "launch"}
	if ok {
		c.Place = a.place()
	}
	s.w.Answer(rw, r, c, words, func(_ time.Duration, dud bool) (simcloud.Reply, error) {
		status, v, err := s.rent(r.PathValue("id"), in, dud)
		if err != nil {
			return simcloud.Reply{}, err
		}
		data, err := json.Marshal(v)
		return simcloud.Reply{Status: status, Type: "application/json", Body: data}, err
	})
}

func (s *server) rent(id string, in createRequest, dud bool) (int, any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, ok := s.find(id)
	bid := money.Rate(0)
	if in.Price != nil {
		var err error
		if bid, err = money.RateOf(in.Price.String()); err != nil || bid < 1_000_000 || bid > 128*money.Rate(money.Unit) {
			return 0, nil, invalid("price is out of range")
		}
	}
	switch {
	case !ok:
		return 0, nil, &simapi.Error{Code: simapi.CodeNoOffer}
	case in.Image == "":
		return 0, nil, invalid("image is required")
	case len(in.Label) > maxLabel || len(in.OnStart) > maxOnStart:
		return 0, nil, invalid("label or onstart is too long")
	case in.Disk < minDisk:
		return 0, nil, invalid("disk: %d GB at least", minDisk)
	case (bid > 0) != (a.offer.Kind == providers.Spot):
		return 0, nil, invalid("a bid goes with an offer for bids")
	}
	con := &contract{ask: a.id, row: a.row(in.Disk), label: in.Label, image: in.Image, script: in.OnStart, bid: bid, begun: s.w.Now()}
	if floor := a.offer.Price - diskRate(DiskGB); bid > 0 && bid < floor {
		s.lost++
		con.id = firstLost + s.lost
		s.contracts[con.id] = con
		return http.StatusBadRequest, map[string]any{
			"success": false, "error": "bid_too_low", "msg": fmt.Sprintf("your bid is below %s; the instance was created stopped", floor), "new_contract": con.id,
		}, nil
	}
	launch := simapi.Launch{Place: a.place(), Request: in.Label, UserData: in.OnStart, Disk: in.Disk * 1e9}
	if bid > 0 {
		launch.PriceMax = bid + diskRate(DiskGB)
	}
	// The world knows a machine by its request, of which Vast knows nothing.
	for n := 2; ; n++ {
		if _, err := s.w.Machine("request:" + launch.Request); err != nil && launch.Request != "" {
			break
		}
		launch.Request = fmt.Sprintf("%s#%d", in.Label, n)
	}
	m, err := s.w.LaunchAs(launch, dud)
	if err != nil {
		return 0, nil, err
	}
	con.id, con.world = firstContract+m.Number, m.ID
	s.contracts[con.id] = con
	return http.StatusOK, map[string]any{"success": true, "new_contract": con.id}, nil
}

// status is what an instance shows of itself.
type status struct{ actual, current, intended any }

// at is an instance as it was when the machine was as given; false when it is not
// there any more.
func (c *contract) at(m simapi.Machine, known bool) (status, bool) {
	stopped := status{"exited", "stopped", "running"} // it lost its machine, and would run again
	switch {
	case c.gone && (!known || m.State == providers.Terminated):
		return status{}, false
	case c.world == "":
		return status{nil, "stopped", "running"}, true
	case !known:
		return stopped, true
	}
	switch m.State {
	case providers.Running:
		return status{"running", "running", "running"}, true
	case providers.Stopping:
		if m.Cause == providers.CauseUser {
			return status{"running", "unloaded", "stopped"}, true
		}
		return stopped, true
	case providers.Terminated:
		return stopped, true
	default:
		return status{"loading", "running", "running"}, true
	}
}

func (c *contract) show(st status, m simapi.Machine) map[string]any {
	row := map[string]any{}
	for _, key := range []string{
		"gpu_name", "num_gpus", "gpu_ram", "cpu_cores", "cpu_cores_effective", "cpu_ram", "machine_id", "host_id", "geolocation",
		"storage_cost", "storage_total_cost", "gpu_frac", "verification",
	} {
		row[key] = c.row[key]
	}
	row["id"], row["label"], row["image_uuid"], row["onstart"], row["is_bid"] = c.id, c.label, c.image, c.script, c.bid > 0
	row["actual_status"], row["cur_state"], row["next_state"], row["intended_status"] = st.actual, st.current, st.current, st.intended
	row["start_date"] = json.Number(strconv.FormatFloat(float64(c.begun.UnixMicro())/1e6, 'f', 6, 64))
	row["status_msg"], row["extra_env"] = "", []any{}
	row["dph_total"], row["dph_base"] = c.row["dph_total"], c.row["dph_base"]
	if c.world != "" {
		row["dph_total"] = number(m.Price)
		row["public_ipaddr"] = m.Address
	}
	if c.bid > 0 {
		row["min_bid"] = c.row["min_bid"]
	}
	return row
}

// rows are the instances that a list shows, by number: as they were some time ago.
func (s *server) rows(age time.Duration) []map[string]any {
	listed := map[string]simapi.Machine{}
	for _, m := range s.w.Machines(age) {
		listed[m.ID] = m
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []int
	for id := range s.contracts {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	out := []map[string]any{}
	for _, id := range ids {
		c := s.contracts[id]
		m, known := listed[c.world]
		if !known && c.world != "" {
			if now, err := s.w.Machine(c.world); err == nil && now.State != providers.Terminated {
				continue // it is not listed yet
			} else if err == nil {
				m = now
			}
		}
		if st, ok := c.at(m, known); ok {
			out = append(out, c.show(st, m))
		}
	}
	return out
}

// maxPage is the most instances on a page of the list.
const maxPage = 25

func (s *server) list(rw http.ResponseWriter, r *http.Request) {
	s.call(rw, r, simcloud.Call{Op: "list"}, func(age time.Duration, _ bool) (any, error) {
		q := r.URL.Query()
		limit := maxPage
		if n, err := strconv.Atoi(q.Get("limit")); err == nil && n > 0 {
			limit = min(n, maxPage)
		}
		limit = min(limit, s.w.Config().PageSize)
		after := 0
		if token := q.Get("after_token"); token != "" {
			data, err := base64.StdEncoding.DecodeString(token)
			if err == nil {
				after, err = strconv.Atoi(string(data))
			}
			if err != nil {
				return nil, invalid("after_token")
			}
		}
		all, page := s.rows(age), []map[string]any{}
		var next any
		for _, row := range all {
			id, _ := row["id"].(int)
			if id <= after {
				continue
			}
			if len(page) == limit {
				last, _ := page[limit-1]["id"].(int)
				next = base64.StdEncoding.EncodeToString([]byte(strconv.Itoa(last)))
				break
			}
			page = append(page, row)
		}
		return map[string]any{"success": true, "instances_found": len(page), "total_instances": len(all), "next_token": next, "instances": page}, nil
	})
}

// contract returns an instance and its machine as they are now.
func (s *server) contract(id string) (*contract, simapi.Machine, status, bool) {
	n, _ := strconv.Atoi(id)
	c := s.contracts[n]
	if c == nil {
		return nil, simapi.Machine{}, status{}, false
	}
	m, err := s.w.Machine(c.world)
	st, ok := c.at(m, err == nil)
	return c, m, st, ok
}

func (s *server) get(rw http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	s.call(rw, r, simcloud.Call{Op: "describe", Machine: WorldID(id)}, func(time.Duration, bool) (any, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		c, m, st, ok := s.contract(id)
		if !ok {
			return map[string]any{"instances": nil}, nil
		}
		return map[string]any{"instances": c.show(st, m)}, nil
	})
}

func (s *server) destroy(rw http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	s.call(rw, r, simcloud.Call{Op: "terminate", Machine: WorldID(id)}, func(time.Duration, bool) (any, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		c, _, _, ok := s.contract(id)
		if !ok {
			return nil, &simapi.Error{Code: simapi.CodeNotFound}
		}
		c.gone = true
		if c.world != "" {
			err := s.w.Terminate(c.world)
			if e, ok := errors.AsType[*simapi.Error](err); ok && e.Code != simapi.CodeNotFound {
				return nil, err
			}
		}
		return map[string]any{"success": true, "msg": "Instance destroyed successfully"}, nil
	})
}
