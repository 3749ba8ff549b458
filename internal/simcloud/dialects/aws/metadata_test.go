package aws_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// imds asks a metadata service. token "" asks without one.
func imds(t *testing.T, base, token, path string) (status int, kind, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("X-aws-ec2-metadata-token", token)
	}
	return answer(t, req)
}

func answer(t *testing.T, req *http.Request) (status int, kind, body string) {
	t.Helper()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err.Error()
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header.Get("Content-Type"), string(data)
}

func imdsToken(t *testing.T, base, ttl string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, base+"/latest/api/token", nil)
	if err != nil {
		t.Fatal(err)
	}
	if ttl != "" {
		req.Header.Set("X-aws-ec2-metadata-token-ttl-seconds", ttl)
	}
	status, _, body := answer(t, req)
	return status, body
}

// warned is the metadata service of a machine, and what warns it.
func warned(t *testing.T) (base string, warn func()) {
	t.Helper()
	w := world(t, nil)
	offers := w.Offers("us-east-1", 0)
	at := slices.IndexFunc(offers, func(o simapi.Offer) bool { return o.Type == "g4dn.xlarge" && o.Kind == providers.Spot })
	m, err := w.Launch(simapi.Launch{Place: offers[at].Place, Request: "r"})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(w.Config().Dialect.Metadata(w, m.ID))
	t.Cleanup(server.Close)
	return server.URL, func() {
		for _, a := range []simapi.Action{{Rebalance: &simapi.Pick{Machine: m.ID}}, {Preempt: &simapi.Preempt{Pick: simapi.Pick{Machine: m.ID}}}} {
			if _, err := w.Do(a); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestMetadataNeedsToken(t *testing.T) {
	base, _ := warned(t)
	if status, _, _ := imds(t, base, "", "/latest/meta-data/instance-id"); status != http.StatusUnauthorized {
		t.Errorf("without a token: %d", status)
	}
	if status, _, _ := imds(t, base, "forged", "/latest/meta-data/instance-id"); status != http.StatusUnauthorized {
		t.Errorf("with a token of nobody: %d", status)
	}
	for _, ttl := range []string{"", "0", "21601", "x"} {
		if status, _ := imdsToken(t, base, ttl); status != http.StatusBadRequest {
			t.Errorf("a token for %q: %d", ttl, status)
		}
	}
	_, token := imdsToken(t, base, "60")
	if status, _, body := imds(t, base, token, "/latest/meta-data/instance-id"); status != http.StatusOK || body != "i-00000000000000001" {
		t.Errorf("with a token: %d %s", status, body)
	}
}

// TestMetadataMock compares the fake with AWS's own mock of the service (AEMM):
// same statuses, same kinds of answers, same fields in the same form.
func TestMetadataMock(t *testing.T) {
	mock := filepath.Join("..", "..", "..", "..", ".cache", "tools", "ec2-metadata-mock")
	if _, err := os.Stat(mock); err != nil {
		if mock, err = exec.LookPath("ec2-metadata-mock"); err != nil {
			t.Skip("AWS's metadata mock is not there: GOBIN=$PWD/.cache/tools go install github.com/aws/amazon-ec2-metadata-mock/cmd/ec2-metadata-mock@v1.13.0")
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	listener.Close()
	cmd := exec.CommandContext(t.Context(), mock, "spot", "-n", "127.0.0.1", "-p", port, "-I", "-a", "terminate", "-d", "2", "--rebalance-delay-sec", "2")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs := "http://127.0.0.1:" + port
	ours, warn := warned(t)
	var theirToken string
	eventually(t, "the mock starts", func() bool {
		status, token := imdsToken(t, theirs, "300")
		theirToken = token
		return status == http.StatusOK
	})
	_, ourToken := imdsToken(t, ours, "300")
	paths := []string{
		"instance-id", "ami-id", "ami-launch-index", "instance-type", "instance-life-cycle", "placement/availability-zone", "placement/region", "local-ipv4",
		"spot/instance-action", "spot/termination-time", "events/recommendations/rebalance", "no-such-thing",
	}
	compare := func(when string) {
		t.Helper()
		for _, p := range paths {
			status, kind, body := imds(t, ours, ourToken, "/latest/meta-data/"+p)
			wantStatus, wantKind, want := imds(t, theirs, theirToken, "/latest/meta-data/"+p)
			if status != wantStatus || status == http.StatusOK && form(body) != form(want) {
				t.Errorf("%s, %s:\n ours %d %s %q\ntheirs %d %s %q", when, p, status, kind, form(body), wantStatus, wantKind, form(want))
			}
		}
	}
	compare("before a warning")
	if status, _, _ := imds(t, theirs, "", "/latest/meta-data/instance-id"); status != http.StatusUnauthorized {
		t.Errorf("the mock without a token: %d", status)
	}
	warn()
	eventually(t, "the mock warns", func() bool {
		a, _, _ := imds(t, theirs, theirToken, "/latest/meta-data/spot/instance-action")
		b, _, _ := imds(t, theirs, theirToken, "/latest/meta-data/events/recommendations/rebalance")
		return a == http.StatusOK && b == http.StatusOK
	})
	compare("after a warning")
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 200 {
		if ok() {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("%s: never", what)
}

// form is an answer with its values replaced by their kinds.
func form(body string) string {
	var fields map[string]string
	if json.Unmarshal([]byte(body), &fields) == nil {
		out := ""
		for _, k := range slices.Sorted(maps.Keys(fields)) {
			out += fmt.Sprintf("%s: %s; ", k, form(fields[k]))
		}
		return "{" + out + "}"
	}
	body = strings.TrimSpace(body)
	for kind, pattern := range map[string]string{
		"a moment": `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$`, "an instance": `^i-[0-9a-f]{17}$`, "an image": `^ami-[0-9a-f]{8,17}$`, "a number": `^\d+$`,
		"an address": `^\d+\.\d+\.\d+\.\d+$`, "a zone": `^[a-z]+-[a-z]+-\d[a-z]$`, "a region": `^[a-z]+-[a-z]+-\d$`, "a type": `^[a-z0-9-]+\.[a-z0-9]+$`,
		"a way to buy": `^(spot|on-demand)$`,
	} {
		if regexp.MustCompile(pattern).MatchString(body) {
			return kind
		}
	}
	return body
}
