package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/checkpoint"
)

// refusedAfter is how long a complete save waits for its commit, with a broker
// that answers, before the next one goes up without it.
const refusedAfter = 30 * time.Second

// saving sends the saves of one running attempt: each complete one is taken aside
// at once, the newest waits while one is under way, and older ones that wait are
// dropped for it.
type saving struct {
	t       *attempt
	dir     string // of the job's saves
	aside   string
	saver   *checkpoint.Saver
	watcher *checkpoint.Watcher
	taking  sync.WaitGroup
	sending sync.WaitGroup
	giveUp  context.CancelFunc // ends the sending
	stopped chan struct{}      // nothing more is taken

	mu      sync.Mutex
	taken   int
	waiting *takenSave
	news    chan struct{} // closed and replaced when waiting was set
	over    bool          // what waits now is the last
}

type takenSave struct {
	set *checkpoint.Set
	at  checkpoint.Taken // without a number
}

// startSaving begins to watch for saves; it returns nil for a task that makes
// none, and for a member of a gang whose saves nobody keeps.
func (t *attempt) startSaving() (*saving, error) {
	spec := t.rec.Task.Checkpoint
	if spec == nil || !t.rec.Task.Leads() {
		return nil, nil
	}
	dir, err := t.local(spec.Dir)
	if err != nil {
		return nil, err
	}
	s := &saving{
		t: t, dir: dir, aside: filepath.Join(t.dir, "saves"),
		stopped: make(chan struct{}), news: make(chan struct{}),
	}
	if err := os.MkdirAll(s.aside, 0o700); err != nil {
		return nil, agentError(err)
	}
	if s.saver, err = checkpoint.NewSaver(t.id, t.moves, 0); err != nil {
		return nil, agentError(err)
	}
	if t.resumed != nil {
		s.saver.Resumed(t.resumed)
	}
	if s.watcher, err = checkpoint.Watch(dir, *spec, t.log); err != nil {
		return nil, agentError(err)
	}
	var ctx context.Context
	ctx, s.giveUp = t.untilTaken()
	s.taking.Go(s.take)
	s.sending.Go(func() { s.send(ctx) })
	t.mu.Lock()
	t.saving = s
	t.mu.Unlock()
	return s, nil
}

// take takes complete saves aside until the command is over.
func (s *saving) take() {
	for {
		select {
		case <-s.stopped:
			return
		case <-s.watcher.C:
			s.takeOne()
		}
	}
}

func (s *saving) takeOne() {
	s.mu.Lock()
	s.taken++
	aside := filepath.Join(s.aside, strconv.Itoa(s.taken))
	s.mu.Unlock()
	t := s.t
	t.mu.Lock()
	t.moved = time.Now()
	at := checkpoint.Taken{Busy: agentapi.Of(t.busy()), Progress: t.progress()}
	appended := t.rec.Task.Checkpoint.Append
	t.mu.Unlock()
	// A file that the job is removing or replacing just now is another try's.
	var set *checkpoint.Set
	var err error
	for try := 1; ; try++ {
		set, err = checkpoint.Snapshot(t.ctx, s.dir, aside, appended...)
		if !errors.Is(err, checkpoint.ErrChanged) || try == 5 {
			break
		}
		if pause(t.ctx, time.Duration(try)*50*time.Millisecond) != nil {
			return
		}
	}
	if err != nil {
		t.log.Warn("a save was not taken", "err", err)
		return
	}
	if set.Files() == 0 {
		s.close(set)
		return
	}
	s.mu.Lock()
	old := s.waiting
	s.waiting = &takenSave{set, at}
	close(s.news)
	s.news = make(chan struct{})
	s.mu.Unlock()
	if old != nil {
		s.close(old.set)
	}
}

func (s *saving) close(set *checkpoint.Set) {
	if err := set.Close(); err != nil {
		s.t.log.Warn("cannot remove what was taken aside", "err", err)
	}
}

// next waits for a save to send; nil means that there is none left.
func (s *saving) next(ctx context.Context) *takenSave {
	for {
		s.mu.Lock()
		w, over, news := s.waiting, s.over, s.news
		s.waiting = nil
		s.mu.Unlock()
		if w != nil || over {
			return w
		}
		select {
		case <-ctx.Done():
			return nil
		case <-news:
		}
	}
}

// send sends one save after another.
func (s *saving) send(ctx context.Context) {
	defer s.giveUp()
	for {
		s.awaitCommit(ctx)
		w := s.next(ctx)
		if w == nil {
			return
		}
		s.sendOne(ctx, w)
		s.close(w.set)
	}
}

// awaitCommit waits until the broker has committed what was sent. It gives up on
// a save that the broker does not take, and waits for nothing when the attempt is
// to stop.
func (s *saving) awaitCommit(ctx context.Context) {
	t := s.t
	t.mu.Lock()
	n := len(t.rec.Saves)
	var newest int64
	if n > 0 {
		newest = t.rec.Saves[n-1].Number
	}
	answers := t.answers
	t.mu.Unlock()
	if n == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, refusedAfter)
	defer cancel()
	committed := func() bool { return t.want.Committed >= newest || t.order != nil || s.isOver() }
	if t.wait(ctx, committed) == nil {
		return
	}
	t.mu.Lock()
	refused := t.answers >= answers+2 && t.want.Committed < newest
	t.mu.Unlock()
	if refused {
		t.log.Warn("the broker does not commit a save; the next one is sent whole", "save", newest)
		s.saver.Refused(newest)
	}
}

func (s *saving) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// sendOne sends a save if it fits the time that is left.
func (s *saving) sendOne(ctx context.Context, w *takenSave) {
	t := s.t
	plan, err := s.saver.Plan(ctx, w.set)
	if err != nil {
		t.log.Warn("a save was not sent", "err", err)
		return
	}
	if o, ok := t.stopping(); ok && !o.by.IsZero() {
		if left := time.Until(o.by) - time.Second; !t.moves.Fits(plan.New, left) {
			t.log.Warn("a save does not fit the time that is left", "bytes", plan.New, "left", left, "rate", t.moves.Rate())
			t.logs.Note("the last save was not sent: " + strconv.FormatInt(plan.New, 10) + " bytes do not fit the " + left.Round(time.Second).String() + " that are left")
			return
		}
	}
	t.mu.Lock()
	next := t.want.Next
	t.mu.Unlock()
	at := w.at
	t.set(func(r *record) {
		r.SaveNumber = max(r.SaveNumber+1, next)
		at.Number = r.SaveNumber
	})
	began := time.Now()
	ctx, done := s.untilAdopted(ctx, at.Number)
	defer done()
	save, err := s.saver.Send(ctx, plan, at)
	if err != nil {
		if errors.Is(context.Cause(ctx), errAdopted) {
			t.log.Info("a save was adopted by the broker", "save", at.Number)
		} else if ctx.Err() == nil {
			t.log.Warn("a save was not sent", "err", err)
		}
		return
	}
	t.log.Info("a save is in the store", "save", save.Number, "bytes", save.Bytes, "sent", save.Sent, "took", time.Since(began).Round(time.Millisecond))
	t.set(func(r *record) { r.Saves = append(append([]agentapi.Save(nil), r.Saves...), save) })
}

// errAdopted means that the broker has committed a save whose sending was not
// answered.
var errAdopted = errors.New("the save is committed")

// untilAdopted is a context that ends when the broker has committed a save that is
// still being sent: one that died while it took the manifest in adopts the save at
// its start, and gives no more URLs for it.
func (s *saving) untilAdopted(ctx context.Context, number int64) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var looking sync.WaitGroup
	looking.Go(func() {
		if s.t.wait(ctx, func() bool { return s.t.want.Committed >= number }) == nil {
			cancel(errAdopted)
		}
	})
	return ctx, func() {
		cancel(nil)
		looking.Wait()
	}
}

// finish takes what the command completed last, and returns when nothing is left
// to send. With last unset nobody has a use for another save, and what is under
// way is given up.
func (s *saving) finish(last bool) {
	if s == nil {
		return
	}
	close(s.stopped)
	s.taking.Wait()
	unseen := s.watcher.Close()
	if last && unseen {
		s.takeOne()
	}
	s.mu.Lock()
	var dropped *takenSave
	if !last {
		dropped, s.waiting = s.waiting, nil
		s.giveUp()
	}
	s.over = true
	close(s.news)
	s.news = make(chan struct{})
	s.mu.Unlock()
	if dropped != nil {
		s.close(dropped.set)
	}
	s.t.mu.Lock()
	s.t.notify()
	s.t.mu.Unlock()
	s.sending.Wait()
}

// committed takes up that the broker has committed a save. The attempt's lock is
// held.
func (t *attempt) committed(number int64) {
	kept := make([]agentapi.Save, 0, len(t.rec.Saves))
	for _, s := range t.rec.Saves {
		if s.Number > number {
			kept = append(kept, s)
		}
	}
	if len(kept) < len(t.rec.Saves) && t.saving != nil {
		t.saving.saver.Committed(number)
	}
	t.rec.Saves = kept
}

// saveNow is a file whose appearance asks the command for a save.
func (t *attempt) saveNow() string { return filepath.Join(t.tmp(), "save-now") }

// saveSoon asks a command that can save to do so; it is asked once per advice.
func (t *attempt) saveSoon() {
	t.mu.Lock()
	can := t.rec.Task.Checkpoint != nil && t.rec.Phase == agentapi.Running && !t.asked
	t.asked = t.asked || can
	t.mu.Unlock()
	if !can {
		return
	}
	if err := os.WriteFile(t.saveNow(), nil, 0o644); err != nil {
		t.log.Warn("cannot ask the command to save", "err", err)
	}
}
