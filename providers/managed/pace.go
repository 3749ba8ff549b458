package managed

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// pacer is a token bucket that a throttled answer closes for a while and halves,
// and that recovers by a sixteenth of its full pace with each success.
type pacer struct {
	full   rate.Limit
	burst  int
	jitter func() float64

	mu     sync.Mutex
	bucket *rate.Limiter
	closed time.Time // nothing is sent before
	halved time.Time // when the pace was last halved
}

// slowest is the share of the full pace that halving stops at.
const slowest = 1.0 / 64

func newPacer(full rate.Limit, burst int, jitter func() float64) *pacer {
	return &pacer{full: full, burst: burst, jitter: jitter, bucket: rate.NewLimiter(full, burst)}
}

// wait returns when a call may be sent, or with ctx's error.
func (p *pacer) wait(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	turn := p.bucket.Reserve()
	err := sleep(ctx, turn.Delay())
	// The bucket may have been closed meanwhile, more than once.
	for err == nil {
		p.mu.Lock()
		left := time.Until(p.closed)
		p.mu.Unlock()
		if left <= 0 {
			return nil
		}
		err = sleep(ctx, left+time.Duration(p.jitter()*float64(left)/4))
	}
	turn.Cancel()
	return err
}

// throttled closes the bucket for d and halves its pace. Answers to calls that
// were sent before the last halving say nothing new and do not halve it again.
func (p *pacer) throttled(sent time.Time, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if until := now.Add(d); until.After(p.closed) {
		p.closed = until
	}
	if p.full == rate.Inf || sent.Before(p.halved) {
		return
	}
	p.halved = now
	p.bucket.SetLimit(max(p.bucket.Limit()/2, p.full*slowest))
	p.bucket.SetBurst(max(p.bucket.Burst()/2, 1))
}

// succeeded lets the pace recover after a call that was sent at the present pace.
func (p *pacer) succeeded(sent time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.full == rate.Inf || p.bucket.Limit() == p.full || sent.Before(p.halved) {
		return
	}
	p.bucket.SetLimit(min(p.bucket.Limit()+p.full/16, p.full))
	if p.bucket.Limit() == p.full {
		p.bucket.SetBurst(p.burst)
	}
}
