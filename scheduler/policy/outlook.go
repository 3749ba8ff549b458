package policy

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
)

// ages are where the age classes of runs begin, in hours.
var ages = [...]float64{0, 1.0 / 6, 1.0 / 3, 2.0 / 3, 1.5, 3, 8, 24}

const classes = len(ages)

// Facts are what is lasting about a spot market, rounded so that small news
// change nothing: times in hours, hazards per hour.
type Facts struct {
	// Up and Down are the hazards of new runs in each age class.
	Up   [classes]float64 `json:"up"`
	Down [classes]float64 `json:"down"`
	// NextUp and NextDown are those of the hour, and the quarter of an hour, from
	// the begin of each class.
	NextUp   [classes]float64 `json:"next_up"`
	NextDown [classes]float64 `json:"next_down"`
	// Often is the chance that the market is up when nothing is known of it; then
	// Met is the age class of its run, and Back the hazard of its return if it is not.
	Often float64 `json:"often"`
	Met   float64 `json:"met"`
	Back  float64 `json:"back"`
}

// Facts draws what is lasting from a belief.
func (b *Belief) Facts() Facts {
	var f Facts
	up, down := b.fresh(true), b.fresh(false)
	for a := range classes {
		to := 72.0
		if a < classes-1 {
			to = ages[a+1]
		}
		u, d := up.after(ages[a]), down.after(ages[a])
		f.Up[a], f.Down[a] = octaves(u.hazard(to-ages[a])), octaves(d.hazard(to-ages[a]))
		f.NextUp[a], f.NextDown[a] = u.hazard(1), d.hazard(0.25)
	}
	up, down = b.far(true), b.far(false)
	f.Back = octaves(down.hazard(0.5))
	f.Often = math.Round(b.often()*20) / 20
	f.Met = math.Round(2*classOf(&up, &f.NextUp)) / 2
	return f
}

// check refuses facts that no belief has.
func (f *Facts) check() error {
	for _, list := range [...][]float64{f.Up[:], f.Down[:], f.NextUp[:], f.NextDown[:], {f.Back}} {
		for _, x := range list {
			if !(x >= 0 && x <= 1000) {
				return fmt.Errorf("facts: %v is no hazard per hour", x)
			}
		}
	}
	if !(f.Often >= 0 && f.Often <= 1) {
		return fmt.Errorf("facts: %v is no chance", f.Often)
	}
	if !(f.Met >= 0 && f.Met <= float64(classes-1)) {
		return fmt.Errorf("facts: %v is no age class", f.Met)
	}
	return nil
}

// digest is of what a table depends on.
func (f *Facts) digest() uint64 {
	h := fnv.New64a()
	b := make([]byte, 0, 4*(2*classes+3))
	for _, list := range [...][]float64{f.Up[:], f.Down[:], {f.Often, f.Met, f.Back}} {
		for _, x := range list {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(x)))
		}
	}
	_, _ = h.Write(b) // it never fails
	return h.Sum64()
}

// octaves rounds to quarters of an octave.
func octaves(x float64) float64 { return math.Exp2(math.Round(4*math.Log2(max(x, 1e-4))) / 4) }

// Outlook is what a decision may know of a spot market at a moment.
type Outlook struct {
	Facts Facts
	// Up is the chance that it is up.
	Up float64
	// up and down are how its present run goes on, if it is up, or down; back and
	// soon the hazards of its return within a quarter of an hour, and half an hour.
	up, down   run
	back, soon float64
	facts      uint64 // tells Facts apart
}

// Outlook of a belief at its moment, with facts that were drawn from it then or before.
func (b *Belief) Outlook(f Facts) *Outlook {
	o := &Outlook{Facts: f, Up: b.Up(), up: b.now(true), down: b.now(false), facts: f.digest()}
	o.back, o.soon = o.down.hazard(0.25), o.down.hazard(0.5)
	return o
}

// classOf is the age class at which a new run is as likely as this one to end
// within the hour, with the share on the way to the next class.
func classOf(r *run, hazards *[classes]float64) float64 {
	return classAt(-math.Log(r.livesBy(&hour)), hazards)
}

var hour = ageingOf(1)

func classAt(hazard float64, hazards *[classes]float64) float64 {
	if hazard >= hazards[0] {
		return 0
	}
	for a := range classes - 1 {
		if h, next := hazards[a], hazards[a+1]; next <= hazard {
			if h <= next {
				return float64(a)
			}
			return float64(a) + (h-hazard)/(h-next)
		}
	}
	return float64(classes - 1)
}

// classOfAge is the age class of an age, with the share on the way to the next.
func classOfAge(hours float64) float64 {
	for a := range classes - 1 {
		if hours < ages[a+1] {
			return float64(a) + (hours-ages[a])/(ages[a+1]-ages[a])
		}
	}
	return float64(classes - 1)
}

// lives is the chance that an up run of an age class goes on for so many hours.
func (f *Facts) lives(class, hours float64) float64 {
	a := min(int(class), classes-1)
	at := ages[a]
	if a < classes-1 {
		at += (class - float64(a)) * (ages[a+1] - ages[a])
	}
	x := 0.0
	for ; hours > 1e-9; a++ {
		d := hours
		if a < classes-1 {
			d = min(d, max(0, ages[a+1]-at))
		}
		x += f.Up[a] * d
		at, hours = at+d, hours-d
		if a == classes-1 {
			break
		}
	}
	return math.Exp(-x)
}
