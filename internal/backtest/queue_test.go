package backtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/quantity"
	"gpubroker/internal/yamlfile"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestQueueGolden(t *testing.T) {
	o := QueueOptions{File: "testdata/queue/small.yaml", Policies: []string{"on-demand", "cheapest-greedy", "up", "ours"}}
	r, err := RunQueue(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	again, err := RunQueue(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, again, cmp.AllowUnexported(Tally{})); diff != "" {
		t.Errorf("the second time: %s", diff)
	}
	got, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = roundNumbers(t, got)
	golden := "testdata/queue/small.golden.json"
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Error(diff)
	}
}

// roundNumbers drops digits that could differ between processors.
func roundNumbers(t *testing.T, text []byte) []byte {
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		at := strings.LastIndex(line, ": ")
		if at < 0 || strings.Contains(line, `: "`) || strings.Contains(line, `why"`) {
			continue
		}
		number, comma := strings.CutSuffix(line[at+2:], ",")
		if !strings.Contains(number, ".") {
			continue
		}
		var f float64
		if _, err := fmt.Sscan(number, &f); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		lines[i] = line[:at+2] + fmt.Sprint(math.Round(f*1e6)/1e6) + map[bool]string{true: ","}[comma]
	}
	return []byte(strings.Join(lines, "\n") + "\n")
}

// A queue of one job with no cap is the replay of one job.
func TestQueueOfOne(t *testing.T) {
	for _, free := range []bool{false, true} {
		o := toy()
		o.Checkpoint, o.Egress, o.Free, o.Every = 10, "0.02", free, 100*time.Hour
		single, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		q := parse(t, `
markets: testdata/toy/day
delay: 12m
egress: 0.02
teams: [{name: a}]
jobs: [{name: one, team: a, length: 4h, deadline: 6h, checkpoint: 10GB}]`)
		r := q.run(t, QueueOptions{Free: free})
		for i, p := range r.Policies {
			want := single.Policies[i]
			if p.Name != want.Name || math.Abs(p.SumCost-want.SumCost) > 1e-9 || math.Abs(p.Bound-single.Optimum.SumCost) > 1e-9 || p.Preemptions != want.Preemptions {
				t.Errorf("free %v, %s: %+v\nalone %+v", free, p.Name, p.Tally, want)
			}
		}
	}
}

func parse(t testing.TB, text string) *Queue {
	t.Helper()
	q, err := ParseQueue("jobs.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func (q *Queue) run(t testing.TB, o QueueOptions) QueueResult {
	t.Helper()
	o.Progress = func(string, int, int) {}
	r, err := q.replayAll(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// By hand: four machines at 1 $/h, 3 on demand; the first job takes three of them,
// so the second, of two, finds room only when the first is done.
func TestJobsCompete(t *testing.T) {
	g := flat(10*time.Minute, 12*6, 4)
	late := `{name: second, team: a, arrival: 1m, length: 1h, deadline: 6h, gang: 2}`
	first := `{name: first, team: a, length: 2h, deadline: 3h, gang: 3}`
	costs := func(jobs string) string {
		q := parse(t, "teams: [{name: a}]\njobs: ["+jobs+"]")
		r := ready(t, q, g).result([]string{"greedy"}, []queueRun{play(t, ready(t, q, g), "greedy")})
		var all []string
		for _, d := range r.Policies[0].Details {
			all = append(all, fmt.Sprintf("%s %.2f done %s", d.Name, d.Cost, time.Duration(d.Finish)*time.Second))
		}
		return strings.Join(all, ", ")
	}
	if got, want := costs(late), "second 2.00 done 1h9m0s"; got != want {
		t.Errorf("alone: %s, want %s", got, want)
	}
	if got, want := costs(first+", "+late), "first 6.00 done 2h0m0s, second 2.00 done 2h59m0s"; got != want {
		t.Errorf("together: %s, want %s", got, want)
	}
}

// Where fewer machines are left, those who came first keep theirs as far as they fit.
func TestWhoIsPreempted(t *testing.T) {
	g := flat(10*time.Minute, 60, 10)
	for i := 6; i < 60; i++ {
		g.count[i][0] = 8
	}
	q := parse(t, `
teams: [{name: a}]
jobs:
  - {name: six, team: a, length: 2h, deadline: 6h, gang: 6}
  - {name: three, team: a, length: 2h, deadline: 6h, gang: 3}
  - {name: one, team: a, length: 2h, deadline: 6h, gang: 1}`)
	r := ready(t, q, g)
	run := play(t, r, "greedy")
	var lost []string
	for i, j := range run.jobs {
		if j.out.preemptions > 0 {
			lost = append(lost, r.entries[i].Name)
		}
	}
	if diff := cmp.Diff([]string{"three"}, lost); diff != "" {
		t.Error(diff)
	}
}

// flat is one counted pool, always up, at 1 $/h and 3 on demand.
func flat(step time.Duration, ticks, machines int) *ground {
	g := &ground{step: step, names: []string{"m"}, of: []int{0}, counted: []bool{true}, views: map[string]*stretch{}}
	g.pools = []pool{{name: "m/a", region: "r", onDemand: 3e9}}
	for range ticks {
		g.count, g.price = append(g.count, []int{machines}), append(g.price, []money.Rate{1e9})
	}
	return g
}

// checker is what testing.T and rapid.T have in common.
type checker interface {
	Helper()
	Fatal(args ...any)
	Context() context.Context
}

func ready(t checker, q *Queue, g *ground) *replayed {
	t.Helper()
	r, err := q.lay(g, QueueOptions{Progress: func(string, int, int) {}}, q.Jobs, egressTable{flat: 0.1})
	if err == nil {
		err = r.measure(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	r.fillCaps()
	return r
}

func play(t testing.TB, r *replayed, name string) queueRun {
	t.Helper()
	run, err := r.replay(t.Context(), name, ruleOf(name))
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// Whatever the market, the jobs, the caps and the rule: no cap is broken, no job
// costs less than its bound, nobody holds machines that are not there, and who
// is admitted is in time.
func TestQueueKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := genGround(t)
		q := genQueue(t, g)
		r := ready(t, q, g)
		seed := rapid.Uint64().Draw(t, "seed")
		rules := map[string]rule{"wild": wild(seed)}
		for _, name := range []string{"greedy", "up", "up-idle", "up-ap", "sliced", "skynomad", "evolved", "ours"} {
			rules[name] = ruleOf(name)
		}
		for name, rule := range rules {
			run, err := r.replay(t.Context(), name, watched(t, rule))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if len(run.breached) > 0 {
				t.Fatalf("%s broke the caps of %v", name, run.breached)
			}
			bills := map[string]float64{}
			for i, j := range run.jobs {
				e := r.entries[i]
				bills[e.Team] += j.out.cost
				if j.refused != "" {
					if j.out.cost != 0 {
						t.Fatalf("%s: %s was not admitted and cost %v", name, e.Name, j.out.cost)
					}
					continue
				}
				if !j.out.missed && j.out.cost < e.bound-1e-9 {
					t.Fatalf("%s: %s cost %v, the bound is %v", name, e.Name, j.out.cost, e.bound)
				}
				if j.out.missed && name != "wild" {
					t.Fatalf("%s: %s is done after %v of %v", name, e.Name, j.out.finish, e.window.opt.Deadline)
				}
			}
			for team, limit := range r.caps {
				points := run.spend[team]
				last := points[len(points)-1]
				if bills[team] > limit.Float()+1e-6 || math.Abs(last.Spent-bills[team]) > 1e-6 {
					t.Fatalf("%s: %s's jobs cost %v, its book says %v, its cap is %v", name, team, bills[team], last.Spent, limit)
				}
				for _, p := range points {
					if p.Committed > limit.Float()+1e-9 {
						t.Fatalf("%s: %s had committed %v of %v", name, team, p.Committed, limit)
					}
				}
			}
		}
	})
}

// watched checks before each decision that no more machines are held than there are.
func watched(t *rapid.T, start rule) rule {
	return func(s *sight) func() {
		decide := start(s)
		return func() {
			c := s.r.share.commons
			for p, n := range c.taken {
				if c.counted[c.of[p]] && n > c.count[s.r.first+s.r.tick][p] {
					t.Fatalf("%d machines of %d are held", n, c.count[s.r.first+s.r.tick][p])
				}
			}
			decide()
		}
	}
}

// wild does whatever comes to its mind.
func wild(seed uint64) rule {
	return func(s *sight) func() {
		rng := rand.New(rand.NewPCG(seed, 0))
		return func() {
			for range rng.IntN(4) {
				switch rng.IntN(5) {
				case 0:
					s.buy(s.pools() + rng.IntN(len(s.r.market.onDemandAt)))
				case 1:
					s.leave()
				case 2:
					s.probe(rng.IntN(s.pools()))
				default:
					s.launch(rng.IntN(s.pools()))
				}
			}
		}
	}
}

func genGround(t *rapid.T) *ground {
	g := &ground{step: 10 * time.Minute, names: []string{"m", "n"}, counted: []bool{true, false}, views: map[string]*stretch{}}
	pools := rapid.IntRange(1, 4).Draw(t, "pools")
	for p := range pools {
		market := 0
		if p > 0 {
			market = rapid.IntRange(0, 1).Draw(t, "market")
		}
		g.of = append(g.of, market)
		g.pools = append(g.pools, pool{
			name: fmt.Sprint(p), region: fmt.Sprint("r", rapid.IntRange(0, 2).Draw(t, "region")),
			onDemand: money.Rate(rapid.IntRange(10, 40).Draw(t, "on demand")) * 1e8,
		})
	}
	for range rapid.IntRange(30, 60).Draw(t, "ticks") {
		count, price := make([]int, pools), make([]money.Rate, pools)
		for p := range pools {
			count[p] = rapid.IntRange(0, 1).Draw(t, "up")
			if g.counted[g.of[p]] {
				count[p] *= rapid.IntRange(1, 5).Draw(t, "count")
			}
			price[p] = money.Rate(rapid.IntRange(1, 50).Draw(t, "price"))*1e8 + money.Rate(rapid.IntRange(0, 999).Draw(t, "nano"))
		}
		g.count, g.price = append(g.count, count), append(g.price, price)
	}
	return g
}

func genQueue(t *rapid.T, g *ground) *Queue {
	q := &Queue{doc: yamlfile.Parse("drawn", []byte("{}"))}
	ints := func(name string, lo, hi int) int { return rapid.IntRange(lo, max(lo, hi)).Draw(t, name) }
	seconds := func(n int) quantity.Duration { return quantity.Duration(time.Duration(n) * time.Second) }
	q.Delay = seconds(ints("delay", 0, 25) * 60)
	worst := map[string]int{} // cents of each team's jobs on demand
	for i := range ints("teams", 1, 2) {
		q.Teams = append(q.Teams, Team{Name: fmt.Sprint("t", i)})
	}
	horizon := int(g.horizon() / time.Second)
	for i := range ints("jobs", 1, 6) {
		j := Job{Name: fmt.Sprint("j", i), Team: rapid.SampledFrom(q.Teams).Draw(t, "team").Name}
		arrival, length := ints("arrival", 0, horizon/2), ints("length", 10, 100)*60
		takes := length + int(q.Delay.Std()/time.Second)
		deadline := min(takes*ints("deadline", 95, 300)/100, horizon-arrival)
		j.Arrival, j.Length, j.Deadline = seconds(arrival), seconds(length), seconds(deadline)
		j.Gang, j.Checkpoint = ints("gang", 1, 3), quantity.Size(ints("checkpoint", 0, 3))*1e9
		if _, err := g.open(j); err != nil {
			j.Gang = 1
		}
		worst[j.Team] += 400 * takes * j.Gang / 3600
		q.Jobs = append(q.Jobs, j)
	}
	for i := range q.Teams {
		if team := &q.Teams[i]; ints("capped", 0, 4) > 0 {
			team.Budget = &Budget{Amount: money.Amount(worst[team.Name]*ints("cap", 10, 110)/100) * 1e7}
		}
	}
	return q
}

// Two draws with one seed are the same, another seed draws others, and what is
// drawn lies in its bounds.
func TestDraw(t *testing.T) {
	dir := t.TempDir()
	var b strings.Builder
	b.WriteString("runtime_seconds\n")
	for i := range 400 {
		fmt.Fprintln(&b, 60*i)
	}
	if err := os.WriteFile(filepath.Join(dir, "lengths.csv"), []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	draw := func(seed int) ([]Job, []Team, []string) {
		q := parse(t, fmt.Sprintf("delay: 12m\ngenerate: {jobs: 300, seed: %d, lengths: lengths.csv.gz}", seed))
		q.dir = dir
		g := flat(10*time.Minute, 200, 16)
		jobs, err := q.draw(g)
		if err != nil {
			t.Fatal(err)
		}
		return jobs, q.Teams, g.notes
	}
	jobs, teams, notes := draw(1)
	again, teamsAgain, _ := draw(1)
	if diff := cmp.Diff(jobs, again) + cmp.Diff(teams, teamsAgain); diff != "" {
		t.Errorf("the same seed: %s", diff)
	}
	if other, _, _ := draw(2); cmp.Equal(jobs, other) {
		t.Error("another seed draws the same")
	}
	if len(jobs) != 300 || len(teams) != 4 || len(notes) != 0 {
		t.Errorf("%d jobs, %d teams, notes %q", len(jobs), len(teams), notes)
	}
	small, seen := 0, map[int]bool{}
	for _, j := range jobs {
		ratio := j.Deadline.Std().Seconds() / (j.Length.Std() + 12*time.Minute).Seconds()
		if j.Length.Std() < time.Hour || ratio < 1.1 || ratio > 3.3 || j.Gang < 1 || j.Gang > 16 ||
			j.Checkpoint < 1e9 || j.Checkpoint > 500e9 || (j.Arrival+j.Deadline).Std() > 2000*time.Minute {
			t.Errorf("drawn %+v, ratio %v", j, ratio)
		}
		seen[j.Gang] = true
		if j.Gang <= 4 {
			small++
		}
	}
	if len(seen) < 12 || small < 100 || small > 220 {
		t.Errorf("%d sizes of gangs, %d of 4 or fewer", len(seen), small)
	}
	for _, team := range teams {
		if team.Budget.Share < 0.6 || team.Budget.Share > 1.1 {
			t.Errorf("team %+v", team)
		}
	}
}

func TestBadQueue(t *testing.T) {
	const head = "markets: testdata/toy/day\nteams: [{name: vision, budget: 10 USD}]\n"
	for name, c := range map[string]struct{ text, want string }{
		"no jobs":         {head, "jobs.yaml:1:1: the file has no jobs; list them under jobs, or draw them with generate"},
		"near miss":       {head + "jobs: [{name: a, team: vision, length: 1h, deadline: 2h, gnag: 2}]", `jobs.yaml:3:58: jobs[0].gnag: unknown key; did you mean "gang"?`},
		"unknown team":    {head + "jobs: [{name: a, team: vison, length: 1h, deadline: 2h}]", `jobs.yaml:3:24: jobs[0].team: no team is called "vison"; did you mean "vision"?`},
		"twice":           {head + "jobs: [{name: a, team: vision, length: 1h, deadline: 2h}, {name: a, team: vision, length: 1h, deadline: 2h}]", `jobs[1].name: a job before it is called "a" too`},
		"no unit":         {head + "jobs: [{name: a, team: vision, length: 60, deadline: 2h}]", `jobs[0].length: expected a duration`},
		"no currency":     {"teams: [{name: a, budget: 500}]\njobs: []", `teams[0].budget: expected an amount such as "500 USD", or a share of the greedy cost such as 80%, found "500"; write "500 USD" or "500%"`},
		"not dollars":     {"teams: [{name: a, budget: 500 EUR}]\njobs: []", "a budget is in USD too"},
		"ends after":      {head + "jobs: [{name: a, team: vision, length: 1h, deadline: 200h}]", "jobs[0]: it comes at 0s with a deadline of 200h, and the recorded markets end at 14h"},
		"gang":            {head + "jobs: [{name: a, team: vision, length: 1h, deadline: 2h, gang: 2}]", "a gang of 2 needs a market with counts (STEM.count.csv.gz), and the job has none"},
		"unknown market":  {head + "jobs: [{name: a, team: vision, length: 1h, deadline: 2h, markets: toy/dey}]", `there is no market "toy/dey"; did you mean "toy/day"?`},
		"one value":       {head + "generate: {jobs: 2, lengths: x, deadline: [2]}", "generate.deadline: expected two values, from and to; such as [1, 3]"},
		"backwards":       {head + "generate: {jobs: 2, lengths: x, gang: [4, 2]}", "generate.gang: expected two values"},
		"budget":          {"generate: {jobs: 2, lengths: x, budget: [1 USD, 2 USD]}", "generate.budget: budgets are drawn in percent"},
		"teams twice":     {head + "generate: {jobs: 2, lengths: x, teams: 2}", "the teams are listed already"},
		"no file":         {head + "generate: {jobs: 2, lengths: x.csv}", "x.csv"},
		"no markets":      {"teams: [{name: a}]\njobs: [{name: a, team: a, length: 1h, deadline: 2h}]", "names no markets"},
		"a price missing": {head + "jobs: [{name: a, team: vision, length: 1h, deadline: 2h, checkpoint: 1GB}]", "a checkpoint needs prices of egress"},
	} {
		t.Run(name, func(t *testing.T) {
			q, err := ParseQueue("jobs.yaml", []byte(c.text))
			if err == nil {
				_, err = q.replayAll(t.Context(), QueueOptions{File: "jobs.yaml"})
			}
			if _, file := errors.AsType[yamlfile.Errors](err); !file && !errors.Is(err, ErrInput) {
				t.Fatalf("got %v", err)
			}
			if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got  %v\nwant one line with %s", err, c.want)
			}
		})
	}
}

func FuzzQueue(f *testing.F) {
	small, err := os.ReadFile("testdata/queue/small.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(small))
	f.Add("teams: [{name: a, budget: 80%}]\ngenerate: {jobs: 3, seed: 1, lengths: x, deadline: [1.1, 3], budget: [60%, 110%]}")
	f.Add("jobs: [{name: a, team: b, length: 1h, deadline: 99999999h, gang: 0}]")
	f.Add("generate: {jobs: 3, lengths: x, checkpoint: [1GB, 2GB, 3GB], longest: 1s}")
	f.Fuzz(func(t *testing.T, text string) {
		q, err := ParseQueue("f", []byte(text))
		if err != nil {
			if _, ok := errors.AsType[yamlfile.Errors](err); !ok {
				t.Fatalf("%T %v", err, err)
			}
			return
		}
		for _, j := range q.Jobs {
			if j.Gang < 1 || j.Length <= 0 || j.Deadline <= 0 || j.Arrival < 0 {
				t.Fatalf("read %+v", j)
			}
		}
		if _, err := q.lay(flat(10*time.Minute, 30, 4), QueueOptions{}, q.Jobs, egressTable{flat: 1}); err != nil {
			if _, ok := errors.AsType[yamlfile.Errors](err); !ok && !errors.Is(err, ErrInput) {
				t.Fatalf("%T %v", err, err)
			}
		}
	})
}
