package verda

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// Adapter is one account. It is safe for concurrent use.
type Adapter struct {
	name   string
	owner  string
	set    Settings
	log    *slog.Logger
	api    *rest.Client
	tokens *tokens
	once   *rest.Once
}

// What the API does not say. Each is taken on the side that costs no money: a
// lag too long delays the word that a launch made nothing.
const (
	listLag  = 10 * time.Second // the vendor's SDK reads what it has created at once, by id
	stopTime = 2 * time.Minute
	bootTime = 3 * time.Minute
	// billingUnit: pay as you go is charged every ten minutes
	// (https://docs.verda.com/welcome-to-verda/pricing-and-billing).
	billingUnit = 10 * time.Minute
)

// Name is the account's name.
func (a *Adapter) Name() string { return a.name }

// Capabilities are the facts of Verda's cloud.
func (a *Adapter) Capabilities() providers.Capabilities {
	return providers.Capabilities{
		Kinds:        kinds(),
		NoticeSource: providers.NoticeNone, // neither an API nor a metadata service warns of a spot end
		Billing:      money.Billing{Unit: billingUnit},
		BillsBoot:    true,  // not said: taken so
		PriceBound:   false, // a create has no price (verdacloud-sdk-go, CreateInstanceRequest)
		TagsAtLaunch: true,
		LaunchToken:  false,
		ListLag:      listLag,
		SelfEnd:      providers.EndNone, // no end can be set, and there are no keys for one machine
		EndAction:    providers.EndStopTasks,
		Beside:       true, // its script, and volumes that a spot end detaches
		StopTime:     stopTime,
		BootTime:     bootTime,
		Reach:        a.set.Network.Reach(a.set.Endpoint),
	}
}

type instance struct {
	ID          string     `json:"id"`
	IP          string     `json:"ip"`
	PrivateIP   string     `json:"private_ip"`
	Status      string     `json:"status"`
	Created     time.Time  `json:"created_at"`
	Description string     `json:"description"`
	Location    string     `json:"location"`
	Price       rest.Price `json:"price_per_hour"`
	Spot        bool       `json:"is_spot"`
	Type        string     `json:"instance_type"`
	OSVolume    string     `json:"os_volume_id"`
	Volumes     []string   `json:"volume_ids"`
	Tags        []wireTag  `json:"tags"`
}

// state is what a status means.
type state struct {
	state providers.InstanceState
	cause providers.Cause
}

// byStatus are the statuses of the vendor's SDKs (verdacloud-sdk-go,
// instances_types.go; sdk-python, constants.py). What has failed or stands still
// may cost money until it is deleted.
var byStatus = map[string]state{
	"new":          {providers.Pending, ""},
	"ordered":      {providers.Pending, ""},
	"provisioning": {providers.Pending, ""},
	"validating":   {providers.Pending, ""},
	"pending":      {providers.Pending, ""}, // waits for capacity
	"running":      {providers.Running, ""},
	"offline":      {providers.Stopping, providers.CauseGuest},
	"hibernating":  {providers.Stopping, providers.CauseUnknown},
	"error":        {providers.Stopping, providers.CauseError},
	"no_capacity":  {providers.Stopping, providers.CauseError},
	"deleting":     {providers.Stopping, providers.CauseUnknown},
	"discontinued": {providers.Terminated, providers.CauseUnknown},
	"notfound":     {providers.Terminated, providers.CauseUnknown},
}

func (a *Adapter) instance(i instance) providers.Instance {
	tags := tagsOf(i.Description, i.Tags)
	kind := providers.OnDemand
	if i.Spot {
		kind = providers.Spot
	}
	out := providers.Instance{
		Ref:     providers.Ref{ID: i.ID, Request: tags.Request, Region: i.Location},
		Market:  providers.Market{Provider: a.name, Region: i.Location, Type: i.Type, Kind: kind},
		State:   providers.StateStrange,
		Message: a.api.Line(i.Status), Tags: tags, Launched: i.Created.UTC(), Address: i.IP,
	}
	if out.Address == "" {
		out.Address = i.PrivateIP
	}
	if s, ok := byStatus[i.Status]; ok {
		out.State, out.Cause = s.state, s.cause
	}
	if gone := i.Status == "discontinued" || i.Status == "deleting"; gone {
		switch ours := slices.ContainsFunc(i.Tags, func(t wireTag) bool { return t.Key == tagEnded }); {
		case ours:
			out.Cause = providers.CauseUser
		case i.Spot:
			out.Cause = providers.CausePreempted
		}
	}
	return out
}

// ours reports whether an instance bears our owner tag.
func (a *Adapter) ours(t providers.Tags) bool {
	return t.Owner != "" && t.Request != "" && (a.owner == "" || t.Owner == a.owner)
}

// statusEnded is that of instances which plain lists leave out ("all non-deleted
// instances or instances with specific status": sdk-python, _instances.py).
const statusEnded = "discontinued"

// instances returns the account's instances of a status, "" for all that are not
// deleted.
func (a *Adapter) instances(ctx context.Context, op, target, status string) ([]instance, error) {
	c := rest.Call{Op: op, Target: target, Path: "/instances"}
	if status != "" {
		c.Query = url.Values{"status": {status}}
	}
	var got []instance
	c.Out = &got
	if err := a.call(ctx, c); err != nil {
		return nil, err
	}
	if got == nil {
		return nil, a.api.Strange(op, target, "the answer holds no list of instances")
	}
	return got, nil
}

// get returns an instance by its id; NotFound where Verda knows none.
func (a *Adapter) get(ctx context.Context, op, target, id string) (instance, error) {
	var i instance
	err := a.call(ctx, rest.Call{Op: op, Target: target, Path: "/instances/" + url.PathEscape(id), Out: &i})
	e, _ := errors.AsType[*providers.Error](err)
	switch {
	case e != nil && e.Code == providers.InvalidRequest && strings.HasPrefix(e.Message, invalidRequest+":"):
		// The id is all that is asked with ("Invalid instance id"). A proxy's 400 says
		// nothing of it.
		return i, a.notFound(op, target, "no such instance")
	case err != nil:
		return i, err
	case i.ID != id:
		return i, a.api.Strange(op, target, "the answer is about instance %q", i.ID)
	}
	return i, nil
}

func (a *Adapter) notFound(op, target, why string) error {
	return a.api.Error(op, target, &providers.Error{Code: providers.NotFound, Outcome: providers.NotCreated, Message: why})
}

// find returns the instance of a request: one that lives before one that has
// ended.
func (a *Adapter) find(ctx context.Context, op, target, request string, ended bool) (instance, bool, error) {
	statuses := []string{""}
	if ended {
		statuses = append(statuses, statusEnded)
	}
	for _, status := range statuses {
		all, err := a.instances(ctx, op, target, status)
		if err != nil {
			return instance{}, false, err
		}
		for _, i := range all {
			if t := tagsOf(i.Description, i.Tags); t.Request == request && a.ours(t) {
				return i, true, nil
			}
		}
	}
	return instance{}, false, nil
}

// Describe returns a machine as it is now. What is left of one beside it counts
// as the machine.
func (a *Adapter) Describe(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
	target := ref.String()
	if strings.HasPrefix(ref.ID, orphanPrefix) {
		left, err := a.side(ctx, opDescribe, target)
		if err != nil {
			return providers.Instance{}, err
		}
		for _, s := range left {
			if s.id() == ref.ID {
				return a.orphan(s), nil
			}
		}
		return providers.Instance{}, a.notFound(opDescribe, target, "nothing is left of it")
	}
	if ref.ID != "" {
		i, err := a.get(ctx, opDescribe, target, ref.ID)
		if err != nil {
			return providers.Instance{}, err
		}
		return a.instance(i), nil
	}
	i, ok, err := a.find(ctx, opDescribe, target, ref.Request, true)
	switch {
	case err != nil:
		return providers.Instance{}, err
	case !ok:
		return providers.Instance{}, a.notFound(opDescribe, target, "no instance of this request")
	}
	return a.instance(i), nil
}

// List returns every machine of ours, those that ended included, with the price
// of machine and volumes. A volume or a script of ours that no machine has any
// more is listed as a machine of its request: Terminate removes it.
func (a *Adapter) List(ctx context.Context) ([]providers.Instance, error) {
	byID := map[string]instance{}
	for _, status := range []string{"", statusEnded} {
		all, err := a.instances(ctx, opList, "", status)
		if err != nil {
			return nil, err
		}
		for _, i := range all {
			byID[i.ID] = i
		}
	}
	left, err := a.side(ctx, opList, "")
	if err != nil {
		return nil, err
	}
	out, lives, disks := []providers.Instance{}, map[string]bool{}, map[string]money.Rate{}
	for _, s := range left {
		disks[s.instance] += s.rate
	}
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		i := a.instance(byID[id])
		if !a.ours(i.Tags) {
			continue
		}
		if compute, ok := byID[id].Price.Rate(); ok {
			i.Price = compute + disks[id]
		}
		lives[i.Tags.Request] = lives[i.Tags.Request] || i.Live()
		out = append(out, i)
	}
	for _, s := range left {
		if !a.ours(s.tags) || lives[s.tags.Request] || s.created.IsZero() || time.Since(s.created) <= orphanAge {
			continue
		}
		used, err := a.used(ctx, opList, "", s)
		if err != nil {
			return nil, err
		}
		if !used {
			out = append(out, a.orphan(s))
		}
	}
	return out, nil
}

// Balance returns what is left on the account.
func (a *Adapter) Balance(ctx context.Context) (providers.Funds, error) {
	var got struct {
		Amount   rest.Price `json:"amount"`
		Currency string     `json:"currency"`
	}
	if err := a.call(ctx, rest.Call{Op: opBalance, Method: http.MethodGet, Path: "/balance", Out: &got}); err != nil {
		return providers.Funds{}, err
	}
	left, err := money.ParseAmount(got.Amount.Text)
	if err != nil {
		return providers.Funds{}, a.api.Strange(opBalance, "", "a balance of %q", got.Amount.Text)
	}
	return providers.Funds{Left: left, Currency: money.Currency(strings.ToUpper(got.Currency)), At: time.Now().UTC()}, nil
}

// Preflight checks the credentials, and that what the settings name is there. It
// says everything that is missing.
func (a *Adapter) Preflight(ctx context.Context) error {
	var missing []string
	locations, err := a.locations(ctx, opPreflight)
	if err != nil {
		return err
	}
	for _, r := range a.set.Regions {
		if !slices.Contains(locations, r) {
			missing = append(missing, "region "+r+" (there are "+strings.Join(locations, ", ")+")")
		}
	}
	keys, err := a.keys(ctx, opPreflight, "")
	if err != nil {
		return err
	}
	if len(keys) == 0 {
		missing = append(missing, "an SSH key: Verda makes no instance without one, so add one to the account")
	}
	for _, k := range a.set.SSHKeys {
		if !slices.Contains(keys, k) {
			missing = append(missing, "SSH key "+k)
		}
	}
	var images []struct {
		ID   string `json:"id"`
		Type string `json:"image_type"`
	}
	if err := a.call(ctx, rest.Call{Op: opPreflight, Path: "/images", Out: &images}); err != nil {
		return err
	}
	known := map[string]bool{}
	for _, i := range images {
		known[i.ID], known[i.Type] = true, true
	}
	if a.set.Image != "" && !known[a.set.Image] {
		a.log.Warn("the image is none of Verda's; it is taken for an OS volume's id", "provider", a.name, "image", a.set.Image)
	}
	if _, err := a.Balance(ctx); err != nil {
		return err
	}
	if len(missing) > 0 {
		return a.api.Error(opPreflight, "", &providers.Error{
			Code: providers.InvalidRequest, Scope: providers.ScopeProvider, Message: "missing: " + strings.Join(missing, "; "),
		})
	}
	return nil
}

// keys returns the ids of the account's SSH keys.
func (a *Adapter) keys(ctx context.Context, op, target string) ([]string, error) {
	var got []struct {
		ID string `json:"id"`
	}
	if err := a.call(ctx, rest.Call{Op: op, Target: target, Path: "/ssh-keys", Out: &got}); err != nil {
		return nil, err
	}
	out := []string{}
	for _, k := range got {
		out = append(out, k.ID)
	}
	return out, nil
}
