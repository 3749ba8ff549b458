package vast

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"gpubroker/providers"
	"gpubroker/providers/rest"
)

type instance struct {
	ID       int64      `json:"id"`
	Label    *string    `json:"label"`
	Actual   *string    `json:"actual_status"`
	Current  *string    `json:"cur_state"`
	Intended *string    `json:"intended_status"`
	Message  *string    `json:"status_msg"`
	Bid      bool       `json:"is_bid"`
	Start    *float64   `json:"start_date"` // Unix seconds
	Total    rest.Price `json:"dph_total"`
	Address  *string    `json:"public_ipaddr"`
	ask
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// byStatus are the words of actual_status (vast-ai/docs, show_instances.yaml). What
// stands still is paid for until it is destroyed: its disk is.
var byStatus = map[string]providers.InstanceState{
	"":          providers.Pending, // not yet known
	"created":   providers.Pending,
	"loading":   providers.Pending,
	"rebooting": providers.Pending,
	"running":   providers.Running,
	"stopped":   providers.Stopping,
	"exited":    providers.Stopping,
	"frozen":    providers.Stopping,
	"unknown":   providers.Stopping, // the host does not answer
	"offline":   providers.Stopping,
}

// standing are the words of cur_state for an instance that is not meant to run at
// the moment.
var standing = map[string]bool{"stopped": true, "unloaded": true}

// state reads what an instance is, and why. One that lost its machine to a higher
// bid is stopped although it is intended to run: it would come back by itself, and
// its disk is paid for meanwhile.
func (i instance) state() (providers.InstanceState, providers.Cause) {
	actual, current := text(i.Actual), text(i.Current)
	state, ok := byStatus[actual]
	if !ok {
		state = providers.StateStrange
	}
	if standing[current] {
		state = providers.Stopping
	}
	switch {
	case state != providers.Stopping:
		return state, ""
	case i.outbid():
		return state, providers.CausePreempted
	case text(i.Intended) == "stopped":
		return state, providers.CauseUser
	}
	return state, providers.CauseError
}

func (i instance) outbid() bool {
	actual := text(i.Actual)
	return i.Bid && text(i.Intended) != "stopped" && (text(i.Current) == "stopped" || actual == "stopped" || actual == "exited")
}

func (a *Adapter) instance(i instance) providers.Instance {
	tags, region, typ := read(text(i.Label))
	if region == "" {
		region = i.region()
	}
	if typ == "" {
		typ = typeOf(i.shape(0))
	}
	kind := providers.OnDemand
	if i.Bid {
		kind = providers.Spot
	}
	out := providers.Instance{
		Ref:    providers.Ref{ID: strconv.FormatInt(i.ID, 10), Request: tags.Request, Region: region},
		Market: providers.Market{Provider: a.name, Region: region, Type: typ, Kind: kind},
		Tags:   tags, Address: strings.TrimSpace(text(i.Address)), Message: a.api.Line(text(i.Message)),
	}
	out.State, out.Cause = i.state()
	if out.Message == "" {
		out.Message = a.api.Line(text(i.Actual))
	}
	out.Price, _ = i.Total.Rate()
	if i.Start != nil {
		whole, part := math.Modf(*i.Start)
		out.Launched = time.Unix(int64(whole), int64(part*1e9)).UTC()
	}
	return out
}

// ours reports whether an instance bears our label.
func (a *Adapter) ours(t providers.Tags) bool {
	return t.Owner != "" && t.Request != "" && (a.owner == "" || t.Owner == a.owner)
}

// listRows is the longest page of the list (vast-ai/docs, show_instances_v1.yaml).
const listRows = "25"

// instances returns every instance of the account.
func (a *Adapter) instances(ctx context.Context, op, target string) ([]instance, error) {
	sent, out, query := time.Now(), []instance{}, url.Values{"limit": {listRows}}
	for page := range maxPages {
		var got struct {
			Instances []instance `json:"instances"`
			Next      *string    `json:"next_token"`
		}
		if err := a.call(ctx, rest.Call{Op: op, Target: target, Path: "/api/v1/instances/", Query: query, Out: &got, Page: page > 0}); err != nil {
			return nil, err
		}
		if got.Instances == nil {
			return nil, a.api.Strange(op, target, "the answer holds no list of instances")
		}
		out = append(out, got.Instances...)
		next := text(got.Next)
		switch {
		case next == "":
			a.board.note(sent, out)
			return out, nil
		case next == query.Get("after_token"):
			return nil, a.api.Strange(op, target, "the list repeats a page")
		}
		query.Set("after_token", next)
	}
	return nil, a.api.Strange(op, target, "the list does not end after %d pages", maxPages)
}

type lister func(ctx context.Context, op, target string) ([]instance, error)

// look returns an instance by its id, else that of a request in a list; false where
// Vast knows none.
func (a *Adapter) look(ctx context.Context, op, target string, ref providers.Ref, list lister) (instance, bool, error) {
	if ref.ID == "" {
		all, err := list(ctx, op, target)
		if err != nil {
			return instance{}, false, err
		}
		for _, i := range all {
			if t, _, _ := read(text(i.Label)); t.Request == ref.Request && a.ours(t) {
				return i, true, nil
			}
		}
		return instance{}, false, nil
	}
	// What is gone is null, and no error (https://github.com/Max19970/easy-server/issues/125);
	// an answer that does not speak of it is neither.
	var got struct {
		Instance json.RawMessage `json:"instances"`
	}
	err := a.call(ctx, rest.Call{Op: op, Target: target, Path: "/api/v0/instances/" + url.PathEscape(ref.ID) + "/", Out: &got})
	switch {
	case providers.CodeOf(err) == providers.NotFound:
		return instance{}, false, nil
	case err != nil:
		return instance{}, false, err
	case len(got.Instance) == 0:
		return instance{}, false, a.api.Strange(op, target, "the answer does not speak of an instance")
	}
	var i *instance
	switch err := json.Unmarshal(got.Instance, &i); {
	case err != nil:
		return instance{}, false, a.api.Strange(op, target, "the answer holds no instance: %v", err)
	case i == nil:
		return instance{}, false, nil
	case strconv.FormatInt(i.ID, 10) != ref.ID:
		return instance{}, false, a.api.Strange(op, target, "the answer is about instance %d", i.ID)
	}
	return *i, true, nil
}

func (a *Adapter) notFound(op, target, why string) error {
	return a.api.Error(op, target, &providers.Error{Code: providers.NotFound, Outcome: providers.NotCreated, Message: why})
}

// Describe returns a machine as it is now. Vast forgets at once what was
// destroyed.
func (a *Adapter) Describe(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
	i, ok, err := a.look(ctx, opDescribe, ref.String(), ref, a.instances)
	switch {
	case err != nil:
		return providers.Instance{}, err
	case !ok:
		return providers.Instance{}, a.notFound(opDescribe, ref.String(), "no such instance")
	}
	return a.instance(i), nil
}

// List returns every instance with our label.
func (a *Adapter) List(ctx context.Context) ([]providers.Instance, error) {
	return a.ofOurs(ctx, a.instances)
}

func (a *Adapter) ofOurs(ctx context.Context, list lister) ([]providers.Instance, error) {
	all, err := list(ctx, opList, "")
	if err != nil {
		return nil, err
	}
	out := []providers.Instance{}
	for _, i := range all {
		if got := a.instance(i); a.ours(got.Tags) {
			out = append(out, got)
		}
	}
	return out, nil
}

// Terminate destroys a machine with its disk.
func (a *Adapter) Terminate(ctx context.Context, ref providers.Ref) error {
	target, id := ref.String(), ref.ID
	if id == "" {
		i, ok, err := a.look(ctx, opTerminate, target, ref, a.instances)
		switch {
		case err != nil:
			return err
		case !ok:
			return a.notFound(opTerminate, target, "no instance of this request")
		}
		id = strconv.FormatInt(i.ID, 10)
	}
	return a.destroy(ctx, target, id)
}

func (a *Adapter) destroy(ctx context.Context, target, id string) error {
	var said failure
	err := a.call(ctx, rest.Call{Op: opTerminate, Target: target, Method: http.MethodDelete, Path: "/api/v0/instances/" + url.PathEscape(id) + "/", Out: &said})
	if err == nil && said.word() != "" { // a failure that does not say "success"
		return a.api.Strange(opTerminate, target, "%s: %s", said.word(), said.text())
	}
	return err
}
