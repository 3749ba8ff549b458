package azure_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// TestEnds: what is told of a machine that ends, each way.
func TestEnds(t *testing.T) {
	inAzure(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		start := func(id string) providers.Ref {
			t.Helper()
			i, err := r.a.Launch(ctx, request(id))
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * time.Second)
			return i.Ref
		}
		want := func(ref providers.Ref, state providers.InstanceState, cause providers.Cause) providers.Instance {
			t.Helper()
			i, err := r.a.Describe(ctx, ref)
			if err != nil || i.State != state || i.Cause != cause {
				t.Errorf("%s is %s by %q: %s; want %s by %q (%v)", ref, i.State, i.Cause, i.Message, state, cause, err)
			}
			return i
		}

		// By a call: stopping while its group goes, forgotten after.
		ref := start("r1")
		want(ref, providers.Running, "")
		if err := r.a.Terminate(ctx, ref); err != nil {
			t.Fatal(err)
		}
		want(ref, providers.Stopping, providers.CauseUser)
		if err := r.a.Terminate(ctx, ref); err != nil {
			t.Errorf("again: %v", err)
		}
		time.Sleep(time.Second)
		if _, err := r.a.Describe(ctx, ref); providers.CodeOf(err) != providers.NotFound {
			t.Errorf("gone: %v", err)
		}
		if err := r.a.Terminate(ctx, ref); providers.CodeOf(err) != providers.NotFound {
			t.Errorf("gone: %v", err)
		}

		// Evicted: the machine is terminated, what it left is to be ended.
		ref = start("r2")
		if _, err := r.w.Do(simapi.Action{Preempt: &simapi.Preempt{}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5*time.Second + 100*time.Millisecond)
		want(ref, providers.Stopping, providers.CausePreempted)
		time.Sleep(3 * time.Second)
		want(ref, providers.Terminated, providers.CausePreempted)
		if diff := cmp.Diff([]string{"gpubroker-r2 terminated preempted"}, states(t, r)); diff != "" {
			t.Error(diff)
		}
		if left := r.w.About().Left; len(left) != 1 || !r.a.Capabilities().Beside {
			t.Errorf("left in the account: %v", left)
		}
		if err := r.a.Terminate(ctx, ref); err != nil || len(r.fake.Groups()) != 0 {
			t.Errorf("%v, groups %v", err, r.fake.Groups())
		}
		if _, err := r.a.Launch(ctx, request("r2")); err != nil {
			t.Errorf("a request whose group is gone may have another: %v", err)
		}
		if err := r.a.Terminate(ctx, ref); err != nil {
			t.Fatal(err)
		}

		// Not placed after it was accepted.
		r.fake.FailAllocation()
		ref = start("r3")
		failed := want(ref, providers.Terminated, providers.CauseError)
		if !strings.HasPrefix(failed.Message, "AllocationFailed: ") {
			t.Errorf("message %q", failed.Message)
		}
		if got := states(t, r); !slices.Contains(got, "gpubroker-r3 terminated error") || slices.Contains(got, "gpubroker-r3:remains stopping") {
			t.Errorf("%v", got)
		}
		if _, err := r.a.Launch(ctx, request("r3")); providers.CodeOf(err) != providers.Conflict {
			t.Errorf("launched again: %v", err)
		}
		if err := r.a.Terminate(ctx, ref); err != nil || len(r.fake.Groups()) != 0 {
			t.Errorf("%v, groups %v", err, r.fake.Groups())
		}

		// Shut down from within: it goes on billing.
		ref = start("r4")
		if err := r.w.PowerOff(r.fake.Machine(ref.ID)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		want(ref, providers.Stopping, providers.CauseGuest)
		if err := r.a.Terminate(ctx, ref); err != nil {
			t.Fatal(err)
		}

		// A second launch of a request whose machine was taken makes none.
		start("r5")
		if _, err := r.w.Do(simapi.Action{Preempt: &simapi.Preempt{Notice: new(simapi.Duration(0))}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		if _, err := r.a.Launch(ctx, request("r5")); providers.CodeOf(err) != providers.Conflict {
			t.Errorf("launched again: %v", err)
		}

		// Past its delete-at nobody's record is waited for.
		old := request("r6")
		old.Tags.DeleteAt = time.Now().Add(time.Hour).UTC().Truncate(time.Second)
		if _, err := r.a.Launch(ctx, old); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		if _, err := r.w.Do(simapi.Action{Preempt: &simapi.Preempt{Notice: new(simapi.Duration(0))}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		remains := providers.Ref{ID: "gpubroker-r6:remains", Request: "r6"}
		want(remains, providers.Stopping, "")
		if got := states(t, r); !slices.Contains(got, "gpubroker-r6:remains stopping") {
			t.Errorf("%v", got)
		}
		if err := r.a.Terminate(ctx, remains); err != nil || slices.Contains(r.fake.Groups(), "gpubroker-r6") {
			t.Errorf("%v, groups %v", err, r.fake.Groups())
		}
	})
}

// TestLeftovers: a launch whose group could not be taken back is found, and ended
// as the broker ends what it does not know.
func TestLeftovers(t *testing.T) {
	inAzure(t, func(t *testing.T, r *rig) {
		addFault(t, r.w, simapi.Fault{Op: "launch", Effect: simapi.NoCapacity})
		addFault(t, r.w, simapi.Fault{Op: "terminate", Effect: simapi.Internal})
		_, err := r.a.Launch(t.Context(), request("r1"))
		if providers.CodeOf(err) != providers.NoCapacity || providers.OutcomeOf(err) != providers.NotCreated {
			t.Fatalf("%v", err)
		}
		time.Sleep(2 * time.Second)
		if diff := cmp.Diff([]string{"gpubroker-r1 pending"}, states(t, r)); diff != "" {
			t.Error(diff)
		}
		// The same request goes on where the first try stopped.
		if i, err := r.a.Launch(t.Context(), request("r1")); err != nil || i.State != providers.Pending {
			t.Errorf("%+v, %v", i, err)
		}
		// Ended with a fault first, then accepted, then gone.
		ref := providers.Ref{Request: "r1"}
		addFault(t, r.w, simapi.Fault{Op: "terminate", Effect: simapi.Internal})
		if err := r.a.Terminate(t.Context(), ref); providers.CodeOf(err) != providers.Unavailable {
			t.Errorf("%v", err)
		}
		if err := r.a.Terminate(t.Context(), ref); err != nil {
			t.Errorf("%v", err)
		}
		time.Sleep(time.Second)
		if err := r.a.Terminate(t.Context(), ref); providers.CodeOf(err) != providers.NotFound {
			t.Errorf("%v", err)
		}
	})
}
