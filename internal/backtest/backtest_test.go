package backtest

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/money"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "rewrite golden files")

func toy() Options {
	return Options{
		Market: "testdata/toy/day", Length: 4 * time.Hour, Deadline: 6 * time.Hour,
		Delay: 12 * time.Minute, Every: time.Hour, Free: true,
	}
}

func TestToyMarket(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"free":     func(*Options) {},
		"own":      func(o *Options) { o.Free = false },
		"per-pool": func(o *Options) { o.PerPool = true },
		"gang":     func(o *Options) { o.Market, o.Gang, o.Policies = "testdata/toy/fleet", 4, []string{"up", "greedy"} },
	} {
		t.Run(name, func(t *testing.T) {
			o := toy()
			change(&o)
			r, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			got, err := json.MarshalIndent(rounded(r), "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", "toy", name+".golden.json")
			if *update {
				if err := os.WriteFile(golden, append(got, '\n'), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)+"\n"); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// rounded drops digits that could differ between processors.
func rounded(r Result) Result {
	round := func(f *float64) { *f = math.Round(*f*1e6) / 1e6 }
	round(&r.Optimum.SumCost)
	round(&r.Optimum.OverOnDemand)
	for i := range r.Policies {
		s := &r.Policies[i]
		for _, f := range []*float64{&s.SumCost, &s.SumRatio, &s.MeanRatio, &s.P90Ratio, &s.MaxRatio, &s.OverOnDemand, &s.WasteShare, &s.ProbeCost, &s.EgressCost} {
			round(f)
		}
	}
	return r
}

// By hand: one pool, up for the first hour only, a job of one hour and a delay of 12
// minutes in two hours: 0:48 done on spot by 1:00 at 1 $/h, the rest on demand at 3 $/h.
func TestByHand(t *testing.T) {
	w := build(10*time.Minute, "111111000000", 1, 3)
	w.opt.Length, w.opt.Delay, w.opt.Deadline = time.Hour, 12*time.Minute, 2*time.Hour
	for name, want := range map[string]float64{
		"on-demand": 3 * 1.2,
		"greedy":    1 + 3*0.4,
		"up":        1 + 3*0.4, // ahead of its line until 1:36
	} {
		o := w.replay(ruleOf(name))
		if math.Abs(o.cost-want) > 1e-9 || o.missed {
			t.Errorf("%s: cost %v, want %v; missed %v", name, o.cost, want, o.missed)
		}
	}
	var dp optimizer
	if got := dp.solve(w); math.Abs(got-(1+3*0.4)) > 1e-9 {
		t.Errorf("optimum %v", got)
	}
	// Greedy waits until no more than 12 + 24 minutes, rounded up to four ticks,
	// are left; Uniform Progress until it is behind its line at 1:40.
	if o := w.replay(ruleOf("greedy")); o.finish != 80*time.Minute+24*time.Minute {
		t.Errorf("greedy ends after %v", o.finish)
	}
}

func build(step time.Duration, up string, spot, onDemand float64) *window {
	s := &stretch{start: time.Unix(0, 0).UTC()}
	for pools := range strings.SplitSeq(up, "\n") {
		for i, c := range pools {
			if i == len(s.up) {
				s.up, s.price = append(s.up, nil), append(s.price, nil)
			}
			s.up[i] = append(s.up[i], c == '1')
			s.price[i] = append(s.price[i], money.Rate(spot*1e9))
		}
	}
	m := &market{step: step, stretches: []stretch{*s}}
	for range s.up[0] {
		m.pools = append(m.pools, pool{name: string(rune('a' + len(m.pools))), onDemand: money.Rate(onDemand * 1e9)})
	}
	if err := m.settle(0, egressTable{}); err != nil {
		panic(err)
	}
	return &window{opt: &Options{Gang: 1, Free: true}, market: m, stretch: s, ticks: len(s.up)}
}

// genWindow is a random job in a random market of a few ticks.
func genWindow(t *rapid.T, maxTicks, maxPools int) *window {
	const step = 10 * time.Minute
	minutes := func(name string, lo, hi int) time.Duration {
		return time.Duration(rapid.IntRange(lo, hi).Draw(t, name)) * time.Minute
	}
	n := rapid.IntRange(2, maxTicks).Draw(t, "ticks")
	pools := rapid.IntRange(1, maxPools).Draw(t, "pools")
	w := build(step, strings.TrimSuffix(strings.Repeat(strings.Repeat("0", n)+"\n", pools), "\n"), 1, 3)
	for i := range n {
		for p := range pools {
			w.stretch.up[i][p] = rapid.Bool().Draw(t, "up")
			w.stretch.price[i][p] = money.Rate(rapid.IntRange(1, 40).Draw(t, "price")) * 1e8
		}
	}
	for i := range pools { // some neighbours share a region; moves to another may cost
		w.market.pools[i].region = string(rune('a' + i/rapid.IntRange(1, 2).Draw(t, "zones")))
	}
	gb := float64(rapid.IntRange(0, 3).Draw(t, "checkpoint"))
	if err := w.market.settle(gb, egressTable{flat: 0.1}); err != nil {
		t.Fatal(err)
	}
	o := w.opt
	o.Free = rapid.Bool().Draw(t, "free")
	o.Gang = rapid.IntRange(1, 3).Draw(t, "gang")
	o.Deadline = time.Duration(n)*step - minutes("cut", 0, 9)
	o.Delay = minutes("delay", 0, int(min(25*time.Minute, o.Deadline-time.Minute)/time.Minute))
	o.Length = minutes("length", 1, int((o.Deadline-o.Delay)/time.Minute))
	return w
}

// The optimum is the least over all sequences of choices, tried one by one.
func TestOptimumIsExact(t *testing.T) {
	var dp optimizer // reused, so that nothing may leak from window to window
	rapid.Check(t, func(t *rapid.T) {
		w := genWindow(t, 7, 2)
		got, want := dp.solve(w), bruteForce(w, 0, none, w.market.nowhere(), 0, w.opt.Length)
		if math.Abs(got-want) > 1e-9 {
			t.Fatalf("optimum %v, by trying all %v", got, want)
		}
	})
}

func bruteForce(w *window, tick, held, home int, delay, left time.Duration) float64 {
	if tick == w.ticks {
		return math.Inf(1)
	}
	n := len(w.market.pools)
	length := min(w.market.step, w.opt.Deadline-time.Duration(tick)*w.market.step)
	best := bruteForce(w, tick+1, none, home, 0, left)
	for m := range n + len(w.market.onDemandAt) {
		d, rate, entry, to := w.opt.Delay, w.market.pools[0].onDemand, 0.0, w.market.regionOf(m)
		if m < n {
			if !w.stretch.up[tick][m] {
				continue
			}
			rate = w.stretch.price[tick][m]
		}
		if m == held {
			d = delay
		} else {
			entry = w.market.egress[home][to]
		}
		used := min(length, d+left)
		cost := entry + used.Hours()*float64(rate)/1e9*float64(w.opt.Gang)
		if used == d+left {
			best = min(best, cost)
			continue
		}
		pause := min(used, d)
		best = min(best, cost+bruteForce(w, tick+1, m, to, d-pause, left-(used-pause)))
	}
	return best
}

// No rule beats the optimum, none misses, and the waste is what it paid beyond the work.
func TestPoliciesAgainstTheOptimum(t *testing.T) {
	var dp optimizer
	rapid.Check(t, func(t *rapid.T) {
		w := genWindow(t, 40, 3)
		best := dp.solve(w)
		for _, name := range PolicyNames() {
			o := w.replay(ruleOf(name))
			if o.missed {
				t.Fatalf("%s: done after %v, deadline %v", name, o.finish, w.opt.Deadline)
			}
			if o.cost < best-1e-9 {
				t.Fatalf("%s costs %v, the optimum %v", name, o.cost, best)
			}
			if o.paid != o.idle+w.opt.Length {
				t.Fatalf("%s paid for %v, idle %v, work %v", name, o.paid, o.idle, w.opt.Length)
			}
		}
	})
}

func TestBadInput(t *testing.T) {
	// A market in a folder of its own, with changes to its files.
	folder := func(edit map[string]func(string) string) string {
		dir := t.TempDir()
		for _, name := range []string{"zones.csv", "day.avail.csv", "day.price.csv"} {
			b, err := os.ReadFile(filepath.Join("testdata/toy", name))
			if err != nil {
				t.Fatal(err)
			}
			s := string(b)
			if f := edit[name]; f != nil {
				if s = f(s); s == string(b) {
					t.Fatalf("%s was not changed", name)
				}
			}
			if s != "" {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(s), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		return filepath.Join(dir, "day")
	}
	replace := func(file, old, new string) string {
		return folder(map[string]func(string) string{file: func(s string) string { return strings.Replace(s, old, new, 1) }})
	}
	cutRows := func(s string) string {
		lines := strings.SplitAfter(s, "\n")
		return strings.Join(slices.Delete(lines, 10, 14), "")
	}
	gap := folder(map[string]func(string) string{"day.avail.csv": cutRows, "day.price.csv": cutRows})

	for name, c := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"no such market":     {func(o *Options) { o.Market = "testdata/toy/night" }, "no recorded market testdata/toy/night: neither night.avail.csv.gz nor night.count.csv.gz exists"},
		"nearly a market":    {func(o *Options) { o.Market = "testdata/toy/dai" }, `neither dai.avail.csv.gz nor dai.count.csv.gz exists; did you mean "day"?`},
		"nearly a pool":      {func(o *Options) { o.Pools = []string{"eest-a"} }, `has no pool "eest-a"; did you mean "east-a"`},
		"nearly a policy":    {func(o *Options) { o.Policies = []string{"our"} }, `unknown policy "our"; did you mean "ours"?`},
		"nearly a folder":    {func(o *Options) { o.Market = "testdata/tow/day" }, `there is no testdata/tow/zones.csv; did you mean "toy"?`},
		"no such folder":     {func(o *Options) { o.Market = "nowhere/x/day" }, "there is no nowhere/x/zones.csv"},
		"unknown pool":       {func(o *Options) { o.Pools = []string{"east-a", "north"} }, `has no pool "north"; there is east-a, west-b`},
		"pool twice":         {func(o *Options) { o.Pools = []string{"east-a", "east-a"} }, `pool "east-a" is named twice`},
		"short deadline":     {func(o *Options) { o.Deadline = 4 * time.Hour }, "deadline 4h0m0s is shorter than the job: 4h0m0s of work and a delay of 12m0s"},
		"fraction too large": {func(o *Options) { o.Deadline, o.Fraction = 0, 1 }, "shorter than the job"},
		"fraction over 1":    {func(o *Options) { o.Deadline, o.Fraction = 0, 1.5 }, "fraction 1.5 is not in (0, 1]"},
		"fraction near 0":    {func(o *Options) { o.Deadline, o.Fraction = 0, 1e-9 }, "fraction 1e-09 makes a deadline beyond"},
		"fraction NaN":       {func(o *Options) { o.Deadline, o.Fraction = 0, math.NaN() }, "fraction NaN is not in (0, 1]"},
		"both":               {func(o *Options) { o.Fraction = 0.5 }, "either a deadline or a fraction"},
		"no length":          {func(o *Options) { o.Length = 0 }, "length must be positive"},
		"no starts":          {func(o *Options) { o.Every = 0 }, "every=DURATION or n=COUNT"},
		"negative delay":     {func(o *Options) { o.Delay = -time.Second }, "delay -1s is negative"},
		"negative gang":      {func(o *Options) { o.Gang = -1 }, "gang -1 is not positive"},
		"gang without count": {func(o *Options) { o.Gang = 2 }, "a gang of 2 needs STEM.count.csv.gz"},
		"unknown policy":     {func(o *Options) { o.Policies = []string{"best"} }, `unknown policy "best"; there is on-demand, greedy, `},
		"longer than data":   {func(o *Options) { o.Deadline = 100 * time.Hour }, "no unbroken stretch"},
		"hole in time":       {func(o *Options) { o.Market = gap }, "hole at row 11 (t=1767233400): 50m0s without a record, the step is 10m0s"},
		"empty cell":         {func(o *Options) { o.Market = replace("day.avail.csv", "1767226200,1,0", "1767226200,1,") }, `hole at row 3 (t=1767226200): pool "west-b" has no value`},
		"not 0 or 1":         {func(o *Options) { o.Market = replace("day.avail.csv", "1767226200,1,0", "1767226200,2,0") }, `row 3, pool "east-a": "2" is not 0 or 1`},
		"time goes back":     {func(o *Options) { o.Market = replace("day.avail.csv", "1767226200,", "1767225600,") }, "time 1767225600 is not after the row before"},
		"empty price":        {func(o *Options) { o.Market = replace("day.price.csv", "1767226200,1.00,1.25", "1767226200,,1.25") }, `missing price: `},
		"price elsewhen":     {func(o *Options) { o.Market = replace("day.price.csv", "1767226200,", "1767226201,") }, "are not at the times of"},
		"bad price":          {func(o *Options) { o.Market = replace("day.price.csv", "1767226200,1.00", "1767226200,free") }, `"free" is not a price`},
		"no price column":    {func(o *Options) { o.Market = replace("day.price.csv", "west-b", "north") }, `has no column for pool "west-b"`},
		"no spot price": {func(o *Options) {
			o.Market = folder(map[string]func(string) string{
				"day.price.csv": func(string) string { return "" },
				"zones.csv":     func(s string) string { return strings.Replace(s, "3.20,1.20", "3.20,", 1) },
			})
		}, `missing price: pool "west-b" has no spot_usd_per_hour`},
		"no on-demand price": {func(o *Options) { o.Market = replace("zones.csv", "3.20,", ",") }, `pool "west-b" has no on_demand_usd_per_hour`},
		"no zone row":        {func(o *Options) { o.Market = replace("zones.csv", "west-b", "north") }, `pool "west-b" of `},
	} {
		t.Run(name, func(t *testing.T) {
			o := toy()
			c.change(&o)
			_, err := Run(t.Context(), o)
			if !errors.Is(err, ErrInput) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got  %v\nwant one line with %q", err, c.want)
			}
		})
	}

	// A hole can be stepped around, and prices that nobody recorded are assumed, and said so.
	o := toy()
	o.Market, o.SplitAtHoles, o.Every, o.N = gap, true, 0, 1000
	if r, err := Run(t.Context(), o); err != nil || r.Windows != 36 {
		t.Errorf("split: %d windows, %v", r.Windows, err)
	}
	o = toy()
	o.Market = folder(map[string]func(string) string{
		"day.price.csv": func(string) string { return "" },
		"zones.csv": func(s string) string {
			return strings.NewReplacer("3.20,1.20", "3.20,", "3.00,1.00", "3.00,").Replace(s)
		},
	})
	if r, err := Run(t.Context(), o); err != nil || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "no spot prices were recorded") {
		t.Errorf("assumed prices: %v, %v", r.Notes, err)
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, toy()); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := RunQueue(ctx, QueueOptions{File: "testdata/queue/small.yaml"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a queue: %v", err)
	}
}
