package reason_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"gpubroker/internal/reason"
	"gpubroker/providers"
)

// Whatever the broker and its scheduler give as a reason has a sentence.
func TestEveryCodeHasASentence(t *testing.T) {
	given := regexp.MustCompile(`reason\.New\("(\w+)"`)
	known := 0
	for _, dir := range []string{"../control", "../../scheduler"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if match, _ := filepath.Match("*_test.go", filepath.Base(file)); match {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range given.FindAllSubmatch(text, -1) {
				known++
				if _, ok := reason.Sentences[reason.Code(m[1])]; !ok {
					t.Errorf("%s gives the reason %q, which has no sentence", file, m[1])
				}
			}
		}
	}
	if known < 50 {
		t.Errorf("only %d reasons were found: they are given in another way now", known)
	}
	for _, code := range []providers.Code{
		providers.NoCapacity, providers.QuotaExceeded, providers.PriceTooLow, providers.RateLimited, providers.Unauthorized,
		providers.InvalidRequest, providers.NotFound, providers.Conflict, providers.Unavailable, providers.Unsupported,
		providers.NoFunds, providers.Canceled, providers.DeadlineExceed, providers.Unknown,
	} {
		if _, ok := reason.Sentences["provider_"+reason.Code(code)]; !ok {
			t.Errorf("the provider's refusal %q has no sentence", code)
		}
	}
}

func TestForms(t *testing.T) {
	for _, c := range []struct {
		want string
		r    reason.Reason
	}{
		{"saved: number 16, 95 KiB, of which 50 KiB were new", reason.New("checkpoint", "number", 16, "bytes", 97344, "sent", 50976)},
		{"saved: number 1, 1.5 GiB", reason.New("checkpoint", "number", 1, "bytes", 3<<29)},
		{"accepted: 1 task", reason.New("accepted", "tasks", 1)},
		{"accepted: 3 tasks", reason.New("accepted", "tasks", 3)},
		{"accepted by the provider as i-1", reason.New("accepted", "cloud_id", "i-1")},
		{"failed once, 0 allowed", reason.New("failures_used_up", "failures", 1, "limit", 0)},
		{"1 of at most 1 task run", reason.New("parallelism", "running", 1, "limit", 1)},
		{"1 of at most 2 tasks run", reason.New("parallelism", "running", 1, "limit", 2)},
		{
			"the job's own budget has 0.00054 USD free of 0.001, and the lease needs 0.0011",
			reason.New("over_budget", "budget", "job/j1", "free", "0.000543", "cap", "0.001", "need", "0.00112"),
		},
		{
			"budget media of the period from 2026-07-19T16:00Z has 0.00 USD free of 25.00, and the lease needs 0.27",
			reason.New("over_budget", "budget", "media@2026-07-19T16:00:00Z", "free", "0", "cap", "25", "need", "0.2712"),
		},
		{
			"the provider took the machine back with 2m0s notice",
			reason.New("preempted_notice", "notice", "2m0s"),
		},
		{"the provider took the machine back; it ends at 12:00:00Z", reason.New("preempted_notice", "by", "12:00:00Z")},
		{"dataoorts h100x1 spot at 1.2346/h, or up to 1.50/h", reason.New("planned", "market", "dataoorts///h100x1/spot", "price", "1.23456", "bound", "1.5")},
		{"dataoorts x spot at $0.27/h: full", reason.New("chosen", "why", "dataoorts///x/spot at $0.27/h: full")},
		{"azure/eastus/1 nc6 spot at 1.20/h, or up to 1.50/h", reason.New("planned", "market", "azure/eastus/1/nc6/spot", "price", "1.2", "bound", "1.5")},
		{"aws/eu-1a g6 spot at 1.20/h, or up to 1.50/h", reason.New("planned", "market", "aws/eu-1/eu-1a/g6/spot", "price", "1.2", "bound", "1.5")},
		{
			"aws/us-east-1/us-east-1a/g6.xlarge/spot at $0.27/h: least expected cost, about $0.29 to finish",
			reason.New("chosen", "why", "aws/us-east-1/us-east-1a/g6.xlarge/spot at $0.27/h: least expected cost, about $0.29 to finish"),
		},
		{"hyperstack/canada n3/l40/x1 on-demand is full", reason.New("full", "market", "hyperstack/canada//n3/l40/x1/on-demand")},
		{
			"still there 5s after its lease ended, at 0.90/h; the provider says unavailable",
			reason.New("overrun", "since", "5s", "price", "0.90", "code", "unavailable"),
		},
		{"0.10 beyond what was reserved in budget all", reason.New("overrun", "budget", "all", "amount", "0.1")},
		{"it cools down until {until} after {after}", reason.New("cooled_down")},
	} {
		if got := c.r.String(); got != c.want {
			t.Errorf("got  %q\nwant %q", got, c.want)
		}
	}
}
