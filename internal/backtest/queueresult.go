package backtest

import (
	"time"

	"gpubroker/internal/quantity"
)

// QueueResult is what a replay of a queue found, with the field names of the
// command's JSON. Costs are in US dollars, times in seconds from the beginning.
type QueueResult struct {
	Jobs    int      `json:"jobs"`
	Markets []string `json:"markets"`
	Pools   int      `json:"pools"`
	// Horizon is how long all of the markets were recorded.
	Horizon int64 `json:"horizon_seconds"`
	Tick    int64 `json:"tick_seconds"`
	// Bound is the sum of the optima of all jobs whose deadlines can be kept, each
	// alone. It holds because jobs can only take capacity from each other.
	Bound        float64      `json:"bound"`
	OnDemandCost float64      `json:"on_demand_cost"` // of the same jobs
	Policies     []QueueScore `json:"policies"`
	Notes        []string     `json:"notes,omitempty"`
}

// Tally is what some jobs came to under one policy. Bound and OnDemandCost are
// those of the jobs admitted, so that Ratio compares like with like.
type Tally struct {
	Jobs         int     `json:"jobs"`
	Admitted     int     `json:"admitted"`
	Misses       int     `json:"misses"` // of those admitted
	CapBreaches  int     `json:"cap_breaches"`
	SumCost      float64 `json:"sum_cost"`
	Bound        float64 `json:"bound"`
	Ratio        float64 `json:"ratio"` // sum_cost ÷ bound, 0 where nothing was admitted
	OverOnDemand float64 `json:"over_on_demand"`
	Preemptions  int     `json:"preemptions"`
	Moves        int     `json:"moves"`
	ProbeCost    float64 `json:"probe_cost"`
	EgressCost   float64 `json:"egress_cost"`
	WasteShare   float64 `json:"waste_share"`

	onDemand   float64
	paid, idle time.Duration
}

// QueueScore is how one policy did with the queue.
type QueueScore struct {
	Name string `json:"name"`
	Tally
	Teams   []TeamScore  `json:"teams"`
	Details []JobOutcome `json:"details"`
}

// TeamScore is how the jobs of one team did.
type TeamScore struct {
	Name string `json:"name"`
	// Cap is none where the team has no budget.
	Cap *float64 `json:"cap,omitempty"`
	Tally
	// Spend is what was spent over time, for charts.
	Spend []Spend `json:"-"`
}

// Spend is what a team had spent at a moment, and what it had spent or reserved.
type Spend struct {
	At               time.Duration
	Spent, Committed float64
}

// JobOutcome is how one job did. Of a job that was not admitted, Why says why.
type JobOutcome struct {
	Name       string  `json:"name"`
	Team       string  `json:"team"`
	Arrival    int64   `json:"arrival_seconds"`
	Length     int64   `json:"length_seconds"`
	Deadline   int64   `json:"deadline_seconds"` // from its arrival
	Gang       int     `json:"gang"`
	Checkpoint float64 `json:"checkpoint_gb"`
	Admitted   bool    `json:"admitted"`
	Why        string  `json:"why,omitempty"`
	Cost       float64 `json:"cost"`
	Bound      float64 `json:"bound,omitempty"`          // none where nobody could keep the deadline
	Finish     int64   `json:"finish_seconds,omitempty"` // from its arrival
	Missed     bool    `json:"missed,omitempty"`
	Preempted  int     `json:"preemptions,omitempty"`
	// Spans say where it was, counted from the beginning, if that was asked for.
	Spans []Span `json:"-"`
}

func short(d time.Duration) string { return quantity.Duration(d).String() }

func (q *replayed) result(names []string, runs []queueRun) QueueResult {
	r := QueueResult{
		Jobs: len(q.entries), Markets: q.names, Pools: len(q.pools),
		Horizon: int64(q.horizon() / time.Second), Tick: int64(q.step / time.Second), Notes: q.notes,
	}
	for _, e := range q.entries {
		if e.late == "" {
			r.Bound += e.bound
			r.OnDemandCost += e.window.onDemandCost()
		}
	}
	for i, name := range names {
		run := runs[i]
		score := QueueScore{Name: name}
		for _, t := range q.teams {
			team := TeamScore{Name: t.Name, Spend: run.spend[t.Name]}
			if limit, ok := q.caps[t.Name]; ok {
				team.Cap = new(limit.Float())
			}
			for k, e := range q.entries {
				if e.Team == t.Name {
					team.count(e, run.jobs[k])
				}
			}
			if run.breached[t.Name] {
				team.CapBreaches = 1
			}
			score.add(team.Tally)
			team.close()
			score.Teams = append(score.Teams, team)
		}
		score.close()
		for k, e := range q.entries {
			score.Details = append(score.Details, q.outcome(e, run.jobs[k]))
		}
		r.Policies = append(r.Policies, score)
	}
	return r
}

func (q *replayed) outcome(e *entry, j jobRun) JobOutcome {
	o := JobOutcome{
		Name: e.Name, Team: e.Team, Arrival: int64(e.Arrival.Std() / time.Second), Length: int64(e.Length.Std() / time.Second),
		Deadline: int64(e.Deadline.Std() / time.Second), Gang: e.Gang, Checkpoint: e.window.opt.Checkpoint,
		Admitted: j.refused == "", Why: j.refused, Cost: j.out.cost, Bound: e.bound, Missed: j.out.missed, Preempted: j.out.preemptions,
	}
	if o.Admitted {
		waited := time.Duration(e.window.first)*q.step - e.Arrival.Std() // for the first tick
		for _, span := range j.spans {
			begun := time.Duration(e.window.first) * q.step
			span.From, span.To = span.From+begun, span.To+begun
			o.Spans = append(o.Spans, span)
		}
		o.Finish = int64((waited + j.out.finish) / time.Second)
	}
	return o
}

func (t *Tally) count(e *entry, j jobRun) {
	t.Jobs++
	if j.refused != "" {
		return
	}
	one := Tally{
		Admitted: 1, SumCost: j.out.cost, Bound: e.bound, Preemptions: j.out.preemptions, Moves: j.out.moves,
		ProbeCost: j.out.probes, EgressCost: j.out.egress, onDemand: e.window.onDemandCost(), paid: j.out.paid, idle: j.out.idle,
	}
	if j.out.missed {
		one.Misses = 1
	}
	t.add(one)
}

func (t *Tally) add(o Tally) {
	t.Jobs += o.Jobs
	t.Admitted += o.Admitted
	t.Misses += o.Misses
	t.CapBreaches += o.CapBreaches
	t.SumCost += o.SumCost
	t.Bound += o.Bound
	t.Preemptions += o.Preemptions
	t.Moves += o.Moves
	t.ProbeCost += o.ProbeCost
	t.EgressCost += o.EgressCost
	t.onDemand += o.onDemand
	t.paid += o.paid
	t.idle += o.idle
}

// close works out the ratios.
func (t *Tally) close() {
	if t.Bound > 0 {
		t.Ratio, t.OverOnDemand = t.SumCost/t.Bound, t.SumCost/t.onDemand
	}
	if t.paid > 0 {
		t.WasteShare = t.idle.Seconds() / t.paid.Seconds()
	}
}
