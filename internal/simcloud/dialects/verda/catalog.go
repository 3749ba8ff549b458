package verda

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud"
	"gpubroker/providers"
)

// DiskGB is the OS volume that the price of a world's market holds.
const DiskGB = 100

// monthlyPerGB is the price of NVMe storage, USD per GB and month: 0.2 as
// https://verda.com/products shows it.
const monthlyPerGB = "0.2"

// diskRate is what an OS volume costs per hour: a month has 730 hours, and the
// sum is rounded up to a hundredth of a cent (verda-cli, vm/CLAUDE.md, "Pricing").
func diskRate(gb int64) money.Rate {
	const cent100 = 100_000 // nano-units in a hundredth of a cent
	month := gb * 200_000_000
	return money.Rate((month + 730*cent100 - 1) / (730 * cent100) * cent100)
}

// number is a price as a JSON number.
func number(r money.Rate) json.Number { return json.Number(r.String()) }

type described struct {
	Description string `json:"description"`
	Cores       int    `json:"number_of_cores,omitempty"`
	GPUs        *int   `json:"number_of_gpus,omitempty"`
	Gigabytes   *int64 `json:"size_in_gigabytes,omitempty"`
}

type instanceType struct {
	ID           string      `json:"id"`
	Type         string      `json:"instance_type"`
	Model        string      `json:"model"`
	Name         string      `json:"name"`
	CPU          described   `json:"cpu"`
	GPU          described   `json:"gpu"`
	GPUMemory    described   `json:"gpu_memory"`
	Memory       described   `json:"memory"`
	Price        json.Number `json:"price_per_hour"`
	Spot         *string     `json:"spot_price"` // text, where the price on demand is a number
	Storage      described   `json:"storage"`
	Currency     string      `json:"currency"`
	Manufacturer string      `json:"manufacturer"`
	BestFor      []string    `json:"best_for"`
	Description  string      `json:"description"`
}

const gib = 1 << 30

// parts are a shape's sizes as instances and types show them. The memory of the
// GPUs is that of all together.
func parts(s providers.Shape) (cpu, gpu, gpuMemory, memory described) {
	gpus, vram, ram := int(s.GPUs), int64(s.GPUs)*s.GPUMemory/gib, s.Memory/gib
	cpu = described{Description: strconv.Itoa(int(s.VCPU)) + " CPU", Cores: int(s.VCPU)}
	gpu = described{GPUs: &gpus}
	gpuMemory = described{Gigabytes: &vram}
	memory = described{Description: strconv.FormatInt(ram, 10) + "GB RAM", Gigabytes: &ram}
	if gpus > 0 {
		gpu.Description = strconv.Itoa(gpus) + "x " + s.GPUName
		gpuMemory.Description = strconv.FormatInt(vram, 10) + "GB GPU RAM"
	}
	return cpu, gpu, gpuMemory, memory
}

func (s *server) instanceTypes(rw http.ResponseWriter, r *http.Request) {
	s.read(rw, r, simcloud.Call{Op: "offers"}, func(age time.Duration) (any, error) {
		byName := map[string]*instanceType{}
		spot := map[string]money.Rate{}
		fixed := map[string]money.Rate{}
		out := []*instanceType{}
		for _, o := range s.w.Offers("", age) {
			t := byName[o.Type]
			if t == nil {
				cpu, gpu, vram, memory := parts(o.Shape)
				t = &instanceType{
					ID: uuid(kindType, len(out)+1), Type: o.Type, Model: model(o.Shape), Name: gpu.Description, CPU: cpu, GPU: gpu, GPUMemory: vram,
					Memory: memory, Price: "0", Storage: described{Description: "dynamic"}, Currency: strings.ToLower(string(o.Currency)), BestFor: []string{},
				}
				byName[o.Type], out = t, append(out, t)
			}
			compute := o.Price - diskRate(DiskGB)
			if o.Kind == providers.Spot {
				spot[o.Type] = max(spot[o.Type], compute)
				t.Spot = new(spot[o.Type].String())
			} else {
				fixed[o.Type] = max(fixed[o.Type], compute)
				t.Price = number(fixed[o.Type])
			}
		}
		return out, nil
	})
}

func model(s providers.Shape) string {
	if s.GPUs == 0 {
		return "CPU Node"
	}
	return s.GPUName
}

func (s *server) availability(rw http.ResponseWriter, r *http.Request) {
	kind := providers.OnDemand
	if r.URL.Query().Get("is_spot") == "true" || r.URL.Query().Get("isSpot") == "true" {
		kind = providers.Spot
	}
	s.read(rw, r, simcloud.Call{Op: "offers"}, func(time.Duration) (any, error) {
		type place struct {
			Location string   `json:"location_code"`
			Types    []string `json:"availabilities"`
		}
		out := []*place{}
		for _, code := range s.codes() {
			p := &place{Location: code, Types: []string{}}
			for _, o := range s.w.Offers(code, 0) {
				if o.Kind == kind && o.Available == providers.Open {
					p.Types = append(p.Types, o.Type)
				}
			}
			out = append(out, p)
		}
		return out, nil
	})
}

// codes are the locations of the world, sorted.
func (s *server) codes() []string {
	var out []string
	for _, o := range s.w.Offers("", 0) {
		if !slices.Contains(out, o.Region) {
			out = append(out, o.Region)
		}
	}
	return out
}

func (s *server) locations(rw http.ResponseWriter, r *http.Request) {
	s.read(rw, r, simcloud.Call{Op: "offers"}, func(time.Duration) (any, error) {
		out := []map[string]any{}
		for _, code := range s.codes() {
			country, _, _ := strings.Cut(code, "-")
			out = append(out, map[string]any{"code": code, "name": code, "country_code": country[:min(2, len(country))]})
		}
		return out, nil
	})
}

func (s *server) volumeTypes(rw http.ResponseWriter, r *http.Request) {
	s.read(rw, r, simcloud.Call{Op: "offers"}, func(time.Duration) (any, error) {
		price := func(month json.Number) map[string]any {
			return map[string]any{"price_per_month_per_gb": month, "cps_per_gb": 7.6e-8, "currency": "usd"}
		}
		return []map[string]any{
			{"type": "HDD", "price": price("0.05"), "is_shared_fs": false, "iops": "up to 5000"},
			{"type": "NVMe", "price": price(monthlyPerGB), "is_shared_fs": false, "iops": "up to 50000"},
		}, nil
	})
}

// The images that machines can be made of.
const (
	imageCUDA = "ubuntu-24.04-cuda-12.8-open-docker"
	imageOld  = "ubuntu-22.04-cuda-12.0-docker"
	imageBare = "ubuntu-24.04"
)

func (s *server) images(rw http.ResponseWriter, r *http.Request) {
	s.read(rw, r, simcloud.Call{Op: "about"}, func(time.Duration) (any, error) {
		out := []map[string]any{}
		for i, t := range []string{imageBare, imageCUDA, imageOld} {
			out = append(out, map[string]any{
				"id": uuid(kindImage, i+1), "image_type": t, "name": t, "is_default": i == 0, "is_cluster": false, "details": []string{}, "category": "ubuntu",
			})
		}
		return out, nil
	})
}

// sshKey is the id of the account's one key.
func sshKey() string { return uuid(kindKey, 1) }

func (s *server) sshKeys(rw http.ResponseWriter, r *http.Request) {
	s.read(rw, r, simcloud.Call{Op: "about"}, func(time.Duration) (any, error) {
		return []map[string]any{{"id": sshKey(), "name": "ops", "key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI ops", "fingerprint": "SHA256:ops", "created_at": s.w.Now()}}, nil
	})
}

// funds are what the account was filled with, in the world's currency.
const funds = 1000 * money.Unit

func (s *server) balance(rw http.ResponseWriter, r *http.Request) {
	s.read(rw, r, simcloud.Call{Op: "about"}, func(time.Duration) (any, error) {
		inv := s.w.Invoice()
		return map[string]any{"amount": json.Number((funds - inv.Total).String()), "currency": strings.ToLower(string(inv.Currency))}, nil
	})
}
