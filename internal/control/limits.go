package control

import (
	"context"
	"fmt"
	"slices"
	"time"

	"gpubroker/internal/reason"
	"gpubroker/internal/state"
	"gpubroker/providers"
	"gpubroker/scheduler"
)

// limits are the quotas of an account as they were last read.
type limits struct {
	quotas []providers.Quota
	ours   []float64 // of each: what our own machines took then
	seen   time.Time // when they were last read
	tried  time.Time
	err    error // of the newest try
	due    bool  // a launch was refused for one since
}

const (
	// quotaLook is how often it is looked whether quotas are due.
	quotaLook = time.Minute
	// quotaAgain is the time between two tries that fail.
	quotaAgain = 5 * time.Minute
	// quotaTrust is for how many periods a quota is believed that cannot be read.
	quotaTrust = 3
)

// quotas reads the limits of an account when they are due.
func (b *Broker) quotas(ctx context.Context, a *Account) error {
	b.mu.Lock()
	l := b.limits[a.Name()]
	b.mu.Unlock()
	now := b.now()
	wait := b.set.Every.Quotas
	if l.err != nil {
		wait = min(wait, quotaAgain)
	}
	if !l.tried.IsZero() && now.Sub(l.tried) < wait && !l.due {
		return nil
	}
	return b.readQuotas(ctx, a)
}

// readQuotas reads the limits of an account now.
func (b *Broker) readQuotas(ctx context.Context, a *Account) error {
	// What we have is counted first: a machine that is launched meanwhile counts
	// twice at most, and not less than once.
	ours := tallyOf(b.state.View(), a.Name())
	now := b.now()
	list, err := a.Quotas(ctx)
	b.mu.Lock()
	l := b.limits[a.Name()]
	l.tried, l.err, l.due = now, err, false
	changed := false
	if err == nil {
		changed = !slices.EqualFunc(l.quotas, list, sameQuota)
		l.quotas, l.seen, l.ours = list, now, ours.of(list)
	}
	b.limits[a.Name()] = l
	b.mu.Unlock()
	if changed {
		b.state.Poke()
	}
	if err != nil {
		return fmt.Errorf("quotas of %s: %w", a.Name(), err)
	}
	return nil
}

func sameQuota(a, b providers.Quota) bool {
	return a.Name == b.Name && a.Region == b.Region && a.Kind == b.Kind && a.Unit == b.Unit && a.Limit == b.Limit && a.Used == b.Used && slices.Equal(a.Types, b.Types)
}

// rereadQuotas makes the quotas of an account due: one of them was met.
func (b *Broker) rereadQuotas(account string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.limits[account]
	l.due = true
	b.limits[account] = l
}

// quotasNow are the limits of an account with what is used of them now: what was
// used when they were read, and what our own machines take more, or less, since.
// Limits that could not be read for long are no longer believed.
func (b *Broker) quotasNow(view *state.Tables, account string, now time.Time) []providers.Quota {
	b.mu.Lock()
	l := b.limits[account]
	b.mu.Unlock()
	if len(l.quotas) == 0 || now.Sub(l.seen) > quotaTrust*b.set.Every.Quotas {
		return nil
	}
	out := slices.Clone(l.quotas)
	for i, ours := range tallyOf(view, account).of(out) {
		out[i].Used = max(0, out[i].Used+ours-l.ours[i])
	}
	return out
}

// tally counts the machines of an account by what quotas tell apart.
type tally map[tallyKey]int

type tallyKey struct {
	market     providers.Market // without the zone
	vcpu, gpus float64
}

func tallyOf(view *state.Tables, account string) tally {
	t := tally{}
	for i := range view.Instances.All() {
		if i.Provider == account && lives(i) {
			m := marketOf(i)
			m.Zone = ""
			t[tallyKey{m, i.VCPU, i.GPUs}]++
		}
	}
	return t
}

// of is how much of each quota the machines take.
func (t tally) of(quotas []providers.Quota) []float64 {
	out := make([]float64, len(quotas))
	for key, n := range t {
		s := providers.Shape{VCPU: key.vcpu, GPUs: key.gpus}
		for i := range quotas {
			if q := &quotas[i]; scheduler.Counts(q, key.market) {
				out[i] += float64(n) * scheduler.Units(q, &s)
			}
		}
	}
	return out
}

// unreachable says why machines of an account could not call us, by where they
// are and by our own URL; it is zero where nothing speaks against it.
func (b *Broker) unreachable(a *Account) reason.Reason {
	near := providers.Nearness(b.set.PublicURL)
	url := b.set.PublicURL
	if url == "" {
		url = "an unknown address"
	}
	switch a.Capabilities().Reach {
	case providers.ReachPrivate:
		if near == providers.ReachHost {
			return reason.New("unreachable", "provider", a.Name(), "url", url)
		}
	case providers.ReachInternet:
		if near == providers.ReachPrivate {
			return reason.New("unreachable", "provider", a.Name(), "url", url, "private", "it")
		}
		if near == providers.ReachHost {
			return reason.New("unreachable", "provider", a.Name(), "url", url)
		}
	case providers.ReachHost:
	}
	return reason.Reason{}
}

// joinedLast is when a machine of an account last called in for the first time,
// as far as this broker remembers; zero when none has.
func (b *Broker) joinedLast(view *state.Tables, account string) time.Time {
	b.mu.Lock()
	last := b.joined[account]
	b.mu.Unlock()
	for i := range view.Instances.All() {
		if i.Provider == account {
			last = maxTime(last, i.Ready)
		}
	}
	return last
}
