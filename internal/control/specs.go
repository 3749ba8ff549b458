package control

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/internal/reason"
	"gpubroker/internal/scenario"
	"gpubroker/internal/spec"
	"gpubroker/internal/state"
	"gpubroker/providers"
	"gpubroker/queue"
	"gpubroker/scheduler"
	"gpubroker/scheduler/policy"
)

// short is how long a task may be to be started over on spot without saves: a
// third of the mean life in [policy.DefaultPrior].
const short = time.Hour

// parsed is a job's spec as the loops need it.
type parsed struct {
	*spec.Job
	retry           scheduler.Retry
	stopsAtDeadline bool
	needs           scheduler.Needs
	work            scheduler.Work
	interruptible   bool
	atRisk          time.Duration
	value           money.Rate      // of an hour until the job is done
	class           string          // jobs whose work is alike, see [spec.Job.Class]
	notes           []reason.Reason // how needs were worked out
	shut            atomic.Pointer[shut]
}

// specs caches parsed specs by job. A scenario of the configuration is what it is
// since the broker's start, for jobs accepted before as well.
type specs struct {
	scenarios *scenario.Set
	mu        sync.Mutex
	byID      map[string]*parsed
}

func newSpecs(scenarios *scenario.Set) *specs {
	return &specs{scenarios: scenarios, byID: map[string]*parsed{}}
}

// of returns a job's spec. An accepted spec always parses; if it does not, the
// store was written by another version, and the error says so.
func (s *specs) of(j *queue.Job) (*parsed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.byID[j.ID]; p != nil {
		return p, nil
	}
	p, err := s.parse(j.Spec)
	if err != nil {
		return nil, fmt.Errorf("job %s: its stored spec is not understood by this version: %w", j.ID, err)
	}
	s.byID[j.ID] = p
	return p, nil
}

// trim forgets all specs when most of them are of jobs that are done.
func (s *specs) trim(live int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.byID) > 2*live+1000 {
		clear(s.byID)
	}
}

func (s *specs) parse(canonical []byte) (*parsed, error) {
	job, err := spec.Reader{Scenarios: s.scenarios, Accepted: true}.Decode(canonical)
	if err != nil {
		return nil, err
	}
	return prepare(job)
}

// prepare turns a job spec into what the scheduler asks.
func prepare(job *spec.Job) (*parsed, error) {
	j := job.WithDefaults()
	p := &parsed{Job: j, stopsAtDeadline: j.AfterDeadline == "stop", class: job.Class()}
	p.retry = scheduler.Retry{Failures: j.Retry.Failures, OnlyExitCodes: j.Retry.OnlyExitCodes}
	profile := j.Profile()
	r := j.Resources
	n := scheduler.Needs{
		GPUs: float64(r.GPUCount), Slots: r.Slots, VCPU: float64(r.VCPU),
		Memory: r.Memory.Bytes(), Disk: r.Disk.Bytes(),
		Nodes: j.Nodes, Providers: r.Providers, Regions: r.Regions, Zones: r.Zones,
	}
	if r.MaxPrice != nil {
		n.MaxPrice = money.Rate(r.MaxPrice.Amount)
	}
	facts := gpu.Builtin()
	if j.NeedsGPU() {
		n.GPU = j.GPUIDs()
		slices.Sort(n.GPU)
		n.Require = gpu.Requirements(profile.Merge(j.Requirements()))
		n.WholeGPU, n.Alone = profile.Share != scenario.Fraction, profile.Share == scenario.WholeMachine
		n.Figure, n.Runtime = j.Figure(), j.Runs()
		n.Demand, p.notes = j.Demand()
		n.GPUs = max(1, n.GPUs)
		n.Fabric = profile.Fabric
	}
	n.RDMA = profile.RDMA && j.Gang()
	switch j.Spot.Policy {
	case "never":
		n.Kinds = []providers.Kind{providers.OnDemand}
	}
	if task, on, ok := j.WorkReference(); ok {
		p.work = scheduler.Work{Task: task, Source: "given"}
		if f, known := facts.Lookup(on); known {
			p.work.Figure = n.FigureOn(facts, f)
		}
	}
	if j.Users != nil {
		n.Near = scheduler.Near{From: j.Users.From, RTT: j.Users.MaxRTT.Std()}
		p.work = scheduler.Work{Task: time.Hour, Source: "given"} // what a seat costs for an hour
	}
	p.needs = n
	if j.ValueOfTime != nil {
		p.value = money.Rate(j.ValueOfTime.Amount)
	}
	p.interruption()
	return p, nil
}

// unknown is why nothing of a job is placed that names a scenario which has been
// taken out of the configuration: what its GPUs must have is not known any more.
func (p *parsed) unknown() reason.Reason {
	if !p.Unresolved() {
		return reason.Reason{}
	}
	return reason.New("scenario_unknown", "scenario", p.Scenario)
}

// interruption decides whether the work may be taken away, and how much of it
// that can undo.
func (p *parsed) interruption() {
	switch p.Interruption() {
	case spec.Resumes:
		p.interruptible = true
		p.work.Saves = scheduler.Saves{On: true, Every: p.Checkpoint.Interval.Std()}
		p.atRisk = p.Checkpoint.Interval.Std()
		if p.atRisk <= 0 {
			p.atRisk = policy.CheckpointInterval(30*time.Second, policy.Life(policy.History{}, policy.History{}))
		}
	case spec.StartOver:
		known := p.work.Task > 0 && p.work.Task <= short || p.MaxDuration > 0 && p.MaxDuration.Std() <= short
		named := p.Scenario != "" && p.work.Task <= short
		p.interruptible = p.Spot.Policy == "always" || known || named
	case spec.Forbidden:
	}
}

// budget returns the job's own budget, when it has one.
func (s *specs) budget(j *queue.Job) (budget.Budget, bool) {
	p, err := s.of(j)
	if err != nil || p.Budget == nil {
		return budget.Budget{}, false
	}
	return budget.Budget{
		Name: "job/" + j.ID, Scope: budget.Job, Match: j.ID, Capped: true, Cap: p.Budget.Max.Amount,
		Period: budget.Rule{Length: budget.Total}, Guard: budget.Normal,
	}, true
}

// budgetOf returns the budget of a job that pays for machines, by its id. A job
// that is done keeps it as long as a machine of its own is not settled.
func (s *specs) budgetOf(tx *state.Tx, id string) []budget.Budget {
	j := tx.Job(id)
	if j == nil {
		// Nothing more is reserved for it: its account is only closed.
		return []budget.Budget{{Name: "job/" + id, Scope: budget.Job, Match: id, Period: budget.Rule{Length: budget.Total}}}
	}
	if own, ok := s.budget(j); ok {
		return []budget.Budget{own}
	}
	return nil
}

// drop forgets a job's spec.
func (s *specs) drop(id string) {
	s.mu.Lock()
	delete(s.byID, id)
	s.mu.Unlock()
}
