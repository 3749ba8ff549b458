package managed_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"gpubroker/providers"
	"gpubroker/providers/managed"
)

// script is an adapter whose answers a test writes down.
type script struct {
	caps      providers.Capabilities
	offers    func(context.Context) ([]providers.Offer, error)
	launch    func(context.Context, providers.LaunchRequest) (providers.Instance, error)
	terminate func(context.Context, providers.Ref) error
	describe  func(context.Context, providers.Ref) (providers.Instance, error)
	list      func(context.Context) ([]providers.Instance, error)
}

func (s *script) Name() string                         { return "acme" }
func (s *script) Capabilities() providers.Capabilities { return s.caps }
func (s *script) Offers(ctx context.Context, _ providers.Scope) ([]providers.Offer, error) {
	return s.offers(ctx)
}

func (s *script) Launch(ctx context.Context, r providers.LaunchRequest) (providers.Instance, error) {
	return s.launch(ctx, r)
}

func (s *script) Terminate(ctx context.Context, r providers.Ref) error { return s.terminate(ctx, r) }

func (s *script) Describe(ctx context.Context, r providers.Ref) (providers.Instance, error) {
	return s.describe(ctx, r)
}
func (s *script) List(ctx context.Context) ([]providers.Instance, error) { return s.list(ctx) }

type wrapper struct{ providers.Provider }

func (w wrapper) Unwrap() providers.Provider { return w.Provider }

type mover struct {
	*script
	moved *int
}

func (m mover) MoveEnd(context.Context, providers.Ref, time.Time) error { *m.moved++; return nil }

func code(c providers.Code) error { return &providers.Error{Code: c, Provider: "acme", Op: "x"} }

func request() providers.LaunchRequest {
	return providers.LaunchRequest{
		Request: "req-1",
		Market:  providers.Market{Provider: "acme", Type: "g1", Kind: providers.Spot},
		Tags:    providers.Tags{Owner: "broker", Request: "req-1"},
	}
}

func machine(req providers.LaunchRequest) providers.Instance {
	return providers.Instance{
		Ref: providers.Ref{ID: "i-1", Request: req.Request}, Market: req.Market,
		State: providers.Pending, Tags: req.Tags,
	}
}

// noJitter makes waits exact.
func noJitter() float64 { return 0 }

func TestRepeatsFollowTheTableOfReactions(t *testing.T) {
	for c, reaction := range providers.Reactions() {
		t.Run(string(c), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				p := managed.New(&script{list: func(context.Context) ([]providers.Instance, error) {
					calls++
					return nil, code(c)
				}}, managed.Options{Tries: 3})
				_, err := p.List(t.Context())
				want := 1
				if reaction.Retry || c == providers.Canceled { // a cancellation that is not the caller's is a deadline
					want = 3
				}
				if calls != want || err == nil {
					t.Errorf("%d calls and error %v, want %d calls and an error", calls, err, want)
				}
			})
		})
	}
}

func TestLaunchIsRepeatedOnlyWhenNothingExists(t *testing.T) {
	for _, tc := range []struct {
		name    string
		err     error
		calls   int
		code    providers.Code
		outcome providers.Outcome
	}{
		{"throttled before", &providers.Error{Code: providers.RateLimited, Outcome: providers.NotCreated}, 4, providers.RateLimited, providers.NotCreated},
		{"down before", &providers.Error{Code: providers.Unavailable, Outcome: providers.NotCreated}, 4, providers.Unavailable, providers.NotCreated},
		{"down, outcome unknown", &providers.Error{Code: providers.Unavailable, Outcome: providers.OutcomeUnknown}, 1, providers.Unavailable, providers.OutcomeUnknown},
		{"down, nothing said", &providers.Error{Code: providers.Unavailable}, 1, providers.Unavailable, providers.OutcomeUnknown},
		{"no capacity", &providers.Error{Code: providers.NoCapacity, Outcome: providers.NotCreated}, 1, providers.NoCapacity, providers.NotCreated},
		{"a plain error", io.ErrUnexpectedEOF, 1, providers.Unknown, providers.OutcomeUnknown},
		{"an invented code", &providers.Error{Code: "weather", Outcome: providers.NotCreated}, 1, providers.Unknown, providers.NotCreated},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				p := managed.New(&script{launch: func(context.Context, providers.LaunchRequest) (providers.Instance, error) {
					calls++
					return providers.Instance{}, tc.err
				}}, managed.Options{})
				_, err := p.Launch(t.Context(), request())
				if calls != tc.calls || providers.CodeOf(err) != tc.code || providers.OutcomeOf(err) != tc.outcome {
					t.Errorf("%d calls, %s, %s; want %d, %s, %s", calls, providers.CodeOf(err), providers.OutcomeOf(err), tc.calls, tc.code, tc.outcome)
				}
				e, ok := errors.AsType[*providers.Error](err)
				if !ok || e.Provider != "acme" || e.Op != managed.OpLaunch || e.Target != "acme///g1/spot" || e.Scope == "" {
					t.Errorf("error is incomplete: %#v", err)
				}
			})
		})
	}
}

func TestEveryTryHasADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		hang := &script{
			describe: func(ctx context.Context, _ providers.Ref) (providers.Instance, error) {
				calls++
				<-ctx.Done()
				return providers.Instance{}, ctx.Err()
			},
			launch: func(ctx context.Context, _ providers.LaunchRequest) (providers.Instance, error) {
				calls++
				<-ctx.Done()
				return providers.Instance{}, fmt.Errorf("post: %w", ctx.Err())
			},
		}
		p := managed.New(hang, managed.Options{Tries: 2, Jitter: noJitter})
		start := time.Now()
		_, err := p.Describe(t.Context(), providers.Ref{Request: "r"})
		if providers.CodeOf(err) != providers.DeadlineExceed || calls != 2 {
			t.Errorf("describe: %v after %d calls, want deadline_exceeded after 2", err, calls)
		}
		if took, want := time.Since(start), 2*15*time.Second+500*time.Millisecond; took != want {
			t.Errorf("describe took %v, want %v", took, want)
		}
		calls = 0
		_, err = p.Launch(t.Context(), request())
		if providers.CodeOf(err) != providers.DeadlineExceed || providers.OutcomeOf(err) != providers.OutcomeUnknown || calls != 1 {
			t.Errorf("launch: %v (%s) after %d calls, want deadline_exceeded, unknown, 1", err, providers.OutcomeOf(err), calls)
		}
	})
}

func TestTheCallersContextEndsAllWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		p := managed.New(&script{
			list: func(context.Context) ([]providers.Instance, error) {
				calls++
				return nil, &providers.Error{Code: providers.RateLimited, RetryAfter: 20 * time.Second}
			},
			launch: func(context.Context, providers.LaunchRequest) (providers.Instance, error) {
				t.Error("launch was sent")
				return providers.Instance{}, nil
			},
		}, managed.Options{})
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.List(ctx); providers.CodeOf(err) != providers.RateLimited {
			t.Errorf("got %v, want the last answer", err)
		}
		// The bucket is closed now: a launch ends unsent, and so without a machine.
		_, err := p.Launch(ctx, request())
		if providers.CodeOf(err) != providers.DeadlineExceed || providers.OutcomeOf(err) != providers.NotCreated || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v (%s), want an unsent launch", err, providers.OutcomeOf(err))
		}
		canceled, stop := context.WithCancel(t.Context())
		stop()
		if _, err := p.Launch(canceled, request()); providers.CodeOf(err) != providers.Canceled {
			t.Errorf("got %v, want canceled", err)
		}
		if took := time.Since(start); took != time.Second || calls != 1 {
			t.Errorf("took %v and %d calls, want 1s and 1", took, calls)
		}
	})
}

func TestRetryAfterIsKeptUpToACap(t *testing.T) {
	for _, tc := range []struct{ told, want time.Duration }{
		{7 * time.Second, 7 * time.Second},
		{24 * time.Hour, 30 * time.Second},
		{-time.Hour, 500 * time.Millisecond},
	} {
		t.Run(tc.told.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var at []time.Time
				p := managed.New(&script{list: func(context.Context) ([]providers.Instance, error) {
					if at = append(at, time.Now()); len(at) == 1 {
						return nil, &providers.Error{Code: providers.RateLimited, RetryAfter: tc.told}
					}
					return nil, nil
				}}, managed.Options{Jitter: noJitter})
				if _, err := p.List(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := at[1].Sub(at[0]); got != tc.want {
					t.Errorf("waited %v, want %v", got, tc.want)
				}
			})
		})
	}
}

// A hundred calls against a cloud that takes five a second: the pace adapts, so
// that few are refused, and ends are not held up behind them.
func TestPaceAdaptsToThrottling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refused, served atomic.Int64
		cloud := rate.NewLimiter(5, 5)
		p := managed.New(&script{
			list: func(context.Context) ([]providers.Instance, error) {
				if !cloud.Allow() {
					refused.Add(1)
					return nil, &providers.Error{Code: providers.RateLimited, RetryAfter: time.Second}
				}
				served.Add(1)
				return nil, nil
			},
			terminate: func(context.Context, providers.Ref) error { return nil },
		}, managed.Options{Rate: 20, Burst: 10, Tries: 50})
		start := time.Now()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if _, err := p.List(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if err := p.Terminate(t.Context(), providers.Ref{Request: "r"}); err != nil || time.Since(start) > time.Second {
			t.Errorf("terminate waited %v behind other calls: %v", time.Since(start), err)
		}
		wg.Wait()
		if served.Load() != 100 || refused.Load() > 60 {
			t.Errorf("%d served and %d refused, want 100 and at most 60", served.Load(), refused.Load())
		}
		if took := time.Since(start); took < 19*time.Second || took > 3*time.Minute {
			t.Errorf("took %v", took)
		}
	})
}

func TestRepeatsBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		start := time.Now()
		p := managed.New(&script{list: func(context.Context) ([]providers.Instance, error) {
			at = append(at, time.Since(start))
			return nil, &providers.Error{Code: providers.Unavailable, RetryAfter: -time.Hour}
		}}, managed.Options{Tries: 8, Jitter: noJitter})
		_, err := p.List(t.Context())
		var want []time.Duration
		for _, s := range []float64{0, .5, 1.5, 3.5, 7.5, 15.5, 25.5, 35.5} {
			want = append(want, time.Duration(s*float64(time.Second)))
		}
		if diff := cmp.Diff(want, at); diff != "" {
			t.Error(diff)
		}
		if e, ok := errors.AsType[*providers.Error](err); !ok || e.RetryAfter != 0 {
			t.Errorf("a negative wait reaches the caller: %#v", err)
		}
	})
}

// A burst that is refused as one closes the bucket for every caller, and halves
// the pace once: its refusals say one thing.
func TestABurstIsOneRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var mu sync.Mutex
		var at []time.Duration
		p := managed.New(&script{
			list: func(context.Context) ([]providers.Instance, error) {
				time.Sleep(100 * time.Millisecond)
				return nil, &providers.Error{Code: providers.RateLimited, RetryAfter: 10 * time.Second}
			},
			describe: func(_ context.Context, ref providers.Ref) (providers.Instance, error) {
				mu.Lock()
				defer mu.Unlock()
				at = append(at, time.Since(start))
				return providers.Instance{}, code(providers.NotFound)
			},
		}, managed.Options{Rate: 8, Burst: 8, Tries: 1, Jitter: noJitter})
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { _, _ = p.List(t.Context()) })
		}
		wg.Wait()
		for range 12 {
			_, _ = p.Describe(t.Context(), providers.Ref{Request: "r"})
		}
		if at[0] < 10*time.Second {
			t.Errorf("another call was sent after %v, the provider asked for 10s", at[0])
		}
		if took := at[len(at)-1] - at[0]; took < time.Second || took > 3*time.Second {
			t.Errorf("11 more calls took %v, want about 2s at half the pace of 8", took)
		}
	})
}

func TestWhoStopsWaitingGivesItsTurnBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := managed.New(&script{list: func(context.Context) ([]providers.Instance, error) { return nil, nil }},
			managed.Options{Rate: 1, Burst: 1})
		_, _ = p.List(t.Context())
		for range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if _, err := p.List(ctx); providers.CodeOf(err) != providers.DeadlineExceed {
				t.Errorf("got %v", err)
			}
			cancel()
		}
		start := time.Now()
		if _, err := p.List(t.Context()); err != nil || time.Since(start) > time.Second {
			t.Errorf("waited %v behind callers that have left: %v", time.Since(start), err)
		}
	})
}

func TestPaceRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttle := true
		p := managed.New(&script{list: func(context.Context) ([]providers.Instance, error) {
			if throttle {
				return nil, code(providers.RateLimited)
			}
			return nil, nil
		}}, managed.Options{Rate: 10, Burst: 1, Tries: 6, Jitter: noJitter})
		_, _ = p.List(t.Context())
		throttle = false
		second := func() int {
			start, n := time.Now(), 0
			for time.Since(start) < time.Second {
				_, _ = p.List(t.Context())
				n++
			}
			return n
		}
		if n := second(); n > 3 {
			t.Errorf("%d calls in the first second after six refusals, want at most 3", n)
		}
		time.Sleep(time.Minute)
		for range 16 {
			_, _ = p.List(t.Context())
		}
		if n := second(); n < 9 {
			t.Errorf("%d calls a second after 16 successes, want the full pace of 10", n)
		}
	})
}

func TestTerminateBelievesNotFoundOnlyAfterALookByRequest(t *testing.T) {
	recorded := providers.Ref{ID: "i-old", Request: "req-1"}
	real := providers.Ref{ID: "i-new", Request: "req-1"}
	alive := providers.Instance{Ref: real, State: providers.Running, Tags: providers.Tags{Owner: "broker", Request: "req-1"}}
	ended := alive
	ended.State = providers.Terminated
	for _, tc := range []struct {
		name     string
		ref      providers.Ref
		describe providers.Instance
		err      error
		want     providers.Code
		ended    []providers.Ref
	}{
		{"gone by both words", recorded, providers.Instance{}, code(providers.NotFound), providers.NotFound, []providers.Ref{recorded}},
		{"remembered as ended", recorded, ended, nil, providers.NotFound, []providers.Ref{recorded}},
		{"lives under another id", recorded, alive, nil, "", []providers.Ref{recorded, real}},
		{"the look fails", recorded, providers.Instance{}, code(providers.Unauthorized), providers.Unauthorized, []providers.Ref{recorded}},
		{"no id to be wrong", providers.Ref{Request: "req-1"}, alive, nil, providers.NotFound, []providers.Ref{{Request: "req-1"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var ends []providers.Ref
				p := managed.New(&script{
					terminate: func(_ context.Context, ref providers.Ref) error {
						ends = append(ends, ref)
						if ref == real {
							return nil
						}
						return code(providers.NotFound)
					},
					describe: func(_ context.Context, ref providers.Ref) (providers.Instance, error) {
						if ref.ID != "" {
							t.Errorf("the look used the recorded id %q", ref.ID)
						}
						return tc.describe, tc.err
					},
				}, managed.Options{Owner: "broker"})
				if got := providers.CodeOf(p.Terminate(t.Context(), tc.ref)); got != tc.want {
					t.Errorf("got %q, want %q", got, tc.want)
				}
				if diff := cmp.Diff(tc.ended, ends); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestSecretsAreHidden(t *testing.T) {
	const key, join = "sk-live/+a b\"c", "join-0123456789abcdef"
	leaks := []string{
		"denied: key sk-live/+a b\"c", "GET /?k=sk-live%2F%2Ba+b%22c", "GET /sk-live%2F+a%20b%22c",
		`{"k":"sk-live/+a b\"c"}`, "basic c2stbGl2ZS8rYSBiImM=", "bad user data line 2: TOKEN=join-0123456789abcdef",
	}
	for _, words := range leaks {
		synctest.Test(t, func(t *testing.T) {
			cause := fmt.Errorf("post: %s: %w", words, context.DeadlineExceeded)
			p := managed.New(&script{
				launch: func(context.Context, providers.LaunchRequest) (providers.Instance, error) {
					return providers.Instance{}, &providers.Error{Code: providers.InvalidRequest, Message: "two\nlines " + words, Err: cause}
				},
				describe: func(context.Context, providers.Ref) (providers.Instance, error) {
					i := machine(request())
					i.Message = words
					return i, nil
				},
			}, managed.Options{Secrets: []string{key, "x"}})
			req := request()
			req.UserData = "#!/bin/sh\nTOKEN=" + join + "\n"
			_, err := p.Launch(t.Context(), req)
			var shown strings.Builder
			fmt.Fprintf(&shown, "%v %+v %#v", err, err, err)
			for e := err; e != nil; e = errors.Unwrap(e) {
				fmt.Fprintf(&shown, "%v %#v", e, e)
			}
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v has lost its cause", err)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q is more than one line", err)
			}
			i, err := p.Describe(t.Context(), providers.Ref{ID: "i-1", Request: "req-1"})
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(words, join) {
				shown.WriteString(i.Message)
			}
			for _, secret := range []string{key, join, "sk-live", "c2stbGl2ZS8rYSBiImM"} {
				if strings.Contains(shown.String(), secret) {
					t.Errorf("%q shows %q", shown.String(), secret)
				}
			}
		})
	}
}

func TestTheAdaptersErrorIsLeftAlone(t *testing.T) {
	own := &providers.Error{Code: providers.NoFunds, Message: "a\nb"}
	p := managed.New(&script{list: func(context.Context) ([]providers.Instance, error) { return nil, own }}, managed.Options{})
	if _, err := p.List(t.Context()); err == nil || err.Error() != "acme: list: no_funds: a b" {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff(&providers.Error{Code: providers.NoFunds, Message: "a\nb"}, own); diff != "" {
		t.Error(diff)
	}
}

func TestAbilitiesAreFoundThroughWrappers(t *testing.T) {
	bare := managed.New(wrapper{&script{}}, managed.Options{})
	if bare.MoveEnd != nil || bare.Bill != nil || bare.Quotas != nil || bare.Preflight != nil || bare.Console != nil || bare.Interruptions != nil ||
		bare.Balance != nil || bare.Scores != nil || bare.LaunchMany != nil {
		t.Error("an adapter without abilities has some")
	}
	moved := 0
	if managed.New(mover{&script{}, &moved}, managed.Options{}).MoveEnd != nil {
		t.Error("the end can be moved though the provider keeps none")
	}
	rolling := &script{caps: providers.Capabilities{SelfEnd: providers.EndRolling}}
	p := managed.New(wrapper{wrapper{mover{rolling, &moved}}}, managed.Options{})
	if p.MoveEnd == nil {
		t.Fatal("the ability was not found")
	}
	if err := p.MoveEnd(t.Context(), providers.Ref{Request: "r"}, time.Now()); err != nil || moved != 1 {
		t.Errorf("moved %d times: %v", moved, err)
	}
	if _, ok := managed.Find[providers.EndMover](p); !ok {
		t.Error("the ability was not found through the managed provider")
	}
}

func TestCallsAreCountedByCode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := managed.NewMetrics()
		answers := []error{code("weather"), code(providers.Unavailable), nil}
		p := managed.New(&script{list: func(context.Context) ([]providers.Instance, error) {
			err := answers[0]
			answers = answers[1:]
			return nil, err
		}}, managed.Options{Metrics: m})
		_, _ = p.List(t.Context())
		_, _ = p.List(t.Context())
		for word, want := range map[string]float64{"unknown": 1, "unavailable": 1, "ok": 1} {
			if got := value(t, m, "gpubroker_provider_calls_total", word); got != want {
				t.Errorf("%s: %v, want %v", word, got, want)
			}
		}
	})
}

// value sums a counter over the series that have the label value.
func value(t *testing.T, c prometheus.Collector, name, label string) (sum float64) {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, series := range f.GetMetric() {
			for _, l := range series.GetLabel() {
				if f.GetName() == name && l.GetValue() == label {
					sum += series.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}
