package aws_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud"
	"gpubroker/providers"
	"gpubroker/providers/aws"
)

// without takes XML elements out of answers to an action.
func without(action string, elements ...string) func(c call, answer string) string {
	return func(c call, answer string) string {
		if c.action != action {
			return answer
		}
		for _, e := range elements {
			answer = regexp.MustCompile(`(?s)<`+e+`>.*?</`+e+`>|<`+e+`/>`).ReplaceAllString(answer, "")
		}
		return answer
	}
}

// What is no answer of EC2 must not pass for an empty list: the broker would take
// every machine for gone.
func TestWhatIsNoAnswerIsNoList(t *testing.T) {
	for name, body := range map[string]string{
		"nothing":                     "",
		"a page":                      "<html><body>Sign in to the network</body></html>",
		"an error on several lines":   "<?xml version=\"1.0\"?>\n<Response>\n  <Errors>\n    <Error><Code>InternalError</Code><Message>x</Message></Error>\n  </Errors>\n</Response>",
		"an error behind a comment":   "<!-- edge-7 --><Response><Errors><Error><Code>InternalError</Code></Error></Errors></Response>",
		"an answer to something else": `<DescribeRegionsResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><regionInfo/></DescribeRegionsResponse>`,
	} {
		t.Run(name, func(t *testing.T) {
			in(t, nil, func(t *testing.T, a *account) {
				a.canny = func(c call) *canned {
					if c.action != "DescribeInstances" {
						return nil
					}
					return &canned{status: 200, body: body}
				}
				all, err := a.List(t.Context())
				if err == nil {
					t.Errorf("List took it for a list of %d machines", len(all))
				}
				for _, ref := range []providers.Ref{{Request: "r1"}, {Request: "r1", ID: "i-0123456789abcdef0", Region: "us-east-1"}} {
					if _, err := a.Describe(t.Context(), ref); err == nil || providers.CodeOf(err) == providers.NotFound {
						t.Errorf("Describe of %s: %v", ref, err)
					}
				}
			})
		})
	}
	in(t, nil, func(t *testing.T, a *account) {
		a.canny = func(c call) *canned {
			if c.action != "GetProducts" {
				return nil
			}
			return &canned{status: 200}
		}
		if all, err := a.Offers(t.Context(), providers.Scope{}); err == nil {
			t.Errorf("%d offers from an empty price list", len(all))
		}
	})
}

// A server that filters less than it is asked to shows nobody else's machines as
// ours.
func TestFiltersAreNotBelieved(t *testing.T) {
	in(t, nil, func(t *testing.T, a *account) {
		req := request("r1", t4, 0)
		if _, err := a.Launch(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		a.edit = func(_ call, answer string) string {
			return strings.ReplaceAll(answer, "<value>broker</value>", "<value>somebody-else</value>")
		}
		if all, err := a.List(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("%+v, %v; want none of another owner", all, err)
		}
		_, err := a.Describe(t.Context(), providers.Ref{Request: "r1"})
		want(t, err, providers.NotFound, "")
		want(t, a.Terminate(t.Context(), providers.Ref{Request: "r1"}), providers.NotFound, "")
		if a.truth() != 1 {
			t.Error("another's machine was ended")
		}
	})
}

// Answers of servers that say less than EC2.
func TestSpareAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(c call, answer string) string
		kind providers.Kind
	}{
		"a launch without placement":          {without("RunInstances", "placement"), providers.Spot},
		"a launch without lifecycle":          {without("RunInstances", "instanceLifecycle"), providers.Spot},
		"a launch without type, state, times": {without("RunInstances", "instanceType", "instanceState", "launchTime", "tagSet", "amiLaunchIndex"), providers.OnDemand},
		"an image without a root device":      {without("DescribeImages", "rootDeviceName", "blockDeviceMapping"), providers.OnDemand},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, nil, func(t *testing.T, a *account) {
				a.edit = c.edit
				m := t4
				m.Kind = c.kind
				made, err := a.Launch(t.Context(), request("r1", m, 0))
				if err != nil || made.Market != m || made.Ref.ID == "" || made.Ref.Request != "r1" || made.Ref.Zone != m.Zone || made.Tags.Owner != "broker" {
					t.Fatalf("%+v, %v", made, err)
				}
			})
		})
	}
	for name, edit := range map[string]func(c call, answer string) string{
		"types without usage classes":       without("DescribeInstanceTypes", "supportedUsageClasses"),
		"spot prices without a time":        without("DescribeSpotPriceHistory", "timestamp"),
		"spot prices without a description": without("DescribeSpotPriceHistory", "productDescription"),
		"a spot price that is missing": func(c call, answer string) string {
			if c.action == "DescribeSpotPriceHistory" {
				return strings.Replace(answer, "<spotPriceHistorySet>", "<spotPriceHistorySet><item><instanceType>g4dn.xlarge</instanceType><availabilityZone>us-east-1z</availabilityZone></item>", 1)
			}
			return answer
		},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, nil, func(t *testing.T, a *account) {
				whole, err := a.Offers(t.Context(), providers.Scope{})
				if err != nil {
					t.Fatal(err)
				}
				a.edit = edit
				spare, err := a.Offers(t.Context(), providers.Scope{})
				if err != nil || len(spare) != len(whole) {
					t.Errorf("%d offers, %v; want %d", len(spare), err, len(whole))
				}
			})
		})
	}
}

// A price list of machines alone leaves the price of a disk unknown, not the
// machine's: the dearest disk stands in for it, and the offer says so.
func TestPriceListWithoutDisksOrAddresses(t *testing.T) {
	for name, say := range map[string]*canned{
		"nothing":         {status: 200, body: `{"FormatVersion":"aws_v1","PriceList":[]}`},
		"no such service": {status: 400, body: `{"__type":"NotFoundException","Message":"no such service"}`},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, nil, func(t *testing.T, a *account) {
				whole, err := a.Offers(t.Context(), providers.Scope{})
				if err != nil {
					t.Fatal(err)
				}
				a.canny = func(c call) *canned {
					if c.action == "GetProducts" && (strings.Contains(c.body, "gp3") && say.status == 200 || strings.Contains(c.body, "AmazonVPC")) {
						return say
					}
					return nil
				}
				spare, err := a.Offers(t.Context(), providers.Scope{})
				if err != nil || len(spare) != len(whole) {
					t.Fatalf("%d offers, %v; want %d", len(spare), err, len(whole))
				}
				for i, o := range spare {
					if o.Parts[0] != whole[i].Parts[0] || o.Parts[1].Price < whole[i].Parts[1].Price || o.Parts[2].Price <= 0 {
						t.Fatalf("%+v, want no less than %+v", o.Parts, whole[i].Parts)
					}
					if said := strings.Contains(o.Source, "bound"); said != (say.status == 200) {
						t.Fatalf("source %q", o.Source)
					}
				}
			})
		})
	}
}

// An id that EC2 gave a moment ago is not known to all of it yet: that is no end.
func TestNewMachineIsNotGone(t *testing.T) {
	in(t, nil, func(t *testing.T, a *account) {
		made, err := a.Launch(t.Context(), request("r1", t4, 0))
		if err != nil {
			t.Fatal(err)
		}
		a.canny = func(c call) *canned {
			if c.action != "TerminateInstances" {
				return nil
			}
			return &canned{status: 400, body: `<Response><Errors><Error><Code>InvalidInstanceID.NotFound</Code><Message>no</Message></Error></Errors></Response>`}
		}
		want(t, a.Terminate(t.Context(), made.Ref), providers.Unavailable, "")
		a.canny = nil
		if err := a.Terminate(t.Context(), made.Ref); err != nil {
			t.Fatal(err)
		}
	})
}

// NotFound means that nothing is left, the schedule too, however Terminate comes
// to it.
func TestScheduleGoesWithItsMachine(t *testing.T) {
	for name, fail := range map[string]string{"the schedules' service fails once": "DELETE ", "EC2 has forgotten the machine": "TerminateInstances"} {
		t.Run(name, func(t *testing.T) {
			in(t, nil, func(t *testing.T, a *account) {
				made, err := a.Launch(t.Context(), request("r1", t4, 0))
				if err != nil {
					t.Fatal(err)
				}
				if err := a.Terminate(t.Context(), made.Ref); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Second)
				failed := false
				a.canny = func(c call) *canned {
					if failed || !strings.HasPrefix(c.action, fail) {
						return nil
					}
					failed = true
					if fail == "DELETE " {
						return &canned{status: 503, body: `{}`}
					}
					return &canned{status: 400, body: `<Response><Errors><Error><Code>InvalidInstanceID.NotFound</Code><Message>no</Message></Error></Errors></Response>`}
				}
				for range 5 {
					if err = a.Terminate(t.Context(), made.Ref); providers.CodeOf(err) == providers.NotFound {
						break
					}
				}
				want(t, err, providers.NotFound, "")
				a.canny = nil
				before := len(a.sent("DELETE "))
				if before == 0 || fail == "DELETE " && before < 2 {
					t.Errorf("the schedule stays: deleted %d times", before)
				}
			})
		})
	}
}

// Servers that do not say what a machine was before say what it is now.
func TestTerminateWithoutPreviousState(t *testing.T) {
	in(t, nil, func(t *testing.T, a *account) {
		made, err := a.Launch(t.Context(), request("r1", t4, 0))
		if err != nil {
			t.Fatal(err)
		}
		a.edit = without("TerminateInstances", "previousState")
		if err := a.Terminate(t.Context(), made.Ref); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		want(t, a.Terminate(t.Context(), made.Ref), providers.NotFound, "")
	})
}

// Machines of one call that cannot be told apart are nobody's.
func TestManyWithoutIndex(t *testing.T) {
	in(t, nil, func(t *testing.T, a *account) {
		a.edit = without("RunInstances", "amiLaunchIndex")
		answers := a.Provider.(providers.BulkLauncher).LaunchMany(t.Context(), []providers.LaunchRequest{request("r1", t4, 0), request("r2", t4, 0)})
		for i, got := range answers {
			if got.Err == nil || providers.OutcomeOf(got.Err) != providers.OutcomeUnknown {
				t.Errorf("%d: %+v, %v; want an unknown outcome: there are %d machines", i, got.Instance, got.Err, a.truth())
			}
		}
	})
}

// A server that takes a star for a star still finds machines of one call.
func TestManyAreFoundWithoutWildcards(t *testing.T) {
	in(t, nil, func(t *testing.T, a *account) {
		for _, got := range a.Provider.(providers.BulkLauncher).LaunchMany(t.Context(), []providers.LaunchRequest{request("r1", t4, 0), request("r2", t4, 0)}) {
			if got.Err != nil {
				t.Fatal(got.Err)
			}
		}
		time.Sleep(5 * time.Second)
		a.canny = func(c call) *canned {
			if c.action == "DescribeInstances" && strings.Contains(c.body, "%2A") {
				return &canned{status: 200, body: `<DescribeInstancesResponse><reservationSet/></DescribeInstancesResponse>`}
			}
			return nil
		}
		if i, err := a.Describe(t.Context(), providers.Ref{Request: "r2"}); err != nil || i.Ref.Request != "r2" {
			t.Errorf("%+v, %v", i, err)
		}
	})
}

// Warnings as other servers write them, behind 10,000 messages about nothing.
func TestWarningsOfOtherServers(t *testing.T) {
	for name, event := range map[string]string{
		"without a region":     `{"detail-type":"EC2 Spot Instance Interruption Warning","source":"aws.ec2","time":"2000-01-01T00:00:05Z","detail":{"instance-id":%q}}`,
		"with another time":    `{"detail-type":"EC2 Spot Instance Interruption Warning","source":"aws.ec2","time":"2000-01-01 00:00:05","region":"us-east-1","detail":{"instance-id":%q}}`,
		"with time in seconds": `{"detail-type":"EC2 Spot Instance Interruption Warning","source":"aws.ec2","time":946684805,"region":"us-east-1","detail":{"instance-id":%q}}`,
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(_ *simcloud.Config, s *aws.Settings) { s.Regions = []string{"us-east-1"} }, func(t *testing.T, a *account) {
				made, err := a.Launch(t.Context(), request("r1", t4, 0))
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(5 * time.Second)
				left := 10_000
				a.canny = func(c call) *canned {
					switch c.action {
					case "ReceiveMessage":
						var all []string
						for n := range 10 {
							body := `{"detail-type":"EC2 Instance State-change Notification","source":"aws.ec2","region":"us-east-1","detail":{"instance-id":"i-1","state":"running"}}`
							if left == 0 {
								body = fmt.Sprintf(event, made.Ref.ID)
							}
							left--
							all = append(all, fmt.Sprintf(`{"MessageId":"m%d","ReceiptHandle":"h%d","Body":%s}`, n, n, strconv.Quote(body)))
							if left < 0 {
								break
							}
						}
						return &canned{status: 200, body: `{"Messages":[` + strings.Join(all, ",") + `]}`}
					case "DeleteMessageBatch":
						return &canned{status: 200, body: `{"Successful":[],"Failed":[]}`}
					}
					return nil
				}
				stream, err := a.Provider.(providers.Interrupter).Interruptions(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				select {
				case n := <-stream:
					if n.Kind != providers.NoticePreempt || n.Ref.ID != made.Ref.ID {
						t.Errorf("%+v", n)
					}
				case <-time.After(time.Minute):
					t.Error("no warning came")
				}
			})
		})
	}
}

// Whichever call of a launch or an end fails, before or after its effect, at most
// one machine is made, and a later end leaves nothing.
func TestEachCallFailsOnce(t *testing.T) {
	for _, after := range []bool{false, true} {
		for n := 0; ; n++ {
			hit := false
			t.Run(fmt.Sprintf("call %d, after its effect %v", n, after), func(t *testing.T) {
				in(t, nil, func(t *testing.T, a *account) {
					left := n
					var mu sync.Mutex // regions are asked at once
					failing := func() bool {
						mu.Lock()
						defer mu.Unlock()
						left--
						fail := left < 0 && !hit
						hit = hit || fail
						return fail
					}
					bad := &canned{status: http.StatusInternalServerError, body: `<Response><Errors><Error><Code>InternalError</Code><Message>x</Message></Error></Errors></Response>`}
					if after {
						a.after = func(call) *canned {
							if failing() {
								return bad
							}
							return nil
						}
					} else {
						a.canny = func(call) *canned {
							if failing() {
								return bad
							}
							return nil
						}
					}
					req := withGroup(request("r1", market("us-east-1a", "p4d.24xlarge", providers.Spot), 100*money.Rate(money.Unit)), "j1")
					made, err := a.Launch(t.Context(), req)
					live := a.truth()
					if err == nil && live != 1 || err != nil && providers.OutcomeOf(err) == providers.NotCreated && live != 0 {
						t.Errorf("%v (%s) with %d machines", err, providers.OutcomeOf(err), live)
					}
					if providers.OutcomeOf(err) == providers.OutcomeUnknown && err != nil {
						if made, err = a.Launch(t.Context(), req); err != nil || a.truth() != 1 {
							t.Errorf("again: %v, %d machines", err, a.truth())
						}
					}
					ref := made.Ref
					if err != nil {
						ref = providers.Ref{Request: "r1"}
					}
					for try := 0; providers.CodeOf(a.Terminate(t.Context(), ref)) != providers.NotFound; try++ {
						if try > 5 {
							t.Fatal("it does not end")
						}
						time.Sleep(time.Minute)
					}
					if a.truth() != 0 {
						t.Error("not found, and it lives")
					}
					if left := a.w.About().Left; len(left) != 0 {
						t.Errorf("not found, and there are %v", left)
					}
				})
			})
			if !hit {
				break
			}
		}
	}
}
