package aws_test

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud"
	cloud "gpubroker/internal/simcloud/dialects/aws"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/internal/simcloud/simtest"
	"gpubroker/providers"
	"gpubroker/providers/aws"
)

// account is an adapter over a world, with what passes between them.
type account struct {
	providers.Provider
	w   *simcloud.World
	set aws.Settings
	net *simtest.Net

	mu    sync.Mutex
	calls []call
	canny func(c call) *canned // answers in the world's place
	after func(c call) *canned // answers once the world has done what it was asked for
	edit  func(c call, answer string) string
}

// call is a request as it was sent.
type call struct {
	action string
	form   url.Values
	body   string
}

// canned is an answer that the world does not give.
type canned struct {
	status int
	header map[string]string
	body   string
}

func (a *account) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	c := call{body: string(body)}
	c.form, _ = url.ParseQuery(c.body)
	c.action = c.form.Get("Action")
	if target := r.Header.Get("X-Amz-Target"); target != "" {
		_, c.action, _ = strings.Cut(target, ".")
	} else if c.action == "" {
		c.action = r.Method + " " + r.URL.Path
	}
	a.mu.Lock()
	a.calls = append(a.calls, c)
	canny := a.canny
	a.mu.Unlock()
	if canny != nil {
		if say := canny(c); say != nil {
			for k, v := range say.header {
				rw.Header().Set(k, v)
			}
			rw.WriteHeader(say.status)
			_, _ = io.WriteString(rw, say.body)
			return
		}
	}
	if a.edit == nil && a.after == nil {
		simcloud.Dialected(a.w).ServeHTTP(rw, r)
		return
	}
	rec := httptest.NewRecorder()
	simcloud.Dialected(a.w).ServeHTTP(rec, r)
	if a.after != nil {
		if say := a.after(c); say != nil {
			rec = httptest.NewRecorder()
			rec.WriteHeader(say.status)
			_, _ = io.WriteString(rec, say.body)
		}
	}
	maps.Copy(rw.Header(), rec.Header())
	rw.Header().Del("Content-Length")
	rw.WriteHeader(rec.Code)
	answer := rec.Body.String()
	if a.edit != nil {
		answer = a.edit(c, answer)
	}
	_, _ = io.WriteString(rw, answer)
}

// sent returns the calls of an action.
func (a *account) sent(action string) []call {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []call
	for _, c := range a.calls {
		if strings.HasPrefix(c.action, action) {
			out = append(out, c)
		}
	}
	return out
}

// in runs a test in virtual time over a world.
func in(t *testing.T, edit func(*simcloud.Config, *aws.Settings), test func(t *testing.T, a *account)) {
	t.Helper()
	inOf(t, cloud.Options{}, edit, test)
}

func inOf(t *testing.T, o cloud.Options, edit func(*simcloud.Config, *aws.Settings), test func(t *testing.T, a *account)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg, set := cloud.Default(1), settings()
		if edit != nil {
			edit(&cfg, &set)
		}
		a := &account{w: world(t, cfg, cloud.With(o)), set: set, net: simtest.NewNet(t)}
		a.net.Serve("aws.test", a)
		a.Provider = open(t, set, a.net.Client())
		test(t, a)
	})
}

func request(id string, m providers.Market, max money.Rate) providers.LaunchRequest {
	return providers.LaunchRequest{
		Request: id, Market: m, PriceMax: max, UserData: "#!/bin/sh\necho " + id + "\n", End: time.Now().Add(time.Hour),
		Tags: providers.Tags{Owner: "broker", Generation: "g1", Request: id, Project: "p", DeleteAt: time.Now().Add(2 * time.Hour).Truncate(time.Second).UTC()},
	}
}

func market(zone, typ string, kind providers.Kind) providers.Market {
	return providers.Market{Provider: "aws", Region: zone[:len(zone)-1], Zone: zone, Type: typ, Kind: kind}
}

var t4 = market("us-east-1a", "g4dn.xlarge", providers.Spot)

func (a *account) fault(t *testing.T, f simapi.Fault) {
	t.Helper()
	if err := a.w.AddFault(f); err != nil {
		t.Fatal(err)
	}
}

func (a *account) truth() (live int) {
	for _, m := range a.w.Truth() {
		if m.State != providers.Terminated {
			live++
		}
	}
	return live
}

// want holds an error to what it shall say.
func want(t *testing.T, err error, code providers.Code, outcome providers.Outcome) *providers.Error {
	t.Helper()
	e, ok := errors.AsType[*providers.Error](err)
	if !ok || e.Code != code || e.Outcome != outcome {
		t.Fatalf("%v (%s), want %s, %s", err, providers.OutcomeOf(err), code, outcome)
	}
	return e
}

// TestErrors reads the bodies in testdata/errors. A file's name says the service
// and status of the answer, and the code, outcome (none: of a list) and scope that
// it stands for.
func TestErrors(t *testing.T) {
	files, err := filepath.Glob("testdata/errors/*")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
		t.Run(name, func(t *testing.T) {
			body, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			part := strings.SplitN(name, "-", 6)
			status, err := strconv.Atoi(part[1])
			if err != nil {
				t.Fatal(err)
			}
			action := map[string]string{"ec2": "RunInstances", "ssm": "GetParameter", "pricing": "GetProducts"}[part[0]]
			in(t, nil, func(t *testing.T, a *account) {
				a.canny = func(c call) *canned {
					if c.action != action {
						return nil
					}
					return &canned{status: status, body: string(body)}
				}
				_, err := a.Launch(t.Context(), request("r1", t4, 10*money.Rate(money.Unit)))
				if part[3] == "none" { // no launch fails for it
					_, err = a.Offers(t.Context(), providers.Scope{Region: "us-east-1"})
					part[3] = ""
				}
				e := want(t, err, providers.Code(part[2]), providers.Outcome(part[3]))
				if e.Scope != providers.ErrScope(part[4]) {
					t.Errorf("scope %s, want %s", e.Scope, part[4])
				}
				if part[3] != "" && len(a.sent(action)) != 1 {
					t.Errorf("%d calls of %s, want one", len(a.sent(action)), action)
				}
				if strings.ContainsAny(err.Error(), "\n\r") || strings.Contains(err.Error(), "4fCUNbrrbXOyLnCnVIZVWM") {
					t.Errorf("not one readable line: %q", err)
				}
			})
		})
	}
}

func TestLaunchFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault   simapi.Fault
		code    providers.Code
		outcome providers.Outcome
		live    int
	}{
		"the answer is lost":       {simapi.Fault{Op: "launch", Effect: simapi.DropAfter}, providers.Unavailable, providers.OutcomeUnknown, 1},
		"the answer is cut":        {simapi.Fault{Op: "launch", Effect: simapi.Truncate}, providers.Unavailable, providers.OutcomeUnknown, 1},
		"an error after the fact":  {simapi.Fault{Op: "launch", Effect: simapi.InternalAfter}, providers.Unavailable, providers.OutcomeUnknown, 1},
		"the connection drops":     {simapi.Fault{Op: "launch", Effect: simapi.Drop}, providers.Unavailable, providers.OutcomeUnknown, 0},
		"a proxy's page":           {simapi.Fault{Op: "launch", Effect: simapi.Proxy}, providers.Unavailable, providers.OutcomeUnknown, 0},
		"an error in a 200":        {simapi.Fault{Op: "launch", Effect: simapi.ErrorIn200}, providers.Unavailable, providers.OutcomeUnknown, 0},
		"throttled":                {simapi.Fault{Op: "launch", Effect: simapi.Throttle}, providers.RateLimited, providers.NotCreated, 0},
		"no capacity":              {simapi.Fault{Op: "launch", Effect: simapi.NoCapacity}, providers.NoCapacity, providers.NotCreated, 0},
		"a price that is too low":  {simapi.Fault{Op: "launch", Effect: simapi.PriceTooLow}, providers.PriceTooLow, providers.NotCreated, 0},
		"a blocked account":        {simapi.Fault{Op: "launch", Effect: simapi.NoFunds}, providers.NoFunds, providers.NotCreated, 0},
		"credentials of nobody":    {simapi.Fault{Op: "launch", Effect: simapi.Denied}, providers.Unauthorized, providers.NotCreated, 0},
		"a quota":                  {simapi.Fault{Op: "launch", Effect: simapi.Quota}, providers.QuotaExceeded, providers.NotCreated, 0},
		"something else is wrong":  {simapi.Fault{Op: "launch", Effect: simapi.Invalid}, providers.InvalidRequest, providers.NotCreated, 0},
		"the server is overloaded": {simapi.Fault{Op: "launch", Effect: simapi.Unavailable}, providers.Unavailable, providers.OutcomeUnknown, 0},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, nil, func(t *testing.T, a *account) {
				a.fault(t, c.fault)
				req := request("r1", t4, 0)
				_, err := a.Launch(t.Context(), req)
				want(t, err, c.code, c.outcome)
				if n := a.truth(); n != c.live {
					t.Errorf("%d machines, want %d", n, c.live)
				}
				made, err := a.Launch(t.Context(), req)
				if err != nil || a.truth() != 1 || made.Ref.Request != "r1" || made.End.IsZero() {
					t.Errorf("the same request again: %+v, %v, %d machines", made, err, a.truth())
				}
			})
		})
	}
}

func TestRetryAfter(t *testing.T) {
	for _, seconds := range []int{0, 7} {
		in(t, nil, func(t *testing.T, a *account) {
			a.fault(t, simapi.Fault{Op: "list", Effect: simapi.Throttle, RetryAfter: simapi.Duration(time.Duration(seconds) * time.Second)})
			_, err := a.List(t.Context())
			if e := want(t, err, providers.RateLimited, ""); e.RetryAfter != time.Duration(seconds)*time.Second {
				t.Errorf("RetryAfter %v, want %d s", e.RetryAfter, seconds)
			}
		})
	}
}

// Each of EC2's limits has its own code.
func TestQuotas(t *testing.T) {
	for _, m := range []providers.Market{t4, market("us-west-2b", "g4dn.xlarge", providers.OnDemand), market("us-east-1b", "p5.48xlarge", providers.Spot)} {
		in(t, func(c *simcloud.Config, _ *aws.Settings) {
			for i := range c.Quotas {
				c.Quotas[i].Limit = 3
			}
		}, func(t *testing.T, a *account) {
			_, err := a.Launch(t.Context(), request("r1", m, 0))
			if e := want(t, err, providers.QuotaExceeded, providers.NotCreated); e.Scope != providers.ScopeFamily {
				t.Errorf("scope %s", e.Scope)
			}
		})
	}
}

func TestQuotasAreCounted(t *testing.T) {
	in(t, func(c *simcloud.Config, _ *aws.Settings) { c.PageSize = 2 }, func(t *testing.T, a *account) {
		if _, err := a.Launch(t.Context(), request("r1", t4, 0)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		all, err := a.Provider.(providers.Quotas).Quotas(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		used := map[string]float64{}
		for _, q := range all {
			used[q.Region+" "+q.Name] = q.Used
			if q.Limit == 0 || len(q.Types) == 0 {
				t.Errorf("%+v", q)
			}
		}
		if len(all) != 14 || used["us-east-1 All G and VT Spot Instance Requests"] != 4 || used["us-west-2 All G and VT Spot Instance Requests"] != 0 {
			t.Errorf("%d quotas, used %v", len(all), used)
		}
		if n := len(a.sent("ListServiceQuotas")); n < 6 {
			t.Errorf("%d pages of quotas", n)
		}
	})
}

func TestExpiredCredentials(t *testing.T) {
	in(t, nil, func(t *testing.T, a *account) {
		old, err := aws.New(t.Context(), "aws", a.set, aws.Access{AccessKey: accessKey, SecretKey: secretKey, SessionToken: "expired", Owner: "broker", Client: a.net.Client()})
		if err != nil {
			t.Fatal(err)
		}
		_, err = old.Launch(t.Context(), request("r1", t4, 0))
		want(t, err, providers.Unauthorized, providers.NotCreated)
		_, err = old.Offers(t.Context(), providers.Scope{})
		want(t, err, providers.Unauthorized, "")
	})
}

func TestPages(t *testing.T) {
	in(t, func(c *simcloud.Config, _ *aws.Settings) { c.PageSize = 2 }, func(t *testing.T, a *account) {
		offers, err := a.Offers(t.Context(), providers.Scope{})
		if err != nil || len(offers) != 5*8*2 {
			t.Fatalf("%d offers, %v; want every type in every zone on spot and on demand", len(offers), err)
		}
		for range 5 {
			id := "r" + strconv.Itoa(len(a.sent("RunInstances")))
			if _, err := a.Launch(t.Context(), request(id, t4, 0)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Second)
		all, err := a.List(t.Context())
		if err != nil || len(all) != 5 {
			t.Errorf("%d machines, %v", len(all), err)
		}
		for _, action := range []string{"DescribeInstanceTypes", "DescribeInstanceTypeOfferings", "DescribeSpotPriceHistory", "GetProducts", "DescribeInstances"} {
			pages := 0
			for _, c := range a.sent(action) {
				if c.form.Get("NextToken") != "" || strings.Contains(c.body, `"NextToken"`) {
					pages++
				}
			}
			if pages < 2 {
				t.Errorf("%s: %d pages after the first", action, pages)
			}
		}
	})
}

// A page that names itself must not be read for ever.
func TestPageThatNamesItself(t *testing.T) {
	in(t, nil, func(t *testing.T, a *account) {
		a.canny = func(c call) *canned {
			if c.action != "DescribeInstances" {
				return nil
			}
			return &canned{status: 200, body: `<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><reservationSet/><nextToken>again</nextToken></DescribeInstancesResponse>`}
		}
		_, err := a.List(t.Context())
		want(t, err, providers.Unknown, "")
	})
}

func TestListLagsBehind(t *testing.T) {
	in(t, func(c *simcloud.Config, _ *aws.Settings) { c.ListLag = simapi.Duration(30 * time.Second) }, func(t *testing.T, a *account) {
		made, err := a.Launch(t.Context(), request("r1", t4, 0))
		if err != nil {
			t.Fatal(err)
		}
		if all, err := a.List(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("at once: %d machines, %v", len(all), err)
		}
		if i, err := a.Describe(t.Context(), made.Ref); err != nil || i.Ref.ID != made.Ref.ID {
			t.Errorf("describe by id: %+v, %v", i, err)
		}
		time.Sleep(31 * time.Second)
		if all, err := a.List(t.Context()); err != nil || len(all) != 1 || all[0].Ref != made.Ref {
			t.Errorf("after the lag: %+v, %v", all, err)
		}
	})
}

func TestTerminate(t *testing.T) {
	in(t, nil, func(t *testing.T, a *account) {
		made, err := a.Launch(t.Context(), request("r1", t4, 0))
		if err != nil {
			t.Fatal(err)
		}
		a.fault(t, simapi.Fault{Op: "terminate", Effect: simapi.Internal})
		want(t, a.Terminate(t.Context(), made.Ref), providers.Unavailable, "")
		a.fault(t, simapi.Fault{Op: "terminate", Effect: simapi.Refuse})
		want(t, a.Terminate(t.Context(), made.Ref), providers.Unavailable, "")
		if err := a.Terminate(t.Context(), made.Ref); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		want(t, a.Terminate(t.Context(), made.Ref), providers.NotFound, "")
		if n := len(a.sent("DELETE /schedules/gpubroker-r1")); n != 1 {
			t.Errorf("the schedule was deleted %d times", n)
		}
		gone := made.Ref
		gone.ID = "i-0ffffffffffffffff"
		want(t, a.Terminate(t.Context(), gone), providers.NotFound, "")
	})
}

// A launch whose schedule cannot be made has no end at the provider, and the next
// MoveEnd makes it.
func TestScheduleIsRepaired(t *testing.T) {
	in(t, nil, func(t *testing.T, a *account) {
		a.fault(t, simapi.Fault{Op: "move_end", Effect: simapi.Internal})
		made, err := a.Launch(t.Context(), request("r1", t4, 0))
		if err != nil || !made.End.IsZero() {
			t.Fatalf("end %v, %v; want a machine without one", made.End, err)
		}
		if i, err := a.Describe(t.Context(), made.Ref); err != nil || !i.End.IsZero() {
			t.Errorf("describe: end %v, %v", i.End, err)
		}
		end := time.Now().Add(20 * time.Minute).Truncate(time.Second).UTC()
		if err := a.Provider.(providers.EndMover).MoveEnd(t.Context(), made.Ref, end); err != nil {
			t.Fatal(err)
		}
		if i, err := a.Describe(t.Context(), made.Ref); err != nil || !i.End.Equal(end) {
			t.Errorf("describe: end %v, %v; want %v", i.End, err, end)
		}
		time.Sleep(21 * time.Minute)
		i, err := a.Describe(t.Context(), made.Ref)
		if err != nil || i.State != providers.Terminated || i.Cause != providers.CauseExpired {
			t.Errorf("%s by %q, %v; want terminated by its schedule", i.State, i.Cause, err)
		}
		err = a.Provider.(providers.EndMover).MoveEnd(t.Context(), made.Ref, end.Add(time.Hour))
		want(t, err, providers.NotFound, "")
	})
}

func TestGang(t *testing.T) {
	in(t, func(_ *simcloud.Config, s *aws.Settings) {
		s.Network.Private, s.Network.Subnet, s.SecurityGroups = true, "tag:gpubroker=yes", []string{"sg-1"}
	}, func(t *testing.T, a *account) {
		m := market("us-east-1a", "p4d.24xlarge", providers.Spot)
		a.fault(t, simapi.Fault{Op: "launch", Effect: simapi.NoCapacity})
		req := request("r1", m, 0)
		req.Group = "j1"
		_, err := a.Launch(t.Context(), req)
		want(t, err, providers.NoCapacity, providers.NotCreated)
		if n := len(a.sent("DeletePlacementGroup")); n != 1 {
			t.Errorf("the group of a failed launch was deleted %d times", n)
		}
		var refs []providers.Ref
		for _, id := range []string{"r2", "r3"} {
			req := request(id, m, 0)
			req.Group = "j1"
			made, err := a.Launch(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			refs = append(refs, made.Ref)
		}
		sent := a.sent("RunInstances")
		form := sent[len(sent)-1].form
		for key, value := range map[string]string{
			"Placement.GroupName": "gpubroker-j1", "NetworkInterface.1.InterfaceType": "efa", "NetworkInterface.4.InterfaceType": "efa",
			"NetworkInterface.4.NetworkCardIndex": "3", "NetworkInterface.4.DeviceIndex": "1", "NetworkInterface.2.SecurityGroupId.1": "sg-1",
			"NetworkInterface.1.SubnetId": cloud.SubnetID("us-east-1a"), "NetworkInterface.5.InterfaceType": "", "NetworkInterface.1.AssociatePublicIpAddress": "",
		} {
			if form.Get(key) != value {
				t.Errorf("%s=%q, want %q", key, form.Get(key), value)
			}
		}
		for _, ref := range refs {
			if err := a.Terminate(t.Context(), ref); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
			want(t, a.Terminate(t.Context(), ref), providers.NotFound, "")
		}
		if _, err := a.Launch(t.Context(), withGroup(request("r4", m, 0), "j1")); err != nil { // the name is free again
			t.Error(err)
		}
		if n := len(a.sent("DeletePlacementGroup")); n != 3 {
			t.Errorf("%d deletions of the group", n)
		}
	})
}

func withGroup(r providers.LaunchRequest, group string) providers.LaunchRequest {
	r.Group = group
	return r
}

// The bound that is sent is the whole machine's less what stands beside it.
func TestWhatIsSent(t *testing.T) {
	in(t, func(_ *simcloud.Config, s *aws.Settings) {
		s.Tags, s.Network.Proxy = map[string]string{"cost-centre": "42"}, "http://proxy:3128"
	}, func(t *testing.T, a *account) {
		if _, err := a.Launch(t.Context(), request("r1", t4, 300_000_000)); err != nil {
			t.Fatal(err)
		}
		form := a.sent("RunInstances")[0].form
		for key, value := range map[string]string{
			"ClientToken": "r1", "MinCount": "1", "MaxCount": "1", "Placement.AvailabilityZone": "us-east-1a", "InstanceType": "g4dn.xlarge",
			"InstanceInitiatedShutdownBehavior": "terminate", "InstanceMarketOptions.MarketType": "spot",
			"InstanceMarketOptions.SpotOptions.SpotInstanceType":             "one-time",
			"InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior": "terminate",
			// 0.3 less 0.08 × 100 / 720 and 0.005, in six decimals.
			"InstanceMarketOptions.SpotOptions.MaxPrice": "0.283888",
			"BlockDeviceMapping.1.DeviceName":            "/dev/sda1", "BlockDeviceMapping.1.Ebs.VolumeSize": "100", "BlockDeviceMapping.1.Ebs.VolumeType": "gp3",
			"MetadataOptions.HttpTokens": "required", "TagSpecification.1.ResourceType": "instance", "TagSpecification.2.ResourceType": "volume",
			"TagSpecification.1.Tag.2.Key": "cost-centre", "TagSpecification.1.Tag.2.Value": "42",
		} {
			if form.Get(key) != value {
				t.Errorf("%s=%q, want %q", key, form.Get(key), value)
			}
		}
		_, err := a.Launch(t.Context(), request("r2", t4, 17_000_000))
		want(t, err, providers.PriceTooLow, providers.NotCreated)
	})
}

func TestLongUserDataIsPacked(t *testing.T) {
	in(t, nil, func(t *testing.T, a *account) {
		req := request("r1", t4, 0)
		req.UserData = "#!/bin/sh\n" + strings.Repeat("echo the same again\n", 2000)
		made, err := a.Launch(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		inside, err := a.w.Inside(cloud.WorldID(made.Ref.ID))
		if err != nil || inside.UserData != req.UserData {
			t.Errorf("the machine has %d bytes of user data, %v; want %d", len(inside.UserData), err, len(req.UserData))
		}
	})
}

func TestOfferShapes(t *testing.T) {
	in(t, nil, func(t *testing.T, a *account) {
		all, err := a.Offers(t.Context(), providers.Scope{Region: "us-east-1"})
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]providers.Offer{}
		for _, o := range all {
			seen[o.Zone+"/"+o.Type+"/"+string(o.Kind)] = o
		}
		for _, w := range a.w.Offers("us-east-1", 0) {
			o := seen[w.Zone+"/"+w.Type+"/"+string(w.Kind)]
			if o.Price != w.Price || o.GPU != w.GPU || o.GPUs != w.GPUs || o.GPUMemory != w.GPUMemory || o.VCPU != w.VCPU || o.Memory != w.Memory || o.Disk != w.Disk {
				t.Errorf("%s:\n got %+v\nwant %+v", w.Place, o, w)
			}
		}
	})
}
