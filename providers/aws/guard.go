package aws

import (
	"sync"
	"time"

	"gpubroker/providers"
)

// guard remembers where the latest requests were asked for. EC2's client tokens
// count per zone ("RunInstances idempotency" in the EC2 developer guide), so the
// same request in another zone would rent a second machine; and per call, so
// would one that was part of a launch of many.
type guard struct {
	mu    sync.Mutex
	asked map[string]*ask
	order []string
}

// ask is what a request was asked for with.
type ask struct {
	market providers.Market
	token  string
	open   int  // calls under way
	made   bool // a machine may exist
	at     time.Time
	ending bool // EC2 has taken its end
}

// remembered is how many requests are kept.
const remembered = 8192

// begin notes a call, and reports false when the request was asked for
// elsewhere and may have a machine there.
func (g *guard) begin(request, token string, m providers.Market) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.asked == nil {
		g.asked = map[string]*ask{}
	}
	was := g.asked[request]
	switch {
	case was == nil:
		was = &ask{market: m, token: token}
		g.asked[request] = was
		g.order = append(g.order, request)
		if len(g.order) > remembered {
			delete(g.asked, g.order[0])
			g.order = g.order[1:]
		}
	case (was.market != m || was.token != token) && (was.made || was.open > 0):
		return false
	default:
		was.market, was.token = m, token
	}
	was.open++
	was.at = time.Now()
	return true
}

// ending notes that EC2 knows a request's machine and ends it.
func (g *guard) ending(request string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if was := g.asked[request]; was != nil {
		was.ending = true
	}
}

// young reports whether a request may have a machine, launched within lag, that not
// all of EC2 knows yet.
func (g *guard) young(request string, lag time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.asked[request]
	return was != nil && !was.ending && (was.made || was.open > 0) && time.Since(was.at) < lag
}

// end notes what a call gave.
func (g *guard) end(request string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if was := g.asked[request]; was != nil {
		was.open--
		was.made = was.made || err == nil || providers.OutcomeOf(err) != providers.NotCreated
	}
}
