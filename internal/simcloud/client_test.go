package simcloud

import (
	"testing"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

func TestClient(t *testing.T) {
	cfg := small()
	cfg.Tokens.API = "token"
	inWorld(t, cfg, nil, func(t *testing.T, w *World) {
		ctx := t.Context()
		c := &simapi.Client{URL: InProcessURL, Token: "token", HTTP: InProcess(w)}
		for range 3 { // each kind of action has a wire form
			launch(t, w, time.Now().String(), spotB)
			time.Sleep(10 * time.Second)
		}
		for _, a := range []simapi.Action{
			{Capacity: &simapi.Capacity{Match: simapi.Place{Zone: "r1a"}}},
			{Capacity: &simapi.Capacity{Match: simapi.Place{Zone: "r1b"}, Machines: new(5)}},
			{Price: &simapi.Price{Price: new(money.Rate(123_000_000))}},
			{SelfEnd: &simapi.SelfEnd{SelfEnd: providers.EndNone, EndAction: providers.EndStopTasks}},
			{Fault: &simapi.Fault{Op: "list", Effect: simapi.Internal}},
			{Rebalance: &simapi.Pick{Newest: true}},
			{Preempt: &simapi.Preempt{Pick: simapi.Pick{Longest: true}, Notice: new(dur(0))}},
		} {
			if _, err := c.Do(ctx, a); err != nil {
				t.Errorf("%+v: %v", a, err)
			}
		}
		if _, err := c.Do(ctx, simapi.Action{}); codeOf(err) != simapi.CodeInvalid {
			t.Errorf("an action of nothing: %v", err)
		}
		if _, err := c.Do(ctx, simapi.Action{Crash: &simapi.Pick{Machine: "none"}}); codeOf(err) != simapi.CodeNotFound {
			t.Errorf("a crash of no machine: %v", err)
		}
		if _, err := c.Do(ctx, simapi.Action{Freeze: &simapi.Pick{}}); codeOf(err) != simapi.CodeRefused {
			t.Errorf("a freeze without real processes: %v", err)
		}
		if err := c.ClearFaults(ctx); err != nil || len(w.Faults()) > 0 {
			t.Errorf("faults %v, %v", w.Faults(), err)
		}
		machines, err := c.Machines(ctx)
		if err != nil || len(machines) != 3 || machines[0].State != providers.Stopping {
			t.Errorf("%+v, %v", machines, err)
		}
		inv, err := c.Invoice(ctx)
		if err != nil || inv.Total != w.Invoice().Total || len(inv.Lines) != 3 {
			t.Errorf("%+v, %v", inv, err)
		}
		about, err := c.About(ctx)
		if err != nil || about.Capabilities.SelfEnd != providers.EndNone {
			t.Errorf("%+v, %v", about, err)
		}
		events, err := c.Events(ctx, 2)
		if err != nil || events.Events[0].Seq != 3 || events.Next != events.Events[len(events.Events)-1].Seq {
			t.Errorf("%+v, %v", events, err)
		}
		c.Token = "other"
		if _, err := c.Events(ctx, 0); codeOf(err) != simapi.CodeUnauthorized {
			t.Errorf("with another token: %v", err)
		}
	})
}
