package aws_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	cloud "gpubroker/internal/simcloud/dialects/aws"
	"gpubroker/internal/simcloud/simtest"
	"gpubroker/providers"
	"gpubroker/providers/aws"
	"gpubroker/providers/managed"
)

func TestSettingsAreChecked(t *testing.T) {
	for text, want := range map[string]string{
		`{"regions": ["mars-1"]}`:                                     `"mars-1" is no region`,
		`{"regions": ["us-east-1", "us-east-1"]}`:                     "stands twice",
		`{"regions": ["us-east-1"], "access_key": "env:A"}`:           "go together",
		`{"regions": ["us-east-1"], "end_role": "gpubroker-end"}`:     "want a role's ARN",
		`{"regions": ["us-east-1"], "disk": "1MiB"}`:                  "1GiB or more",
		`{"regions": ["us-east-1"], "disk": "100"}`:                   "needs a unit",
		`{"regions": ["us-east-1"], "tags": {"gpubroker-x": "y"}}`:    "are taken",
		`{"regions": ["us-east-1"], "types": ["c7i.*"]}`:              "no instance type",
		`{"regions": ["us-east-1"], "endpoints": {"s3": "http://x"}}`: `"s3"`,
		`{"regions": ["us-east-1"], "endpoint": "localhost:80"}`:      "want a URL",
		`{"regions": ["us-east-1"], "by_region": {"us-west-2": {}}}`:  "not among the regions",
		`{"region": "us-east-1"}`:                                     `did you mean "regions"`,
	} {
		_, err := aws.Descriptor().Open(t.Context(), "a", json.RawMessage(text), providers.Env{Owner: "o", Secret: func(string) (string, error) { return "s", nil }})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "provider a: ") {
			t.Errorf("%s: %v; want it to say %q", text, err, want)
		}
	}
}

// The abilities are there where the settings make them work.
func TestAbilitiesFollowTheSettings(t *testing.T) {
	for _, c := range []struct {
		role, queue string
		end         providers.SelfEnd
		source      providers.NoticeSource
	}{
		{"", "", providers.EndGuest, providers.NoticeMetadata},
		{endRole, "", providers.EndRolling, providers.NoticeMetadata},
		{"", "q", providers.EndGuest, providers.NoticeEvents},
		{endRole, "q", providers.EndRolling, providers.NoticeEvents},
	} {
		s := settings()
		s.EndRole, s.Queue = c.role, c.queue
		p := open(t, s, http.DefaultClient)
		_, moves := managed.Find[providers.EndMover](p)
		_, warns := managed.Find[providers.Interrupter](p)
		_, bulk := managed.Find[providers.BulkLauncher](p)
		if caps := p.Capabilities(); caps.SelfEnd != c.end || caps.NoticeSource != c.source || moves != (c.role != "") || warns != (c.queue != "") || !bulk {
			t.Errorf("%+v: %s, %s, moves %t, warns %t, many %t", c, caps.SelfEnd, caps.NoticeSource, moves, warns, bulk)
		}
	}
}

// The SDK's own variables lead to another server, and the settings go before them.
func TestEndpoints(t *testing.T) {
	t.Setenv("AWS_ENDPOINT_URL", "http://global.test")
	t.Setenv("AWS_ENDPOINT_URL_EC2", "http://ec2.test")
	for want, edit := range map[string]func(*aws.Settings){
		"ec2.test":   func(s *aws.Settings) { s.Endpoint = "" },
		"aws.test":   func(*aws.Settings) {},
		"other.test": func(s *aws.Settings) { s.Endpoints = map[string]string{"ec2": "http://other.test"} },
	} {
		net := simtest.NewNet(t)
		asked := make(chan string, 10)
		for _, host := range []string{"global.test", "ec2.test", "aws.test", "other.test"} {
			net.Serve(host, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				asked <- r.Host
				http.Error(rw, "", http.StatusServiceUnavailable)
			}))
		}
		s := settings()
		s.Regions = s.Regions[:1]
		edit(&s)
		_, err := open(t, s, net.Client()).List(t.Context())
		if got := <-asked; got != want || providers.CodeOf(err) != providers.Unavailable {
			t.Errorf("asked %s, want %s (%v)", got, want, err)
		}
	}
}

// Without a key nobody is asked, and a launch has certainly made nothing.
func TestNoCredentials(t *testing.T) {
	for _, v := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"} {
		t.Setenv(v, "")
	}
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_CONFIG_FILE", "/nowhere")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
	s := settings()
	s.AccessKey, s.SecretKey, s.Image = "", "", cloud.OwnImage("us-east-1")
	p, err := aws.New(t.Context(), "aws", s, aws.Access{Owner: "broker", Client: simtest.NewNet(t).Client()})
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Launch(t.Context(), request("r1", t4, 0))
	want(t, err, providers.Unauthorized, providers.NotCreated)
}
