package invariant

import (
	"errors"
	"fmt"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/money"
	"gpubroker/internal/spec"
	"gpubroker/queue"
)

// Checker holds every row that was ever committed. It is not safe for concurrent
// use.
type Checker struct {
	// Caps are the configured budgets; those of jobs are read from their specs.
	Caps []budget.Budget
	// Beyond names budgets in which machines may cost more than was reserved, since
	// nothing at their provider ends them.
	Beyond bool

	jobs        map[string]*queue.Job
	tasks       map[queue.TaskID]*queue.Task
	attempts    map[string]*queue.Attempt
	checkpoints map[queue.TaskID]map[int64]*queue.Checkpoint
	instances   map[string]*queue.Instance
	accounts    map[budget.Key]*budget.Account
	holds       map[string]map[budget.Key]*budget.Hold // by instance
	sums        map[budget.Key]*sums
	taskRows    map[string]*queue.Counts         // rows by state, by job
	live        map[queue.TaskID]map[string]bool // attempts that have not ended
	on          map[string]map[string]*queue.Attempt
	specs       map[string]*spec.Job
	event       int64
	entry       int64
	commits     int
}

// sums are what the ledger's entries of one account add up to.
type sums struct{ reserved, cost, over money.Amount }

// New returns a checker of an empty store.
func New(caps []budget.Budget) *Checker {
	return &Checker{
		Caps: caps,
		jobs: map[string]*queue.Job{}, tasks: map[queue.TaskID]*queue.Task{}, attempts: map[string]*queue.Attempt{},
		checkpoints: map[queue.TaskID]map[int64]*queue.Checkpoint{}, instances: map[string]*queue.Instance{},
		accounts: map[budget.Key]*budget.Account{}, holds: map[string]map[budget.Key]*budget.Hold{},
		sums: map[budget.Key]*sums{}, taskRows: map[string]*queue.Counts{}, live: map[queue.TaskID]map[string]bool{},
		on: map[string]map[string]*queue.Attempt{}, specs: map[string]*spec.Job{},
	}
}

// Commits is how many batches were seen.
func (c *Checker) Commits() int { return c.commits }

// Attempts yields every attempt ever made.
func (c *Checker) Attempts() map[string]*queue.Attempt { return c.attempts }

// Instances yields every machine's record ever made.
func (c *Checker) Instances() map[string]*queue.Instance { return c.instances }

// Account returns an account or nil.
func (c *Checker) Account(k budget.Key) *budget.Account { return c.accounts[k] }

// breach is one promise broken.
func breach(promise, format string, args ...any) error {
	return fmt.Errorf("%s: %s", promise, fmt.Sprintf(format, args...))
}

// The promises, as they are named in breaches.
const (
	oneResult   = "no double result"
	noLostWork  = "no lost work"
	noLeak      = "no leaked machine"
	noBrokenCap = "no broken cap"
	notAFailure = "a preemption is not a failure"
	ledger      = "the ledger is the bill"
	rows        = "rows move as their tables say"
	places      = "work runs where it may"
)

// Commit takes a batch that has been committed, and returns the promises that it
// breaks.
func (c *Checker) Commit(b *queue.Batch) error {
	c.commits++
	var errs []error
	see := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	m := &move{retried: map[string]bool{}, broken: map[queue.TaskID]bool{}, failed: map[queue.TaskID]int{}, moved: map[string]bool{}}
	for _, e := range b.Events {
		if e.Seq <= c.event {
			see(breach(rows, "event %d comes after %d", e.Seq, c.event))
		}
		c.event = e.Seq
		switch e.Kind {
		case "job.retried":
			m.retried[e.Job] = true
		case "checkpoint.broken":
			if e.Index != nil {
				m.broken[queue.TaskID{Job: e.Job, Index: *e.Index}] = true
			}
		}
	}
	for _, r := range b.Instances {
		see(c.instance(r))
	}
	for _, r := range b.Attempts {
		see(c.attempt(r, m))
	}
	for _, r := range b.Checkpoints {
		see(c.checkpoint(r, b))
	}
	for _, r := range b.Tasks {
		see(c.task(r, m))
	}
	for _, r := range b.Jobs {
		see(c.job(r, m))
	}
	for job := range m.moved {
		see(c.counts(job))
	}
	for _, r := range b.Attempts {
		see(c.placed(r))
	}
	for _, e := range b.Entries {
		see(c.addEntry(e))
	}
	for _, r := range b.Holds {
		see(c.hold(r))
	}
	touched := map[budget.Key]bool{}
	for _, r := range b.Accounts {
		touched[r.Key] = true
		see(c.account(r))
	}
	for _, e := range b.Entries {
		if !touched[e.Key] {
			see(breach(ledger, "entry %d moves %v and its account does not", e.Seq, e.Key))
		}
	}
	return errors.Join(errs...)
}

// move is what a batch says of itself.
type move struct {
	retried map[string]bool
	broken  map[queue.TaskID]bool
	failed  map[queue.TaskID]int // attempts that ended as failed
	moved   map[string]bool      // jobs whose tasks moved
}

func version(what string, old, now int64) error {
	if now != old+1 {
		return breach(rows, "%s goes from version %d to %d", what, old, now)
	}
	return nil
}

// reaches reports whether a row can come from one state to another by the moves
// of its table: several may fall into one commit.
func reaches(table []queue.Move, from, to string, through func(queue.Move) bool) bool {
	if from == to && from != "" {
		return true
	}
	seen, next := map[string]bool{from: true}, []string{from}
	for len(next) > 0 {
		at := next[0]
		next = next[1:]
		for _, m := range table {
			if m.From == at && !seen[m.To] && through(m) {
				if m.To == to {
					return true
				}
				seen[m.To] = true
				next = append(next, m.To)
			}
		}
	}
	return false
}

func always(queue.Move) bool { return true }

// Forget drops the jobs that ended before a moment, so that a checker may look on
// for long. Nobody may touch them again.
func (c *Checker) Forget(before time.Time) {
	for id, j := range c.jobs {
		if j.Done() && j.Ended.Before(before) {
			delete(c.jobs, id)
			delete(c.specs, id)
			delete(c.taskRows, id)
		}
	}
	for id := range c.tasks {
		if c.jobs[id.Job] == nil {
			delete(c.tasks, id)
			delete(c.checkpoints, id)
			delete(c.live, id)
		}
	}
	for id, a := range c.attempts {
		if c.jobs[a.Job] == nil {
			delete(c.attempts, id)
		}
	}
	for id, on := range c.on {
		if len(on) == 0 {
			delete(c.on, id)
		}
	}
}
