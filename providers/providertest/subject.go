package providertest

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gpubroker/internal/money"
	"gpubroker/providers"
)

// subject is the adapter under one check. It is itself a provider: every answer
// that passes through it is held to what is true of all answers.
type subject struct {
	account Account
	raw     providers.Provider
	caps    providers.Capabilities
	name    string
	pkg     string // import path of the adapter
	check   string
	secrets []string
	real    bool
	purse   *purse
	t       testing.TB

	mu       sync.Mutex
	launches int
	prices   map[string]money.Rate // by request, to keep within the purse
}

func newSubject(t testing.TB, h Harness, c Check, a Account, p *purse) *subject {
	t.Helper()
	if a.Provider == nil || a.Owner == "" {
		t.Fatal("the harness gives no provider or no owner")
	}
	typ := reflect.TypeOf(a.Provider)
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	return &subject{
		account: a, raw: a.Provider, caps: a.Provider.Capabilities(), name: a.Provider.Name(), pkg: typ.PkgPath(),
		check: c.Name, secrets: a.Secrets, real: h.Real, purse: p, t: t,
		prices: map[string]money.Rate{},
	}
}

// with returns the subject over another adapter of the same account.
func (s *subject) with(p providers.Provider) *subject {
	return &subject{
		account: s.account, raw: p, caps: s.caps, name: s.name, pkg: s.pkg,
		check: s.check, secrets: s.secrets, real: s.real, purse: s.purse, t: s.t,
		prices: map[string]money.Rate{},
	}
}

// advance lets time pass.
func (s *subject) advance(d time.Duration) {
	if s.account.Advance != nil {
		s.account.Advance(d)
		return
	}
	time.Sleep(d)
}

// travel lets much time pass, which a run against a real cloud does not wait for.
func (s *subject) travel(t testing.TB, d time.Duration) {
	t.Helper()
	if s.real && d > 5*time.Minute {
		t.Skipf("would wait %v in real time", d)
	}
	s.advance(d)
}

// until lets time pass in steps until cond holds, and reports whether it did
// within limit.
func (s *subject) until(limit time.Duration, cond func() bool) bool {
	step := max(limit/100, time.Second)
	for passed := time.Duration(0); ; passed += step {
		if cond() {
			return true
		}
		if passed > limit {
			return false
		}
		s.advance(step)
	}
}

// offers returns what can be rented now, cheapest first, of the given kinds or
// of all.
func (s *subject) offers(t testing.TB, kinds ...providers.Kind) []providers.Offer {
	t.Helper()
	all, err := s.Offers(t.Context(), providers.Scope{})
	if err != nil {
		t.Fatalf("offers: %v", err)
	}
	all = slices.DeleteFunc(all, func(o providers.Offer) bool {
		return o.Available == providers.Full || len(kinds) > 0 && !slices.Contains(kinds, o.Kind)
	})
	slices.SortFunc(all, func(a, b providers.Offer) int {
		return cmp.Or(cmp.Compare(a.Price, b.Price), a.Market.Compare(b.Market))
	})
	if len(all) == 0 {
		t.Fatalf("nothing of kind %v can be rented in a fresh account", kinds)
	}
	return all
}

// request makes a new launch request for an offer.
func (s *subject) request(o providers.Offer) providers.LaunchRequest {
	s.mu.Lock()
	s.launches++
	id := fmt.Sprintf("t%d-%s", s.launches, strings.ToLower(rand.Text()[:10]))
	token := "join-" + rand.Text()
	s.secrets = append(slices.Clip(s.secrets), token)
	s.prices[id] = o.Price
	s.mu.Unlock()
	end := time.Now().Add(2 * time.Hour).UTC().Truncate(time.Second)
	req := providers.LaunchRequest{
		Request: id, Market: o.Market, UserData: "#!/bin/sh\n: " + token + "\n", Life: 2 * time.Hour,
		Tags: providers.Tags{Owner: s.account.Owner, Generation: "g1", Request: id, Project: "conformance", DeleteAt: end},
	}
	if s.caps.SelfEnd == providers.EndRolling || s.caps.SelfEnd == providers.EndFixed {
		req.End = end
	}
	if s.caps.PriceBound {
		req.PriceMax = 2 * o.Price
	}
	return req
}

// rent launches a machine on the cheapest offer of a kind and fails the check
// when that fails.
func (s *subject) rent(t testing.TB, kinds ...providers.Kind) (providers.LaunchRequest, providers.Instance) {
	t.Helper()
	req := s.request(s.offers(t, kinds...)[0])
	inst, err := s.Launch(t.Context(), req)
	if err != nil {
		t.Fatalf("launch: %v", err)
	}
	return req, inst
}

// running waits for the machine to run.
func (s *subject) running(t testing.TB, ref providers.Ref) providers.Instance {
	t.Helper()
	var inst providers.Instance
	var err error
	if !s.until(4*s.caps.BootTime+time.Minute, func() bool {
		inst, err = s.Describe(t.Context(), ref)
		return err == nil && inst.State == providers.Running
	}) {
		t.Fatalf("the machine does not run after four boot times: %q, %v", inst.State, err)
	}
	return inst
}

// gone asks for the machine's end until it is certainly gone.
func (s *subject) gone(t testing.TB, ref providers.Ref) {
	t.Helper()
	var err error
	if !s.until(s.caps.StopTime+5*time.Minute, func() bool {
		err = s.Terminate(t.Context(), ref)
		return providers.CodeOf(err) == providers.NotFound
	}) {
		t.Fatalf("terminate never says not_found, the last answer is %v", err)
	}
}

// live returns the machines of a request that List shows alive, after the lag
// that it may have.
func (s *subject) live(t testing.TB, request string) []providers.Instance {
	t.Helper()
	s.advance(s.caps.ListLag)
	all, err := s.List(t.Context())
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	return slices.DeleteFunc(all, func(i providers.Instance) bool { return !i.Live() || i.Tags.Request != request })
}

// nothing fails the check when a machine of the request exists.
func (s *subject) nothing(t testing.TB, request string) {
	t.Helper()
	if left := s.live(t, request); len(left) > 0 {
		t.Errorf("a machine was left behind: %s is %s", left[0].Ref.ID, left[0].State)
	}
	if i, err := s.Describe(t.Context(), providers.Ref{Request: request}); err == nil && i.Live() {
		t.Errorf("a machine was left behind: describe shows %s %s", i.Ref.ID, i.State)
	} else if err != nil && providers.CodeOf(err) != providers.NotFound {
		t.Errorf("describe: %v, want not_found", err)
	}
}

// empty ends every machine that is left in the account.
func (s *subject) empty(t testing.TB) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	if !s.until(s.caps.StopTime+s.caps.ListLag+5*time.Minute, func() bool {
		all, err := s.List(ctx)
		if err != nil {
			return false
		}
		over := true
		for _, i := range all {
			if i.Live() {
				over = false
				_ = s.Terminate(ctx, i.Ref)
			}
		}
		return over
	}) {
		t.Errorf("machines are left in the account that cannot be ended: look there")
	}
}

// Name implements [providers.Provider].
func (s *subject) Name() string { return s.raw.Name() }

// Capabilities implements [providers.Provider].
func (s *subject) Capabilities() providers.Capabilities { return s.raw.Capabilities() }

// Offers implements [providers.Provider].
func (s *subject) Offers(ctx context.Context, scope providers.Scope) ([]providers.Offer, error) {
	offers, err := s.raw.Offers(ctx, scope)
	s.note("offers", offers, err)
	if err != nil && len(offers) > 0 {
		s.t.Errorf("offers came with the error %v: whole or an error", err)
	}
	return offers, err
}

// Launch implements [providers.Provider].
func (s *subject) Launch(ctx context.Context, req providers.LaunchRequest) (providers.Instance, error) {
	s.mu.Lock()
	err := s.purse.take(max(req.PriceMax, s.prices[req.Request]), s.caps.Billing)
	s.mu.Unlock()
	if err != nil {
		s.t.Errorf("launch is not sent: %v", err)
		return providers.Instance{}, &providers.Error{Code: providers.NoFunds, Outcome: providers.NotCreated, Provider: s.name, Op: "launch", Err: err}
	}
	inst, err := s.raw.Launch(ctx, req)
	s.note("launch", inst, err)
	if err == nil {
		s.look("launch", inst)
	}
	return inst, err
}

// Terminate implements [providers.Provider].
func (s *subject) Terminate(ctx context.Context, ref providers.Ref) error {
	err := s.raw.Terminate(ctx, ref)
	s.note("terminate", nil, err)
	return err
}

// Describe implements [providers.Provider].
func (s *subject) Describe(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
	inst, err := s.raw.Describe(ctx, ref)
	s.note("describe", inst, err)
	if err == nil {
		s.look("describe", inst)
	}
	return inst, err
}

// List implements [providers.Provider].
func (s *subject) List(ctx context.Context) ([]providers.Instance, error) {
	all, err := s.raw.List(ctx)
	s.note("list", all, err)
	if err != nil && len(all) > 0 {
		s.t.Errorf("machines came with the error %v: whole or an error", err)
	}
	for _, i := range all {
		s.look("list", i)
	}
	return all, err
}

// note holds an answer to what is true of all answers.
func (s *subject) note(op string, answer any, err error) {
	if err != nil {
		s.fault(op, err)
		return
	}
	text, jsonErr := json.Marshal(answer)
	if jsonErr != nil {
		s.t.Errorf("%s: the answer has no JSON form: %v", op, jsonErr)
	}
	s.hides(op, string(text))
}

func (s *subject) fault(op string, err error) {
	e, ok := errors.AsType[*providers.Error](err)
	if !ok {
		s.t.Errorf("%s fails with %T, not *providers.Error: %v", op, err, err)
		return
	}
	switch _, known := providers.Reactions()[e.Code]; {
	case !known:
		s.t.Errorf("%s fails with the code %q, which is not in the list: %v", op, e.Code, err)
	case e.Code == providers.Unknown:
		s.t.Errorf("%s fails with unknown: the adapter does not know an answer of its provider: %v", op, err)
	}
	if e.Provider != s.name || e.Op == "" {
		s.t.Errorf("%s: the error does not say which provider (%q) or call (%q): %v", op, e.Provider, e.Op, err)
	}
	if e.RetryAfter < 0 {
		s.t.Errorf("%s: negative RetryAfter %v", op, e.RetryAfter)
	}
	switch {
	case op == "launch" && e.Outcome != providers.NotCreated && e.Outcome != providers.OutcomeUnknown:
		s.t.Errorf("launch fails without an outcome: %v", err)
	case op != "launch" && e.Outcome != "":
		s.t.Errorf("%s fails with an outcome, which only launches have: %v", op, err)
	}
	if strings.ContainsAny(err.Error(), "\r\n") {
		s.t.Errorf("%s: the error is more than one line: %q", op, err.Error())
	}
	for next := err; next != nil; next = errors.Unwrap(next) {
		s.hides(op, fmt.Sprintf("%v %+v", next, next))
	}
}

// hides fails the check when text shows a secret.
func (s *subject) hides(op, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, secret := range s.secrets {
		if secret != "" && strings.Contains(text, secret) {
			s.t.Errorf("%s shows a secret: %s", op, strings.ReplaceAll(text, secret, "<the secret>"))
		}
	}
}

// look holds a machine to what is true of all.
func (s *subject) look(op string, i providers.Instance) {
	if i.Ref.ID == "" || i.Ref.Request == "" || i.Ref.Request != i.Tags.Request {
		s.t.Errorf("%s: a machine with id %q, request %q and request tag %q", op, i.Ref.ID, i.Ref.Request, i.Tags.Request)
	}
	if i.Tags.Owner != s.account.Owner {
		s.t.Errorf("%s: machine %s has the owner tag %q, ours is %q", op, i.Ref.ID, i.Tags.Owner, s.account.Owner)
	}
	if i.Market.Provider != s.name || i.Market.Type == "" || !slices.Contains(s.caps.Kinds, i.Market.Kind) {
		s.t.Errorf("%s: machine %s is in the impossible market %s", op, i.Ref.ID, i.Market)
	}
	switch i.State {
	case providers.Pending, providers.Running, providers.Stopping, providers.Terminated:
	default:
		s.t.Errorf("%s: machine %s is in the unknown state %q", op, i.Ref.ID, i.State)
	}
	if i.Launched.IsZero() {
		s.t.Errorf("%s: machine %s has no launch time", op, i.Ref.ID)
	}
	for _, at := range []time.Time{i.Launched, i.Ended, i.End, i.Tags.DeleteAt} {
		if at.Location() != time.UTC {
			s.t.Errorf("%s: machine %s has a time in %v, not UTC", op, i.Ref.ID, at.Location())
		}
	}
	if i.Live() && !i.Ended.IsZero() {
		s.t.Errorf("%s: machine %s is %s and ended at %v", op, i.Ref.ID, i.State, i.Ended)
	}
	if i.State != providers.Stopping && i.Live() && i.Cause != providers.CauseUnknown {
		s.t.Errorf("%s: machine %s is %s and ended by %q", op, i.Ref.ID, i.State, i.Cause)
	}
	if i.Price < 0 {
		s.t.Errorf("%s: machine %s has the price %s", op, i.Ref.ID, i.Price)
	}
}

// code reports whether err has one of the codes.
func code(err error, codes ...providers.Code) bool {
	return slices.Contains(codes, providers.CodeOf(err))
}
