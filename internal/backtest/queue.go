package backtest

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"gpubroker/internal/money"
	"gpubroker/scheduler/policy"
)

// QueueOptions say how to replay a queue. Zero values are as the fields say.
type QueueOptions struct {
	// File of the jobs.
	File string
	// Markets take the place of those of the file.
	Markets []string
	// Egress takes the place of the file's.
	Egress string
	// Policies by name; empty or "all" = all of [PolicyNames].
	Policies []string
	// Free shows every pool at each tick.
	Free bool
	// Cold starts each job knowing nothing of its markets, see [Options].
	Cold bool
	// SplitAtHoles replays the longest stretch between holes of each market.
	SplitAtHoles bool
	// CacheDir keeps bounds from one time to the next; empty = nowhere.
	CacheDir string
	// Timeline records where each job was.
	Timeline bool
	// Progress is told what is done: so many of so many.
	Progress func(what string, at, of int)
}

// entry is a job with what it sees of the markets.
type entry struct {
	Job
	pools  []int // of the ground
	window *window
	// late is why the deadline cannot be kept by anybody, or "".
	late  string
	bound float64 // the optimum of the job alone
	alone float64 // what cheapest-greedy pays, alone
}

// replayed is a queue made ready.
type replayed struct {
	*ground
	options QueueOptions
	teams   []Team
	entries []*entry
	caps    map[string]money.Amount
	school  *school
}

// RunQueue replays a whole queue. Errors in the options or the markets are
// [ErrInput]; those of the file are yamlfile.Errors.
func RunQueue(ctx context.Context, o QueueOptions) (QueueResult, error) {
	if _, err := chosen(o.Policies); err != nil { // the quickest to find out
		return QueueResult{}, err
	}
	file, err := ReadQueue(o.File)
	if err != nil {
		return QueueResult{}, err
	}
	return file.replayAll(ctx, o)
}

func (q *Queue) replayAll(ctx context.Context, o QueueOptions) (QueueResult, error) {
	names, err := chosen(o.Policies)
	if err != nil {
		return QueueResult{}, err
	}
	if o.Progress == nil {
		o.Progress = func(string, int, int) {}
	}
	r, err := q.prepare(o)
	if err != nil {
		return QueueResult{}, err
	}
	return r.run(ctx, names)
}

func (q *replayed) run(ctx context.Context, names []string) (QueueResult, error) {
	if err := q.measure(ctx); err != nil {
		return QueueResult{}, err
	}
	q.fillCaps()

	runs := make([]queueRun, len(names))
	err := parallel(ctx, len(names), func(i int) error {
		q.options.Progress("policy", i, len(names))
		var err error
		runs[i], err = q.replay(ctx, names[i], ruleOf(names[i]))
		return err
	})
	if err != nil {
		return QueueResult{}, err
	}
	return q.result(names, runs), nil
}

// parallel calls f with 0 to n-1, as many at once as there are processors, and
// returns the first error in that order.
func parallel(ctx context.Context, n int, f func(i int) error) error {
	errs := make([]error, n)
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), n) {
		wg.Go(func() {
			for i := range next {
				errs[i] = f(i)
			}
		})
	}
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("backtest: %w", err)
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// prepare reads the markets and lays the jobs on their ticks.
func (q *Queue) prepare(o QueueOptions) (*replayed, error) {
	stems := slices.Clone(o.Markets)
	if len(stems) == 0 {
		for _, m := range q.Markets {
			stems = append(stems, q.path(m))
		}
	}
	if len(stems) == 0 {
		return nil, inputError("%s names no markets: list them under markets, or give --market", o.File)
	}
	g, err := layOut(stems, o.SplitAtHoles)
	if err != nil {
		return nil, err
	}
	jobs := slices.Clone(q.Jobs)
	if q.Generate != nil {
		drawn, err := q.draw(g)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, drawn...)
	}
	text := o.Egress
	if text == "" {
		text = q.Egress
		if text != "" && !isNumber(text) {
			text = q.path(text)
		}
	}
	var egress egressTable
	if slices.ContainsFunc(jobs, func(j Job) bool { return j.Checkpoint > 0 }) {
		if egress, err = readEgress(text, stems[0]); err != nil {
			return nil, err
		}
	}
	return q.lay(g, o, jobs, egress)
}

// lay puts the jobs, the file's before those drawn, on the ground.
func (q *Queue) lay(g *ground, o QueueOptions, jobs []Job, egress egressTable) (*replayed, error) {
	r := &replayed{ground: g, options: o, teams: q.Teams, caps: map[string]money.Amount{}, school: newSchool(policy.Shipped())}
	for i, j := range jobs {
		e, err := r.enter(j, q.Delay.Std(), egress)
		switch {
		case err == nil:
			r.entries = append(r.entries, e)
		case i < len(q.Jobs):
			q.doc.Errorf(fmt.Sprintf("jobs[%d]", i), "", "%v", err)
		default:
			return nil, inputError("drawn job %s: %w", j.Name, err)
		}
	}
	if err := q.doc.Err(); err != nil {
		return nil, err
	}
	slices.SortStableFunc(r.entries, func(a, b *entry) int { return a.window.first - b.window.first })
	return r, nil
}

func (q *Queue) path(p string) string {
	if filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(q.dir, p)
}

// enter lays a job on the ticks: it begins with the first after its arrival.
func (q *replayed) enter(j Job, delay time.Duration, egress egressTable) (*entry, error) {
	pools, err := q.open(j)
	if err != nil {
		return nil, err
	}
	arrival := j.Arrival.Std()
	if end := q.horizon(); arrival > end || j.Deadline.Std() > end-arrival {
		return nil, fmt.Errorf("it comes at %s with a deadline of %s, and the recorded markets end at %s", short(arrival), j.Deadline, short(end))
	}
	deadline := arrival + j.Deadline.Std()
	first := int((arrival + q.step - 1) / q.step)
	o := &Options{
		Length: j.Length.Std(), Deadline: deadline - time.Duration(first)*q.step, Delay: delay,
		Gang: j.Gang, Checkpoint: float64(j.Checkpoint) / 1e9, Free: q.options.Free, Cold: q.options.Cold, school: q.school,
	}
	m, s := q.market(pools, j.Gang)
	if err := m.settle(o.Checkpoint, egress); err != nil {
		return nil, err
	}
	e := &entry{Job: j, pools: pools}
	e.window = &window{opt: o, market: m, stretch: s, first: first, ticks: int((o.Deadline + q.step - 1) / q.step)}
	if o.Deadline-o.Length < delay {
		e.late = fmt.Sprintf("its deadline leaves %s for %s of work and %s to start", short(max(0, o.Deadline)), short(o.Length), short(delay))
	}
	return e, nil
}

// measure finds for each job alone the optimum, and what greedy pays.
func (q *replayed) measure(ctx context.Context) error {
	var todo []*entry
	for _, e := range q.entries {
		if e.late == "" {
			todo = append(todo, e)
		}
	}
	// Those that see the same stand together, which makes a short digest.
	slices.SortStableFunc(todo, func(a, b *entry) int { return a.Gang - b.Gang })
	windows := make([]*window, len(todo))
	for i, e := range todo {
		windows[i] = e.window
	}
	kept := cache{dir: q.options.CacheDir, key: digest(windows)}
	optima, known := kept.load(len(windows))
	solvers := sync.Pool{New: func() any { return new(optimizer) }}
	var mu sync.Mutex
	done := 0
	err := parallel(ctx, len(todo), func(i int) error {
		if dp, ok := solvers.Get().(*optimizer); ok && !known {
			optima[i] = dp.solve(windows[i])
			solvers.Put(dp)
		}
		todo[i].bound = optima[i]
		todo[i].alone = windows[i].replay(greedy(cheapest)).cost
		mu.Lock()
		defer mu.Unlock()
		q.options.Progress("bound of job", done, len(todo))
		done++
		return nil
	})
	if err != nil {
		return err
	}
	if !known {
		if err := kept.save(optima); err != nil {
			q.note("the bounds could not be kept for the next time: %v", err)
		}
	}
	return nil
}

// fillCaps turns shares of the greedy cost into amounts, to the cent.
func (q *replayed) fillCaps() {
	shares := false
	for _, t := range q.teams {
		switch {
		case t.Budget == nil:
		case t.Budget.Share > 0:
			shares = true
			sum := 0.0
			for _, e := range q.entries {
				if e.Team == t.Name {
					sum += e.alone
				}
			}
			q.caps[t.Name] = nano(sum * t.Budget.Share).Round(2)
		default:
			q.caps[t.Name] = t.Budget.Amount
		}
	}
	if shares {
		q.note("budgets in percent are shares of what cheapest-greedy pays for the team's jobs, each alone and without a cap")
	}
}

// queueRun is what one policy did with the queue.
type queueRun struct {
	jobs  []jobRun // as the entries
	spend map[string][]Spend
	// breached are the teams whose bills were above their caps at some tick.
	breached map[string]bool
}

type jobRun struct {
	refused string // why it was not admitted, or ""
	out     outcome
	spans   []Span // since it began, if they were asked for
}

// points is about how many moments of spending are kept for each team.
const points = 240

// replay plays a policy with the whole queue: in each tick first the losses, then
// the admissions, then the decisions in the order of arrival.
func (q *replayed) replay(ctx context.Context, name string, start rule) (queueRun, error) {
	result := queueRun{jobs: make([]jobRun, len(q.entries)), spend: map[string][]Spend{}, breached: map[string]bool{}}
	c := &commons{ground: q.ground, book: newBook(q.teams, q.caps), taken: make([]int, len(q.pools))}
	bills := map[string]float64{} // by the replay itself, beside the book
	for i, e := range q.entries {
		result.jobs[i].refused = e.late
	}
	var active []*run
	decide := map[*run]func(){}
	at := map[*run]int{}
	every := max(1, len(q.count)/points)
	for next, tick := 0, 0; tick < len(q.count) && ctx.Err() == nil; tick++ {
		c.repack(tick, active)
		for _, r := range active {
			r.begin()
			r.share.move(r)
			if err := c.reserve(r.share.job.Team, r.share.job.Name, r.share.pledge(r, r.held)); err != nil {
				return result, fmt.Errorf("backtest: job %s of %s lost its reservation: %w", r.share.job.Name, name, err)
			}
		}
		for ; next < len(q.entries) && q.entries[next].window.first <= tick; next++ {
			e := q.entries[next]
			if e.late != "" {
				continue
			}
			r := e.window.run()
			r.share = &share{commons: c, job: e, pools: e.pools, at: none, shown: q.options.Timeline}
			if result.jobs[next].refused = r.share.admit(r, q.caps); result.jobs[next].refused == "" {
				active, at[r], decide[r] = append(active, r), next, start(&sight{r: r})
			}
		}
		still := active[:0]
		for _, r := range active {
			before := r.out.cost
			if err := r.share.step(r, decide[r]); err != nil {
				return result, fmt.Errorf("backtest: job %s of %s: %w", r.share.job.Name, name, err)
			}
			bills[r.share.job.Team] += r.out.cost - before
			if r.running() {
				still = append(still, r)
			} else {
				result.jobs[at[r]].out, result.jobs[at[r]].spans = r.out, r.share.seen.all
				delete(decide, r)
			}
		}
		active = still
		for _, t := range q.teams {
			if limit, ok := q.caps[t.Name]; ok && bills[t.Name] > limit.Float()+1e-6 {
				result.breached[t.Name] = true
			}
			if tick%every == 0 || tick == len(q.count)-1 {
				spent, all := c.committed(t.Name)
				if _, capped := q.caps[t.Name]; !capped {
					spent, all = bills[t.Name], bills[t.Name]
				}
				result.spend[t.Name] = append(result.spend[t.Name], Spend{time.Duration(tick+1) * q.step, spent, all})
			}
		}
	}
	if err := ctx.Err(); err != nil {
		return result, fmt.Errorf("backtest: %w", err)
	}
	return result, nil
}

// admit says why a job is not admitted, or reserves what it takes to keep its
// deadline: on demand to the end.
func (s *share) admit(r *run, caps map[string]money.Amount) string {
	err := s.reserve(s.job.Team, s.job.Name, s.pledge(r, none))
	if need, free, ok := lacks(err); ok {
		return fmt.Sprintf("on demand to its end needs %s USD, and %s USD of %s's %s are neither spent nor reserved",
			need.Round(2), free.Round(2), s.job.Team, caps[s.job.Team].Round(2))
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// step decides for one tick, lets it pass, and pays for it.
func (s *share) step(r *run, decide func()) error {
	team, name := s.job.Team, s.job.Name
	decide()
	if s.shown {
		s.seen.see(r)
	}
	s.move(r)
	if err := s.reserve(team, name, s.owed(r)+s.pledge(r, r.held)); err != nil {
		return err
	}
	r.advance(r.market.step)
	promise := s.promise(r)
	r.tick++
	if !r.running() {
		r.end()
		promise = 0
	}
	owed := s.owed(r)
	s.paid = r.out.cost
	if err := s.pay(team, name, owed); err != nil || promise == 0 {
		return err
	}
	return s.reserve(team, name, promise)
}
