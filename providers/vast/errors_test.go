package vast

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// TestErrorBodies: the first three digits of a file's name are the status that
// its body came with. The words are those of Vast's reference and of answers that
// people quote; those of the gateway, the limit and the moon are ours.
func TestErrorBodies(t *testing.T) {
	const provider, family, offer = providers.ScopeProvider, providers.ScopeFamily, providers.ScopeOffer
	want := map[string]rule{
		"200-internal.json":   {providers.Unavailable, provider, providers.OutcomeUnknown},
		"200-unheard-of.json": {providers.Unknown, offer, providers.OutcomeUnknown},
		"400-args.json":       {providers.InvalidRequest, family, providers.NotCreated},
		"400-credit.json":     {providers.NoFunds, provider, providers.NotCreated},
		"400-limit.json":      {providers.QuotaExceeded, family, providers.NotCreated},
		"400-price.json":      {providers.PriceTooLow, offer, providers.NotCreated},
		"400-ssh-key.json":    {providers.InvalidRequest, family, providers.NotCreated},
		"401-key.json":        {providers.Unauthorized, provider, providers.NotCreated},
		"403-permission.json": {providers.Unauthorized, provider, providers.NotCreated},
		"404-ask.json":        {providers.NoCapacity, offer, providers.NotCreated},
		"404-instance.json":   {providers.NotFound, offer, providers.NotCreated},
		"404-path.txt":        {providers.Unknown, provider, providers.OutcomeUnknown},
		"409-busy.json":       {providers.Unavailable, offer, providers.NotCreated},
		"410-ask.json":        {providers.NoCapacity, offer, providers.NotCreated},
		"418-unheard-of.json": {providers.Unknown, provider, providers.OutcomeUnknown},
		"404-key.json":        {providers.Unauthorized, provider, providers.NotCreated},
		"429-search.json":     {providers.QuotaExceeded, provider, providers.NotCreated},
		"429-threshold.txt":   {providers.RateLimited, provider, providers.NotCreated},
		"500-internal.json":   {providers.Unavailable, provider, providers.OutcomeUnknown},
		"502-gateway.html":    {providers.Unavailable, provider, providers.OutcomeUnknown},
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
	// A failure that leaves an instance is the launch's own to judge.
	left := `{"success": false, "error": "bid_too_low", "msg": "", "new_contract": 7}`
	for status, body := range map[int]string{200: `{"success": true, "new_contract": 7}`, 201: `[]`, 202: ``, 203: `{"offers": []}`, 400: left, 500: left} {
		if e := judge(rest.Answer{Status: status, Body: []byte(body)}); e != nil {
			t.Errorf("%s is taken for an error: %v", body, e)
		}
	}
	ofDelete := judge(rest.Answer{Status: 410, Body: []byte(`{"success":false,"error":"no_such_ask"}`)})
	if ofOther(ofDelete); ofDelete.Code != providers.Unavailable {
		t.Errorf("a delete without capacity is %s", ofDelete.Code)
	}
}

// documented is the offer that Vast's reference shows (vast-ai/docs,
// search_offers.yaml), shortened.
const documented = `{"id": 12345678, "ask_contract_id": 12345678, "bundled_results": null, "cpu_arch": "amd64", "cpu_cores": 64,
	"cpu_cores_effective": 32, "cpu_ram": 65536, "dph_base": 0.123456, "dph_total": 0.234567, "external": null, "geolocation": "Atlantis, AT",
	"gpu_frac": 0.75, "gpu_name": "RTX 4090", "gpu_ram": 24564, "is_bid": false, "min_bid": 0.111111, "num_gpus": 4, "storage_total_cost": 0.0123456}`

func TestAsks(t *testing.T) {
	for change, want := range map[string]string{
		``:                 "AT RTX_4090-24G-x4-c32-m32 0.234567 0.1234566",
		`"gpu_ram": 22888`: "AT RTX_4090-24G-x4-c32-m32 0.234567 0.1234566",
		`"gpu_name": "A100 SXM4", "gpu_ram": 40960`:      "AT A100_SXM4-40G-x4-c32-m32 0.234567 0.1234566",
		`"gpu_name": "A100 SXM4", "gpu_ram": 81920`:      "AT A100_SXM4-80G-x4-c32-m32 0.234567 0.1234566",
		`"gpu_name": "GTX-999 Ti", "gpu_ram": 16100`:     "AT GTX-999_Ti-16G-x4-c32-m32 0.234567 0.1234566",
		`"cpu_cores": null`:                              "AT RTX_4090-24G-x4-c32-m32 0.234567 0.1234566", // by the share of GPUs: 48
		`"cpu_cores": null, "cpu_cores_effective": null`: "AT RTX_4090-24G-x4-c0-m32 0.234567 0.1234566",
		`"cpu_cores_effective": 10.7`:                    "AT RTX_4090-24G-x4-c8-m8 0.234567 0.1234566",
		`"cpu_cores_effective": 1e300`:                   "AT RTX_4090-24G-x4-c0-m64 0.234567 0.1234566",
		`"cpu_ram": null`:                                "AT RTX_4090-24G-x4-c32-m0 0.234567 0.1234566",
		`"geolocation": "Texas, US"`:                     "US RTX_4090-24G-x4-c32-m32 0.234567 0.1234566",
		`"geolocation": null`:                            "- RTX_4090-24G-x4-c32-m32 0.234567 0.1234566",
		`"geolocation": "SE"`:                            "SE RTX_4090-24G-x4-c32-m32 0.234567 0.1234566",
		`"geolocation": "Far, away"`:                     "- RTX_4090-24G-x4-c32-m32 0.234567 0.1234566",
		`"min_bid": 0.11111111111111112`:                 "AT RTX_4090-24G-x4-c32-m32 0.234567 0.123456712",
		`"min_bid": 1e-5`:                                "AT RTX_4090-24G-x4-c32-m32 0.234567 0.0133456",
		`"min_bid": null`:                                "AT RTX_4090-24G-x4-c32-m32 0.234567 -",
		`"dph_total": "0.5"`:                             "AT RTX_4090-24G-x4-c32-m32 0.50 0.1234566",
		`"dph_total": 0.01`:                              "AT RTX_4090-24G-x4-c32-m32 - 0.1234566", // less than its disk
		`"dph_total": null`:                              "AT RTX_4090-24G-x4-c32-m32 - 0.1234566",
	} {
		fields := map[string]json.RawMessage{}
		for _, body := range []string{documented, "{" + change + "}"} {
			if err := json.Unmarshal([]byte(body), &fields); err != nil {
				t.Fatal(err)
			}
		}
		body, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		var k ask
		if err := json.Unmarshal(body, &k); err != nil {
			t.Fatal(err)
		}
		got := k.region()
		if got == "" {
			got = "-"
		}
		typ := typeOf(k.shape(defaultDisk))
		got += " " + typ
		for _, kind := range []providers.Kind{providers.OnDemand, providers.Spot} {
			total, _, ok := k.price(kind)
			if got += " " + total.String(); !ok {
				got = got[:strings.LastIndexByte(got, ' ')] + " -"
			}
		}
		if got != want {
			t.Errorf("%s: %s, want %s", change, got, want)
		}
		if name, gpus, ok := parseType(typ); !ok || name != k.GPUName || gpus != k.GPUs {
			t.Errorf("%s leads back to %d %q, %t", typ, gpus, name, ok)
		}
	}
	for _, no := range []string{"", "x", "a-b-c-d", "-24G-x1-c1-m1", "A-24G-x0-c1-m1", "A-24G-xx-c1-m1", "A-24-x1-c1-m1", "A-24G-x1--m1", "A-24G-x1-c1-", "1x RTX 4090"} {
		if name, gpus, ok := parseType(no); ok {
			t.Errorf("%q is taken for %d %q", no, gpus, name)
		}
	}
}

func TestStates(t *testing.T) {
	for body, want := range map[string]string{
		`{}`: "pending ", `{"actual_status": null, "cur_state": "running"}`: "pending ",
		`{"actual_status": "loading", "cur_state": "running", "intended_status": "running"}`:                   "pending ",
		`{"actual_status": "running", "cur_state": "running", "intended_status": "running", "is_bid": true}`:   "running ",
		`{"actual_status": "exited", "cur_state": "stopped", "intended_status": "running", "is_bid": true}`:    "stopping preempted",
		`{"actual_status": null, "cur_state": "stopped", "intended_status": "running", "is_bid": true}`:        "stopping preempted", // never had one
		`{"actual_status": "exited", "cur_state": "stopped", "intended_status": "stopped", "is_bid": true}`:    "stopping user",
		`{"actual_status": "exited", "cur_state": "stopped", "intended_status": "running", "is_bid": false}`:   "stopping error",
		`{"actual_status": "offline", "cur_state": "running", "intended_status": "running", "is_bid": true}`:   "stopping error",
		`{"actual_status": "running", "cur_state": "unloaded", "intended_status": "stopped", "is_bid": false}`: "stopping user",
		`{"actual_status": "dreaming"}`: "unknown ",
	} {
		var i instance
		if err := json.Unmarshal([]byte(body), &i); err != nil {
			t.Fatal(err)
		}
		state, cause := i.state()
		if got := string(state) + " " + string(cause); got != want {
			t.Errorf("%s: %s, want %s", body, got, want)
		}
	}
}

func TestLabels(t *testing.T) {
	req := providers.LaunchRequest{
		Market: providers.Market{Region: "SE", Type: "RTX_4090-24G-x1-c16-m64"},
		Tags:   providers.Tags{Owner: "a/b c", Generation: "g&1", Request: "r=1", Project: "ünï", DeleteAt: time.Unix(1800000000, 0).UTC()},
	}
	text, ok := label(req)
	if tags, region, typ := read(text); !ok || tags != req.Tags || region != "SE" || typ != req.Market.Type {
		t.Errorf("%s gives back %+v, %s, %s", text, tags, region, typ)
	}
	req.Tags = providers.Tags{Owner: "gpubroker-prod", Generation: strings.Repeat("g", 26), Request: strings.Repeat("r", 30), Project: strings.Repeat("p", 63), DeleteAt: req.Tags.DeleteAt}
	if text, ok := label(req); !ok {
		t.Errorf("a usual label has %d bytes", len(text))
	}
	if req.Tags.Project = strings.Repeat("p", 200); func() bool { _, ok := label(req); return ok }() {
		t.Error("a label that is too long passes")
	}
	for _, foreign := range []string{"", "my box", "gpubroker", "o=a&r=b", "gpubroker?%zz"} {
		if tags, _, _ := read(foreign); tags.Owner != "" {
			t.Errorf("%q is taken for ours: %+v", foreign, tags)
		}
	}
}

// TestStartScripts: a long one goes packed, and does the same.
func TestStartScripts(t *testing.T) {
	if text, ok := onStart("#!/bin/sh\ntrue\n"); !ok || text != "#!/bin/sh\ntrue\n" {
		t.Errorf("a short one goes as %q", text)
	}
	home := t.TempDir()
	long := "#!/bin/sh\n" + strings.Repeat("# padding that says nothing new at all\n", 180) + `read line <<'END'` + "\nit's \"$HOME\"\nEND\n" + `echo "$line" >"$HOME/out"` + "\n"
	text, ok := onStart(long)
	if !ok || len(long) < 2*len(text) || len(text) > maxOnStart {
		t.Fatalf("%d bytes go as %d, %t", len(long), len(text), ok)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", text)
	cmd.Env = append(os.Environ(), "HOME="+home)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got, err := os.ReadFile(filepath.Join(home, "out")); err != nil || string(got) != "it's \"$HOME\"\n" {
		t.Errorf("it wrote %q, %v", got, err)
	}
	if info, err := os.Stat(filepath.Join(home, ".gpubroker-start")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("others may read the script: %v, %v", info, err)
	}
	var noise strings.Builder
	for n := range 3000 {
		noise.WriteString(strconv.Itoa(n*n*7919%100003) + ";")
	}
	if _, ok := onStart(noise.String()); ok {
		t.Error("one that is too long even packed passes")
	}
}

func TestSettingsAreChecked(t *testing.T) {
	for text, fine := range map[string]bool{
		`{}`: true, `{"disk": "8GB", "regions": ["SE", "US"], "image": "a/b:c", "network": {"proxy": "http://p:3128"}}`: true,
		`{"filters": {"reliability": {"gte": 0.99}, "verified": null, "gpu_arch": {"eq": "nvidia"}}}`: true,
		`{"disk": "7GB"}`: false, `{"disk": "50GiB"}`: false, `{"zone": 1}`: false, `{"regions": ["sweden"]}`: false, `{"tags": {"a": "b"}}`: false,
		`{"network": {"subnet": "x"}}`: false, `{"network": {"private": true}}`: false, `{"endpoint": "ftp://x"}`: false,
		`{"filters": {"dph_total": {"lte": 1}}}`: false, `{"filters": {"verified": true}}`: false,
	} {
		env := providers.Env{Owner: "broker", Secret: func(ref string) (string, error) { return "value of " + ref, nil }}
		if _, err := Descriptor().Open(t.Context(), "vast", []byte(text), env); (err == nil) != fine {
			t.Errorf("%s: %v", text, err)
		}
	}
	f, err := Settings{Filters: map[string]json.RawMessage{"verified": json.RawMessage("null"), "reliability": json.RawMessage(`{"gte": 0.99}`)}}.check()
	if _, has := f["verified"]; err != nil || has || len(f) != 3 {
		t.Errorf("the filters are %v, %v", f, err)
	}
}
