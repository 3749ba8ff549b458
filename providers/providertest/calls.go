package providertest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"gpubroker/providers"
)

func callChecks() []Check {
	return []Check{
		{"context-before", "A call with a context that has ended fails with canceled or deadline_exceeded and has no effect", checkContextBefore},
		{"context-during", "A call ends when its context does", checkContextDuring},
		{"concurrent", "An adapter is safe for concurrent use", checkConcurrent},
		{"secrets", "No secret stands in an error, a tag or an answer", checkSecrets},
	}
}

func checkContextBefore(t testing.TB, s *subject) {
	o := s.offers(t)[0]
	kept, inst := s.rent(t)
	other := s.request(o)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	expired, stop := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer stop()
	for want, ctx := range map[providers.Code]context.Context{providers.Canceled: canceled, providers.DeadlineExceed: expired} {
		for op, err := range map[string]error{
			"offers":    second(s.Offers(ctx, providers.Scope{})),
			"launch":    second(s.Launch(ctx, other)),
			"terminate": s.Terminate(ctx, inst.Ref),
			"describe":  second(s.Describe(ctx, inst.Ref)),
			"list":      second(s.List(ctx)),
		} {
			if !code(err, want) {
				t.Errorf("%s: %v, want %s", op, err, want)
			}
		}
	}
	s.nothing(t, other.Request)
	if live := s.live(t, kept.Request); len(live) != 1 {
		t.Error("a terminate with an ended context ended the machine")
	}
}

func second[T any](_ T, err error) error { return err }

func checkContextDuring(t testing.TB, s *subject) {
	o := s.offers(t)[0]
	_, inst := s.rent(t)
	call := map[string]func(context.Context) error{
		"offers":    func(ctx context.Context) error { return second(s.Offers(ctx, providers.Scope{})) },
		"terminate": func(ctx context.Context) error { return s.Terminate(ctx, inst.Ref) },
		"describe":  func(ctx context.Context) error { return second(s.Describe(ctx, inst.Ref)) },
		"list":      func(ctx context.Context) error { return second(s.List(ctx)) },
		// A new request each time: an adapter may find the machine of an old one
		// without any launch.
		"launch": func(ctx context.Context) error { return second(s.Launch(ctx, s.request(o))) },
	}
	for _, op := range []string{"offers", "list", "describe", "launch", "terminate"} {
		for _, want := range []providers.Code{providers.DeadlineExceed, providers.Canceled} {
			s.inject(t, Fault{Op: op, Hang: true})
			ctx, cancel := context.WithTimeout(t.Context(), s.patience())
			if want == providers.Canceled {
				cancel()
				ctx, cancel = context.WithCancel(t.Context())
				time.AfterFunc(s.patience(), cancel)
			}
			start := time.Now()
			err := call[op](ctx)
			cancel()
			if !code(err, want) {
				t.Errorf("%s without an answer: %v, want %s", op, err, want)
			}
			if took := time.Since(start); took > s.patience()+5*time.Second {
				t.Errorf("%s returned %v after its context ended", op, took-s.patience())
			}
		}
	}
}

func checkConcurrent(t testing.TB, s *subject) {
	offers := s.offers(t)
	workers := 8
	if s.real {
		workers = 2
	}
	// What a crowd may be told, beside success.
	fine := []providers.Code{"", providers.NoCapacity, providers.QuotaExceeded, providers.RateLimited, providers.NotFound}
	var wg sync.WaitGroup
	for n := range workers {
		wg.Go(func() {
			ctx := t.Context()
			req := s.request(offers[n%len(offers)])
			inst, err := s.Launch(ctx, req)
			if !code(err, fine...) {
				t.Errorf("launch: %v", err)
			}
			for range 3 {
				for op, err := range map[string]error{
					"offers":   second(s.Offers(ctx, providers.Scope{})),
					"list":     second(s.List(ctx)),
					"describe": second(s.Describe(ctx, providers.Ref{Request: req.Request})),
				} {
					if !code(err, fine...) {
						t.Errorf("%s: %v", op, err)
					}
				}
			}
			if err == nil {
				if err := s.Terminate(ctx, inst.Ref); !code(err, fine...) {
					t.Errorf("terminate: %v", err)
				}
			}
		})
	}
	wg.Wait()
}

func checkSecrets(t testing.TB, s *subject) {
	if len(s.account.Secrets) == 0 {
		t.Fatal("the harness names no secret; name the credentials or state a deviation")
	}
	// Every answer is searched as it passes; here they are provoked.
	o := s.offers(t)[0]
	var shown []string
	for _, f := range []Fault{
		{Op: "launch", Code: providers.Unauthorized},
		{Op: "launch", Code: providers.Unavailable},
		{Op: "launch", Code: providers.RateLimited},
		{Op: "launch", Hang: true, After: true},
	} {
		s.inject(t, f)
		ctx, cancel := context.WithTimeout(t.Context(), s.patience())
		_, err := s.Launch(ctx, s.request(o))
		cancel()
		if err == nil {
			t.Errorf("%+v was provoked and did not come", f)
		}
		shown = append(shown, fmt.Sprint(err))
	}
	o.Type = "no-such-type"
	_, err := s.Launch(t.Context(), s.request(o))
	shown = append(shown, fmt.Sprint(err))
	if t.Failed() {
		t.Logf("errors seen: %q", shown)
	}
}
