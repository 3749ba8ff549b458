package managed_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/providers/managed"
)

// bulk is an adapter that launches many at once.
type bulk struct {
	*script
	many func(context.Context, []providers.LaunchRequest) []providers.LaunchAnswer
}

func (b bulk) LaunchMany(ctx context.Context, reqs []providers.LaunchRequest) []providers.LaunchAnswer {
	return b.many(ctx, reqs)
}

func requests(n int) []providers.LaunchRequest {
	out := make([]providers.LaunchRequest, n)
	for i := range out {
		out[i] = request()
		out[i].Request = fmt.Sprintf("req-%d", i+1)
		out[i].Tags.Request = out[i].Request
	}
	return out
}

// machines answers each request with a machine of its own.
func machines(reqs []providers.LaunchRequest) []providers.LaunchAnswer {
	out := make([]providers.LaunchAnswer, len(reqs))
	for i, r := range reqs {
		out[i].Instance = machine(r)
		out[i].Instance.Ref.ID = "i-" + r.Request
	}
	return out
}

func refusal(c providers.Code, o providers.Outcome) error {
	return &providers.Error{Code: c, Outcome: o, Provider: "acme", Op: "launch"}
}

// shown is an answer in words: the machine's id, or the code and the outcome.
func shown(answers []providers.LaunchAnswer) []string {
	var out []string
	for _, a := range answers {
		if e, ok := errors.AsType[*providers.Error](a.Err); ok {
			out = append(out, string(e.Code)+" "+string(e.Outcome))
			continue
		}
		out = append(out, a.Instance.Ref.ID)
	}
	return out
}

func TestEachAnswerOfManyIsHeldToItsRequest(t *testing.T) {
	const three = 3
	for _, tc := range []struct {
		name   string
		change func([]providers.LaunchRequest)
		answer func([]providers.LaunchRequest, []providers.LaunchAnswer) []providers.LaunchAnswer
		want   []string
		calls  int
	}{
		{name: "all machines", want: []string{"i-req-1", "i-req-2", "i-req-3"}, calls: 1},
		{
			name: "one is refused",
			answer: func(_ []providers.LaunchRequest, a []providers.LaunchAnswer) []providers.LaunchAnswer {
				a[1] = providers.LaunchAnswer{Err: refusal(providers.NoCapacity, providers.NotCreated)}
				return a
			},
			want: []string{"i-req-1", "no_capacity not_created", "i-req-3"}, calls: 1,
		},
		{
			name: "an error without an outcome leaves it open",
			answer: func(_ []providers.LaunchRequest, a []providers.LaunchAnswer) []providers.LaunchAnswer {
				a[2] = providers.LaunchAnswer{Err: errors.New("connection reset")}
				return a
			},
			want: []string{"i-req-1", "i-req-2", "unknown unknown"}, calls: 1,
		},
		{
			name: "answers are swapped",
			answer: func(_ []providers.LaunchRequest, a []providers.LaunchAnswer) []providers.LaunchAnswer {
				a[0], a[1] = a[1], a[0]
				return a
			},
			want: []string{"unknown unknown", "unknown unknown", "i-req-3"}, calls: 1,
		},
		{
			name: "one machine for two",
			answer: func(_ []providers.LaunchRequest, a []providers.LaunchAnswer) []providers.LaunchAnswer {
				a[1].Instance.Ref.ID = a[0].Instance.Ref.ID
				return a
			},
			want: []string{"unknown unknown", "unknown unknown", "i-req-3"}, calls: 1,
		},
		{
			name: "an answer is missing",
			answer: func(_ []providers.LaunchRequest, a []providers.LaunchAnswer) []providers.LaunchAnswer {
				return a[:2]
			},
			want: []string{"unknown unknown", "unknown unknown", "unknown unknown"}, calls: 1,
		},
		{
			name: "one cannot be sent", change: func(r []providers.LaunchRequest) { r[1].Tags.Owner = "" },
			want: []string{"i-req-1", "invalid_request not_created", "i-req-3"}, calls: 1,
		},
		{
			name: "one is of another market", change: func(r []providers.LaunchRequest) { r[2].Market.Type = "g2" },
			want: []string{"i-req-1", "i-req-2", "invalid_request not_created"}, calls: 1,
		},
		{
			name: "one is there twice", change: func(r []providers.LaunchRequest) { r[2] = r[0] },
			want: []string{"i-req-1", "i-req-2", "invalid_request not_created"}, calls: 1,
		},
		{
			name: "none can be sent", change: func(r []providers.LaunchRequest) {
				for i := range r {
					r[i].Request = ""
				}
			},
			want: []string{"invalid_request not_created", "invalid_request not_created", "invalid_request not_created"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				p := managed.New(bulk{&script{}, func(_ context.Context, reqs []providers.LaunchRequest) []providers.LaunchAnswer {
					calls++
					out := machines(reqs)
					if tc.answer != nil {
						out = tc.answer(reqs, out)
					}
					return out
				}}, managed.Options{Owner: "broker"})
				reqs := requests(three)
				if tc.change != nil {
					tc.change(reqs)
				}
				if diff := cmp.Diff(tc.want, shown(p.LaunchMany(t.Context(), reqs))); diff != "" || calls != tc.calls {
					t.Errorf("%d calls, %s", calls, diff)
				}
			})
		})
	}
}

func TestManyAreRepeatedOnlyWhenNoneExists(t *testing.T) {
	busy := refusal(providers.RateLimited, providers.NotCreated)
	for _, tc := range []struct {
		name  string
		first []error // of the first call; nil is a machine
		calls int
		want  []string
	}{
		{"all may be", []error{busy, busy}, 2, []string{"i-req-1", "i-req-2"}},
		{"one exists", []error{nil, busy}, 1, []string{"i-req-1", "rate_limited not_created"}},
		{"one may exist", []error{refusal(providers.Unavailable, providers.OutcomeUnknown), busy}, 1, []string{"unavailable unknown", "rate_limited not_created"}},
		{"one is not to be repeated", []error{busy, refusal(providers.NoCapacity, providers.NotCreated)}, 1, []string{"rate_limited not_created", "no_capacity not_created"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				p := managed.New(bulk{&script{}, func(_ context.Context, reqs []providers.LaunchRequest) []providers.LaunchAnswer {
					calls++
					out := machines(reqs)
					if calls == 1 {
						for i, err := range tc.first {
							if err != nil {
								out[i] = providers.LaunchAnswer{Err: err}
							}
						}
					}
					return out
				}}, managed.Options{Owner: "broker"})
				if diff := cmp.Diff(tc.want, shown(p.LaunchMany(t.Context(), requests(len(tc.first))))); diff != "" || calls != tc.calls {
					t.Errorf("%d calls, want %d: %s", calls, tc.calls, diff)
				}
			})
		})
	}
}

func TestManyThatAreNotSentExistNowhere(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := managed.New(bulk{&script{}, func(context.Context, []providers.LaunchRequest) []providers.LaunchAnswer {
		t.Error("a call was made")
		return nil
	}}, managed.Options{})
	want := []string{"canceled not_created", "canceled not_created"}
	if diff := cmp.Diff(want, shown(p.LaunchMany(ctx, requests(2)))); diff != "" {
		t.Error(diff)
	}
}

func TestManyHaveADeadlineAndHideTheirScripts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const join = "join-0123456789abcdef"
		m := managed.NewMetrics()
		p := managed.New(bulk{&script{}, func(ctx context.Context, reqs []providers.LaunchRequest) []providers.LaunchAnswer {
			<-ctx.Done()
			out := make([]providers.LaunchAnswer, len(reqs))
			for i := range out {
				out[i].Err = fmt.Errorf("post %s: %w", join, ctx.Err())
			}
			return out
		}}, managed.Options{Metrics: m})
		reqs := requests(2)
		reqs[1].UserData = "#!/bin/sh\nTOKEN=" + join + "\n"
		begun := time.Now()
		answers := p.LaunchMany(t.Context(), reqs)
		if diff := cmp.Diff([]string{"deadline_exceeded unknown", "deadline_exceeded unknown"}, shown(answers)); diff != "" {
			t.Error(diff)
		}
		if took := time.Since(begun); took != managed.Timeouts()[managed.OpLaunchMany] {
			t.Errorf("given up after %v", took)
		}
		for _, a := range answers {
			if strings.Contains(a.Err.Error(), join) {
				t.Errorf("%v shows a token", a.Err)
			}
		}
		if got := value(t, m, "gpubroker_provider_calls_total", managed.OpLaunchMany); got != 1 {
			t.Errorf("%v calls are counted", got)
		}
	})
}

// purse is an adapter of a prepaid account that rates capacity.
type purse struct {
	*script
	funds  providers.Funds
	scores []providers.Score
	err    error
}

func (p purse) Balance(context.Context) (providers.Funds, error) { return p.funds, p.err }

func (p purse) Scores(context.Context, string, []string, int) ([]providers.Score, error) {
	return p.scores, p.err
}

func TestFundsAndScoresAreChecked(t *testing.T) {
	at := time.Date(2026, 11, 5, 22, 0, 0, 0, time.FixedZone("CET", 3600))
	good := providers.Funds{Left: 12 * money.Unit, Currency: money.USD, At: at}
	p := managed.New(wrapper{purse{script: &script{}, funds: good, scores: []providers.Score{
		{Region: "a", Of10: 9}, {Region: "b", Of10: 11}, {Region: "c", Of10: 3}, {Region: "a", Zone: "a1", Of10: 1},
	}}}, managed.Options{})
	f, err := p.Balance(t.Context())
	if err != nil || f.At.Location() != time.UTC || !f.At.Equal(at) || f.Left != good.Left {
		t.Errorf("%+v, %v", f, err)
	}
	scores, err := p.Scores(t.Context(), "g1", []string{"a", "b"}, 8)
	if diff := cmp.Diff([]providers.Score{{Region: "a", Of10: 9}, {Region: "a", Zone: "a1", Of10: 1}}, scores); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	for name, f := range map[string]providers.Funds{"no currency": {At: at}, "no moment": {Currency: money.USD}} {
		p := managed.New(purse{script: &script{}, funds: f}, managed.Options{})
		if _, err := p.Balance(t.Context()); providers.CodeOf(err) != providers.Unknown {
			t.Errorf("%s: %v", name, err)
		}
	}
	p = managed.New(purse{script: &script{}, err: code(providers.Unauthorized)}, managed.Options{})
	if _, err := p.Balance(t.Context()); err == nil || err.Error() != "acme: balance: unauthorized" {
		t.Errorf("got %v", err)
	}
	if _, err := p.Scores(t.Context(), "g1", nil, 1); err == nil || err.Error() != "acme: scores g1: unauthorized" {
		t.Errorf("got %v", err)
	}
}
