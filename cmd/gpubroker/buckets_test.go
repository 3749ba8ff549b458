package main_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/objects"
	"gpubroker/internal/objects/azblob"
	"gpubroker/internal/objects/emulatortest"
	"gpubroker/internal/objects/gcs"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/queue"
)

// A task reads its input from a bucket, saves into it, loses its machine, goes on
// from the save and publishes into the bucket: the broker alone has a key for it.
func TestWorkOverABucket(t *testing.T) {
	for _, c := range []struct {
		name    string
		address func(testing.TB) string
		open    objects.Opener
		more    string // of the configuration
	}{
		{"gcs", emulatortest.GCS, gcs.New(gcs.Options{}), ""},
		{
			"azblob", emulatortest.Azurite, azblob.New(azblob.Options{Account: emulatortest.AzuriteAccount, Key: emulatortest.AzuriteKey}),
			", account: " + emulatortest.AzuriteAccount + ", account_key: env:BUCKET_KEY",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, 4*time.Minute)
			s.Env = append(s.Env, "BUCKET_KEY="+emulatortest.AzuriteKey)
			at, err := url.Parse(c.address(t))
			s.must(err)
			bucket := at.Scheme + "://" + at.Host
			stores := &objects.Stores{Schemes: map[string]objects.Opener{at.Scheme: c.open}}
			store, err := stores.Open(s.ctx, at.String())
			s.must(err)
			_, err = store.Put(s.ctx, "in/clip 1.txt", strings.NewReader("input"), objects.PutOptions{})
			s.must(err)

			s.up(quick(1), fmt.Sprintf("objects: {url: \"%s/kept\", endpoint: \"%s\"%s}\nlocations: [{prefix: \"%s/in\"}, {prefix: \"%s/out\"}]\n",
				bucket, at.Query().Get("endpoint"), c.more, bucket, bucket))
			id := s.submit("name: bucket\n" + small + fmt.Sprintf(`tasks: {glob: "%s/in/*.txt"}
outputs: {to: "%s/out/{{stem}}.out"}
checkpoint: {dir: saves, interval: 1s}
run:
  shell: |
    if [ "$GPUBROKER_RESUME" = 0 ]; then
      head -c 3000000 /dev/zero | tr '\0' s > saves/state.tmp
      mv saves/state.tmp saves/state
      exec sleep 1000
    fi
    { cat "{{input}}"; echo " read again"; cat saves/state; } > "{{output}}"
`, bucket, bucket))
			first := s.running(id, 1)[0]
			s.await("a save", func() error {
				tasks, err := s.Broker.Tasks(s.ctx, id, "", "", 1)
				if err == nil && tasks.Tasks[0].Saves == 0 {
					err = fmt.Errorf("none is committed")
				}
				return err
			})
			_, err = s.Cloud.Do(s.ctx, simapi.Action{Preempt: &simapi.Preempt{Pick: simapi.Pick{Machine: s.cloudID(first)}}})
			s.must(err)
			if j := s.ended(id); j.Counts.Succeeded != 1 {
				t.Errorf("the task did not succeed: %+v", j.Counts)
			}
			if a := s.attempts(id); len(a) != 2 || a[0].Outcome != queue.Preempted {
				t.Errorf("%d attempts", len(a))
			}
			got, err := objects.ReadAll(s.ctx, store, "out/clip 1.out", 4<<20)
			s.must(err)
			if want := "input read again\n" + strings.Repeat("s", 3_000_000); string(got) != want {
				t.Errorf("published %d bytes: %.20q", len(got), got)
			}
			for up, err := range store.Uploads(s.ctx, "") {
				s.must(err)
				t.Logf("to be swept: upload of %s", up.Key)
			}
			s.empty()
			s.settled()
		})
	}
}
