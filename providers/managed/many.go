package managed

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"gpubroker/providers"
)

// launchMany rents a machine for each request, with each answer checked like
// that of [Provider.Launch]. What is wrong with a request is said before any
// call. The call is repeated only when certainly no machine exists of any
// request, and each error allows it.
func (p *Provider) launchMany(ctx context.Context, a providers.BulkLauncher, reqs []providers.LaunchRequest) []providers.LaunchAnswer {
	out := make([]providers.LaunchAnswer, len(reqs))
	var at []int
	var sent []providers.LaunchRequest
	for i, req := range reqs {
		if err := p.checkOneOf(reqs, i); err != nil {
			out[i].Err = err
			p.opts.Metrics.call(p.name, OpLaunchMany, providers.InvalidRequest, 0)
			continue
		}
		req.PriceMax = p.gross(&req.Market, req.PriceMax)
		at, sent = append(at, i), append(sent, req)
	}
	if len(sent) == 0 {
		return out
	}
	var scripts strings.Builder
	for _, req := range sent {
		scripts.WriteString(req.UserData + "\n")
	}
	inv := invocation{op: OpLaunchMany, target: sent[0].Market.String(), userData: scripts.String()}
	var answers []providers.LaunchAnswer
	_, err := call(ctx, p, inv, func(try context.Context) (struct{}, error) {
		begun := time.Now()
		answers = p.answers(ctx, inv, sent, a.LaunchMany(try, slices.Clone(sent)))
		err := gist(answers)
		if err == nil { // some machines may have been refused for haste
			for _, one := range answers {
				if e, ok := errors.AsType[*providers.Error](one.Err); ok && e.Code == providers.RateLimited {
					p.calls.throttled(begun, min(e.RetryAfter, p.opts.RetryAfterMax))
				}
			}
		}
		return struct{}{}, err
	})
	for i, k := range at {
		if answers == nil { // nothing was sent
			out[k].Err = err
			continue
		}
		out[k] = answers[i]
	}
	return out
}

// checkOneOf finds what is wrong with one of many requests.
func (p *Provider) checkOneOf(reqs []providers.LaunchRequest, i int) error {
	req, first := reqs[i], reqs[0]
	inv := invocation{op: OpLaunchMany, target: req.Market.String(), userData: req.UserData}
	refuse := func(format string, args ...any) error {
		e := p.errorf(inv, providers.InvalidRequest, format, args...)
		e.Outcome = providers.NotCreated
		return e
	}
	if err := checkRequest(p.name, p.Capabilities(), req); err != nil {
		return refuse("%v", err)
	}
	if req.Market != first.Market || req.PriceMax != first.PriceMax || req.Group != first.Group {
		return refuse("requests of one call have one market, price bound and group; request %s has others than %s", req.Request, first.Request)
	}
	for _, o := range reqs[:i] {
		if o.Request == req.Request {
			return refuse("request %s is there twice", req.Request)
		}
	}
	return nil
}

// answers holds each answer to its request.
func (p *Provider) answers(ctx context.Context, inv invocation, sent []providers.LaunchRequest, got []providers.LaunchAnswer) []providers.LaunchAnswer {
	out := make([]providers.LaunchAnswer, len(sent))
	if len(got) != len(sent) {
		for i := range out {
			out[i].Err = p.notAsked(ctx, inv, WrongCount, providers.Instance{Ref: providers.Ref{Request: sent[i].Request}})
		}
		return out
	}
	ids := map[string]int{}
	for i := range got {
		if got[i].Err == nil {
			ids[got[i].Instance.Ref.ID]++
		}
	}
	for i, g := range got {
		switch {
		case g.Err != nil:
			out[i].Err = p.normal(ctx, inv, g.Err)
		case g.Instance.Ref.ID != "" && ids[g.Instance.Ref.ID] > 1:
			out[i].Err = p.notAsked(ctx, inv, SameID, g.Instance)
		default:
			out[i].Instance, out[i].Err = p.launched(ctx, inv, sent[i], g.Instance)
		}
	}
	return out
}

// gist is the error that decides whether the whole call may be repeated: nil
// when there is a machine, else the first that forbids it, else the one that
// wants the longest wait.
func gist(answers []providers.LaunchAnswer) error {
	var out *providers.Error
	for _, a := range answers {
		e, failed := errors.AsType[*providers.Error](a.Err)
		switch {
		case !failed:
			return nil
		case !mayRepeat(e):
			return e
		case out == nil || e.RetryAfter > out.RetryAfter:
			out = e
		}
	}
	return out
}

// balance returns what is left of a prepaid account.
func (p *Provider) balance(ctx context.Context, a providers.Balance) (providers.Funds, error) {
	inv := invocation{op: OpBalance}
	f, err := call(ctx, p, inv, a.Balance)
	if err != nil {
		return providers.Funds{}, err
	}
	if !currency(string(f.Currency)) || f.At.IsZero() {
		p.breach(ctx, OpBalance, BadFunds, "")
		return providers.Funds{}, p.errorf(inv, providers.Unknown, "the answer has no currency or no moment")
	}
	f.At = f.At.UTC()
	return f, nil
}

// scores returns the scores that keep the contract; others are left out and
// counted.
func (p *Provider) scores(ctx context.Context, a providers.Scores, instanceType string, regions []string, machines int) ([]providers.Score, error) {
	all, err := call(ctx, p, invocation{op: OpScores, target: instanceType}, func(ctx context.Context) ([]providers.Score, error) {
		return a.Scores(ctx, instanceType, regions, machines)
	})
	if err != nil {
		return nil, err
	}
	out := make([]providers.Score, 0, len(all))
	for _, s := range all {
		if s.Of10 < 1 || s.Of10 > 10 || len(regions) > 0 && !slices.Contains(regions, s.Region) {
			p.breach(ctx, OpScores, BadScore, instanceType)
			continue
		}
		out = append(out, s)
	}
	return out, nil
}
