package policy

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"
)

// Phases is how many kinds of runs are told apart. A market is up or down in
// runs; each is of one kind, and ends at its constant rate. Together they make runs
// whose hazard falls with their age, as recorded markets have it.
const Phases = 6

// Rates are the rates per hour at which runs of each kind end.
var Rates = [Phases]float64{12, 3, 1, 0.3, 0.1, 0.025}

// Runs are the chances that a run is of each kind; they sum to 1.
type Runs [Phases]float64

// Type is a type of market by its runs. Weight is the share of markets of it.
type Type struct {
	Up     Runs    `json:"up"`
	Down   Runs    `json:"down"`
	Weight float64 `json:"weight"`
}

// Knowledge is what is believed of a market of which nothing was seen.
type Knowledge struct {
	Types []Type `json:"types"`
	// Forget is after how many hours, on average, a market is of another type.
	Forget float64 `json:"forget"`
}

// states are the hidden states of a market of one type: the phases of up, then
// those of down.
const states = 2 * Phases

type (
	vector [states]float64
	matrix [states]vector
)

// Model is knowledge made ready for use: a hidden Markov chain for each type. It
// does not change.
type Model struct {
	know Knowledge
	// grid is the time in which a market is seen to change at most once.
	grid   time.Duration
	stay   [Phases]float64 // the chance that a run goes on for grid
	powers [][13]matrix    // by type: the chain over 2^k times grid, up to a day
	still  []vector        // by type: the share of each state in the long run
	sides  [2]float64      // the share of up, and of down
}

// NewModel makes knowledge ready for markets that are looked at about every grid.
func NewModel(k Knowledge, grid time.Duration) *Model {
	m := &Model{know: k, grid: grid}
	for i, r := range Rates {
		m.stay[i] = math.Exp(-r * grid.Hours())
	}
	for i := range k.Types {
		t := &k.Types[i]
		var chain [13]matrix
		var still vector
		sum := 0.0
		for i := range Phases {
			chain[0][i][i], chain[0][Phases+i][Phases+i] = m.stay[i], m.stay[i]
			for j := range Phases {
				chain[0][i][Phases+j] = (1 - m.stay[i]) * t.Down[j]
				chain[0][Phases+i][j] = (1 - m.stay[i]) * t.Up[j]
			}
			still[i], still[Phases+i] = t.Up[i]/(1-m.stay[i]), t.Down[i]/(1-m.stay[i])
			sum += still[i] + still[Phases+i]
		}
		for k := 1; k < len(chain); k++ {
			chain[k] = chain[k-1].times(&chain[k-1])
		}
		for i := range still {
			still[i] /= sum
			m.sides[i/Phases] += t.Weight * still[i]
		}
		m.powers, m.still = append(m.powers, chain), append(m.still, still)
	}
	return m
}

func (v *vector) times(m *matrix) (w vector) {
	for i, x := range v {
		if x != 0 {
			for j := range states {
				w[j] += x * m[i][j]
			}
		}
	}
	return w
}

func (m *matrix) times(o *matrix) (out matrix) {
	for i := range m {
		out[i] = m[i].times(o)
	}
	return out
}

// Belief is what is believed of one market at a moment: the chance of each type
// and hidden state.
type Belief struct {
	model *Model
	at    time.Time
	p     []vector // by type; all sum to 1
}

// Unseen is the belief about a market of which nothing was seen.
func (m *Model) Unseen(at time.Time) *Belief {
	b := &Belief{model: m, at: at, p: make([]vector, len(m.still))}
	for t := range b.p {
		for i, s := range m.still[t] {
			b.p[t][i] = m.know.Types[t].Weight * s
		}
	}
	return b
}

// Clone is a copy.
func (b *Belief) Clone() *Belief {
	c := *b
	c.p = slices.Clone(b.p)
	return &c
}

// At is the moment of the belief.
func (b *Belief) At() time.Time { return b.at }

// Pass lets time pass up to a moment, in whole steps of the grid; of a moment
// before that of the belief nothing is known anew.
func (b *Belief) Pass(to time.Time) {
	b.near(to)
	day := max(1, min(1<<len(b.model.powers[0])-1, int64(24*time.Hour/b.model.grid)))
	for n := int64(to.Sub(b.at) / b.model.grid); n > 0; n -= day {
		b.pass(min(n, day)) // by days, so that what is forgotten settles
	}
}

// far is after what time nothing is left of what was seen.
const far = 90 * 24 * time.Hour

// near leaves out what time passes beyond that, as when a clock was wrong.
func (b *Belief) near(to time.Time) {
	if from := to.Add(-far); b.at.Before(from) {
		b.at = from
	}
}

func (b *Belief) pass(n int64) {
	passed := time.Duration(n) * b.model.grid
	b.at = b.at.Add(passed)
	for k := len(b.model.powers[0]) - 1; k > 0; k-- {
		if n&(1<<k) != 0 {
			b.jump(k)
		}
	}
	if n&1 != 0 {
		b.step()
	}
	b.forget(passed.Hours())
}

func (b *Belief) jump(k int) {
	for t := range b.p {
		b.p[t] = b.p[t].times(&b.model.powers[t][k])
	}
}

// step is one of the grid: what leaves a side enters the other.
func (b *Belief) step() {
	for t := range b.p {
		p, ty := &b.p[t], &b.model.know.Types[t]
		var up, down float64
		for k, s := range b.model.stay {
			x, y := p[k]*s, p[Phases+k]*s
			up, down = up+p[k]-x, down+p[Phases+k]-y
			p[k], p[Phases+k] = x, y
		}
		for k := range Phases {
			p[k] += down * ty.Up[k]
			p[Phases+k] += up * ty.Down[k]
		}
	}
}

// forget lets the market become one of another type, up or down as it is.
func (b *Belief) forget(hours float64) {
	if b.model.know.Forget <= 0 {
		return
	}
	other := -math.Expm1(-hours / b.model.know.Forget)
	up := b.Up()
	now := [2]float64{up, 1 - up}
	for t := range b.p {
		w := b.model.know.Types[t].Weight
		for i, s := range b.model.still[t] {
			side := i / Phases
			b.p[t][i] = (1-other)*b.p[t][i] + other*now[side]*w*s/b.model.sides[side]
		}
	}
}

// See takes in that the market is up, or down, at the moment of the belief.
func (b *Belief) See(up bool) {
	side := 0
	if !up {
		side = 1
	}
	sum := 0.0
	for t := range b.p {
		for _, x := range b.p[t][side*Phases : (side+1)*Phases] {
			sum += x
		}
	}
	if sum < 1e-12 { // so unlikely that nothing is known of it
		b.p = b.model.Unseen(b.at).p
		sum = b.model.sides[side]
	}
	for t := range b.p {
		for i := range b.p[t] {
			if i/Phases == side {
				b.p[t][i] /= sum
			} else {
				b.p[t][i] = 0
			}
		}
	}
}

// Hold lets time pass to a moment up to which the market was up throughout.
func (b *Belief) Hold(to time.Time) {
	b.near(to)
	for !b.at.Add(b.model.grid).After(to) {
		b.Pass(b.at.Add(b.model.grid))
		b.See(true)
	}
}

// Up is the chance that the market is up.
func (b *Belief) Up() float64 {
	sum := 0.0
	for t := range b.p {
		for _, x := range b.p[t][:Phases] {
			sum += x
		}
	}
	return sum
}

// MarshalJSON keeps a belief exactly, so that what follows from it is the same.
func (b *Belief) MarshalJSON() ([]byte, error) {
	raw := make([]byte, 0, 8*states*len(b.p))
	for t := range b.p {
		for _, x := range b.p[t] {
			raw = binary.LittleEndian.AppendUint64(raw, math.Float64bits(x))
		}
	}
	return json.Marshal(kept{b.at, base64.StdEncoding.EncodeToString(raw)})
}

type kept struct {
	At     time.Time `json:"at"`
	Belief string    `json:"belief"`
}

// Restore reads a belief that was kept. One of another model is an error.
func (m *Model) Restore(data []byte) (*Belief, error) {
	var k kept
	if err := json.Unmarshal(data, &k); err != nil {
		return nil, fmt.Errorf("belief: %w", err)
	}
	raw, err := base64.StdEncoding.DecodeString(k.Belief)
	if err != nil {
		return nil, fmt.Errorf("belief: %w", err)
	}
	b := m.Unseen(k.At)
	if len(raw) != 8*states*len(b.p) {
		return nil, fmt.Errorf("belief: %d bytes are not of this model", len(raw))
	}
	sum := 0.0
	for t := range b.p {
		for i := range b.p[t] {
			x := math.Float64frombits(binary.LittleEndian.Uint64(raw[8*(states*t+i):]))
			if !(x >= 0 && x <= 1.001) {
				return nil, fmt.Errorf("belief: %v is no chance", x)
			}
			b.p[t][i] = x
			sum += x
		}
	}
	if !(math.Abs(sum-1) < 1e-6) {
		return nil, fmt.Errorf("belief: chances sum to %v", sum)
	}
	return b, nil
}

// run is how long a run goes on: the chance that it is of each phase.
type run Runs

func (r *run) normal() {
	sum := 0.0
	for _, x := range r {
		sum += x
	}
	for k := range r {
		r[k] /= sum
	}
}

// lives is the chance that it goes on for so many hours.
func (r *run) lives(hours float64) float64 {
	a := ageingOf(hours)
	return r.livesBy(&a)
}

// after is the run once it has gone on for so many hours.
func (r *run) after(hours float64) run {
	a := ageingOf(hours)
	return r.afterBy(&a)
}

// hazard of its end within so many hours, per hour.
func (r *run) hazard(hours float64) float64 { return -math.Log(r.lives(hours)) / hours }

// ageing is what is left of runs of each kind after some time.
type ageing [Phases]float64

func ageingOf(hours float64) (a ageing) {
	for k := range a {
		a[k] = math.Exp(-Rates[k] * hours)
	}
	return a
}

// livesBy and afterBy are lives and after for a time whose ageing is at hand.
func (r *run) livesBy(a *ageing) float64 {
	s := 0.0
	for k, x := range r {
		s += x * a[k]
	}
	return max(s, 1e-12)
}

func (r *run) afterBy(a *ageing) run {
	var o run
	for k, x := range r {
		o[k] = (x + 1e-12) * a[k]
	}
	o.normal()
	return o
}

// now is how the present run goes on if the market is up (or down).
func (b *Belief) now(up bool) run {
	return b.mix(up, func(t, state, _ int) float64 { return b.p[t][state] })
}

// fresh is how long the next run lasts.
func (b *Belief) fresh(up bool) run {
	return b.mix(up, func(t, _, k int) float64 {
		if up {
			return b.weight(t) * b.model.know.Types[t].Up[k]
		}
		return b.weight(t) * b.model.know.Types[t].Down[k]
	})
}

// far is how long a run goes on that is met at some far moment.
func (b *Belief) far(up bool) run {
	return b.mix(up, func(t, state, _ int) float64 { return b.weight(t) * b.model.still[t][state] })
}

func (b *Belief) mix(up bool, share func(t, state, k int) float64) run {
	from := 0
	if !up {
		from = Phases
	}
	var r run
	for t := range b.p {
		for k := range Phases {
			r[k] += share(t, from+k, k) + 1e-15
		}
	}
	r.normal()
	return r
}

func (b *Belief) weight(t int) float64 {
	w := 0.0
	for _, x := range b.p[t] {
		w += x
	}
	return w
}

// often is the chance that the market is up at some far moment.
func (b *Belief) often() float64 {
	sum := 0.0
	for t := range b.p {
		for _, s := range b.model.still[t][:Phases] {
			sum += b.weight(t) * s
		}
	}
	return sum
}
