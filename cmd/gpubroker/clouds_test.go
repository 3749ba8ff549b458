package main_test

import (
	"cmp"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/api/client"
	"gpubroker/internal/money"
	"gpubroker/internal/objects/emulatortest"
	"gpubroker/internal/rig"
	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/dialects"
	"gpubroker/internal/simcloud/dialects/azure"
	"gpubroker/internal/simcloud/dialects/gcp"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/queue"
)

// cloud is one whose API simcloud speaks: how a broker is pointed at it.
type cloud struct {
	as       string
	settings func(s *site, at *rig.Cloud) string // of the provider
	notice   time.Duration                       // that its machines are given; 0 where it gives none
	store    func(s *site) string                // of checkpoints; nil is a folder
}

// clouds are those on which a whole job is run.
func clouds() []cloud {
	return []cloud{
		{as: "aws", notice: 3 * time.Second, settings: func(_ *site, at *rig.Cloud) string {
			return fmt.Sprintf(`endpoint: "%s", regions: [us-east-1, us-west-2], access_key: "env:SIMCLOUD_TOKEN", secret_key: "env:SIMCLOUD_TOKEN", `+
				`end_role: "arn:aws:iam::123456789012:role/end"`, at.URL)
		}},
		{as: "gcp", notice: 3 * time.Second, settings: func(s *site, at *rig.Cloud) string {
			return fmt.Sprintf(`endpoint: "%s", project: %s, credentials: "file:%s"`, at.URL, gcp.Project, s.serviceAccount(at))
		}, store: func(s *site) string { return s.bucket(emulatortest.GCS(s.t), "") }},
		{as: "azure", notice: 3 * time.Second, settings: func(_ *site, at *rig.Cloud) string {
			return fmt.Sprintf(`endpoint: "%[1]s", login: "%[1]s", prices: "%[1]s", subscription: %[2]s, tenant: %[3]s, client_id: %[4]s, client_secret: "env:SIMCLOUD_TOKEN", `+
				`regions: [eastus, westeurope]`, at.URL, azure.Subscription, azure.Tenant, azure.ClientID)
		}, store: func(s *site) string {
			s.Env = append(s.Env, "BUCKET_KEY="+emulatortest.AzuriteKey)
			return s.bucket(emulatortest.Azurite(s.t), ", account: "+emulatortest.AzuriteAccount+", account_key: env:BUCKET_KEY")
		}},
		{as: "verda", settings: func(_ *site, at *rig.Cloud) string {
			return fmt.Sprintf(`endpoint: "%s/v1", client_id: test, client_secret: "env:SIMCLOUD_TOKEN"`, at.URL)
		}},
	}
}

// serviceAccount writes a key file of Google's form, whose tokens the cloud gives.
func (s *site) serviceAccount(at *rig.Cloud) string {
	s.t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	s.must(err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	s.must(err)
	text, err := json.Marshal(map[string]string{
		"type": "service_account", "project_id": gcp.Project, "private_key_id": "1", "client_email": "broker@" + gcp.Project + ".iam.gserviceaccount.com",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), "token_uri": at.URL + "/token",
	})
	s.must(err)
	return s.write("account.json", string(text))
}

// bucket is the configuration of objects that are kept at an emulator.
func (s *site) bucket(address, more string) string {
	s.t.Helper()
	at, err := url.Parse(address)
	s.must(err)
	return fmt.Sprintf("objects: {url: \"%s://%s/kept\", endpoint: \"%s\"%s}\n", at.Scheme, at.Host, at.Query().Get("endpoint"), more)
}

// world is the cloud's own world with prices that stand still.
func (c cloud) world() simcloud.Config {
	w := dialects.All()[c.as].Default(1)
	for i := range w.Offers {
		w.Offers[i].Walk, w.Offers[i].Steps = nil, nil
	}
	w.Notice = simcloud.Duration(c.notice)
	return w
}

// upOn starts clouds and a broker on all of them.
func (s *site) upOn(clouds ...cloud) []*rig.Cloud {
	s.t.Helper()
	var at []*rig.Cloud
	var accounts, trust, more strings.Builder
	for _, c := range clouds {
		a, err := s.AddCloud(s.ctx, c.as, c.world())
		s.must(err)
		at = append(at, a)
		fmt.Fprintf(&accounts, "  - {name: %s, type: %[1]s, allow_guest_end: true, settings: {%s}}\n", c.as, c.settings(s, a))
		pem, err := os.ReadFile(a.CA)
		s.must(err)
		trust.Write(pem)
		if c.store != nil {
			more.WriteString(c.store(s))
		}
	}
	pem := s.write("trust.pem", trust.String())
	s.Env = append(s.Env, "SSL_CERT_FILE="+pem, "AWS_CA_BUNDLE="+pem)
	s.write("broker.yaml", s.plain(more.String()+"providers:\n"+accounts.String()))
	s.start()
	return at
}

// steps is a job whose result depends on every step, a third of a second each; it
// saves after each, and asks for a machine with a GPU.
func (s *site) steps(n int) string {
	return fmt.Sprintf(`name: steps
project: p
outputs: {to: "%s/steps"}
resources: {vcpu: 2}
spot: {policy: always}
checkpoint: {dir: saves, interval: 1s}
run:
  shell: |
    s="$GPUBROKER_CHECKPOINT_DIR/state"; i=0; h=start
    [ -f "$s" ] && read -r i h <"$s"
    while [ "$i" -lt %d ]; do
      h=$(printf '%%s %%s' "$h" "$i" | sha256sum | cut -c1-64); i=$((i+1))
      printf '%%s %%s\n' "$i" "$h" >state.new && mv state.new "$s"
      sleep 0.3
    done
    printf '%%s\n' "$h" >"{{output}}"
`, s.Path("done"), n)
}

// result is what the job of that many steps writes.
func result(n int) string {
	h := "start"
	for i := range n {
		h = fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%s %d", h, i)))
	}
	return h + "\n"
}

// saved waits until the running task of a job has a committed checkpoint, and
// returns its attempt.
func (s *site) saved(id string) *queue.Attempt {
	s.t.Helper()
	a := s.running(id, 1)[0]
	s.await("a checkpoint", func() error {
		list, err := s.Broker.Tasks(s.ctx, id, "", "", 10)
		if err == nil && (len(list.Tasks) == 0 || list.Tasks[0].Committed == 0) {
			err = fmt.Errorf("none yet")
		}
		return err
	})
	return a
}

// machineOf finds the machine of an attempt in the cloud's own words.
func (s *site) machineOf(at []*rig.Cloud, a *queue.Attempt) (*rig.Cloud, simapi.Machine) {
	s.t.Helper()
	for _, c := range at {
		list, err := c.Machines(s.ctx)
		s.must(err)
		for _, m := range list {
			if m.Request == a.Instance || strings.Contains(m.Request, a.Instance) {
				return c, m
			}
		}
	}
	s.t.Fatalf("no cloud has the machine %s", a.Instance)
	return nil, simapi.Machine{}
}

// allGone waits until no cloud has a machine, and nothing beside one.
func (s *site) allGone(at []*rig.Cloud) {
	s.t.Helper()
	for _, c := range at {
		about, err := c.About(s.ctx)
		s.must(err)
		if about.Capabilities.Billing.Unit > time.Minute {
			// An idle machine would be kept to the end of its paid time.
			list, err := c.Machines(s.ctx)
			s.must(err)
			for _, m := range live(list) {
				_, err := c.Do(s.ctx, simapi.Action{Preempt: &simapi.Preempt{Pick: simapi.Pick{Machine: m.ID}}})
				s.check(err)
			}
		}
		s.Cloud = c
		s.empty()
		s.await("the end of everything beside machines", func() error {
			about, err := c.About(s.ctx)
			if err == nil && len(about.Left) > 0 {
				err = fmt.Errorf("left: %s", strings.Join(about.Left, ", "))
			}
			return err
		})
	}
}

// booksAgree checks that the ledger is what the clouds charge.
func (s *site) booksAgree(at []*rig.Cloud) {
	s.t.Helper()
	costs, err := s.Broker.Costs(s.ctx, client.CostQuery{})
	s.must(err)
	var total money.Amount
	for _, c := range at {
		invoice, err := c.Invoice(s.ctx)
		s.must(err)
		total += invoice.Total
	}
	if costs.Spent != total || total == 0 || costs.Reserved != 0 {
		s.t.Errorf("the ledger says %s spent and %s reserved, the clouds charge %s", costs.Spent, costs.Reserved, total)
	}
}

// TestAJobOnEachCloud runs a whole job through each cloud's own API with the real
// agent: launched by its user data, taken with that cloud's notice, resumed in
// another market. Nothing of it stays, and the ledger is what the cloud charges.
func TestAJobOnEachCloud(t *testing.T) {
	t.Parallel()
	program(t)
	const n = 50
	for _, c := range clouds() {
		t.Run(c.as, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, 3*time.Minute)
			at := s.upOn(c)
			id := s.submit(s.steps(n))
			first := s.saved(id)
			on, m := s.machineOf(at, first)
			if m.Kind != providers.Spot {
				t.Errorf("the first attempt is on a machine %s", m.Kind)
			}
			_, err := on.Do(s.ctx, simapi.Action{Preempt: &simapi.Preempt{Pick: simapi.Pick{Machine: m.ID}}})
			s.must(err)
			if j := s.ended(id); j.Counts.Succeeded != 1 {
				t.Fatalf("the job ended as %s: %+v", j.State, j.Counts)
			}
			s.resumed(id, at, n)
			if c.notice > 0 {
				s.noticed(on, m)
			}
			s.allGone(at)
			s.booksAgree(at)
		})
	}
}

// noticed checks that the agent on a machine heard of its end from the cloud's own
// metadata service.
func (s *site) noticed(on *rig.Cloud, m simapi.Machine) {
	s.t.Helper()
	console, err := on.Console(s.ctx, m.ID)
	s.must(err)
	if !strings.Contains(string(console), "the provider's notice changed") {
		s.t.Errorf("the agent on %s heard of no notice:\n%s", m.ID, console)
	}
}

// resumed checks that a job of n steps was taken once, went on from its save in
// another market, and has the right result.
func (s *site) resumed(id string, at []*rig.Cloud, n int) {
	s.t.Helper()
	list := slices.SortedFunc(slices.Values(s.attempts(id)), func(a, b *queue.Attempt) int { return cmp.Compare(a.Number, b.Number) })
	list = slices.DeleteFunc(list, func(a *queue.Attempt) bool { return a.Outcome == queue.LaunchFailed })
	if len(list) != 2 {
		s.t.Fatalf("%d attempts came to a machine, not 2: %+v", len(list), list)
	}
	first, last := list[0], list[1]
	if first.Outcome != queue.Preempted {
		s.t.Errorf("the first attempt ended as %s (%s)", first.Outcome, first.Reason)
	}
	if last.Outcome != queue.Succeeded || last.Resume == 0 {
		s.t.Errorf("the second attempt began at checkpoint %d and ended as %s (%s)", last.Resume, last.Outcome, last.Reason)
	}
	fromCloud, from := s.machineOf(at, first)
	toCloud, to := s.machineOf(at, last)
	if fromCloud == toCloud && from.Place == to.Place {
		s.t.Errorf("it was resumed in the market %s that had taken it", to.Place)
	}
	text, err := os.ReadFile(s.Path("done", "steps"))
	s.must(err)
	if string(text) != result(n) {
		s.t.Errorf("the result is %q, want %q", text, result(n))
	}
}

// TestAJobAcrossClouds: the cloud that took the machine has no other, so the work
// goes on at the next one.
func TestAJobAcrossClouds(t *testing.T) {
	t.Parallel()
	program(t)
	const n = 50
	s := newSite(t, 5*time.Minute)
	all := clouds()
	i := slices.IndexFunc(all, func(c cloud) bool { return c.as == "aws" })
	j := slices.IndexFunc(all, func(c cloud) bool { return c.as == "verda" })
	at := s.upOn(all[i], all[j])
	id := s.submit(s.steps(n))
	first := s.saved(id)
	on, m := s.machineOf(at, first)
	// Nothing is left there but what runs; the machine itself goes with its capacity.
	_, err := on.Do(s.ctx, simapi.Action{Capacity: &simapi.Capacity{Machines: new(0)}})
	s.must(err)
	if j := s.ended(id); j.Counts.Succeeded != 1 {
		t.Fatalf("the job ended as %s: %+v", j.State, j.Counts)
	}
	s.resumed(id, at, n)
	list := s.attempts(id)
	for _, a := range list {
		if a.Outcome == queue.Succeeded {
			if to, _ := s.machineOf(at, a); to == on {
				t.Errorf("it was resumed at the cloud that has no capacity, after %s", m.Place)
			}
		}
	}
	s.allGone(at)
	s.booksAgree(at)
}
