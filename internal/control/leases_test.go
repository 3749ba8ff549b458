package control_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	cloud "gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/queue"
)

const hourJob = `
name: hour
project: media
resources: {gpu: l4}
work: {time: 1h, on: l4}
checkpoint: {dir: ckpt, interval: 10m}
run: {command: [work, 1h]}
`

// The ways in which a machine that nobody controls any more comes to its end.
const (
	byBroker   = "the broker ends it within a minute"
	byProvider = "its provider ends it by the lease's end"
	byLater    = "its provider ends it at the end that it keeps for good; until then an overrun, alarmed"
	byItself   = "it ends itself by the lease's end"
	byReturn   = "its tasks stop, it costs on; a broker that comes back books the overrun, alarms and ends it"
	byForce    = "it costs on, alarmed in money per hour and booked as an overrun, until the delete is taken"
)

// Who ends a machine when something has gone wrong, by what its provider can do:
// never is it left alone in silence.
func TestLeaseTable(t *testing.T) {
	table := []struct {
		fault                          string
		rolling, fixed, guest, nothing string
	}{
		{"broker killed for good", byProvider, byItself, byItself, byReturn},
		{"agent killed", byBroker, byBroker, byBroker, byBroker},
		{"guest hung", byBroker, byBroker, byBroker, byBroker},
		{"guest hung and broker killed", byProvider, byLater, byReturn, byReturn},
		{"delete refused for an hour", byProvider, byItself, byItself, byForce},
	}
	for _, row := range table {
		for end, want := range map[providers.SelfEnd]string{
			providers.EndRolling: row.rolling, providers.EndFixed: row.fixed, providers.EndGuest: row.guest, providers.EndNone: row.nothing,
		} {
			t.Run(fmt.Sprintf("%s, %s", row.fault, end), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					if got := leaseCell(t, end, row.fault); got != want {
						t.Errorf("%s\n\twant: %s", got, want)
					}
				})
			})
		}
	}
}

// calm is the built-in cloud with prices that stay.
func calm() cloud.Config {
	cfg := cloud.Default(1)
	for i := range cfg.Offers {
		cfg.Offers[i].Walk = nil
	}
	return cfg
}

// leaseCell lets a machine work for ten minutes, brings the fault about and says
// how the machine came to its end.
func leaseCell(t *testing.T, end providers.SelfEnd, fault string) string {
	cfg := calm()
	cfg.SelfEnd = end
	if end == providers.EndNone {
		cfg.EndAction = providers.EndStopTasks
	}
	s := newSite(t, cfg)
	s.rig(func() { s.check.Beyond = end != providers.EndRolling })
	s.start()
	defer s.close()
	j := s.submit(hourJob)
	time.Sleep(10 * time.Minute)
	var one *queue.Instance
	for i := range s.up().State().View().Instances.All() {
		if one != nil {
			t.Fatal("more than one machine")
		}
		one = i
	}
	this := func(id string) bool { return id == one.ID }
	kill := strings.Contains(fault, "broker killed")
	switch fault {
	case "agent killed":
		s.rig(func() { s.agentDead = this })
	case "guest hung", "guest hung and broker killed":
		s.rig(func() { s.hung = this })
	case "delete refused for an hour":
		if err := s.world.AddFault(simapi.Fault{Op: "terminate", Effect: simapi.Refuse, Machine: one.CloudID, For: simapi.Duration(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.up().Cancel(context.Background(), j.ID, "test"); err != nil {
			t.Fatal(err)
		}
	}
	at := time.Now()
	if kill {
		s.stop()
	}
	truth := func() simapi.Machine {
		for _, m := range s.world.Truth() {
			if m.Request == one.ID {
				return m
			}
		}
		t.Fatal("the machine is not there")
		return simapi.Machine{}
	}
	soon := one.Lease.Add(15 * time.Second)
	away := 5 * time.Hour
	if end == providers.EndFixed {
		away = 25 * time.Hour // beyond the longest end that is asked for
	}
	for time.Now().Before(at.Add(away)) && truth().State != providers.Terminated {
		time.Sleep(time.Second)
	}
	m := truth()
	returned := false
	if kill {
		returned = m.State != providers.Terminated || m.Ended.After(soon)
		s.start()
	}
	// Whoever comes later finds everything in order, and ends the work.
	if fault != "delete refused for an hour" {
		s.await(j.ID, 3*time.Hour)
	}
	s.quiet(2 * time.Hour)
	s.squared()
	m = truth()
	loud := s.count("instance.overrun") > 0 && s.overrun() > 0
	billing := s.count("instance.undeleted") > 0
	switch {
	case m.Cause == providers.CauseUser && m.Ended.Before(at.Add(time.Minute)) && !loud:
		return byBroker
	case m.Cause == providers.CauseExpired && m.Ended.Before(soon) && !loud:
		return byProvider
	case m.Cause == providers.CauseGuest && m.Ended.Before(soon) && !loud:
		return byItself
	case m.Cause == providers.CauseExpired && m.Ended.After(soon) && s.overrun() > 0:
		return byLater
	case m.Cause == providers.CauseUser && returned && loud:
		return byReturn
	case m.Cause == providers.CauseUser && m.Ended.After(at.Add(time.Hour)) && loud && billing:
		return byForce
	}
	return fmt.Sprintf("ended %v after the fault, %v after the lease, cause %s; overrun %v, alarms %d, refusals %d",
		m.Ended.Sub(at), m.Ended.Sub(one.Lease), m.Cause, s.overrun(), s.count("instance.overrun"), s.count("instance.undeleted"))
}

// While a machine lives beyond its lease, its budgets take no new machine.
func TestAnOverrunClosesItsBudget(t *testing.T) {
	cfg := calm()
	cfg.SelfEnd, cfg.EndAction = providers.EndNone, providers.EndStopTasks
	inBubble(t, cfg, func(s *site) {
		s.rig(func() { s.check.Beyond = true })
		s.withBudgets(capped(100))
		s.fault(simapi.Fault{Op: "terminate", Effect: simapi.Refuse, For: simapi.Duration(2 * time.Hour), Times: -1})
		s.succeeded(s.submit(task(10*time.Minute, "")))
		time.Sleep(time.Hour)
		if s.count("instance.overrun") == 0 || s.overrun() == 0 {
			t.Fatal("there is no overrun")
		}
		j := s.submit(task(10*time.Minute, ""))
		time.Sleep(10 * time.Minute)
		if d, _, ok := s.up().Decision(j.ID); !ok || d.Why.Code != "over_budget" || len(s.world.Truth()) != 1 {
			t.Errorf("%d machines, the wait is explained by %+v", len(s.world.Truth()), d.Why)
		}
		s.succeeded(j)
	})
}
