// Package rates learns how long a task runs, from attempts that have ended.
//
// Jobs whose work is alike form a class. Of each class and type of machine one
// [Row] is kept: the mean and the spread of the logarithm of the seconds that one
// whole task took, so that being twice as fast and half as fast weigh the same.
// Old observations fade by half in [HalfLife]; one that lies far off counts as the
// bound that it passed, and is only believed when it repeats ([Confirm]).
//
// The unit is a task. Tasks of one job that differ in size, such as films of
// different length, show in the spread.
//
// Everything here is plain data and arithmetic: the same observations in the same
// order give the same rows.
package rates

import (
	"cmp"
	"math"
	"slices"
	"time"
)

const (
	// HalfLife is the age at which an observation counts half. Scripts, drivers and
	// inputs drift over weeks; a nightly job then rests on its last three weeks.
	HalfLife = 14 * 24 * time.Hour
	// most is the weight that a row has at most: a night of a thousand tasks does
	// not make the next one's news unheard.
	most = 50
	// prior is the spread that is assumed of tasks alike (a factor of 1.28 either
	// way), and doubt the weight that this assumption has: two observations.
	prior, doubt = 0.25, 2
	// outlier is from how many times the spread on an observation lies far off.
	outlier = 3
	// known is the weight from which on a row can tell what lies far off.
	known = 0.5
	// Confirm is how many observations in a row, far off on the same side, are a
	// change: what was before is dropped.
	Confirm = 3
	// MaxRows is how many types of machine are kept of a class: those last learned
	// from.
	MaxRows = 32
	// MaxClasses is how many classes a shelf has, likewise.
	MaxClasses = 4
)

// Machine is a type of machine, as far as it decides how fast a task runs there.
type Machine struct {
	Type string  `json:"type"` // account and type, for people and to tell rows apart
	GPU  string  `json:"gpu,omitzero"`
	GPUs float64 `json:"gpus,omitzero"`
	VCPU float64 `json:"vcpu,omitzero"`
}

// Row is what was measured of a class on one type of machine.
type Row struct {
	Machine
	Weight float64   `json:"weight"`          // observations, faded
	Mean   float64   `json:"mean"`            // of the natural logarithm of a task's seconds
	Square float64   `json:"square,omitzero"` // weighted squares of the distances from it
	At     time.Time `json:"at"`              // of the newest observation
	// Odd counts the newest observations in a row that lay far off, negative when
	// they were shorter.
	Odd int `json:"odd,omitzero"`
}

// Class is what was measured of jobs whose work is alike.
type Class struct {
	Digest string    `json:"class"`
	At     time.Time `json:"at"` // of the newest observation
	Rows   []Row     `json:"rows"`
}

// Observation is one attempt's work.
type Observation struct {
	Machine
	Busy time.Duration // that the command ran
	Done float64       // share of a task that was done in it, 0 to 1
	At   time.Time
}

// least is the share of a task from which on an attempt tells how long a task is.
const least = 0.001

// seconds of one whole task, and whether the observation tells.
func (o *Observation) seconds() (float64, bool) {
	if o.Busy <= 0 || !(o.Done >= least) || o.Done > 1 {
		return 0, false
	}
	return o.Busy.Seconds() / o.Done, true
}

// fade weakens a row by its age.
func (r *Row) fade(at time.Time) {
	if age := at.Sub(r.At); age > 0 {
		f := math.Exp2(-float64(age) / float64(HalfLife))
		r.Weight, r.Square = r.Weight*f, r.Square*f
	}
}

func (r *Row) variance() float64 { return (r.Square + doubt*prior*prior) / (r.Weight + doubt) }

// learn takes one observation of a whole task in.
func (r *Row) learn(seconds float64, at time.Time) {
	r.fade(at)
	if at.After(r.At) {
		r.At = at
	}
	x := math.Log(seconds)
	if r.Weight >= known {
		far := outlier * math.Sqrt(r.variance())
		switch d := x - r.Mean; {
		case d > far:
			r.Odd, x = max(r.Odd, 0)+1, r.Mean+far
		case d < -far:
			r.Odd, x = min(r.Odd, 0)-1, r.Mean-far
		default:
			r.Odd = 0
		}
		if r.Odd == Confirm || r.Odd == -Confirm {
			r.Weight, r.Square, r.Odd, x = 0, 0, 0, math.Log(seconds)
		}
	}
	if r.Weight >= most {
		f := (most - 1) / r.Weight
		r.Weight, r.Square = r.Weight*f, r.Square*f
	}
	d := x - r.Mean
	r.Weight++
	r.Mean += d / r.Weight
	r.Square += d * (x - r.Mean)
}

// Shelf is some classes, those last learned from first. Classes are spread over
// shelves by their digest, so that what is kept is bounded, and what is written for
// one observation is small.
type Shelf []Class

// Find returns a class, or nil.
func (s Shelf) Find(digest string) *Class {
	if i := slices.IndexFunc(s, func(c Class) bool { return c.Digest == digest }); i >= 0 {
		return &s[i]
	}
	return nil
}

// Learn returns the shelf with one observation of a class taken in. The shelf
// itself stays as it is. ok is false when the observation tells nothing.
func (s Shelf) Learn(digest string, o Observation) (out Shelf, ok bool) {
	seconds, ok := o.seconds()
	if !ok {
		return s, false
	}
	c := Class{Digest: digest}
	if old := s.Find(digest); old != nil {
		c.At, c.Rows = old.At, slices.Clone(old.Rows)
	}
	at := slices.IndexFunc(c.Rows, func(r Row) bool { return r.Machine == o.Machine })
	if at < 0 {
		at = len(c.Rows)
		c.Rows = append(c.Rows, Row{Machine: o.Machine, At: o.At})
	}
	c.Rows[at].learn(seconds, o.At)
	if o.At.After(c.At) {
		c.At = o.At
	}
	c.Rows = kept(c.Rows, MaxRows, at, func(r *Row) time.Time { return r.At })
	slices.SortFunc(c.Rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.GPUs, b.GPUs), cmp.Compare(a.VCPU, b.VCPU), cmp.Compare(a.Type, b.Type))
	})
	out = append(out, c)
	for i := range s {
		if s[i].Digest != digest {
			out = append(out, s[i])
		}
	}
	return kept(out, MaxClasses, 0, func(c *Class) time.Time { return c.At }), true
}

// kept drops the oldest entry but spare when there are more than most; of several
// that are as old, the last.
func kept[T any](list []T, most, spare int, at func(*T) time.Time) []T {
	if len(list) <= most {
		return list
	}
	oldest := -1
	for i := range list {
		if i != spare && (oldest < 0 || !at(&list[i]).After(at(&list[oldest]))) {
			oldest = i
		}
	}
	return slices.Delete(list, oldest, oldest+1)
}

// Estimate is how long one whole task takes.
type Estimate struct {
	Time   time.Duration
	Spread float64 // standard deviation of the logarithm of a single task's time
}

// Pool is the estimate of rows taken together, or false when there are none that
// match. Rows fade against the newest one of the class, so that an estimate changes
// only when something was learned.
func (c *Class) Pool(match func(*Row) bool) (Estimate, bool) {
	var weight, sum, square float64
	for i := range c.Rows {
		r := c.Rows[i]
		if r.Weight <= 0 || !match(&r) {
			continue
		}
		r.fade(c.At)
		weight, sum = weight+r.Weight, sum+r.Weight*r.Mean
		square += r.Square + r.Weight*r.Mean*r.Mean
	}
	if weight <= 0 {
		return Estimate{}, false
	}
	mean := sum / weight
	variance := (max(0, square-weight*mean*mean) + doubt*prior*prior) / (weight + doubt)
	// A task to come differs from the mean by the spread, and the mean from the
	// truth by what its few observations leave open.
	return Estimate{span(math.Exp(mean)), math.Sqrt(variance * (1 + 1/(1+weight)))}, true
}

// Longest is the mean time of a whole task on the slowest of the machines.
func (c *Class) Longest() time.Duration {
	var out time.Duration
	for i := range c.Rows {
		out = max(out, span(math.Exp(c.Rows[i].Mean)))
	}
	return out
}

// longest is the longest time that an estimate says.
const longest = 10 * 365 * 24 * time.Hour

// span is seconds as a duration, of a millisecond at least.
func span(seconds float64) time.Duration {
	return time.Duration(min(max(seconds, 0.001), longest.Seconds()) * float64(time.Second))
}

// Sure is how many standard deviations a band reaches either way: eight tasks of
// ten lie in it, if their logarithms are spread like errors.
const Sure = 1.2816

// Band is between which times eight tasks of ten are expected.
func Band(t time.Duration, spread float64) (low, high time.Duration) {
	f := math.Exp(Sure * spread)
	return span(t.Seconds() / f), span(t.Seconds() * f)
}
