package backtest

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/nearest"
	"gpubroker/internal/quantity"
	"gpubroker/internal/yamlfile"
)

// Queue is the file of a whole queue: who may spend what, and which jobs come
// when. Its paths are relative to the file.
type Queue struct {
	Markets  []string          `json:"markets" single:"true" doc:"recorded markets, each DIR/STEM; every pool of each is a market"`
	Delay    quantity.Duration `json:"delay" doc:"from launch to useful work, such as 12m"`
	Egress   string            `json:"egress" doc:"what a checkpoint costs to another region: in $/GB, or a file of prices"`
	Teams    []Team            `json:"teams" doc:"who pays"`
	Jobs     []Job             `json:"jobs" doc:"the jobs"`
	Generate *Generate         `json:"generate" doc:"draws more jobs and teams"`

	doc *yamlfile.Doc
	dir string
}

// Team pays for its jobs, up to its budget over the whole replay.
type Team struct {
	Name   string  `json:"name" required:"true" doc:"a name"`
	Budget *Budget `json:"budget" doc:"the most that its jobs may cost together; none = no cap"`
}

// Job is one job of a queue. Times count from the beginning of the markets.
type Job struct {
	Name       string            `json:"name" required:"true" doc:"a name"`
	Team       string            `json:"team" required:"true" doc:"who pays"`
	Arrival    quantity.Duration `json:"arrival" doc:"when it is handed in"`
	Length     quantity.Duration `json:"length" required:"true" above:"zero" doc:"how long it takes without interruption, such as 8h"`
	Deadline   quantity.Duration `json:"deadline" required:"true" above:"zero" doc:"from its arrival, such as 12h"`
	Gang       int               `json:"gang" min:"1" max:"100000" doc:"machines that it needs at once"`
	Checkpoint quantity.Size     `json:"checkpoint" doc:"what goes along to another region, such as 50GB"`
	Markets    []string          `json:"markets" single:"true" doc:"only these of the markets"`
}

// Generate draws jobs: lengths from a file of run times, all else between two
// values. The same seed draws the same jobs.
type Generate struct {
	Jobs       int               `json:"jobs" required:"true" min:"1" max:"100000" doc:"how many"`
	Seed       int               `json:"seed" min:"0" doc:"another one draws other jobs"`
	Lengths    string            `json:"lengths" required:"true" doc:"CSV file with one column of run times in seconds"`
	Shortest   quantity.Duration `json:"shortest" doc:"shorter run times are left out"`
	Longest    quantity.Duration `json:"longest" doc:"longer run times are left out"`
	Deadline   []float64         `json:"deadline" min:"1" max:"1000" doc:"deadline ÷ (length and delay), from and to"`
	Gang       []int             `json:"gang" min:"1" max:"100000" doc:"machines, from and to; small ones are as likely as large ones"`
	Checkpoint []quantity.Size   `json:"checkpoint" above:"zero" doc:"from and to; small ones are as likely as large ones"`
	Teams      int               `json:"teams" min:"1" max:"1000" doc:"how many"`
	Budget     []Budget          `json:"budget" doc:"of each team, from and to, in percent"`
}

// Budget is an amount, or a share of what the rule cheapest-greedy pays for the
// team's jobs, each alone.
type Budget struct {
	Amount money.Amount
	Share  float64 // 0 = Amount counts
}

// Describe says how a budget is written.
func (Budget) Describe() string {
	return `an amount such as "500 USD", or a share of the greedy cost such as 80%`
}

// UnmarshalText reads an amount in US dollars or a percentage.
func (b *Budget) UnmarshalText(text []byte) error {
	if percent, ok := strings.CutSuffix(strings.TrimSpace(string(text)), "%"); ok {
		f, err := strconv.ParseFloat(percent, 64)
		if err != nil || !(f > 0 && f <= 1e6) {
			return &yamlfile.Problem{Message: fmt.Sprintf("expected %s, found %q", b.Describe(), text)}
		}
		*b = Budget{Share: f / 100}
		return nil
	}
	var m quantity.Money
	if err := m.UnmarshalText(text); err != nil {
		p := &yamlfile.Problem{Message: fmt.Sprintf("expected %s, found %q", b.Describe(), text)}
		if x, err := strconv.ParseFloat(string(text), 64); err == nil && x >= 0 && !math.IsInf(x, 0) {
			p.Hint = fmt.Sprintf("write %q or %q", string(text)+" USD", string(text)+"%")
		}
		return p
	}
	if m.Currency != "USD" {
		return &yamlfile.Problem{Message: "recorded markets have prices in USD, so a budget is in USD too"}
	}
	*b = Budget{Amount: m.Amount}
	return nil
}

// ReadQueue reads a file of jobs. What is wrong with it comes as [yamlfile.Errors].
func ReadQueue(path string) (*Queue, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, inputError("read the file of jobs: %w", err)
	}
	q, err := ParseQueue(path, text)
	if err != nil {
		return nil, err
	}
	q.dir = filepath.Dir(path)
	return q, nil
}

// ParseQueue is ReadQueue for a text; name is how errors call it.
func ParseQueue(name string, text []byte) (*Queue, error) {
	q := &Queue{doc: yamlfile.Parse(name, text)}
	q.doc.Decode(q)
	if q.doc.Err() == nil {
		q.check()
	}
	if err := q.doc.Err(); err != nil {
		return nil, err
	}
	for i := range q.Jobs {
		q.Jobs[i].Gang = max(1, q.Jobs[i].Gang)
	}
	if q.Generate != nil {
		q.Generate.defaults()
	}
	return q, nil
}

func (q *Queue) check() {
	teams, jobs := []string{}, map[string]bool{}
	for i, t := range q.Teams {
		if slices.Contains(teams, t.Name) {
			q.doc.Errorf(fmt.Sprintf("teams[%d].name", i), "", "a team before it is called %q too", t.Name)
		}
		teams = append(teams, t.Name)
	}
	if len(q.Jobs) == 0 && q.Generate == nil {
		q.doc.Errorf("", "list them under jobs, or draw them with generate", "the file has no jobs")
	}
	for i, j := range q.Jobs {
		at := fmt.Sprintf("jobs[%d].", i)
		if jobs[j.Name] {
			q.doc.Errorf(at+"name", "", "a job before it is called %q too", j.Name)
		}
		jobs[j.Name] = true
		if !slices.Contains(teams, j.Team) {
			hint := nearest.Hint(j.Team, teams)
			if hint == "" {
				hint = "list it under teams"
			}
			q.doc.Errorf(at+"team", hint, "no team is called %q", j.Team)
		}
		if !q.whole(j.Arrival, j.Length, j.Deadline) {
			q.doc.Errorf(at+"length", "", "arrival, length and deadline must be whole seconds")
		}
	}
	if !q.whole(q.Delay) {
		q.doc.Errorf("delay", "", "must be whole seconds")
	}
	if g := q.Generate; g != nil {
		g.check(q.doc)
		if len(q.Teams) > 0 && (g.Teams > 0 || g.Budget != nil) {
			q.doc.Errorf("generate.teams", "leave out one of them", "the teams are listed already, and their jobs are drawn for them")
		}
	}
}

func (q *Queue) whole(durations ...quantity.Duration) bool {
	return !slices.ContainsFunc(durations, func(d quantity.Duration) bool { return d.Std()%time.Second != 0 })
}

func (g *Generate) check(doc *yamlfile.Doc) {
	pair(doc, "deadline", g.Deadline, func(a, b float64) bool { return a <= b })
	pair(doc, "gang", g.Gang, func(a, b int) bool { return a <= b })
	pair(doc, "checkpoint", g.Checkpoint, func(a, b quantity.Size) bool { return a <= b })
	pair(doc, "budget", g.Budget, func(a, b Budget) bool { return a.Share <= b.Share })
	if slices.ContainsFunc(g.Budget, func(b Budget) bool { return b.Share == 0 }) {
		doc.Errorf("generate.budget", "such as [60%, 110%]", "budgets are drawn in percent")
	}
	if g.Longest != 0 && g.Longest < g.Shortest {
		doc.Errorf("generate.longest", "", "is less than the shortest, %s", g.Shortest)
	}
}

func pair[T any](doc *yamlfile.Doc, key string, list []T, ordered func(a, b T) bool) {
	if list != nil && (len(list) != 2 || !ordered(list[0], list[1])) {
		doc.Errorf("generate."+key, "such as [1, 3]", "expected two values, from and to")
	}
}

// defaults are those of the benchmark of whole queues: deadlines of 1.1 to 3
// times, gangs of 1 to 16, checkpoints of 1 to 500 GB, budgets of 60 to 110 %.
func (g *Generate) defaults() {
	g.Shortest = cmp.Or(g.Shortest, quantity.Duration(time.Hour))
	if g.Deadline == nil {
		g.Deadline = []float64{1.1, 3}
	}
	if g.Gang == nil {
		g.Gang = []int{1, 16}
	}
	if g.Checkpoint == nil {
		g.Checkpoint = []quantity.Size{1e9, 500e9}
	}
	if g.Budget == nil {
		g.Budget = []Budget{{Share: 0.6}, {Share: 1.1}}
	}
	g.Teams = cmp.Or(g.Teams, 4)
}
