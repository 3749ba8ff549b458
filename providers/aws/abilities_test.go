package aws_test

import (
	"context"
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

func TestPreflightNamesWhatIsMissing(t *testing.T) {
	deny := []string{"ec2:RunInstances", "ec2:TerminateInstances", "pricing:GetProducts", "scheduler:UpdateSchedule", "servicequotas:ListServiceQuotas"}
	inOf(t, cloud.Options{Deny: deny}, nil, func(t *testing.T, a *account) {
		err := a.Provider.(providers.Preflight).Preflight(t.Context())
		want(t, err, providers.Unauthorized, "")
		for _, p := range append(deny, "iam:PassRole", "us-west-2") {
			if !strings.Contains(err.Error(), p) {
				t.Errorf("%s is not named in %v", p, err)
			}
		}
	})
	inOf(t, cloud.Options{Deny: []string{"ssm:GetParameter"}}, nil, func(t *testing.T, a *account) {
		err := a.Provider.(providers.Preflight).Preflight(t.Context())
		if want(t, err, providers.Unauthorized, ""); !strings.Contains(err.Error(), "ssm:GetParameter in us-east-1") {
			t.Error(err)
		}
	})
	in(t, func(_ *simcloud.Config, s *aws.Settings) { s.Image = "ami-00000000000000000" }, func(t *testing.T, a *account) {
		want(t, a.Provider.(providers.Preflight).Preflight(t.Context()), providers.InvalidRequest, "")
	})
	in(t, func(_ *simcloud.Config, s *aws.Settings) { s.Queue = "no-such-queue" }, func(t *testing.T, a *account) {
		want(t, a.Provider.(providers.Preflight).Preflight(t.Context()), providers.InvalidRequest, "")
	})
}

func TestScores(t *testing.T) {
	in(t, nil, func(t *testing.T, a *account) {
		scores, err := a.Provider.(providers.Scores).Scores(t.Context(), "p5.48xlarge", nil, 4)
		if err != nil || len(scores) != 2 || scores[0].Region != "us-east-1" || scores[0].Of10 < 1 || scores[0].Of10 > 10 {
			t.Errorf("%+v, %v", scores, err)
		}
	})
	inOf(t, cloud.Options{Deny: []string{"ec2:GetSpotPlacementScores"}}, nil, func(t *testing.T, a *account) {
		_, err := a.Provider.(providers.Scores).Scores(t.Context(), "p5.48xlarge", nil, 4)
		want(t, err, providers.Unauthorized, "")
	})
}

// A message is deleted once its warning has been taken, whatever the message.
func TestNotices(t *testing.T) {
	in(t, nil, func(t *testing.T, a *account) {
		made, err := a.Launch(t.Context(), request("r1", t4, 0))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		id := cloud.WorldID(made.Ref.ID)
		for _, do := range []simapi.Action{{Rebalance: &simapi.Pick{Machine: id}}, {Preempt: &simapi.Preempt{Pick: simapi.Pick{Machine: id}}}} {
			if _, err := a.w.Do(do); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := a.Provider.(providers.Interrupter).Interruptions(ctx)
		if err != nil {
			t.Fatal(err)
		}
		first, second := <-stream, <-stream
		if first.Kind != providers.NoticeRebalance || second.Kind != providers.NoticePreempt || second.Ref != made.Ref || time.Until(second.At).Abs() > 3*time.Minute {
			t.Errorf("%+v, %+v", first, second)
		}
		time.Sleep(90 * time.Second) // longer than messages stay hidden
		select {
		case n := <-stream:
			t.Errorf("the warning came again: %+v", n)
		default:
		}
		cancel()
		if _, open := <-stream; open {
			t.Error("the stream is open after its end")
		}
	})
}

// Whoever speaks EC2 alone can be rented from; what needs another service says
// which.
func TestOnlyEC2(t *testing.T) {
	in(t, func(_ *simcloud.Config, s *aws.Settings) {
		s.Image, s.EndRole, s.Queue = cloud.OwnImage("us-east-1"), "", ""
	}, func(t *testing.T, a *account) {
		a.canny = func(c call) *canned {
			if c.form.Get("Version") == "2016-11-15" {
				return nil
			}
			return &canned{status: 404, body: "Not yet implemented"}
		}
		made, err := a.Launch(t.Context(), request("r1", t4, money.Rate(money.Unit)))
		if err != nil {
			t.Fatal(err)
		}
		// 1 less 0.2 × 100 / 720 and 0.005.
		if got := a.sent("RunInstances")[0].form.Get("InstanceMarketOptions.SpotOptions.MaxPrice"); got != "0.967222" {
			t.Errorf("bound %s", got)
		}
		if err := a.Terminate(t.Context(), made.Ref); err != nil {
			t.Error(err)
		}
		_, err = a.Offers(t.Context(), providers.Scope{})
		if want(t, err, providers.Unavailable, ""); !strings.Contains(err.Error(), "Pricing GetProducts: HTTP 404") {
			t.Errorf("%v does not say what is missing", err)
		}
	})
}
