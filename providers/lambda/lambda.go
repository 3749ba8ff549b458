package lambda

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
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
	api   *rest.Client
	once  *rest.Once
	log   *slog.Logger
}

// Name is the account's name.
func (a *Adapter) Name() string { return a.name }

// call makes a call. Only the path of an instance can say that one is gone: for
// any other, not found is a mistake in the request.
func (a *Adapter) call(ctx context.Context, c rest.Call) error {
	err := a.api.Do(ctx, c)
	if e, ok := errors.AsType[*providers.Error](err); ok && e.Code == providers.NotFound && c.Op != "describe" && c.Op != "terminate" {
		e.Code, e.Scope = providers.InvalidRequest, providers.ScopeFamily
	}
	return err
}

// named is an image or key by its identifier.
type named struct {
	ID     string `json:"id,omitempty"`
	Family string `json:"family,omitempty"`
	Name   string `json:"name,omitempty"`
}

type tag struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

type launch struct {
	Region   string   `json:"region_name"`
	Type     string   `json:"instance_type_name"`
	SSHKeys  []string `json:"ssh_key_names"`
	Name     string   `json:"name,omitempty"`
	Image    *named   `json:"image,omitempty"`
	UserData string   `json:"user_data,omitempty"`
	Tags     []tag    `json:"tags,omitempty"`
}

type instance struct {
	ID     string       `json:"id"`
	Name   string       `json:"name"`
	IP     string       `json:"ip"`
	Status string       `json:"status"`
	Region place        `json:"region"`
	Type   instanceType `json:"instance_type"`
	Tags   []tag        `json:"tags"`
}

// Launch rents the instance of a request id. It looks for the request's label
// first, since the API has no idempotency key.
func (a *Adapter) Launch(ctx context.Context, req providers.LaunchRequest) (providers.Instance, error) {
	target := req.Market.String()
	find := func(ctx context.Context, id string) (providers.Instance, bool, error) {
		i, err := a.look(ctx, "launch", providers.Ref{ID: id, Request: req.Request})
		switch {
		case providers.CodeOf(err) == providers.NotFound:
			return i, false, nil
		case err != nil:
			if e, ok := errors.AsType[*providers.Error](err); ok {
				e.Outcome = providers.OutcomeUnknown // what an earlier call made was not learned
			}
			return i, false, err
		}
		return i, true, nil
	}
	i, err := a.once.Launch(ctx, req.Request, find, func(ctx context.Context) (providers.Instance, error) { return a.create(ctx, req) })
	if e, ok := errors.AsType[*providers.Error](err); ok {
		return providers.Instance{}, a.api.Error("launch", target, e)
	}
	if i.Market != req.Market {
		return providers.Instance{}, a.api.Error("launch", target, &providers.Error{
			Code: providers.Conflict, Outcome: providers.OutcomeUnknown, Message: "the request has instance " + i.Ref.ID + " at " + i.Market.String(),
		})
	}
	return i, nil
}

// imageID is how images are identified: 32 hexadecimal digits, with dashes or without.
var imageID = regexp.MustCompile(`^[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}$`)

func (a *Adapter) create(ctx context.Context, req providers.LaunchRequest) (providers.Instance, error) {
	target := req.Market.String()
	now := time.Now().UTC()
	l := label{req.Tags, now}
	body := launch{
		Region: req.Market.Region, Type: req.Market.Type, SSHKeys: []string{a.set.SSHKey},
		UserData: providers.WithProxy(req.UserData, a.set.Network.Proxy),
	}
	switch {
	case imageID.MatchString(a.set.Image):
		body.Image = &named{ID: a.set.Image}
	case a.set.Image != "":
		body.Image = &named{Family: a.set.Image}
	}
	var fits bool
	if body.Name, fits = l.name(); !fits {
		if a.set.Labels == labelName {
			return providers.Instance{}, a.api.Error("launch", target, &providers.Error{
				Code: providers.InvalidRequest, Scope: providers.ScopeProvider, Outcome: providers.NotCreated,
				Message: "the label " + body.Name + " is longer than the 64 bytes of a name; shorten the owner or the project, or use an endpoint with tags",
			})
		}
		body.Name = strings.ToValidUTF8(req.Request+" "+req.Tags.Project, "")
		body.Name = body.Name[:min(len(body.Name), longestName)]
	}
	if a.set.Labels == labelTags {
		body.Tags = a.tags(l)
	}
	var got struct {
		Data struct {
			IDs []string `json:"instance_ids"`
		} `json:"data"`
	}
	if err := a.call(ctx, rest.Call{Op: "launch", Target: target, Method: http.MethodPost, Path: "/instance-operations/launch", In: body, Out: &got}); err != nil {
		if e, ok := errors.AsType[*providers.Error](err); ok && e.Code == providers.RateLimited && e.RetryAfter == 0 {
			e.RetryAfter = launchEvery
		}
		return providers.Instance{}, err
	}
	if len(got.Data.IDs) != 1 || got.Data.IDs[0] == "" {
		return providers.Instance{}, a.api.Strange("launch", target, "the answer names %d instances", len(got.Data.IDs))
	}
	return providers.Instance{
		Ref:    providers.Ref{ID: got.Data.IDs[0], Request: req.Request, Region: req.Market.Region},
		Market: req.Market, State: providers.Pending, Tags: req.Tags, Launched: now.Truncate(time.Second),
	}, nil
}

// launchEvery is the pace that the API asks for: "limited to one request per 12
// seconds" (document 1.10.0).
const launchEvery = 12 * time.Second

func (a *Adapter) tags(l label) []tag {
	var out []tag
	for key, value := range l.Map() {
		out = append(out, tag{key, value})
	}
	for key, value := range a.set.Tags {
		out = append(out, tag{key, value})
	}
	out = append(out, tag{tagLaunched, seconds10(l.launched)})
	slices.SortFunc(out, func(x, y tag) int { return strings.Compare(x.Key, y.Key) })
	return out
}

// Terminate ends an instance. Its answer shows the instance: one that was
// terminated before is gone.
func (a *Adapter) Terminate(ctx context.Context, ref providers.Ref) error {
	if ref.ID == "" {
		found, err := a.look(ctx, "terminate", ref)
		if err != nil {
			return err
		}
		ref.ID = found.Ref.ID
	}
	var got struct {
		Data struct {
			Instances []instance `json:"terminated_instances"`
		} `json:"data"`
	}
	body := struct {
		IDs []string `json:"instance_ids"`
	}{[]string{ref.ID}}
	err := a.call(ctx, rest.Call{Op: "terminate", Target: ref.String(), Method: http.MethodPost, Path: "/instance-operations/terminate", In: body, Out: &got})
	if err != nil {
		return err
	}
	k := slices.IndexFunc(got.Data.Instances, func(i instance) bool { return i.ID == ref.ID })
	switch {
	case k < 0:
		return a.api.Strange("terminate", ref.String(), "the answer is about other instances")
	case got.Data.Instances[k].Status == "terminated":
		return a.api.Error("terminate", ref.String(), &providers.Error{Code: providers.NotFound, Message: "it was terminated before"})
	}
	return nil
}

// Describe returns an instance as it is now.
func (a *Adapter) Describe(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
	return a.look(ctx, "describe", ref)
}

// look finds an instance by its id, else by the request's label in the list.
func (a *Adapter) look(ctx context.Context, op string, ref providers.Ref) (providers.Instance, error) {
	if ref.ID == "" {
		all, err := a.all(ctx, op, ref.String())
		if err != nil {
			return providers.Instance{}, err
		}
		ours := slices.DeleteFunc(all, func(i providers.Instance) bool {
			return i.Tags.Request != ref.Request || a.owner != "" && i.Tags.Owner != a.owner
		})
		if len(ours) == 0 {
			return providers.Instance{}, a.api.Error(op, ref.String(), &providers.Error{Code: providers.NotFound, Message: "no instance bears this request"})
		}
		if k := slices.IndexFunc(ours, providers.Instance.Live); k > 0 {
			return ours[k], nil
		}
		return ours[0], nil
	}
	var got struct {
		Data instance `json:"data"`
	}
	// The call is a description whatever it is made for: only so may it say that
	// the instance is not there.
	if err := a.call(ctx, rest.Call{Op: "describe", Target: ref.String(), Path: "/instances/" + url.PathEscape(ref.ID), Out: &got}); err != nil {
		return providers.Instance{}, err
	}
	if got.Data.ID != ref.ID {
		return providers.Instance{}, a.api.Strange(op, ref.String(), "the answer is about instance %q", got.Data.ID)
	}
	return a.instance(got.Data), nil
}

// List returns every instance that bears an owner's label, ours alone where an
// owner is named. The cloud forgets instances soon after their end.
func (a *Adapter) List(ctx context.Context) ([]providers.Instance, error) {
	all, err := a.all(ctx, "list", "")
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(i providers.Instance) bool {
		return i.Tags.Owner == "" || a.owner != "" && i.Tags.Owner != a.owner
	}), nil
}

// all returns every instance of the account. The API knows no pages.
func (a *Adapter) all(ctx context.Context, op, target string) ([]providers.Instance, error) {
	var got struct {
		Data []instance `json:"data"`
	}
	if err := a.call(ctx, rest.Call{Op: "list", Target: target, Path: "/instances", Out: &got}); err != nil {
		return nil, err
	}
	if got.Data == nil {
		return nil, a.api.Strange(op, target, "the answer holds no list")
	}
	out := make([]providers.Instance, 0, len(got.Data))
	for _, i := range got.Data {
		out = append(out, a.instance(i))
	}
	return out, nil
}

// Preflight checks that the key works and that what every launch names is there.
func (a *Adapter) Preflight(ctx context.Context) error {
	var keys struct {
		Data []named `json:"data"`
	}
	if err := a.call(ctx, rest.Call{Op: "preflight", Path: "/ssh-keys", Out: &keys}); err != nil {
		return err
	}
	if !slices.ContainsFunc(keys.Data, func(k named) bool { return k.Name == a.set.SSHKey }) {
		return a.wrong("the account has no SSH key named " + a.set.SSHKey + "; add it in the console or correct ssh_key")
	}
	if a.set.Image == "" {
		return nil
	}
	var images struct {
		Data []named `json:"data"`
	}
	if err := a.call(ctx, rest.Call{Op: "preflight", Path: "/images", Out: &images}); err != nil {
		return err
	}
	if !slices.ContainsFunc(images.Data, func(i named) bool { return i.ID == a.set.Image || i.Family == a.set.Image }) {
		return a.wrong("there is no image with the family or id " + a.set.Image)
	}
	return nil
}

func (a *Adapter) wrong(words string) error {
	return a.api.Error("preflight", "", &providers.Error{Code: providers.InvalidRequest, Scope: providers.ScopeProvider, Message: words})
}

func (a *Adapter) market(region, instanceType string) providers.Market {
	return providers.Market{Provider: a.name, Region: region, Type: instanceType, Kind: providers.OnDemand}
}

func (a *Adapter) instance(i instance) providers.Instance {
	l := labelOf(i)
	out := providers.Instance{
		Ref:    providers.Ref{ID: i.ID, Request: l.Request, Region: i.Region.Name},
		Market: a.market(i.Region.Name, i.Type.Name), Tags: l.Tags, Launched: l.launched, Address: i.IP,
	}
	out.Price, _ = priceOf(i.Type.Cents) // unknown stays unknown
	switch i.Status {
	case "booting":
		out.State = providers.Pending
	case "active":
		out.State = providers.Running
	case "unhealthy":
		// It fails the cloud's health checks, is billed, and may recover.
		out.State, out.Message = providers.Running, "Lambda's health checks fail"
	case "terminating":
		out.State, out.Cause = providers.Stopping, providers.CauseUser
	case "terminated":
		// Nothing but a call terminates an instance.
		out.State, out.Cause, out.Ended = providers.Terminated, providers.CauseUser, time.Now().UTC()
	case "preempted": // document 1.10.0
		out.State, out.Cause, out.Ended = providers.Terminated, providers.CausePreempted, time.Now().UTC()
	default:
		out.State = providers.StateStrange
	}
	return out
}
