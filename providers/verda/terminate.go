package verda

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// orphanAge is how old a volume or script must be before it counts as left
// behind: no launch takes that long.
const orphanAge = 15 * time.Minute

// orphanPrefix begins the ids under which such are listed.
const orphanPrefix = "left:"

// thing is an OS volume or a startup script.
type thing struct {
	path     string // "/volumes/ID" or "/scripts/ID"
	tags     providers.Tags
	instance string // that has it; "" for none, and for scripts
	location string
	created  time.Time // zero when nobody says
	rate     money.Rate
}

func (t thing) id() string { return orphanPrefix + strings.TrimPrefix(t.path, "/") }

// ending are the statuses of volumes that are on their way out or gone.
var ending = []string{"deleting", "deleted", "canceling", "canceled"}

// side returns the account's volumes, and the scripts that bear our name.
func (a *Adapter) side(ctx context.Context, op, target string) ([]thing, error) {
	var volumes []struct {
		ID       string     `json:"id"`
		Name     string     `json:"name"`
		Status   string     `json:"status"`
		Created  time.Time  `json:"created_at"`
		Instance string     `json:"instance_id"`
		Location string     `json:"location"`
		Hourly   rest.Price `json:"base_hourly_cost"`
	}
	if err := a.call(ctx, rest.Call{Op: op, Target: target, Path: "/volumes", Out: &volumes}); err != nil {
		return nil, err
	}
	var scripts []struct {
		ID      string    `json:"id"`
		Name    string    `json:"name"`
		Created time.Time `json:"created_at"`
	}
	if err := a.call(ctx, rest.Call{Op: op, Target: target, Path: "/scripts", Out: &scripts}); err != nil {
		return nil, err
	}
	if volumes == nil || scripts == nil {
		return nil, a.api.Strange(op, target, "the answer holds no list of volumes or of scripts")
	}
	var out []thing
	for _, v := range volumes {
		if slices.Contains(ending, v.Status) {
			continue
		}
		tags, made, _ := sideTags(v.Name)
		rate, _ := v.Hourly.Rate()
		out = append(out, thing{"/volumes/" + url.PathEscape(v.ID), tags, v.Instance, v.Location, either(v.Created, made), rate})
	}
	for _, s := range scripts {
		if tags, made, ok := sideTags(s.Name); ok {
			out = append(out, thing{path: "/scripts/" + url.PathEscape(s.ID), tags: tags, created: either(s.Created, made)})
		}
	}
	return out, nil
}

func either(said, named time.Time) time.Time {
	if said.IsZero() {
		return named
	}
	return said.UTC()
}

// used reports whether a volume is part of an instance that lives, whatever the
// lists of instances show: one that comes back empty must not cost a machine its
// disk.
func (a *Adapter) used(ctx context.Context, op, target string, t thing) (bool, error) {
	if t.instance == "" {
		return false, nil
	}
	i, err := a.get(ctx, op, target, t.instance)
	switch {
	case providers.CodeOf(err) == providers.NotFound:
		return false, nil
	case err != nil:
		return false, err
	}
	return a.instance(i).Live(), nil
}

// orphan shows what is left of a machine as a machine.
func (a *Adapter) orphan(t thing) providers.Instance {
	return providers.Instance{
		Ref:    providers.Ref{ID: t.id(), Request: t.tags.Request, Region: t.location},
		Market: providers.Market{Provider: a.name, Region: t.location, Type: "left-behind", Kind: providers.OnDemand},
		State:  providers.Stopping, Cause: providers.CauseUnknown, Message: "left behind: " + strings.TrimPrefix(t.path, "/"),
		Tags: t.tags, Launched: t.created, Price: t.rate,
	}
}

// Terminate deletes a machine with its volumes, and, once it is gone, what else is
// left of its request. NotFound means that there is nothing any more.
func (a *Adapter) Terminate(ctx context.Context, ref providers.Ref) error {
	target := ref.String()
	var i instance
	found := false
	switch {
	case strings.HasPrefix(ref.ID, orphanPrefix):
	case ref.ID != "":
		var err error
		if i, err = a.get(ctx, opTerminate, target, ref.ID); err != nil && providers.CodeOf(err) != providers.NotFound {
			return err
		}
		found = err == nil
	default:
		var err error
		if i, found, err = a.find(ctx, opTerminate, target, ref.Request, false); err != nil {
			return err
		}
	}
	if found && a.instance(i).Live() {
		if err := a.end(ctx, target, i); providers.CodeOf(err) != providers.NotFound {
			return err
		}
		ref.ID = i.ID // it went meanwhile
	}
	return a.sweep(ctx, target, ref)
}

// end deletes an instance with all that is attached to it.
func (a *Adapter) end(ctx context.Context, target string, i instance) error {
	if i.Status == "deleting" {
		return nil
	}
	volumes := slices.Clone(i.Volumes)
	if i.OSVolume != "" && !slices.Contains(volumes, i.OSVolume) {
		volumes = append(volumes, i.OSVolume)
	}
	// An absent list would put the OS volume into the trash, where it is paid for.
	if len(volumes) == 0 {
		left, err := a.side(ctx, opTerminate, target)
		if err != nil {
			return err
		}
		for _, t := range left {
			if id, ok := strings.CutPrefix(t.path, "/volumes/"); ok && t.instance == i.ID {
				volumes = append(volumes, id)
			}
		}
	}
	a.mark(ctx, target, i)
	var results json.RawMessage
	var body []byte
	err := a.call(ctx, rest.Call{Op: opTerminate, Target: target, Method: http.MethodPut, Path: "/instances", Out: &body, In: map[string]any{
		"action": "delete", "id": []string{i.ID}, "volume_ids": volumes, "delete_permanently": true,
	}})
	if err != nil {
		return err
	}
	results = body
	return a.verdict(target, i.ID, results)
}

// mark says on the instance that its end is ours: afterwards nothing else tells
// it from one that was taken. An end does not wait for it.
func (a *Adapter) mark(ctx context.Context, target string, i instance) {
	if slices.ContainsFunc(i.Tags, func(t wireTag) bool { return t.Key == tagEnded }) {
		return
	}
	err := a.call(ctx, rest.Call{
		Op: opTerminate, Target: target, Method: http.MethodPost, Path: "/instances/" + url.PathEscape(i.ID) + "/tags", In: wireTag{tagEnded, "by-us"},
	})
	if err != nil {
		a.log.Debug("an instance could not be marked as ended by us", "provider", a.name, "instance", i.ID, "error", err)
	}
}

// verdict reads what an action did to one instance: 202 and 207 answer a list, 204
// nothing (verdacloud-sdk-go, InstanceActionResult).
func (a *Adapter) verdict(target, id string, body []byte) error {
	if len(strings.TrimSpace(string(body))) == 0 {
		return nil
	}
	var results []struct {
		Instance string `json:"instanceId"`
		Status   string `json:"status"`
		Error    string `json:"error"`
		Code     int    `json:"statusCode"`
	}
	if err := json.Unmarshal(body, &results); err != nil {
		return a.api.Error(opTerminate, target, &providers.Error{Code: providers.Unavailable, Message: "the answer to a delete cannot be read", Err: err})
	}
	for _, r := range results {
		if r.Instance != id || r.Error == "" && r.Code < http.StatusBadRequest && r.Status != "error" {
			continue
		}
		e := rest.ByStatus(rest.Answer{Status: r.Code})
		switch {
		case r.Code == http.StatusNotFound:
			e = &providers.Error{Code: providers.NotFound}
		case e == nil || r.Code == http.StatusForbidden, e.Code == providers.Unknown:
			e = &providers.Error{Code: providers.Unavailable, Scope: providers.ScopeOffer}
		}
		e.Message = "the delete failed: " + r.Error
		return a.api.Error(opTerminate, target, e)
	}
	return nil
}

// sweep removes what is left of a request that has no machine any more. With
// nothing left it is NotFound.
func (a *Adapter) sweep(ctx context.Context, target string, ref providers.Ref) error {
	live, err := a.instances(ctx, opTerminate, target, "")
	if err != nil {
		return err
	}
	for _, i := range live {
		// A list that lags may still show the machine itself.
		if t := tagsOf(i.Description, i.Tags); t.Request == ref.Request && a.ours(t) && i.ID != ref.ID {
			return a.notFound(opTerminate, target, "gone; its request has another machine")
		}
	}
	left, err := a.side(ctx, opTerminate, target)
	if err != nil {
		return err
	}
	removed := false
	var errs []error
	for _, t := range left {
		if t.tags.Request != ref.Request || !a.ours(t.tags) {
			continue
		}
		switch used, err := a.used(ctx, opTerminate, target, t); {
		case err != nil:
			return err
		case used:
			return a.api.Error(opTerminate, target, &providers.Error{
				Code: providers.Unavailable, Scope: providers.ScopeOffer,
				Message: "the list does not show instance " + t.instance + ", which lives and has a volume of this request; ask again",
			})
		}
		removed = true
		if err := a.remove(ctx, target, t); err != nil && providers.CodeOf(err) != providers.NotFound {
			errs = append(errs, err)
		}
	}
	switch {
	case len(errs) > 0:
		return errs[0]
	case !removed:
		return a.notFound(opTerminate, target, "nothing is left of it")
	}
	return nil
}

func (a *Adapter) remove(ctx context.Context, target string, t thing) error {
	if id, ok := strings.CutPrefix(t.path, "/volumes/"); ok {
		return a.call(ctx, rest.Call{Op: opTerminate, Target: target, Method: http.MethodPut, Path: "/volumes", In: map[string]any{
			"id": id, "action": "delete", "is_permanent": true,
		}})
	}
	return a.deleteScript(ctx, opTerminate, target, strings.TrimPrefix(t.path, "/scripts/"))
}

func (a *Adapter) deleteScript(ctx context.Context, op, target, id string) error {
	err := a.call(ctx, rest.Call{Op: op, Target: target, Method: http.MethodDelete, Path: "/scripts/" + url.PathEscape(id)})
	if e, ok := errors.AsType[*providers.Error](err); ok && e.Code == providers.NotFound {
		return nil
	}
	return err
}
