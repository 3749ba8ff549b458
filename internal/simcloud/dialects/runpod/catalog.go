package runpod

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// The world's types are "2x NVIDIA L4" and "8vcpu cpu5c".
func gpuName(n int, id string) string { return fmt.Sprintf("%dx %s", n, id) }

func cpuName(n int, id string) string { return fmt.Sprintf("%dvcpu %s", n, id) }

var typeText = regexp.MustCompile(`^(\d+)(x|vcpu) (.+)$`)

func parse(typ string) (n int, id string, cpu bool) {
	m := typeText.FindStringSubmatch(typ)
	if m == nil {
		return 1, typ, false
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		n = 1
	}
	return n, m[3], m[2] == "vcpu"
}

// The world's prices hold a container disk of this size at 0.10 USD per GB and
// month of 720 hours (docs.runpod.io/pods/pricing), rounded up per GB.
const (
	diskGB   = 50
	diskRate = (money.Rate(money.Unit)/10 + 719) / 720
)

// unitPrice is what one GPU or vCPU of an offer costs, without the disk; rounded
// up, so that so many of them are never less than the offer.
func unitPrice(o simapi.Offer) json.Number {
	n, _, _ := parse(o.Type)
	return json.Number(((o.Price - diskRate*diskGB + money.Rate(n-1)) / money.Rate(n)).String())
}

type level struct {
	ID           string `json:"id"`
	Name         string `json:"name"`
	Availability string `json:"availability"`
}

func levelOf(o simapi.Offer) string {
	switch {
	case o.Available == providers.Full:
		return "NONE"
	case o.Free != nil && *o.Free < 3:
		return "LOW"
	case o.Free != nil && *o.Free < 10:
		return "MEDIUM"
	}
	return "HIGH"
}

var levels = []string{"NONE", "LOW", "MEDIUM", "HIGH"}

type both[T any] struct {
	Secure    T `json:"secure"`
	Community T `json:"community"`
}

func (b *both[T]) of(cloud string) *T {
	if cloud == "community" {
		return &b.Community
	}
	return &b.Secure
}

type gpuType struct {
	ID           string            `json:"id"`
	Name         string            `json:"name"`
	Pool         *string           `json:"pool"`
	Manufacturer string            `json:"manufacturer"`
	Memory       int64             `json:"memory"`
	Secure       bool              `json:"secure"`
	Community    bool              `json:"community"`
	Price        both[json.Number] `json:"price"`
	Max          both[int]         `json:"maxCount"`
	Availability string            `json:"availability,omitempty"`
	DataCenters  []level           `json:"dataCenters,omitempty"`
}

type cpuType struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Group string `json:"group"`
	VCPU  struct {
		Min int `json:"min"`
		Max int `json:"max"`
	} `json:"vcpu"`
	MemoryPerVCPU json.Number `json:"ramGbPerVcpu"`
	Price         struct {
		Secure     json.Number `json:"securePerVcpu"`
		Serverless json.Number `json:"serverlessPerVcpu"`
	} `json:"price"`
	Availability string  `json:"availability,omitempty"`
	DataCenters  []level `json:"dataCenters,omitempty"`
}

// gpuTypes describes every GPU type, with what is free for pods of so many in a
// cloud; a count of zero leaves that out.
func (s *server) gpuTypes(age time.Duration, cloud string, count int) []*gpuType {
	out := []*gpuType{}
	for _, o := range s.w.Offers("", age) {
		n, id, cpu := parse(o.Type)
		if cpu || o.Kind != providers.OnDemand {
			continue
		}
		k := slices.IndexFunc(out, func(g *gpuType) bool { return g.ID == id })
		if k < 0 {
			maker, name, _ := strings.Cut(id, " ")
			g := &gpuType{ID: id, Name: name, Manufacturer: strings.ToUpper(maker), Memory: o.GPUMemory / gib, Price: both[json.Number]{"0", "0"}}
			if count > 0 {
				g.Availability = levels[0]
			}
			k, out = len(out), append(out, g)
		}
		g := out[k]
		*g.Price.of(o.Zone) = unitPrice(o)
		*g.Max.of(o.Zone) = max(*g.Max.of(o.Zone), n)
		g.Secure, g.Community = g.Secure || o.Zone == "secure", g.Community || o.Zone == "community"
		if count == n && o.Zone == cloud {
			at := levelOf(o)
			g.DataCenters = append(g.DataCenters, level{o.Region, centerName(o.Region), at})
			if slices.Index(levels, at) > slices.Index(levels, g.Availability) {
				g.Availability = at
			}
		}
	}
	for _, g := range out { // a configuration that is nowhere to be had has no places
		if g.Availability == levels[0] {
			g.DataCenters = nil
		}
	}
	return out
}

func centerName(id string) string { return strings.ReplaceAll(id, "-", " ") }

// stockQuery reads for how many at once the stock is asked for; 0 is not at all.
func stockQuery(r *http.Request, number string) (int, error) {
	q := r.URL.Query()
	switch {
	case q.Get("include") == "":
		return 0, nil
	case q.Get("include") != "AVAILABILITY" || q.Get("product") != "POD":
		return 0, invalid("include and product")
	case q.Get(number) == "":
		return 1, nil
	}
	n, err := strconv.Atoi(q.Get(number))
	if err != nil || n < 1 {
		return 0, invalid("%s", number)
	}
	return n, nil
}

func (s *server) gpus(rw http.ResponseWriter, r *http.Request) {
	n, err := stockQuery(r, "count")
	if err != nil {
		words(rw, err)
		return
	}
	cloud := strings.ToLower(r.URL.Query().Get("cloud"))
	if cloud == "" {
		cloud = "secure"
	}
	s.answer(rw, r, simcloud.Call{Op: "offers"}, http.StatusOK, func(age time.Duration, _ bool) (any, error) {
		return map[string]any{"gpus": s.gpuTypes(age, cloud, n)}, nil
	})
}

func (s *server) gpu(rw http.ResponseWriter, r *http.Request) {
	s.answer(rw, r, simcloud.Call{Op: "offers"}, http.StatusOK, func(age time.Duration, _ bool) (any, error) {
		for _, g := range s.gpuTypes(age, "", 0) {
			if g.ID == r.PathValue("id") {
				return g, nil
			}
		}
		return nil, notFound()
	})
}

func (s *server) cpuTypes(age time.Duration, count int) []*cpuType {
	out := []*cpuType{}
	for _, o := range s.w.Offers("", age) {
		n, id, cpu := parse(o.Type)
		if !cpu {
			continue
		}
		k := slices.IndexFunc(out, func(c *cpuType) bool { return c.ID == id })
		if k < 0 {
			c := &cpuType{ID: id, Name: "Compute-Optimized", Group: "Gen 5", MemoryPerVCPU: "2"}
			c.VCPU.Min, c.VCPU.Max = n, n
			c.Price.Secure, c.Price.Serverless = unitPrice(o), unitPrice(o)
			if count > 0 {
				c.Availability = levels[0]
			}
			k, out = len(out), append(out, c)
		}
		c := out[k]
		c.VCPU.Min, c.VCPU.Max = min(c.VCPU.Min, n), max(c.VCPU.Max, n)
		if count == n {
			at := levelOf(o)
			c.DataCenters = append(c.DataCenters, level{o.Region, centerName(o.Region), at})
			if slices.Index(levels, at) > slices.Index(levels, c.Availability) {
				c.Availability = at
			}
		}
	}
	return out
}

func (s *server) cpus(rw http.ResponseWriter, r *http.Request) {
	n, err := stockQuery(r, "vcpuCount")
	if err != nil {
		words(rw, err)
		return
	}
	s.answer(rw, r, simcloud.Call{Op: "offers"}, http.StatusOK, func(age time.Duration, _ bool) (any, error) {
		return map[string]any{"cpus": s.cpuTypes(age, n)}, nil
	})
}

func (s *server) cpu(rw http.ResponseWriter, r *http.Request) {
	s.answer(rw, r, simcloud.Call{Op: "offers"}, http.StatusOK, func(age time.Duration, _ bool) (any, error) {
		for _, c := range s.cpuTypes(age, 0) {
			if c.ID == r.PathValue("id") {
				return c, nil
			}
		}
		return nil, notFound()
	})
}

func (s *server) dataCenters(rw http.ResponseWriter, r *http.Request) {
	type center struct {
		ID         string   `json:"id"`
		Name       string   `json:"name"`
		Region     string   `json:"region"`
		Volumes    []string `json:"networkVolumeTypes"`
		Compliance []string `json:"compliance"`
		Network    bool     `json:"globalNetwork"`
	}
	s.answer(rw, r, simcloud.Call{Op: "about"}, http.StatusOK, func(time.Duration, bool) (any, error) {
		out := []center{}
		for _, o := range s.w.Offers("", 0) {
			if !slices.ContainsFunc(out, func(c center) bool { return c.ID == o.Region }) {
				where := "NORTH_AMERICA"
				if strings.HasPrefix(o.Region, "EU") {
					where = "EUROPE"
				}
				out = append(out, center{o.Region, centerName(o.Region), where, []string{"STANDARD"}, []string{"SOC_2_TYPE_2"}, true})
			}
		}
		return map[string]any{"dataCenters": out}, nil
	})
}
