package backtest

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestPublished replays windows of the costs published with SkyNomad (NSDI'27)
// and compares window by window. The published optimum rounds the delay of 12
// minutes to whole steps, and time there runs by rows where it runs by the
// clock here, so single windows of the V100 capture begin some minutes apart.
func TestPublished(t *testing.T) {
	type bounds struct{ worst, mean float64 } // of the relative differences
	h100 := map[string]bounds{"optimum": {0.012, 0.005}, "up": {0.02, 0.006}, "up-s": {0.02, 0.012}}
	h100Origin := time.Date(2025, 10, 4, 0, 10, 0, 0, time.UTC)
	for _, c := range []struct {
		stem, file string
		origin     time.Time // env_start_hours counts from here
		scale      float64   // the price there ÷ the price here
		starts     []string
		want       map[string]bounds
	}{
		{
			"aws-v100x1-2023-02/s2", "skynomad-v100", time.Date(2023, 2, 15, 22, 8, 16, 0, time.UTC), 1,
			[]string{"299.5416666666667", "419.35833333333335", "479.26666666666665"},
			map[string]bounds{"optimum": {0.002, 0.002}, "up": {0.09, 0.03}, "up-s": {0.025, 0.015}},
		},
		// A zone was up when one of 16 machines launched; prices are those of 8 GPUs.
		{"gcp-h100x16-2025-10/s1", "skynomad-deadline-sensitivity", h100Origin, 8, []string{"0.0"}, h100},
		{"gcp-h100x16-2025-10/s2", "skynomad-deadline-sensitivity", h100Origin, 8, []string{"155.5"}, h100},
	} {
		stem := needs(t, c.stem)
		records, _, err := readCSV(recorded + "reference/" + c.file + ".csv")
		if err != nil {
			t.Fatal(err)
		}
		diffs := map[string][]float64{}
		for _, rec := range records[1:] {
			number := func(column string) float64 {
				f, err := strconv.ParseFloat(rec[slices.Index(records[0], column)], 64)
				if err != nil {
					t.Fatal(err)
				}
				return f
			}
			text := func(column string) string { return rec[slices.Index(records[0], column)] }
			if !slices.Contains(c.starts, text("env_start_hours")) || number("deadline_ratio") < 1.05 {
				continue
			}
			zone := func(label string) string { z, _, _ := strings.Cut(strings.Trim(label, " '"), "_"); return z }
			var zones []string
			for label := range strings.SplitSeq(strings.Trim(text("regions_in_scenario"), "[]"), ",") {
				zones = append(zones, zone(label))
			}
			rule := ""
			switch text("strategy") {
			case "multi_region_oracle_dp":
				rule = "optimum"
			case "multi_region_rc_cr_threshold_eager_failover":
				rule = "up-s"
			case "rc_cr_threshold":
				if rule = "up"; text("task_type") == "single_region" {
					zones = []string{zone(text("region"))}
				}
			}
			if rule == "" || text("task_type") == "trace_mode_baseline" || len(zones) > 1 && rule == "up" {
				continue
			}
			hours := func(column string) time.Duration {
				return time.Duration(math.Round(number(column)*3600)) * time.Second
			}
			w := windowAt(t, Options{
				Market: stem, Pools: zones, Gang: 1, Checkpoint: number("checkpoint_size"), Egress: "0.02",
				Length: hours("task_duration"), Deadline: hours("deadline_hours"), Delay: 12 * time.Minute,
			}, c.origin.Add(hours("env_start_hours")))
			var cost float64
			if rule == "optimum" {
				var dp optimizer
				cost = dp.solve(w)
			} else {
				cost = w.replay(ruleOf(rule)).cost
			}
			diffs[rule] = append(diffs[rule], cost*c.scale/number("cost")-1)
		}
		for rule, want := range c.want {
			d := diffs[rule]
			if len(d) == 0 {
				t.Errorf("%s: nothing was published of %s", c.stem, rule)
				continue
			}
			var sum, worst float64
			for _, x := range d {
				sum += x
				worst = max(worst, math.Abs(x))
			}
			mean := sum / float64(len(d))
			t.Logf("%s, %s: %d windows, mean difference %+.2f %%, worst %.2f %%", c.stem, rule, len(d), mean*100, worst*100)
			if worst > want.worst || math.Abs(mean) > want.mean {
				t.Errorf("%s, %s: mean difference %+.4f, worst %.4f, want at most %+v", c.stem, rule, mean, worst, want)
			}
		}
	}
}

// windowAt is the window that begins at a moment of a market.
func windowAt(t *testing.T, o Options, at time.Time) *window {
	t.Helper()
	m, err := load(o.Market, o.Pools, o.Gang, true)
	if err != nil {
		t.Fatal(err)
	}
	e, err := readEgress(o.Egress, o.Market)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.settle(o.Checkpoint, e); err != nil {
		t.Fatal(err)
	}
	ticks := int((o.Deadline + m.step - 1) / m.step)
	for i := range m.stretches {
		s := &m.stretches[i]
		first := int(math.Round(at.Sub(s.start).Seconds() / m.step.Seconds()))
		if first >= 0 && first+ticks <= len(s.up) {
			return &window{opt: &o, market: m, stretch: s, first: first, ticks: ticks}
		}
	}
	t.Fatalf("%s has no unbroken stretch at %s", o.Market, at)
	return nil
}
