package control_test

import (
	"testing"
	"testing/synctest"
	"time"

	cloud "gpubroker/internal/simcloud"
	"gpubroker/queue"
)

const arrayJob = `
name: night
project: media
scenario: transcode
tasks: {count: 40}
work: {time: 10m, on: l4}
resources: {gpu: [l4, t4], slots: 2}
run: {command: [work, 10m]}
retry: {failures: 1}
`

const longJob = `
name: train
project: media
resources: {gpu: l4}
work: {time: 3h, on: l4}
checkpoint: {dir: ckpt, interval: 10m}
run: {command: [work, 3h]}
`

const steadyJob = `
name: steady
project: media
resources: {gpu: none, vcpu: 2}
spot: {policy: never}
max_duration: 2h
run: {command: [work, 30m]}
`

// A quiet night: everything finishes, the machines are gone, and the ledger is
// the cloud's own invoice.
func TestQuietNight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, cloud.Default(1))
		s.start()
		defer s.close()
		for _, text := range []string{arrayJob, longJob, steadyJob} {
			j := s.submit(text)
			if done := s.await(j.ID, 12*time.Hour); done.State() != queue.JobSucceeded {
				t.Errorf("%s: %s, %+v", j.Name, done.State(), done.Counts)
			}
		}
		s.quiet(2 * time.Hour)
		if got, want := s.ledger(), s.world.Invoice().Total; got != want || want == 0 {
			t.Errorf("the ledger sums to %v, the cloud's invoice to %v", got, want)
		}
	})
}
