package verda

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/providers/rest"
)

type createRequest struct {
	Type        string    `json:"instance_type"`
	Image       string    `json:"image"`
	Hostname    string    `json:"hostname"`
	Description string    `json:"description"`
	Keys        []string  `json:"ssh_key_ids"`
	Location    string    `json:"location_code"`
	Contract    string    `json:"contract"`
	Pricing     string    `json:"pricing"`
	Script      string    `json:"startup_script_id,omitempty"`
	Spot        bool      `json:"is_spot"`
	OSVolume    osVolume  `json:"os_volume"`
	Tags        []wireTag `json:"tags"`
	Network     string    `json:"network,omitempty"`
	Subnet      string    `json:"subnet,omitempty"`
	PrivateIP   string    `json:"private_ip,omitempty"`
	PublicIP    string    `json:"public_ip,omitempty"`
}

type osVolume struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"` // GB
	OnSpot string `json:"on_spot_discontinue,omitempty"`
}

// Launch rents the machine of a request id. Verda has no idempotency key: the
// request's machine is looked for first. A bound is compared with the price as it
// is now, since none can be set.
func (a *Adapter) Launch(ctx context.Context, req providers.LaunchRequest) (providers.Instance, error) {
	target := req.Market.String()
	i, err := a.once.Launch(ctx, req.Request,
		func(ctx context.Context, id string) (providers.Instance, bool, error) {
			return a.known(ctx, target, id, req)
		},
		func(ctx context.Context) (providers.Instance, error) { return a.rent(ctx, target, req) },
	)
	if e, ok := errors.AsType[*providers.Error](err); ok && e.Op == "" {
		err = a.api.Error(opLaunch, target, e)
	}
	return i, err
}

// known returns the machine that a request has already.
func (a *Adapter) known(ctx context.Context, target, id string, req providers.LaunchRequest) (providers.Instance, bool, error) {
	var i instance
	var ok bool
	var err error
	if id != "" {
		i, err = a.get(ctx, opLaunch, target, id)
		ok = err == nil
	} else {
		i, ok, err = a.find(ctx, opLaunch, target, req.Request, false)
	}
	if err != nil {
		// Whether the request has a machine was not learned.
		if e, is := errors.AsType[*providers.Error](err); is {
			e.Outcome = providers.OutcomeUnknown
		}
		return providers.Instance{}, false, err
	}
	if !ok {
		return providers.Instance{}, false, nil
	}
	got := a.instance(i)
	if got.Market != req.Market {
		return got, false, a.api.Error(opLaunch, target, &providers.Error{
			Code: providers.Conflict, Message: "request " + req.Request + " has instance " + i.ID + " at " + got.Market.String(),
		})
	}
	return got, true, nil
}

func (a *Adapter) rent(ctx context.Context, target string, req providers.LaunchRequest) (providers.Instance, error) {
	none := providers.Instance{}
	keys := a.set.SSHKeys
	if len(keys) == 0 {
		var err error
		if keys, err = a.keys(ctx, opLaunch, target); err != nil {
			return none, notYet(err)
		}
	}
	disk := max(a.set.disk(), (req.Disk+gb-1)/gb*gb) / gb
	if err := a.affordable(ctx, target, req, disk); err != nil {
		return none, notYet(err)
	}
	name := sideName(req.Tags, time.Now())
	create := createRequest{
		Type: req.Market.Type, Image: a.set.image(req.Market.Type), Hostname: hostname(req.Request), Description: encode(req.Tags),
		Keys: keys, Location: req.Market.Region, Contract: "PAY_AS_YOU_GO", Pricing: "FIXED_PRICE", Spot: req.Market.Kind == providers.Spot,
		OSVolume: osVolume{Name: name, Size: disk},
		Tags:     a.ownTagsOf(req.Tags),
	}
	if create.Spot {
		create.Contract, create.OSVolume.OnSpot = "SPOT", "delete_permanently"
	}
	if n := a.set.Network; n.Subnet != "" {
		create.Network, create.Subnet, _ = strings.Cut(n.Subnet, "/")
		create.PrivateIP, create.PublicIP = "auto", "auto"
		if n.Private {
			create.PublicIP = "none"
		}
	}
	if req.UserData != "" {
		script, err := a.addScript(ctx, target, name, providers.WithProxy(req.UserData, a.set.Network.Proxy))
		if err != nil {
			return none, notYet(err) // a script that was made all the same is found by its name
		}
		create.Script = script
	}
	launched := time.Now().UTC()
	var body []byte
	err := a.call(ctx, rest.Call{Op: opLaunch, Target: target, Method: http.MethodPost, Path: "/instances", In: create, Out: &body})
	if err != nil {
		if create.Script != "" && providers.OutcomeOf(err) == providers.NotCreated {
			a.dropScript(ctx, target, create.Script)
		}
		return none, err
	}
	id, err := created(body)
	if err != nil {
		return none, a.api.Strange(opLaunch, target, "%v", err)
	}
	return providers.Instance{
		Ref:    providers.Ref{ID: id, Request: req.Request, Region: req.Market.Region},
		Market: req.Market, State: providers.Pending, Tags: req.Tags, Launched: launched,
	}, nil
}

// notYet is an error of a call before the create.
func notYet(err error) error {
	if e, ok := errors.AsType[*providers.Error](err); ok {
		e.Outcome = providers.NotCreated
	}
	return err
}

// affordable compares a request's bound with the price now.
func (a *Adapter) affordable(ctx context.Context, target string, req providers.LaunchRequest, disk int64) error {
	if req.PriceMax <= 0 {
		return nil
	}
	c, err := a.catalog(ctx, opLaunch, target, disk)
	if err != nil {
		return err
	}
	for _, t := range c.types {
		if t.Type != req.Market.Type {
			continue
		}
		switch compute, ok := t.price(req.Market.Kind); {
		case !ok:
			return a.api.Error(opLaunch, target, &providers.Error{
				Code: providers.NoCapacity, Message: "there is no price for it at present, to hold against the bound " + req.PriceMax.String(),
			})
		case compute+c.disk > req.PriceMax:
			return a.tooDear(target, compute+c.disk, req.PriceMax)
		}
	}
	return nil // what is not sold is refused by the create
}

func (a *Adapter) tooDear(target string, now, bound money.Rate) error {
	return a.api.Error(opLaunch, target, &providers.Error{
		Code: providers.PriceTooLow, Outcome: providers.NotCreated, Message: "the price is " + now.String() + ", the bound " + bound.String(),
	})
}

func (a *Adapter) addScript(ctx context.Context, target, name, text string) (string, error) {
	var body []byte
	err := a.call(ctx, rest.Call{
		Op: opLaunch, Target: target, Method: http.MethodPost, Path: "/scripts", In: map[string]string{"name": name, "script": text}, Out: &body,
	})
	if err != nil {
		return "", err
	}
	id, err := created(body)
	if err != nil {
		return "", a.api.Strange(opLaunch, target, "%v", err)
	}
	return id, nil
}

// cleanUp is how long a call that failed may tidy up after itself.
const cleanUp = 5 * time.Second

// dropScript removes the script of a machine that was not made. One that stays is
// listed as a machine of its request once it is old.
func (a *Adapter) dropScript(ctx context.Context, target, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	if err := a.deleteScript(ctx, opLaunch, target, id); err != nil {
		a.log.Warn("a startup script is left behind for now", "provider", a.name, "script", id, "error", err)
	}
}
