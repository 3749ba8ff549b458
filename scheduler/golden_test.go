package scheduler_test

import (
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"gpubroker/scheduler"
	"gpubroker/scheduler/schedtest"
)

// TestScripts runs the scripts of testdata/plans: each begins a world with "reset",
// describes it, and asks for plans and explanations. Rewrite them with
// go test ./scheduler -run TestScripts -rewrite, and read the difference.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/plans", func(t *testing.T, path string) {
		w := schedtest.New()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "reset":
				w = schedtest.New()
				return ""
			case "plan":
				s := w.Snap()
				r := scheduler.Plan(s, &w.Memo)
				if err := schedtest.Check(s, &r); err != nil {
					d.Fatalf(t, "%v", err)
				}
				return schedtest.Render(s, &r)
			case "reasons":
				s := w.Snap()
				r := scheduler.Plan(s, &w.Memo)
				return schedtest.Reasons(&r.Decisions[0])
			case "explain", "times":
				e, ok := scheduler.Explain(w.Snap(), &w.Memo, strings.TrimSpace(d.Input))
				if !ok {
					d.Fatalf(t, "no group %q", d.Input)
				}
				if d.Cmd == "times" {
					return schedtest.Times(&e)
				}
				return schedtest.Explained(&e)
			}
			out, err := w.Command(d.Cmd, d.Input)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			return out
		})
	})
}
