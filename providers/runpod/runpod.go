package runpod

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// Adapter is one account. It is safe for concurrent use.
type Adapter struct {
	name  string
	owner string
	set   Settings
	caps  providers.Capabilities
	api   *rest.Client
	graph *rest.Client
	once  *rest.Once
	log   *slog.Logger
	providers.LeftOut
}

// Name is the account's name.
func (a *Adapter) Name() string { return a.name }

// Capabilities are the facts of RunPod, and what the settings switch on.
func (a *Adapter) Capabilities() providers.Capabilities {
	c := a.caps
	c.Kinds = slices.Clone(a.caps.Kinds)
	return c
}

// call makes a call of the REST API. Only the path of a pod can say that one is
// gone: for any other, not found is a mistake in the request or the endpoint.
func (a *Adapter) call(ctx context.Context, c rest.Call) error {
	err := a.api.Do(ctx, c)
	if e, ok := errors.AsType[*providers.Error](err); ok && e.Code == providers.NotFound && c.Op != "describe" && c.Op != "terminate" {
		e.Code, e.Scope = providers.InvalidRequest, providers.ScopeFamily
	}
	return err
}

type pod struct {
	ID     string            `json:"id"`
	Name   string            `json:"name"`
	Status string            `json:"status"`
	Env    map[string]string `json:"env"`
	GPU    *struct {
		ID    string `json:"id"`
		Count int    `json:"count"`
	} `json:"gpu"`
	CPU *struct {
		ID    string `json:"id"`
		VCPUs int    `json:"vcpuCount"`
	} `json:"cpu"`
	Cloud      string      `json:"cloud"`
	DataCenter *string     `json:"dataCenterId"`
	Cost       json.Number `json:"cost"`
	Created    time.Time   `json:"createdAt"`
	SSH        struct {
		Direct *struct {
			Host string `json:"host"`
		} `json:"direct"`
	} `json:"ssh"`
}

// instance is a pod as it stands, without why it ended.
func (a *Adapter) instance(p pod) providers.Instance {
	tags := tagsOf(p.Env)
	m := providers.Market{
		Provider: a.name, Region: p.Env[labelRegion], Zone: strings.ToLower(p.Cloud), Kind: providers.Kind(p.Env[labelKind]),
	}
	switch {
	case p.CPU != nil:
		m.Type = product{p.CPU.ID, p.CPU.VCPUs, true}.String()
	case p.GPU != nil:
		m.Type = product{id: p.GPU.ID, count: p.GPU.Count}.String()
	}
	if tags.Request == "" {
		// The variables are not shown: the name still tells whose it is.
		if request, ours := requestOf(a.owner, p.Name); ours && a.owner != "" {
			tags.Owner, tags.Request = a.owner, request
		}
	}
	if m.Kind == "" {
		m.Kind = providers.OnDemand
		if p.DataCenter != nil {
			m.Region = *p.DataCenter
		}
	}
	out := providers.Instance{
		Ref: providers.Ref{ID: p.ID, Request: tags.Request, Region: m.Region, Zone: m.Zone}, Market: m, Tags: tags, Launched: p.Created.UTC(),
	}
	out.Price, _ = rateOf(p.Cost) // unknown stays unknown
	if p.SSH.Direct != nil {
		out.Address = p.SSH.Direct.Host
	}
	switch p.Status {
	case "PROVISIONING", "STARTING":
		out.State = providers.Pending
	case "RUNNING":
		out.State = providers.Running
	case "EXITED":
		// Stopped, by whomever: it works no more and stays until it is deleted.
		out.State = providers.Stopping
	case "ERROR":
		out.State, out.Cause = providers.Stopping, providers.CauseError
	case "TERMINATED":
		out.State, out.Cause, out.Ended = providers.Terminated, providers.CauseUser, time.Now().UTC()
	default:
		out.State = providers.StateStrange
	}
	return out
}

// Terminate deletes a pod.
func (a *Adapter) Terminate(ctx context.Context, ref providers.Ref) error {
	if ref.ID == "" {
		found, err := a.look(ctx, "terminate", ref)
		if err != nil {
			return err
		}
		ref.ID = found.Ref.ID
	}
	return a.call(ctx, rest.Call{Op: "terminate", Target: ref.String(), Method: http.MethodDelete, Path: "/pods/" + url.PathEscape(ref.ID)})
}

// Describe returns a pod as it is now.
func (a *Adapter) Describe(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
	i, err := a.look(ctx, "describe", ref)
	if err != nil {
		return i, err
	}
	list := []providers.Instance{i}
	a.explain(ctx, list)
	return list[0], nil
}

// look finds a pod by its id, else by the request's label in the list.
func (a *Adapter) look(ctx context.Context, op string, ref providers.Ref) (providers.Instance, error) {
	if ref.ID == "" {
		all, err := a.all(ctx, ref.String())
		if err != nil {
			return providers.Instance{}, err
		}
		ours := slices.DeleteFunc(all, func(i providers.Instance) bool {
			return i.Tags.Request != ref.Request || a.owner != "" && i.Tags.Owner != a.owner
		})
		if len(ours) == 0 {
			return providers.Instance{}, a.api.Error(op, ref.String(), &providers.Error{Code: providers.NotFound, Message: "no pod bears this request"})
		}
		if k := slices.IndexFunc(ours, providers.Instance.Live); k > 0 {
			return ours[k], nil
		}
		return ours[0], nil
	}
	var p pod
	if err := a.call(ctx, rest.Call{Op: "describe", Target: ref.String(), Path: "/pods/" + url.PathEscape(ref.ID), Out: &p}); err != nil {
		return providers.Instance{}, err
	}
	if p.ID != ref.ID {
		return providers.Instance{}, a.api.Strange(op, ref.String(), "the answer is about pod %q", p.ID)
	}
	return a.instance(p), nil
}

// List returns every pod that bears an owner's label, ours alone where an owner is
// named.
func (a *Adapter) List(ctx context.Context) ([]providers.Instance, error) {
	all, err := a.all(ctx, "")
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(i providers.Instance) bool {
		return i.Tags.Owner == "" || a.owner != "" && i.Tags.Owner != a.owner
	})
	a.explain(ctx, all)
	return all, nil
}

// all returns every pod of the account, page after page.
func (a *Adapter) all(ctx context.Context, target string) ([]providers.Instance, error) {
	out, asked := []providers.Instance{}, map[string]bool{"": true}
	query := url.Values{"limit": {"1000"}}
	for {
		var page struct {
			Pods       []pod `json:"pods"`
			Pagination struct {
				Next string `json:"nextCursor"`
				More bool   `json:"hasNextPage"`
			} `json:"pagination"`
		}
		call := rest.Call{Op: "list", Target: target, Path: "/pods", Query: query, Out: &page, Page: query.Has("cursor")}
		if err := a.call(ctx, call); err != nil {
			return nil, err
		}
		if page.Pods == nil {
			return nil, a.api.Strange("list", target, "the answer holds no list")
		}
		for _, p := range page.Pods {
			out = append(out, a.instance(p))
		}
		switch next := page.Pagination.Next; {
		case !page.Pagination.More:
			return out, nil
		case asked[next]:
			return nil, a.api.Strange("list", target, "there is more, and the page does not say where")
		default:
			asked[next] = true
			query = url.Values{"limit": {"1000"}, "cursor": {next}}
		}
	}
}

// Preflight checks that the key may read pods, and that the data centers of the
// settings are there. Whether it may create them shows only when one is created.
func (a *Adapter) Preflight(ctx context.Context) error {
	var pods struct {
		Pods []pod `json:"pods"`
	}
	if err := a.call(ctx, rest.Call{Op: "preflight", Target: "read pods", Path: "/pods", Query: url.Values{"limit": {"1"}}, Out: &pods}); err != nil {
		return err
	}
	var centers struct {
		DataCenters []struct {
			ID string `json:"id"`
		} `json:"dataCenters"`
	}
	if err := a.call(ctx, rest.Call{Op: "preflight", Target: "read data centers", Path: "/catalog/datacenters", Out: &centers}); err != nil {
		return err
	}
	for _, r := range a.set.Regions {
		if !slices.ContainsFunc(centers.DataCenters, func(d struct {
			ID string `json:"id"`
		},
		) bool {
			return d.ID == r
		}) {
			return a.api.Error("preflight", "", &providers.Error{
				Code: providers.InvalidRequest, Scope: providers.ScopeProvider, Message: "there is no data center " + r + "; correct regions",
			})
		}
	}
	if a.set.Spot == viaGraphQL || a.set.Balance == viaGraphQL {
		_, err := a.funds(ctx, "preflight")
		return err
	}
	return nil
}
