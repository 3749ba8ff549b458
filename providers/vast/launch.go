package vast

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"gpubroker/providers"
	"gpubroker/providers/rest"
)

type createRequest struct {
	Client  string            `json:"client_id"`
	Image   string            `json:"image"`
	Label   string            `json:"label"`
	Disk    int64             `json:"disk"` // GB
	Runtype string            `json:"runtype"`
	OnStart string            `json:"onstart,omitempty"`
	Env     map[string]string `json:"env"`
	Cancel  bool              `json:"cancel_unavail"` // fail rather than leave a stopped instance
	Price   json.Number       `json:"price,omitempty"`
}

// Launch rents a machine for a request id: the cheapest ask of the market as it is
// now. Vast has no idempotency key: the request's machine is looked for first.
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
	i, ok, err := a.look(ctx, opLaunch, target, providers.Ref{ID: id, Request: req.Request}, a.lately)
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
			Code: providers.Conflict, Message: "request " + req.Request + " has instance " + got.Ref.ID + " at " + got.Market.String(),
		})
	}
	return got, true, nil
}

func (a *Adapter) rent(ctx context.Context, target string, req providers.LaunchRequest) (providers.Instance, error) {
	none := providers.Instance{}
	create := createRequest{
		Client: "me", Image: a.set.Image, Disk: max(a.set.disk(), (req.Disk+gb-1)/gb*gb) / gb,
		Runtype: "ssh", Env: map[string]string{}, Cancel: true,
	}
	if create.Image == "" {
		create.Image = defaultImage
	}
	var ok bool
	if create.Label, ok = label(req); !ok {
		return none, a.refused(target, providers.InvalidRequest, "owner, project and request make a label of more than %d bytes", maxLabel)
	}
	if create.OnStart, ok = onStart(providers.WithProxy(req.UserData, a.set.Network.Proxy)); !ok {
		return none, a.refused(target, providers.InvalidRequest, "the start script has more than %d bytes, packed", maxOnStart)
	}
	k, err := a.pick(ctx, target, req, create.Disk*gb)
	if err != nil {
		return none, notYet(err)
	}
	if req.Market.Kind == providers.Spot {
		bid, _ := k.bid()
		create.Price = json.Number(bid.String())
	}
	launched := time.Now().UTC()
	var answer failure
	err = a.call(ctx, rest.Call{
		Op: opLaunch, Target: target, Method: http.MethodPut, Path: "/api/v0/asks/" + strconv.FormatInt(k.ID, 10) + "/", In: create, Out: &answer,
	})
	if err != nil {
		if code := providers.CodeOf(err); code == providers.NoCapacity || code == providers.PriceTooLow {
			a.board.forget() // it is not what it was
		} else if providers.OutcomeOf(err) == providers.NotCreated {
			a.board.free(k.ID)
		}
		return none, err
	}
	if answer.Contract == nil || *answer.Contract <= 0 {
		return none, a.api.Strange(opLaunch, target, "the answer names no instance")
	}
	id := strconv.FormatInt(*answer.Contract, 10)
	if answer.Success != nil && !*answer.Success || answer.word() != "" {
		a.board.forget()
		return none, a.undo(ctx, target, id, create.Price != "", answer)
	}
	total, _, _ := k.price(req.Market.Kind)
	return providers.Instance{
		Ref:    providers.Ref{ID: id, Request: req.Request, Region: req.Market.Region},
		Market: req.Market, State: providers.Pending, Tags: req.Tags, Launched: launched, Price: total,
	}, nil
}

// cleanUp is how long a call that failed may tidy up after itself.
const cleanUp = 10 * time.Second

// undo destroys the instance that a failed create has left: stopped, and its disk
// paid for.
func (a *Adapter) undo(ctx context.Context, target, id string, bid bool, answer failure) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	said := answer.word() + ": " + answer.text()
	if err := a.destroy(ctx, id, id); err != nil && providers.CodeOf(err) != providers.NotFound {
		return a.api.Error(opLaunch, target, &providers.Error{
			Code: providers.Unavailable, Scope: providers.ScopeOffer, Outcome: providers.OutcomeUnknown, Err: err,
			Message: "a failed create left instance " + id + ", which could not be destroyed: " + said,
		})
	}
	if bid {
		return a.refused(target, providers.PriceTooLow, "%s; instance %s, which it left, is destroyed", said, id)
	}
	return a.refused(target, providers.NoCapacity, "%s; instance %s, which it left, is destroyed", said, id)
}

// refused is the error of a launch that made nothing.
func (a *Adapter) refused(target string, code providers.Code, format string, args ...any) error {
	return a.api.Error(opLaunch, target, &providers.Error{Code: code, Outcome: providers.NotCreated, Message: fmt.Sprintf(format, args...)})
}

// notYet is an error of a call before the create.
func notYet(err error) error {
	if e, ok := errors.AsType[*providers.Error](err); ok {
		e.Outcome = providers.NotCreated
	}
	return err
}

// maxOnStart is the longest start script in bytes: 4,048 of the 4,096 that script
// and arguments have together (vast-ai/docs, create_instance.yaml).
const maxOnStart = 4048

// onStart is the script that a container runs at each start. A long one goes
// packed; false when it is too long even so.
func onStart(userData string) (string, bool) {
	if len(userData) <= maxOnStart {
		return userData, true
	}
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return "", false
	}
	if _, err := z.Write([]byte(userData)); err != nil || z.Close() != nil {
		return "", false
	}
	text := "#!/bin/sh\nf=${HOME:-/root}/.gpubroker-start\n(umask 077; echo " + base64.StdEncoding.EncodeToString(packed.Bytes()) + " | base64 -d | gzip -d >$f)\nexec sh $f\n"
	return text, len(text) <= maxOnStart
}
