package backtest

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gpubroker/internal/money"
)

// epoch is when replays of whole queues begin: captures come from different
// years, so their clocks are laid side by side. It is a Monday.
var epoch = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

// ground is several recorded markets laid side by side: each begins at the
// epoch, all end with the shortest, and a row holds until the next. The tick is
// the shortest step.
type ground struct {
	step  time.Duration
	names []string // of the markets: the last two parts of each path
	pools []pool   // named "market/zone"
	of    []int    // the market of each pool
	// counted says of each market whether it recorded how many machines could be
	// had: only there do jobs compete.
	counted []bool
	count   [][]int // [tick][pool]; 1 or 0 where nothing was counted
	price   [][]money.Rate
	notes   []string
	views   map[string]*stretch
}

// layOut reads the markets. With split the longest stretch between holes is used.
func layOut(stems []string, split bool) (*ground, error) {
	if len(stems) == 0 {
		return nil, inputError("no recorded market is named")
	}
	g := &ground{views: map[string]*stretch{}}
	var markets []*market
	ticks := 0
	for _, stem := range stems {
		m, err := load(stem, nil, 1, split)
		if err != nil {
			return nil, err
		}
		longest := slices.MaxFunc(m.stretches, func(a, b stretch) int { return len(a.up) - len(b.up) })
		if n := len(m.stretches); n > 1 {
			g.note("%s: the longest of its %d unbroken stretches is replayed, from %s", stem, n, longest.start.Format(time.DateTime))
		}
		m.stretches = []stretch{longest}
		name := filepath.Base(filepath.Dir(stem)) + "/" + filepath.Base(stem)
		if slices.Contains(g.names, name) {
			return nil, inputError("market %s is named twice", name)
		}
		g.names, g.counted = append(g.names, name), append(g.counted, m.counts)
		markets = append(markets, m)
		if g.step == 0 || m.step < g.step {
			g.step = m.step
		}
		for _, n := range m.notes {
			g.note("%s", n)
		}
	}
	for i, m := range markets {
		if n := int(time.Duration(len(m.stretches[0].up)) * m.step / g.step); i == 0 || n < ticks {
			ticks = n
		}
		for _, p := range m.pools {
			p.name = g.names[i] + "/" + p.name
			g.pools, g.of = append(g.pools, p), append(g.of, i)
		}
	}
	for t := range ticks {
		count, price := make([]int, 0, len(g.pools)), make([]money.Rate, 0, len(g.pools))
		for _, m := range markets {
			row := int(time.Duration(t) * g.step / m.step)
			s := &m.stretches[0]
			count, price = append(count, s.count[row]...), append(price, s.price[row]...)
		}
		g.count, g.price = append(g.count, count), append(g.price, price)
	}
	var free []string
	for i, counted := range g.counted {
		if !counted {
			free = append(free, g.names[i])
		}
	}
	if len(free) > 0 {
		g.note("only up or down was recorded for %s: jobs do not compete for its machines, and gangs do not run there", strings.Join(free, ", "))
	}
	return g, nil
}

func (g *ground) note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(g.notes, n) {
		g.notes = append(g.notes, n)
	}
}

func (g *ground) horizon() time.Duration { return time.Duration(len(g.count)) * g.step }

// open are the pools that a job may use.
func (g *ground) open(j Job) ([]int, error) {
	for _, name := range j.Markets {
		if !slices.Contains(g.names, name) {
			return nil, fmt.Errorf("there is no market %q%s", name, meant(name, g.names))
		}
	}
	var pools []int
	for i, m := range g.of {
		if (j.Gang == 1 || g.counted[m]) && (len(j.Markets) == 0 || slices.Contains(j.Markets, g.names[m])) {
			pools = append(pools, i)
		}
	}
	if len(pools) == 0 {
		return nil, fmt.Errorf("a gang of %d needs a market with counts (STEM.count.csv.gz), and the job has none", j.Gang)
	}
	return pools, nil
}

// market is what a job sees of the ground: the pools that have room for its gang.
// What does not depend on the job is shared by all that see the same.
func (g *ground) market(pools []int, gang int) (*market, *stretch) {
	m := &market{step: g.step, counts: true}
	for _, p := range pools {
		m.pools = append(m.pools, g.pools[p])
		m.counts = m.counts && g.counted[g.of[p]]
	}
	key := fmt.Sprint(pools, gang)
	if s, ok := g.views[key]; ok {
		return m, s
	}
	s := &stretch{start: epoch}
	for t := range g.count {
		up, price, count := make([]bool, len(pools)), make([]money.Rate, len(pools)), make([]int, len(pools))
		for i, p := range pools {
			up[i], price[i], count[i] = g.count[t][p] >= gang, g.price[t][p], g.count[t][p]
		}
		s.up, s.price, s.count = append(s.up, up), append(s.price, price), append(s.count, count)
	}
	g.views[key] = s
	return m, s
}
