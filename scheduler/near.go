package scheduler

import (
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/geo"
	"gpubroker/internal/reason"
)

// Near asks for machines near to live users. Zero asks for nothing.
type Near struct {
	From []string      // where users are: names that package geo knows
	RTT  time.Duration // of the round trip from each of them, at most
}

// IsZero reports whether distance does not matter.
func (n *Near) IsZero() bool { return len(n.From) == 0 || n.RTT <= 0 }

// region is one of an account.
type region struct{ provider, name string }

// away is how far a region is from users: the worst of the places where they are.
type away struct {
	rtt     time.Duration
	from    string
	unknown bool // of from
}

// appendKey is equal for needs that every region answers alike.
func (n *Near) appendKey(b []byte) []byte {
	if n.IsZero() {
		return append(b, 1)
	}
	return append(strconv.AppendInt(appendWords(b, n.From), int64(n.RTT), 10), 1)
}

// rule says why a region that is so far away may not be used.
func (n *Near) rule(a away) ruling {
	switch {
	case a.unknown:
		return rttUnknown
	case a.rtt > n.RTT:
		return tooFar
	}
	return usable
}

func (n *Near) because(code reason.Code, name string, a away) reason.Reason {
	if a.unknown {
		return reason.New(code, "region", name, "from", a.from)
	}
	return reason.New(code, "region", name, "rtt", a.rtt, "max", n.RTT, "from", a.from)
}

// awayFrom is how far each region of the catalog is from users, worked out once
// for a pass; nil where it does not matter.
func (p *pass) awayFrom(n *Near) []away {
	if n.IsZero() {
		return nil
	}
	key := strings.Join(n.From, "\x00")
	if list, ok := p.aways[key]; ok {
		return list
	}
	list := make([]away, len(p.Catalog.regions))
	for i, r := range p.Catalog.regions {
		list[i] = p.awayOf(n.From, r)
	}
	if p.aways == nil {
		p.aways = map[string][]away{}
	}
	p.aways[key] = list
	return list
}

// awayOf is how far one region is.
func (p *pass) awayOf(from []string, r region) away {
	to := r.name
	if cloud := p.Providers[r.provider].Cloud; cloud != "" && to != "" {
		to = cloud + "/" + to
	}
	worst := away{rtt: -1}
	for _, place := range from {
		rtt, ok := geo.RTT(place, to)
		if !ok {
			return away{from: place, unknown: true}
		}
		if rtt > worst.rtt {
			worst = away{rtt: rtt, from: place}
		}
	}
	return worst
}
