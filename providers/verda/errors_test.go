package verda

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// TestErrorBodies: the first three digits of a file's name are the status that
// its body came with. Bodies are the API's own words as issues and the vendor's
// code quote them; those of a gateway, the throttle and the moon are ours.
func TestErrorBodies(t *testing.T) {
	const provider, family, offer = providers.ScopeProvider, providers.ScopeFamily, providers.ScopeOffer
	want := map[string]rule{
		"200-error.json":        {providers.Unavailable, provider, providers.OutcomeUnknown},
		"400-image.json":        {providers.InvalidRequest, family, providers.NotCreated},
		"400-no-ssh-key.json":   {providers.InvalidRequest, family, providers.NotCreated},
		"401-token.json":        {providers.Unauthorized, provider, providers.NotCreated},
		"402-funds.json":        {providers.NoFunds, provider, providers.NotCreated},
		"403-discontinued.json": {providers.QuotaExceeded, family, providers.NotCreated},
		"404-instance.json":     {providers.NotFound, offer, providers.NotCreated},
		"404-path.txt":          {providers.Unknown, provider, providers.OutcomeUnknown},
		"418-unheard-of.json":   {providers.Unknown, provider, providers.OutcomeUnknown},
		"429-throttled.json":    {providers.RateLimited, provider, providers.NotCreated},
		"500-server.json":       {providers.Unavailable, provider, providers.OutcomeUnknown},
		"502-gateway.html":      {providers.Unavailable, provider, providers.OutcomeUnknown},
		"503-capacity.json":     {providers.NoCapacity, offer, providers.NotCreated},
		"503-down.html":         {providers.Unavailable, provider, providers.OutcomeUnknown},
	}
	files, err := filepath.Glob("testdata/errors/*")
	if err != nil || len(files) != len(want) {
		t.Fatalf("%d bodies for %d rows, %v", len(files), len(want), err)
	}
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(file)
		status, err := strconv.Atoi(name[:3])
		if err != nil {
			t.Fatal(err)
		}
		got := judge(rest.Answer{Status: status, Header: http.Header{}, Body: body})
		w := want[name]
		if got == nil || got.Code != w.code || got.Scope != w.scope || got.Outcome != w.outcome {
			t.Errorf("%s: %+v, want %+v", name, got, w)
		}
	}
	ofDelete := judge(rest.Answer{Status: 403, Body: []byte(`{"code":"forbidden_action"}`)})
	if ofOther(ofDelete); ofDelete.Code != providers.Unavailable {
		t.Errorf("a delete that is forbidden is %s", ofDelete.Code)
	}
	for _, success := range []string{`{"id":"1"}`, `[]`, `11-22`, ``, `{"access_token":"x","code":"none"}`} {
		if e := judge(rest.Answer{Status: 200, Body: []byte(success)}); e != nil {
			t.Errorf("%s is taken for an error: %v", success, e)
		}
	}
}

func TestDiskPrices(t *testing.T) {
	for _, c := range []struct {
		monthly string
		gb      int64
		want    string
	}{{"0.2", 100, "0.0274"}, {"0.2", 365, "0.10"}, {"0.05", 50, "0.0035"}} {
		if r, ok := perHour(c.monthly, c.gb); !ok || r.String() != c.want {
			t.Errorf("%d GB at %s a month are %s an hour, want %s", c.gb, c.monthly, r, c.want)
		}
	}
}

func TestNames(t *testing.T) {
	tags := providers.Tags{Owner: "a/b c", Generation: "g&1", Request: "r=1", Project: "ünï"}
	if got := tagsOf(encode(tags), nil); got != tags {
		t.Errorf("a description gives back %+v", got)
	}
	side, made, ok := sideTags(sideName(tags, time.Unix(1_800_000_000, 0)))
	if want := (providers.Tags{Owner: tags.Owner, Generation: tags.Generation, Request: tags.Request}); !ok || side != want || made.Unix() != 1_800_000_000 {
		t.Errorf("a name gives back %+v, %t", side, ok)
	}
	for _, foreign := range []string{"OS volume", "gpubroker/", "gpubroker/a/b", "gpubroker//g/r", "gpubroker/a/b/c/d/e", "gpubroker/%/b/c"} {
		if got, _, ok := sideTags(foreign); ok {
			t.Errorf("%q is taken for ours: %+v", foreign, got)
		}
	}
	edited := tagsOf("somebody's words", []wireTag{{providers.TagOwner, "o"}, {providers.TagRequest, "r"}})
	if edited.Owner != "o" || edited.Request != "r" {
		t.Errorf("an edited description leaves %+v", edited)
	}
	for request, want := range map[string]string{"i01jabc": "i01jabc", "T1_x.y-": "t1-x-y", "__": "gpubroker", strings.Repeat("a", 80): strings.Repeat("a", 63)} {
		if got := hostname(request); got != want {
			t.Errorf("the host of %q is %q, want %q", request, got, want)
		}
	}
}

func TestSettingsAreChecked(t *testing.T) {
	for text, fine := range map[string]bool{
		`{}`: true, `{"client_id": "a", "disk": "200GB", "tags": {"cost": "x"}}`: true,
		`{"disk": "10GB"}`: false, `{"disk": "100GiB"}`: false, `{"zone": 1}`: false, `{"tags": {"Cost": "x"}}`: false,
		`{"tags": {"a":"","b":"","c":"","d":"","e":"","f":""}}`: false, `{"network": {"subnet": "one"}}`: false,
		`{"network": {"private": true}}`: false, `{"endpoint": "ftp://x"}`: false,
		`{"network": {"subnet": "n/s", "private": true}}`: true,
	} {
		env := providers.Env{Owner: "broker", Secret: func(ref string) (string, error) { return "value of " + ref, nil }}
		p, err := Descriptor().Open(t.Context(), "verda", []byte(text), env)
		if (err == nil) != fine {
			t.Errorf("%s: %v", text, err)
		}
		if a, ok := p.(*Adapter); err == nil && (!ok || a.tokens.secret != "value of "+defaultSecret) {
			t.Errorf("%s: the secret is not the one referred to", text)
		}
	}
}
