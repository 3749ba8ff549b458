package control_test

import (
	"strings"
	"testing"
	"time"

	"gpubroker/internal/control"
	"gpubroker/internal/spec"
	"gpubroker/providers"
	"gpubroker/scheduler"
)

// What can never meet the rules of its project is refused when it is handed in, in
// one line that says which rule; a plan says it too; what can meet them runs where
// they allow.
func TestRulesOfAProjectHold(t *testing.T) {
	inBubble(t, dollar(), func(s *site) {
		s.stop()
		s.set.Rules = map[string]scheduler.Rules{"dev": {Of: "project dev", Kinds: []providers.Kind{providers.OnDemand}, GPU: []string{"l4", "t4"}}}
		s.start()
		refused := func(what, text, want string) {
			t.Helper()
			job, err := spec.Parse("job.yaml", []byte("name: x\nproject: dev\nrun: {command: [work, 10m]}\n"+text))
			if err != nil {
				t.Fatal(err)
			}
			_, err = s.up().Submit(t.Context(), control.Submission{Spec: job}, nil)
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v", what, err)
			}
			e, launches, err := s.up().ExplainPlan(t.Context(), control.Submission{Spec: job}, nil)
			if err != nil || len(launches) > 0 || !strings.Contains(e.Decision.Why.String(), want) {
				t.Errorf("%s: its plan says %q, %v", what, e.Decision.Why, err)
			}
		}
		refused("a production card", "resources: {gpu: h100-sxm-80gb}\n", "the rules of project dev allow only l4 and t4 as GPU, and the job asks for h100-sxm-80gb")
		refused("only spot will do", "resources: {gpu: none}\ncheckpoint: {interval: 5m}\nspot: {on_demand: never}\n", "the rules of project dev allow only on-demand as kind of machine, and the job asks for spot")
		refusedFor := "budget.max: the ledger is in USD, found 5.00 EUR"
		job, err := spec.Parse("job.yaml", []byte("name: x\nproject: dev\nrun: {command: [work, 10m]}\nresources: {gpu: none}\nbudget: {max: 5 EUR}\n"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.up().Submit(t.Context(), control.Submission{Spec: job}, nil); err == nil || !strings.Contains(err.Error(), refusedFor) {
			t.Errorf("money of another currency: %v", err)
		}
		if _, _, err := s.up().ExplainPlan(t.Context(), control.Submission{Spec: job}, nil); err == nil || !strings.Contains(err.Error(), refusedFor) {
			t.Errorf("a plan with money of another currency: %v", err)
		}
		j := s.submit("name: ok\nproject: dev\nresources: {gpu: none, vcpu: 1}\nspot: {policy: always}\nmax_duration: 20m\nwork: {time: 10m}\nrun: {command: [work, 10m]}\n")
		time.Sleep(time.Minute)
		machines := s.up().Instances()
		if len(machines) == 0 {
			t.Error("nothing was rented")
		}
		for _, i := range machines {
			if i.Kind != string(providers.OnDemand) {
				t.Errorf("a %s machine was rented", i.Kind)
			}
		}
		s.succeeded(j)
	})
}
