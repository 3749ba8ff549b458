package runpod

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/providers/rest"
)

type createGPU struct {
	ID        string `json:"id"`
	Count     int    `json:"count"`
	MinCUDA   string `json:"minCudaVersion,omitempty"`
	MinMemory int64  `json:"minRamPerGpu,omitempty"`
	MinVCPU   int    `json:"minVcpuCountPerGpu,omitempty"`
}

type createCPU struct {
	ID    string `json:"id"`
	VCPUs int    `json:"vcpuCount"`
}

type create struct {
	Name        string            `json:"name"`
	Image       string            `json:"image"`
	Cloud       string            `json:"cloud"`
	GPU         *createGPU        `json:"gpu,omitempty"`
	CPU         *createCPU        `json:"cpu,omitempty"`
	DataCenters []string          `json:"dataCenterIds,omitempty"`
	Disk        int64             `json:"disk"`
	Args        string            `json:"args"`
	Env         map[string]string `json:"env"`
	Registry    string            `json:"registry,omitempty"`
}

// startCommand runs a script as the container's command. The container stays when
// the script ends: RunPod would start it again, and the script with it.
func startCommand(userData string) string {
	if userData == "" {
		return "sleep infinity"
	}
	return "sh -c 'f=$(mktemp); echo " + base64.StdEncoding.EncodeToString([]byte(userData)) + " | base64 -d >$f; sh $f; exec sleep infinity'"
}

// Launch rents the pod of a request id. It looks for the request's label first,
// since neither API has an idempotency key.
func (a *Adapter) Launch(ctx context.Context, req providers.LaunchRequest) (providers.Instance, error) {
	target := req.Market.String()
	fail := func(e *providers.Error) (providers.Instance, error) {
		return providers.Instance{}, a.api.Error("launch", target, e)
	}
	p, ok := parseProduct(req.Market.Type)
	if !ok || req.Market.Kind == providers.Spot && (a.set.Spot != viaGraphQL || p.cpu) {
		return fail(&providers.Error{Code: providers.Unsupported, Scope: providers.ScopeFamily, Outcome: providers.NotCreated, Message: "nothing of this type and kind is sold here"})
	}
	find := func(ctx context.Context, id string) (providers.Instance, bool, error) {
		i, err := a.look(ctx, "launch", providers.Ref{ID: id, Request: req.Request})
		if e, ok := errors.AsType[*providers.Error](err); ok {
			if e.Code == providers.NotFound {
				return i, false, nil
			}
			e.Outcome = providers.OutcomeUnknown // what an earlier call made was not learned
		}
		return i, err == nil, err
	}
	i, err := a.once.Launch(ctx, req.Request, find, func(ctx context.Context) (providers.Instance, error) {
		if req.Market.Kind == providers.Spot {
			return a.rentSpot(ctx, req, p)
		}
		return a.rent(ctx, req, p)
	})
	if e, ok := errors.AsType[*providers.Error](err); ok {
		return fail(e)
	}
	if i.Market != req.Market {
		return fail(&providers.Error{Code: providers.Conflict, Outcome: providers.OutcomeUnknown, Message: "the request has pod " + i.Ref.ID + " at " + i.Market.String()})
	}
	return i, nil
}

// bounded refuses a price above the bound.
func bounded(req providers.LaunchRequest, unit money.Rate, p product, disk int64) *providers.Error {
	whole := unit*money.Rate(p.count) + diskRate*money.Rate(disk)
	if req.PriceMax > 0 && whole > req.PriceMax {
		return &providers.Error{
			Code: providers.PriceTooLow, Scope: providers.ScopeOffer, Outcome: providers.NotCreated,
			Message: "the price is " + whole.String() + " with its disk, the bound " + req.PriceMax.String(),
		}
	}
	return nil
}

// rent creates a pod on demand.
func (a *Adapter) rent(ctx context.Context, req providers.LaunchRequest, p product) (providers.Instance, error) {
	target := req.Market.String()
	disk := a.diskFor(req.Disk)
	if req.PriceMax > 0 {
		unit, err := a.listPrice(ctx, req, p)
		if err != nil {
			return providers.Instance{}, err
		}
		if e := bounded(req, unit, p, disk); e != nil {
			return providers.Instance{}, a.api.Error("launch", target, e)
		}
	}
	body := create{
		Name: podName(req.Tags), Image: a.set.Image, Cloud: strings.ToUpper(req.Market.Zone), Disk: disk, Registry: a.set.Registry,
		Args: startCommand(providers.WithProxy(req.UserData, a.set.Network.Proxy)), Env: variables(req),
	}
	if req.Market.Region != "" {
		body.DataCenters = []string{req.Market.Region}
	}
	if p.cpu {
		body.CPU = &createCPU{p.id, p.count}
	} else {
		body.GPU = &createGPU{p.id, p.count, a.set.CUDA, a.set.MemoryPerGPU.Bytes() / gb, a.set.VCPUPerGPU}
	}
	var got pod
	if err := a.call(ctx, rest.Call{Op: "launch", Target: target, Method: http.MethodPost, Path: "/pods", In: body, Out: &got}); err != nil {
		return providers.Instance{}, err
	}
	if got.ID == "" {
		return providers.Instance{}, a.api.Strange("launch", target, "the answer names no pod")
	}
	if d := got.DataCenter; d != nil && *d != "" && req.Market.Region != "" && *d != req.Market.Region {
		return providers.Instance{}, a.elsewhere(ctx, target, got)
	}
	return providers.Instance{
		Ref:    providers.Ref{ID: got.ID, Request: req.Request, Region: req.Market.Region, Zone: req.Market.Zone},
		Market: req.Market, State: a.begun(got.Status), Tags: req.Tags, Launched: started(got.Created),
	}, nil
}

func (a *Adapter) begun(status string) providers.InstanceState {
	if status == "RUNNING" {
		return providers.Running
	}
	return providers.Pending
}

func started(created time.Time) time.Time {
	if created.IsZero() {
		return time.Now().UTC()
	}
	return created.UTC()
}

// elsewhere deletes a pod that was put into another data center than the one that
// was asked for: the API takes data centers as a preference.
func (a *Adapter) elsewhere(ctx context.Context, target string, got pod) error {
	e := &providers.Error{
		Code: providers.NoCapacity, Scope: providers.ScopeOffer, Outcome: providers.NotCreated,
		Message: "the pod was put into " + *got.DataCenter + " and deleted again",
	}
	err := a.call(ctx, rest.Call{Op: "terminate", Target: got.ID, Method: http.MethodDelete, Path: "/pods/" + url.PathEscape(got.ID)})
	if err != nil && providers.CodeOf(err) != providers.NotFound {
		e = &providers.Error{
			Code: providers.Unavailable, Scope: providers.ScopeOffer, Outcome: providers.OutcomeUnknown, Err: err,
			Message: "pod " + got.ID + " was put into " + *got.DataCenter + " and could not be deleted",
		}
	}
	return a.api.Error("launch", target, e)
}

// listPrice returns what one GPU or vCPU costs now.
func (a *Adapter) listPrice(ctx context.Context, req providers.LaunchRequest, p product) (money.Rate, error) {
	target := req.Market.String()
	var unit money.Rate
	var ok bool
	var err error
	if p.cpu {
		var t cpuType
		err = a.call(ctx, rest.Call{Op: "launch", Target: target, Path: "/catalog/cpus/" + url.PathEscape(p.id), Out: &t})
		unit, ok = rateOf(t.Price.Secure)
	} else {
		var t gpuType
		err = a.call(ctx, rest.Call{Op: "launch", Target: target, Path: "/catalog/gpus/" + url.PathEscape(p.id), Out: &t})
		price, _, sold := t.in(req.Market.Zone)
		unit, ok = rateOf(price)
		ok = ok && sold
	}
	if e, failed := errors.AsType[*providers.Error](err); failed {
		e.Outcome = providers.NotCreated // only the price was asked for
		return 0, e
	}
	if !ok {
		return 0, a.api.Error("launch", target, &providers.Error{
			Code: providers.Unsupported, Scope: providers.ScopeFamily, Outcome: providers.NotCreated, Message: "the catalog has no price for it",
		})
	}
	return unit, nil
}
