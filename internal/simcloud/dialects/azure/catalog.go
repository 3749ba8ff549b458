package azure

import (
	"cmp"
	"encoding/json"
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

// families are the quota families of the sizes in [Default], as the SKUs name
// them (Azure/karpenter-provider-azure, pkg/fake/zz_generated.sku.*.go).
var families = map[string]string{
	"Standard_NC4as_T4_v3":       "Standard NCASv3_T4 Family",
	"Standard_NC64as_T4_v3":      "Standard NCASv3_T4 Family",
	"Standard_NC24ads_A100_v4":   "StandardNCADSA100v4Family",
	"Standard_NC96ads_A100_v4":   "StandardNCADSA100v4Family",
	"Standard_NC40ads_H100_v5":   "StandardNCadsH100v5Family",
	"Standard_ND96isr_H100_v5":   "standardNDSH100v5Family",
	"Standard_NV6ads_A10_v5":     "StandardNVADSA10v5Family",
	"Standard_NV36ads_A10_v5":    "StandardNVADSA10v5Family",
	"Standard_D8as_v5":           "standardDASv5Family",
	"Standard_ND96isr_MI300X_v5": "standardNDISRMI300Xv5Family",
}

func familyOf(size string) string {
	return cmp.Or(families[size], "standard"+strings.ReplaceAll(strings.TrimPrefix(size, "Standard_"), "_", "")+"Family")
}

// restricted are sizes that the account may not use: they are in the list, and
// nothing is offered (learn.microsoft.com/azure/azure-resource-manager/troubleshooting/error-sku-not-available).
var restricted = []string{"Standard_NC96ads_A100_v4"}

var locationFilter = regexp.MustCompile(`^\s*location\s+eq\s+'([^']*)'\s*$`)

// skus lists what sizes there are where
// (learn.microsoft.com/rest/api/compute/resource-skus/list).
func (c *Cloud) skus(rw http.ResponseWriter, r *http.Request) {
	c.w.Answer(rw, r, simcloud.Call{Op: "offers"}, wordsAt(simapi.Place{}), func(age time.Duration, _ bool) (simcloud.Reply, error) {
		location := ""
		if f := r.URL.Query().Get("$filter"); f != "" {
			m := locationFilter.FindStringSubmatch(f)
			if m == nil {
				return simcloud.Reply{}, failf(http.StatusBadRequest, "InvalidFilter", "The filter '%s' is not supported: only location is.", f)
			}
			location = normal(m[1])
		}
		type key struct{ region, size string }
		zones, spot, shapes := map[key][]any{}, map[key]bool{}, map[key]providers.Shape{}
		var order []key
		for _, o := range c.w.Offers(location, age) {
			k := key{o.Region, o.Type}
			if _, ok := shapes[k]; !ok {
				order = append(order, k)
			}
			shapes[k] = o.Shape
			spot[k] = spot[k] || o.Kind == providers.Spot
			if o.Zone != "" && !slices.Contains(zones[k], any(o.Zone)) {
				zones[k] = append(zones[k], o.Zone)
			}
		}
		out := []any{}
		for i, k := range order {
			if i == 0 || order[i-1].region != k.region {
				out = append(out, object{"resourceType": "disks", "name": "Premium_LRS", "tier": "Premium", "size": "P10", "locations": []any{k.region}, "locationInfo": []any{object{"location": k.region, "zones": []any{"1", "2", "3"}}}, "restrictions": []any{}})
				for _, size := range restricted {
					if _, offered := shapes[key{k.region, size}]; !offered {
						out = append(out, sku(k.region, size, restrictedShape, zones[k], true, "NotAvailableForSubscription"))
					}
				}
			}
			out = append(out, sku(k.region, k.size, shapes[k], zones[k], spot[k], ""))
		}
		return c.page(r, out)
	})
}

// restrictedShape is that of [restricted].
var restrictedShape = providers.Shape{GPUs: 4, VCPU: 96, Memory: 880 << 30, Arch: "amd64"}

func sku(region, size string, s providers.Shape, zones []any, spot bool, restriction string) object {
	yes := map[bool]string{true: "True", false: "False"}
	capability := func(name, value string) object { return object{"name": name, "value": value} }
	if zones == nil {
		zones = []any{}
	}
	arch := "x64"
	if s.Arch == "arm64" {
		arch = "Arm64"
	}
	caps := []any{
		capability("MaxResourceVolumeMB", "65536"), capability("OSVhdSizeMB", "1047552"), capability("vCPUs", number(s.VCPU)),
		capability("HyperVGenerations", "V1,V2"), capability("MemoryGB", number(float64(s.Memory)/(1<<30))), capability("CpuArchitectureType", arch),
		capability("LowPriorityCapable", yes[spot]), capability("PremiumIO", "True"), capability("VMDeploymentTypes", "IaaS"),
		capability("vCPUsAvailable", number(s.VCPU)), capability("EphemeralOSDiskSupported", "True"),
		capability("AcceleratedNetworkingEnabled", "True"), capability("RdmaEnabled", yes[strings.Contains(size, "ND96isr")]),
	}
	if s.GPUs > 0 {
		// A share of a GPU is shown as one.
		caps = append(caps, capability("GPUs", number(max(s.GPUs, 1))))
	}
	v := object{
		"resourceType": "virtualMachines", "name": size, "tier": "Standard", "size": strings.TrimPrefix(size, "Standard_"), "family": familyOf(size),
		"locations": []any{region}, "locationInfo": []any{object{"location": region, "zones": zones, "zoneDetails": []any{}}},
		"capabilities": caps, "restrictions": []any{},
	}
	if restriction != "" {
		v["restrictions"] = []any{object{
			"type": "Location", "values": []any{region}, "reasonCode": restriction,
			"restrictionInfo": object{"locations": []any{region}},
		}}
	}
	return v
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// usages lists the limits of a location and what counts towards them
// (learn.microsoft.com/rest/api/compute/usage/list).
func (c *Cloud) usages(rw http.ResponseWriter, r *http.Request, res resource) {
	c.w.Answer(rw, r, simcloud.Call{Op: "quotas"}, wordsAt(simapi.Place{}), func(time.Duration, bool) (simcloud.Reply, error) {
		usage := func(name, title string, used, limit float64) object {
			return object{"unit": "Count", "currentValue": int64(used), "limit": int64(limit), "name": object{"value": name, "localizedValue": title}}
		}
		out := []any{usage("availabilitySets", "Availability Sets", 0, 2500)}
		for _, q := range c.w.Quotas() {
			if q.Region == "" || q.Region == res.location {
				out = append(out, usage(q.Name, q.Name, q.Used, q.Limit))
			}
		}
		return c.page(r, out)
	})
}

// permissions says what the application may do
// (learn.microsoft.com/rest/api/authorization/permissions/list-for-resource-group).
func (c *Cloud) permissions(rw http.ResponseWriter, r *http.Request) {
	c.w.Answer(rw, r, simcloud.Call{Op: "about"}, wordsAt(simapi.Place{}), func(time.Duration, bool) (simcloud.Reply, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		not := []any{}
		for _, d := range c.denied {
			not = append(not, d)
		}
		return body(http.StatusOK, object{"value": []any{object{"actions": []any{"*"}, "notActions": not, "dataActions": []any{}, "notDataActions": []any{}}}})
	})
}

// scores says how likely spot machines are to be had
// (learn.microsoft.com/azure/virtual-machine-scale-sets/spot-placement-score): from
// how many the world has left.
func (c *Cloud) scores(rw http.ResponseWriter, r *http.Request) {
	in, bad := read(r)
	if bad != nil {
		fail(rw, bad)
		return
	}
	c.w.Answer(rw, r, simcloud.Call{Op: "scores"}, wordsAt(simapi.Place{}), func(time.Duration, bool) (simcloud.Reply, error) {
		want := 1
		if n, ok := at(in, "desiredCount").(json.Number); ok {
			want, _ = strconv.Atoi(n.String())
		}
		out := []any{}
		for _, size := range list(in, "desiredSizes") {
			for _, location := range list(in, "desiredLocations") {
				region, _ := location.(string)
				known := false
				for _, o := range c.w.Offers(normal(region), 0) {
					if o.Type != text(size, "sku") || o.Kind != providers.Spot {
						continue
					}
					known = true
					score := "High"
					switch {
					case o.Free == nil || *o.Free >= 2*want:
					case *o.Free >= want:
						score = "Medium"
					default:
						score = "Low"
					}
					out = append(out, object{"sku": o.Type, "region": o.Region, "availabilityZone": o.Zone, "score": score, "isQuotaAvailable": true})
				}
				if !known {
					out = append(out, object{"sku": text(size, "sku"), "region": region, "score": "RestrictedSkuOrRegion", "isQuotaAvailable": false})
				}
			}
		}
		return body(http.StatusOK, object{"desiredLocations": list(in, "desiredLocations"), "desiredSizes": list(in, "desiredSizes"), "desiredCount": want, "placementScores": out})
	})
}
