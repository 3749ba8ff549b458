package aws_test

import (
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud"
	cloud "gpubroker/internal/simcloud/dialects/aws"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/providers/aws"
)

// many are requests with scripts that differ in the middle, as a broker's do.
func many(n int, m providers.Market) []providers.LaunchRequest {
	end := time.Now().Add(time.Hour).Truncate(time.Second).UTC()
	out := make([]providers.LaunchRequest, n)
	for i := range out {
		r := request(fmt.Sprintf("i01jz8k3m4%04d-abcdefgh", i), m, 2*money.Rate(money.Unit))
		r.End, r.Tags.DeleteAt = end, end.Add(time.Hour)
		r.UserData = strings.Join([]string{
			"#!/bin/sh", `D="${HOME:-/root}"`, `cat >"$D/settings" <<'SETTINGS'`, "URL=https://broker", "INSTANCE=" + r.Request,
			"TOKEN='" + strings.Repeat(strconv.Itoa(i%10), 20) + "'", "SETTINGS", `. "$D/settings"`, `echo "$INSTANCE $TOKEN" >"$D/who"`, "",
		}, "\n")
		out[i] = r
	}
	return out
}

func TestLaunchMany(t *testing.T) {
	in(t, func(c *simcloud.Config, _ *aws.Settings) {
		for i := range c.Offers {
			c.Offers[i].Capacity = nil
		}
		c.Quotas = nil
	}, func(t *testing.T, a *account) {
		reqs := many(120, t4)
		bulk := a.Provider.(providers.BulkLauncher)
		answers := bulk.LaunchMany(t.Context(), reqs)
		ids := map[string]bool{}
		for i, got := range answers {
			if got.Err != nil || got.Instance.Ref.Request != reqs[i].Request || !got.Instance.End.Equal(reqs[i].End) || got.Instance.Tags != reqs[i].Tags {
				t.Fatalf("answer %d: %+v", i, got)
			}
			ids[got.Instance.Ref.ID] = true
		}
		if calls, tags := len(a.sent("RunInstances")), len(a.sent("CreateTags")); calls != 2 || tags != 2 || len(ids) != 120 {
			t.Errorf("%d machines by %d launches and %d calls for tags", len(ids), calls, tags)
		}
		time.Sleep(5 * time.Second)
		all, err := a.List(t.Context())
		if err != nil || len(all) != 120 {
			t.Fatalf("list: %d, %v", len(all), err)
		}
		listed := map[string]string{}
		for _, i := range all {
			listed[i.Ref.Request] = i.Ref.ID
		}
		again := bulk.LaunchMany(t.Context(), reqs)
		for i, got := range again {
			if got.Err != nil || got.Instance.Ref.ID != answers[i].Instance.Ref.ID || listed[reqs[i].Request] != got.Instance.Ref.ID {
				t.Fatalf("again, answer %d: %+v; listed %s", i, got, listed[reqs[i].Request])
			}
		}
		// One of many is found, and ended, by its request alone; it is not rented alone.
		one := providers.Ref{Request: reqs[77].Request}
		if i, err := a.Describe(t.Context(), one); err != nil || i.Ref.ID != answers[77].Instance.Ref.ID {
			t.Errorf("describe: %+v, %v", i.Ref, err)
		}
		_, err = a.Launch(t.Context(), reqs[77])
		want(t, err, providers.Conflict, providers.OutcomeUnknown)
		if err := a.Terminate(t.Context(), one); err != nil {
			t.Error(err)
		}
		if n := a.truth(); n != 120 {
			t.Errorf("%d machines", n)
		}
	})
}

func TestLaunchManyInPart(t *testing.T) {
	in(t, nil, func(t *testing.T, a *account) {
		m := market("us-east-1a", "g6e.xlarge", providers.Spot) // holds four
		reqs := many(6, m)
		made := 0
		for i, got := range a.Provider.(providers.BulkLauncher).LaunchMany(t.Context(), reqs) {
			if got.Err == nil {
				made++
				continue
			}
			want(t, got.Err, providers.NoCapacity, providers.NotCreated)
			// It may be rented elsewhere.
			reqs[i].Market = market("us-east-1b", "g6e.xlarge", providers.Spot)
			if _, err := a.Launch(t.Context(), reqs[i]); err != nil {
				t.Error(err)
			}
		}
		if made != 4 || a.truth() != 6 {
			t.Errorf("%d made at once, %d in all", made, a.truth())
		}
		a.fault(t, simapi.Fault{Op: "launch", Effect: simapi.DropAfter})
		lost := many(3, market("us-west-2a", "g6.xlarge", providers.Spot))
		for i := range lost {
			lost[i].Request += "-x"
			lost[i].Tags.Request = lost[i].Request
		}
		for _, got := range a.Provider.(providers.BulkLauncher).LaunchMany(t.Context(), lost) {
			want(t, got.Err, providers.Unavailable, providers.OutcomeUnknown)
		}
		for _, got := range a.Provider.(providers.BulkLauncher).LaunchMany(t.Context(), lost) {
			if got.Err != nil {
				t.Error(got.Err)
			}
		}
		if a.truth() != 9 {
			t.Errorf("%d machines", a.truth())
		}
	})
}

// The script that machines share becomes each machine's own, by a real shell
// that asks the metadata service.
func TestSharedScript(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not there: apt-get install curl")
	}
	cfg, set := cloud.Default(1), settings()
	w := world(t, cfg, cloud.Dialect())
	api := httptest.NewServer(simcloud.Dialected(w))
	t.Cleanup(api.Close)
	set.Endpoint = api.URL
	a := open(t, set, api.Client())
	reqs := many(3, t4)
	reqs[1].UserData = strings.Replace(reqs[1].UserData, "INSTANCE=", "MORE='it is longer'\nINSTANCE=", 1)
	for i, got := range a.(providers.BulkLauncher).LaunchMany(t.Context(), reqs) {
		if got.Err != nil {
			t.Fatal(got.Err)
		}
		id := cloud.WorldID(got.Instance.Ref.ID)
		inside, err := w.Inside(id)
		if err != nil {
			t.Fatal(err)
		}
		service := httptest.NewServer(w.Config().Dialect.Metadata(w, id))
		t.Cleanup(service.Close)
		home := t.TempDir()
		script := filepath.Join(home, "user-data")
		if err := os.WriteFile(script, []byte(inside.UserData), 0o700); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "/bin/sh", script)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home, "GPUBROKER_METADATA_URL=" + service.URL}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		who, err := os.ReadFile(filepath.Join(home, "who"))
		if want := reqs[i].Request + " " + strings.Repeat(strconv.Itoa(i), 20) + "\n"; err != nil || string(who) != want {
			t.Errorf("machine %d is %q, %v; want %q", i, who, err, want)
		}
	}
}
