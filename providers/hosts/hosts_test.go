package hosts_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/providers/hosts"
	"gpubroker/providers/managed"
	"gpubroker/providers/providertest"
)

const owner = "broker"

func settings(t testing.TB, dir string) hosts.Settings {
	t.Helper()
	var s hosts.Settings
	if err := json.Unmarshal([]byte(`{
		"hosts": [
			{"name": "alpha", "region": "office", "gpu": "l4", "gpu_memory": "24GiB", "vcpu": 16, "memory": "64GiB", "arch": "amd64", "price": "0.20 USD"},
			{"name": "beta", "region": "cellar", "gpu": "rtx-4090", "gpus": 2, "price": "0.35 USD"},
			{"name": "gamma", "price": "0.05 USD"}
		]}`), &s); err != nil {
		t.Fatal(err)
	}
	s.State = filepath.Join(dir, "state", "hosts.json")
	return s
}

func open(t testing.TB, s hosts.Settings) *hosts.Provider {
	t.Helper()
	p, err := hosts.New("own", s, owner, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func request(id, host, region string) providers.LaunchRequest {
	return providers.LaunchRequest{
		Request: id, Market: providers.Market{Provider: "own", Region: region, Type: host, Kind: providers.OnDemand},
		Tags: providers.Tags{Owner: owner, Request: id},
	}
}

// agents are the agents on all hosts: those without work ask for some.
type agents struct {
	registry hosts.Registry
	provider providers.Provider
	work     map[string]string
}

func (a *agents) ask(t testing.TB) {
	for _, host := range []string{"alpha", "beta", "gamma"} {
		if request := a.work[host]; request != "" {
			i, err := a.provider.Describe(t.Context(), providers.Ref{Request: request})
			if err == nil && (i.State == providers.Running || i.State == providers.Pending) {
				continue // at work
			}
		}
		a.work[host], _ = a.registry.Waiting(host)
	}
}

func TestConformance(t *testing.T) {
	providertest.Run(t, providertest.Harness{
		Bubble:     true,
		Deviations: providertest.Deviations(t),
		New: func(t testing.TB) providertest.Account {
			s := settings(t, t.TempDir())
			p := open(t, s)
			a := &agents{registry: p, provider: p, work: map[string]string{}}
			a.ask(t)
			return providertest.Account{
				Provider: p, Owner: owner,
				Reopen: func() providers.Provider {
					p := open(t, s)
					a.registry, a.provider = p, p
					return p
				},
				Outsider: func() error {
					req := request("theirs", "alpha", "office")
					req.Tags.Owner = "somebody"
					_, err := p.Launch(t.Context(), req)
					return err
				},
				Advance: func(d time.Duration) {
					time.Sleep(d)
					a.ask(t)
				},
			}
		},
	})
}

func TestAHostServesOneRequestAfterAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, settings(t, t.TempDir()))
		m := managed.New(p, managed.Options{Owner: owner})
		registry, ok := managed.Find[hosts.Registry](m)
		if !ok {
			t.Fatal("the registry is not found through the managed provider")
		}
		if !registry.Knows("alpha") || registry.Knows("delta") {
			t.Error("the registry knows other hosts than the configuration")
		}
		launch := func(id string, want providers.Code) {
			t.Helper()
			if _, err := m.Launch(t.Context(), request(id, "alpha", "office")); providers.CodeOf(err) != want {
				t.Errorf("launch %s: %v, want %q", id, err, want)
			}
		}
		waiting := func(want string) {
			t.Helper()
			if got, ok := registry.Waiting("alpha"); got != want || ok != (want != "") {
				t.Errorf("the waiting agent is told %q, want %q", got, want)
			}
		}
		state := func(id string, want providers.InstanceState) {
			t.Helper()
			if i, err := m.Describe(t.Context(), providers.Ref{Request: id}); err != nil || i.State != want {
				t.Errorf("%s is %s, %v; want %s", id, i.State, err, want)
			}
		}
		end := func(id string, want providers.Code) {
			t.Helper()
			if err := m.Terminate(t.Context(), providers.Ref{Request: id}); providers.CodeOf(err) != want {
				t.Errorf("terminate %s: %v, want %q", id, err, want)
			}
		}
		launch("one", providers.NoCapacity) // nobody waits yet
		waiting("")
		launch("one", "")
		launch("two", providers.NoCapacity)
		state("one", providers.Pending)
		waiting("one")
		waiting("one") // the first answer was lost
		state("one", providers.Running)
		end("one", "")
		state("one", providers.Stopping)
		launch("two", providers.NoCapacity) // the agent may still be at work
		waiting("")                         // it has stopped
		end("one", providers.NotFound)
		launch("two", "")
		end("two", "") // no agent was told: it ends at once
		end("two", providers.NotFound)
		launch("three", providers.NoCapacity) // until the agent asks again
		waiting("")
		launch("three", "")
		waiting("three")

		// The host burns down: the instance ends, and the host is not offered.
		end("three", "")
		time.Sleep(p.Capabilities().StopTime)
		end("three", providers.NotFound)
		launch("four", providers.NoCapacity)
		waiting("")
		time.Sleep(hosts.Patience + time.Second)
		launch("four", providers.NoCapacity)
	})
}

func TestOffersShowWhatIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, settings(t, t.TempDir()))
		p.Waiting("alpha")
		p.Waiting("beta")
		p.Waiting("stranger")
		if _, err := p.Launch(t.Context(), request("r", "beta", "cellar")); err != nil {
			t.Fatal(err)
		}
		offers, err := p.Offers(t.Context(), providers.Scope{})
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now().UTC()
		market := func(region, host string) providers.Market {
			return providers.Market{Provider: "own", Region: region, Type: host, Kind: providers.OnDemand}
		}
		want := []providers.Offer{
			{
				Market: market("office", "alpha"), Price: 200_000_000, Currency: money.USD, Available: providers.Open, Capacity: 1, Seen: now, Source: "config",
				Shape: providers.Shape{GPU: offers[0].GPU, GPUName: "l4", GPUs: 1, GPUMemory: 24 << 30, VCPU: 16, Memory: 64 << 30, Arch: "amd64"},
			},
			{
				Market: market("cellar", "beta"), Price: 350_000_000, Currency: money.USD, Available: providers.Full, Seen: now, Source: "config",
				Shape: providers.Shape{GPU: offers[1].GPU, GPUName: "rtx-4090", GPUs: 2},
			},
			{Market: market("", "gamma"), Price: 50_000_000, Currency: money.USD, Available: providers.Full, Seen: now, Source: "config"},
		}
		if diff := cmp.Diff(want, offers); diff != "" {
			t.Error(diff)
		}
		if !strings.HasPrefix(offers[0].GPU, "l4") || !strings.Contains(offers[1].GPU, "4090") {
			t.Errorf("GPUs %q and %q", offers[0].GPU, offers[1].GPU)
		}
	})
}

func TestTwoLaunchesAtOnceNeverShareAHost(t *testing.T) {
	p := open(t, settings(t, t.TempDir()))
	p.Waiting("alpha")
	var mu sync.Mutex
	won := 0
	var wg sync.WaitGroup
	for n := range 16 {
		wg.Go(func() {
			_, err := p.Launch(t.Context(), request(fmt.Sprint("r", n), "alpha", "office"))
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won++
			} else if providers.CodeOf(err) != providers.NoCapacity || providers.OutcomeOf(err) != providers.NotCreated {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won != 1 {
		t.Errorf("%d launches got the host", won)
	}
}

func TestWhatCannotBeWrittenDidNotHappen(t *testing.T) {
	s := settings(t, t.TempDir())
	p := open(t, s)
	p.Waiting("alpha")
	dir := filepath.Dir(s.State)
	breakDisk := func() {
		t.Helper()
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir, nil, 0o600); err != nil { // a file where the folder was
			t.Fatal(err)
		}
	}
	mend := func() {
		t.Helper()
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
	breakDisk()
	req := request("r", "alpha", "office")
	if _, err := p.Launch(t.Context(), req); providers.CodeOf(err) != providers.Unavailable || providers.OutcomeOf(err) != providers.NotCreated {
		t.Errorf("launch: %v (%s)", err, providers.OutcomeOf(err))
	}
	if all, _ := p.List(t.Context()); len(all) > 0 {
		t.Errorf("a binding that was not written: %v", all)
	}
	mend()
	if _, err := p.Launch(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	breakDisk()
	if request, ok := p.Waiting("alpha"); ok {
		t.Errorf("the agent is told %q, which is not written down", request)
	}
	if err := p.Terminate(t.Context(), providers.Ref{Request: "r"}); providers.CodeOf(err) != providers.Unavailable {
		t.Errorf("terminate: %v", err)
	}
	if i, err := p.Describe(t.Context(), providers.Ref{Request: "r"}); err != nil || i.State != providers.Pending {
		t.Errorf("after a terminate that failed: %s, %v", i.State, err)
	}
	mend()
	if request, ok := p.Waiting("alpha"); !ok || request != "r" {
		t.Errorf("the agent is told %q, %t", request, ok)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".hosts-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
}

func TestSettingsThatCannotBeRightAreRefused(t *testing.T) {
	state := filepath.Join(t.TempDir(), "hosts.json")
	for name, tc := range map[string]struct{ settings, want string }{
		"no hosts":    {`{"state": "STATE"}`, "hosts is empty"},
		"no state":    {`{"hosts": [{"name": "a", "price": "1 USD"}]}`, "state is missing"},
		"no price":    {`{"state": "STATE", "hosts": [{"name": "a"}]}`, `host 1 "a": price is missing`},
		"free":        {`{"state": "STATE", "hosts": [{"name": "a", "price": "0 USD"}]}`, "price is missing"},
		"bare price":  {`{"state": "STATE", "hosts": [{"name": "a", "price": "1"}]}`, "currency"},
		"twice":       {`{"state": "STATE", "hosts": [{"name": "a", "price": "1 USD"}, {"name": "a", "price": "1 USD"}]}`, `host 2 "a": the name is listed twice`},
		"slash":       {`{"state": "STATE", "hosts": [{"name": "a/b", "price": "1 USD"}]}`, "a name has letters"},
		"unknown gpu": {`{"state": "STATE", "hosts": [{"name": "a", "gpu": "h1000", "price": "1 USD"}]}`, "h1000"},
		"vague gpu":   {`{"state": "STATE", "hosts": [{"name": "a", "gpu": "a100", "price": "1 USD"}]}`, "write which"},
		"no gpu":      {`{"state": "STATE", "hosts": [{"name": "a", "gpus": 2, "price": "1 USD"}]}`, "name the model"},
		"arch":        {`{"state": "STATE", "hosts": [{"name": "a", "arch": "x86", "price": "1 USD"}]}`, "amd64 or arm64"},
		"unknown key": {`{"state": "STATE", "host": []}`, "unknown key"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			raw := json.RawMessage(strings.ReplaceAll(tc.settings, "STATE", filepath.ToSlash(state)))
			_, err := hosts.Descriptor().Open(t.Context(), "own", raw, providers.Env{Owner: owner})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestAStateThatIsNotOursIsRefused(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"torn":    {`{"version": 1, "provi`, "restore it"},
		"newer":   {`{"version": 2, "provider": "own", "bindings": []}`, "version 2"},
		"another": {`{"version": 1, "provider": "other", "bindings": []}`, `provider "other"`},
	} {
		t.Run(name, func(t *testing.T) {
			s := settings(t, t.TempDir())
			if err := os.MkdirAll(filepath.Dir(s.State), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(s.State, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := hosts.New("own", s, owner, nil); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// TestAnyHistory drives the account through random histories, restarts
// included, and holds every step to what must never happen.
func TestAnyHistory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
			return step{
				rapid.SampledFrom([]string{"launch", "terminate", "ask", "pass", "restart"}).Draw(rt, "what"),
				rapid.SampledFrom([]string{"r1", "r2", "r3", "r4"}).Draw(rt, "request"),
				rapid.SampledFrom([]string{"alpha", "beta"}).Draw(rt, "host"),
				time.Duration(rapid.IntRange(1, 150).Draw(rt, "seconds")) * time.Second,
			}
		}), 1, 40).Draw(rt, "steps")
		var problem string
		synctest.Test(t, func(t *testing.T) { problem = live(t, steps) })
		if problem != "" {
			rt.Fatal(problem)
		}
	})
}

type step struct {
	what, request, host string
	wait                time.Duration
}

// live plays a history and returns what went wrong.
func live(t *testing.T, steps []step) string {
	s := settings(t, t.TempDir())
	p := open(t, s)
	region := map[string]string{"alpha": "office", "beta": "cellar"}
	gone := map[string]bool{}
	at := map[string]string{} // host of each request
	for n, step := range steps {
		ref := providers.Ref{Request: step.request}
		switch step.what {
		case "launch":
			i, err := p.Launch(t.Context(), request(step.request, step.host, region[step.host]))
			if err == nil && at[step.request] == "" {
				at[step.request] = i.Market.Type
			}
			if err == nil && i.Market.Type != at[step.request] {
				return fmt.Sprintf("step %d: %s has moved from %s to %s", n, step.request, at[step.request], i.Market.Type)
			}
		case "terminate":
			err := p.Terminate(t.Context(), ref)
			if providers.CodeOf(err) == providers.NotFound && at[step.request] != "" {
				gone[step.request] = true
			}
		case "ask":
			if r, ok := p.Waiting(step.host); ok && (gone[r] || at[r] != step.host) {
				return fmt.Sprintf("step %d: %s is told to be %s, which is gone (%t) or on %q", n, step.host, r, gone[r], at[r])
			}
		case "pass":
			time.Sleep(step.wait)
		case "restart":
			before, _ := p.List(t.Context())
			p = open(t, s)
			after, err := p.List(t.Context())
			if diff := cmp.Diff(before, after); err != nil || diff != "" {
				return fmt.Sprintf("step %d: a restart changes the list: %v %s", n, err, diff)
			}
		}
		all, err := p.List(t.Context())
		if err != nil {
			return err.Error()
		}
		busy := map[string]bool{}
		for _, i := range all {
			if i.Live() && busy[i.Market.Type] {
				return fmt.Sprintf("step %d: two live instances on %s", n, i.Market.Type)
			}
			busy[i.Market.Type] = busy[i.Market.Type] || i.Live()
			if i.Live() && gone[i.Ref.Request] {
				return fmt.Sprintf("step %d: %s was gone and lives", n, i.Ref.Request)
			}
		}
	}
	return ""
}

// Hosts of one type are one market with as many machines as are free, so that a task
// on several of them finds them together; each launch binds another.
func TestHostsThatAreAlike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s hosts.Settings
		if err := json.Unmarshal([]byte(`{"hosts": [
			{"name": "n1", "type": "node", "vcpu": 8, "price": "0.10 USD"},
			{"name": "n2", "type": "node", "vcpu": 8, "price": "0.10 USD"},
			{"name": "n3", "type": "node", "vcpu": 8, "price": "0.10 USD"},
			{"name": "other", "vcpu": 8, "price": "0.10 USD"}
		]}`), &s); err != nil {
			t.Fatal(err)
		}
		s.State = filepath.Join(t.TempDir(), "hosts.json")
		p := open(t, s)
		capacity := func() string {
			offers, err := p.Offers(t.Context(), providers.Scope{})
			if err != nil || len(offers) != 2 || offers[0].Type != "node" || offers[1].Type != "other" {
				t.Fatalf("%+v, %v", offers, err)
			}
			return fmt.Sprint(offers[0].Available, offers[0].Capacity)
		}
		if got := capacity(); got != "full0" {
			t.Errorf("nobody waits: %s", got)
		}
		p.Waiting("n1")
		p.Waiting("n3")
		if got := capacity(); got != "open2" {
			t.Errorf("two wait: %s", got)
		}
		a, errA := p.Launch(t.Context(), request("a", "node", ""))
		b, errB := p.Launch(t.Context(), request("b", "node", ""))
		if errA != nil || errB != nil || a.Ref.ID != "n1:a" || b.Ref.ID != "n3:b" {
			t.Fatalf("%s %v, %s %v", a.Ref.ID, errA, b.Ref.ID, errB)
		}
		if _, err := p.Launch(t.Context(), request("c", "node", "")); providers.CodeOf(err) != providers.NoCapacity {
			t.Errorf("a third: %v", err)
		}
		if again, err := p.Launch(t.Context(), request("b", "node", "")); err != nil || again.Ref != b.Ref {
			t.Errorf("the same request: %+v, %v", again.Ref, err)
		}
		p = open(t, s) // a broker that starts again finds each where it was
		if r, ok := p.Waiting("n3"); !ok || r != "b" {
			t.Errorf("n3 is told of %q", r)
		}
		if r, ok := p.Waiting("n2"); ok {
			t.Errorf("n2 is told of %q", r)
		}
		if _, err := p.Launch(t.Context(), request("c", "node", "")); err != nil {
			t.Errorf("n2 waits now: %v", err)
		}
	})
}

func TestTypesAreOfMachinesThatAreAlike(t *testing.T) {
	for text, want := range map[string]string{
		`{"name": "n2", "type": "node", "vcpu": 16, "price": "0.10 USD"}`: "machines of one type are alike",
		`{"name": "n2", "type": "node", "vcpu": 8, "price": "0.20 USD"}`:  "machines of one type are alike",
		`{"name": "node", "vcpu": 8, "price": "0.10 USD"}`:                "is a name and a type",
		`{"name": "n2", "type": "a/b", "vcpu": 8, "price": "0.10 USD"}`:   "a type has letters",
	} {
		var s hosts.Settings
		if err := json.Unmarshal([]byte(`{"state": "x", "hosts": [{"name": "n1", "type": "node", "vcpu": 8, "price": "0.10 USD"}, `+text+`]}`), &s); err != nil {
			t.Fatal(err)
		}
		if _, err := hosts.New("own", s, owner, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
