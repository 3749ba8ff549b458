package control_test

import (
	"slices"
	"testing"
	"time"

	"gpubroker/internal/control"
	cloud "gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/queue"
)

// small is calm with room for two machines with an L4.
func small() cloud.Config {
	cfg := calm()
	cfg.Quotas = []cloud.Quota{{Name: "gpus", Unit: providers.UnitGPU, Limit: 2}}
	return cfg
}

const three = `
name: three
project: media
resources: {gpu: l4}
tasks: {count: 3}
work: {time: 30m, on: l4}
checkpoint: {dir: ckpt, interval: 5m}
run: {command: [work, 30m]}
`

// What an account may not have more of is not asked for: it waits with that
// reason, and starts when a machine is gone.
func TestAKnownQuotaIsNotPassed(t *testing.T) {
	inBubble(t, small(), func(s *site) {
		time.Sleep(time.Second) // quotas are read
		j := s.submit(three)
		s.until("two machines that work", time.Minute, func(is []*queue.Instance, _ []*queue.Attempt) bool { return len(is) == 2 })
		d, _, ok := s.up().Decision(j.ID)
		if codes := reasons(d.Reasons); !ok || !slices.Contains(codes, "quota") && d.Why.Code != "sold_out" {
			t.Errorf("the third waits for %v (%v)", d.Why, codes)
		}
		as := s.succeeded(j)
		if got := outcomes(as); slices.Contains(got, queue.LaunchFailed) || len(got) != 3 {
			t.Errorf("attempts ended as %v", got)
		}
	})
}

// A quota that was lowered since is read anew once a launch was refused for it.
func TestAQuotaThatRefusedIsReadAnew(t *testing.T) {
	inBubble(t, small(), func(s *site) {
		time.Sleep(time.Second)
		before := s.up().Standings()[0].QuotasSeen
		s.fault(simapi.Fault{Op: "launch", Effect: simapi.Quota, Times: 1})
		s.succeeded(s.submit(task(10*time.Minute, "")))
		if after := s.up().Standings()[0].QuotasSeen; after.Sub(before) > 5*time.Minute || !after.After(before) {
			t.Errorf("quotas were read at %v, and again at %v", before, after)
		}
	})
}

// What cannot be read limits nothing, and is tried again.
func TestAnUnknownQuotaLimitsNothing(t *testing.T) {
	cfg := small()
	inBubble(t, cfg, func(s *site) {
		s.stop()
		s.fault(simapi.Fault{Op: "quotas", Effect: simapi.Denied, For: simapi.Duration(20 * time.Minute)})
		s.start()
		time.Sleep(time.Second)
		if st := s.up().Standings()[0]; len(st.Quotas) > 0 || st.QuotasError == "" {
			t.Errorf("%+v", st)
		}
		j := s.submit(three)
		s.until("a launch that is refused", time.Minute, func([]*queue.Instance, []*queue.Attempt) bool {
			return slices.Contains(outcomes(s.attempts(j.ID)), queue.LaunchFailed)
		})
		s.succeeded(j)
		if st := s.up().Standings()[0]; len(st.Quotas) != 1 || st.QuotasError != "" {
			t.Errorf("later: %+v", st)
		}
	})
}

// A cloud whose machines could not call us is not asked for any.
func TestACloudThatCannotReachUsIsNotUsed(t *testing.T) {
	for url, want := range map[string]bool{
		"http://127.0.0.1:7743": false, "": false, "http://broker.internal": true, "https://broker.example.org": true,
	} {
		t.Run(url, func(t *testing.T) {
			inBubble(t, calm(), func(s *site) {
				s.stop()
				s.set.PublicURL = url
				s.start()
				time.Sleep(time.Second)
				j := s.submit(task(5*time.Minute, ""))
				if want {
					s.succeeded(j)
					return
				}
				time.Sleep(10 * time.Minute)
				d, _, _ := s.up().Decision(j.ID)
				if codes := reasons(d.Reasons); s.launches() > 0 || d.Why.Code != "no_offer_fits" || !slices.Contains(codes, "unreachable") {
					t.Errorf("%d launches, %v (%v)", s.launches(), d.Why, codes)
				}
				c, err := s.up().Check(s.t.Context(), "sim")
				if f := found(c, "public_url"); err != nil || f.Result != control.CheckFailed || !c.Failed {
					t.Errorf("%v, %+v", err, f)
				}
				s.stop()
				s.set.PublicURL = "http://broker.internal" // the way out
				s.start()
				s.succeeded(j)
			})
		})
	}
}
