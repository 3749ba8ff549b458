package control_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/queue"
)

// littered is a provider whose machines have a disk each, which stays when the
// machine ends by itself: only Terminate removes it, and a machine is certainly
// gone when that is done.
type littered struct {
	providers.Provider

	mu    sync.Mutex
	disks map[string]bool // by request; true once its end was asked for
}

func (l *littered) Unwrap() providers.Provider { return l.Provider }

func (l *littered) Capabilities() providers.Capabilities {
	c := l.Provider.Capabilities()
	c.Beside = true
	return c
}

func (l *littered) Launch(ctx context.Context, req providers.LaunchRequest) (providers.Instance, error) {
	i, err := l.Provider.Launch(ctx, req)
	if err == nil {
		l.mu.Lock()
		l.disks[req.Request] = false
		l.mu.Unlock()
	}
	return i, err
}

func (l *littered) Terminate(ctx context.Context, ref providers.Ref) error {
	err := l.Provider.Terminate(ctx, ref)
	if providers.CodeOf(err) != providers.NotFound {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	asked, there := l.disks[ref.Request]
	switch {
	case there && asked:
		delete(l.disks, ref.Request)
	case there:
		l.disks[ref.Request] = true
		return nil
	}
	return err
}

// TestWhatStandsBesideAMachineIsEnded: a machine that its provider takes without a
// word leaves a disk that is paid for. The work goes on elsewhere at once, and the
// disk goes too.
func TestWhatStandsBesideAMachineIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &littered{disks: map[string]bool{}}
		s := newSite(t, calm())
		s.wrap = func(p providers.Provider) providers.Provider { l.Provider = p; return l }
		s.start()
		defer s.close()
		j := s.submit(task(time.Hour, saves))
		a := s.running()
		time.Sleep(20 * time.Minute)
		taken := time.Now()
		s.do(simapi.Action{Preempt: &simapi.Preempt{Pick: simapi.Pick{Machine: s.record(a.Instance).CloudID}, Notice: new(simapi.Duration(0))}})
		as := s.succeeded(j)
		s.want(as, queue.Preempted, queue.Succeeded)
		if back := as[1].Created.Sub(taken); back > 30*time.Second {
			t.Errorf("the work came back %v after its machine was taken", back)
		}
		first := s.record(a.Instance)
		if first.State != queue.InstanceGone || first.Gone.Code != "preempted" || first.Ended.After(taken.Add(time.Minute)) {
			t.Errorf("the machine is %s (%s), ended at %v, taken at %v", first.State, first.Gone, first.Ended, taken)
		}
		s.quiet(3 * time.Hour)
		s.squared()
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.disks) > 0 {
			t.Errorf("disks are left: %v", l.disks)
		}
	})
}
