package policy

import (
	"math"
	"testing"
	"time"
)

// sure is a market whose runs last for ever, or that is never up.
func sure(up bool) Facts {
	var f Facts
	for a := range classes {
		f.Up[a], f.Down[a], f.NextUp[a], f.NextDown[a] = 1e-9, 1e-9, 1e-9, 1e-9
	}
	if up {
		f.Often, f.Met = 1, float64(classes-1)
	}
	return f
}

func sketchOf(spots ...spotSketch) Sketch {
	return Sketch{step: 0.25, slack: 40, work: 80, spots: spots, nets: []netSketch{{price: 3, delay: 0.2, speed: 1}}, regions: 1}
}

// With a market that is always up, or never, the cost is known.
func TestTableOfWhatIsSure(t *testing.T) {
	for _, c := range []struct {
		name string
		spot spotSketch
		want float64 // of 10 hours of work, launched on spot if it is up
	}{
		{"always up", spotSketch{Facts: new(sure(true)), price: 1, delay: 0.2, speed: 1}, 10.2},
		{"twice as fast", spotSketch{Facts: new(sure(true)), price: 1, delay: 0.2, speed: 2}, 5.2},
		{"half as fast", spotSketch{Facts: new(sure(true)), price: 1, delay: 0.2, speed: 0.5}, 20.2},
		{"dearer than on demand", spotSketch{Facts: new(sure(true)), price: 4, delay: 0.2, speed: 1}, 30.6},
	} {
		table := Build(sketchOf(c.spot))
		slack := 9.0
		if c.spot.speed < 1 { // it takes ten hours more
			slack = 9.99
		}
		got := table.at(table.enterAt(0, classes-1), slack, 10)
		if c.name == "half as fast" {
			// The slack runs out just before the end: some of it is done on demand.
			if got < c.want || got > 30.6 {
				t.Errorf("%s: %v, want between %v and on demand", c.name, got, c.want)
			}
			continue
		}
		if math.Abs(got-c.want) > 0.02*c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	never := Build(sketchOf(spotSketch{Facts: new(sure(false)), price: 1, delay: 0.2, speed: 1}))
	if got := never.at(never.offAt(0, 0), 5, 10); math.Abs(got-30.6) > 0.01 {
		t.Errorf("never up: %v, want 30.6 on demand", got)
	}
}

// More work never costs less, more slack never more, and nothing costs more than
// on demand at once.
func TestTableIsMonotone(t *testing.T) {
	m := ShippedModel()
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	f := m.Memory(now).Facts
	s := sketchOf(
		spotSketch{Facts: new(f), price: 1, delay: 0.2, speed: 1}, spotSketch{Facts: new(f), price: 1.3, delay: 0.1, speed: 1, region: 1},
		spotSketch{Facts: new(f), price: 2.5, delay: 0.3, speed: 1.5},
	)
	s.regions, s.egress = 2, 2
	table := Build(s)
	for class := range classes {
		for g := range s.regions {
			v := table.offAt(class, g)
			for j := 1; j <= s.work; j++ {
				for k := range s.slack + 1 {
					at := j*table.row + k
					if v[at] < v[at-table.row]-1e-6 {
						t.Fatalf("class %d, region %d: work %d costs %v, less work %v", class, g, j, v[at], v[at-table.row])
					}
					if k > 0 && v[at] > v[at-1]+1e-6 {
						t.Fatalf("class %d, region %d: slack %d costs %v, less slack %v", class, g, k, v[at], v[at-1])
					}
					if most := 3*(float64(j)*s.step+0.2) + 2; v[at] > most+1e-6 {
						t.Fatalf("class %d, region %d: %v, on demand at once %v", class, g, v[at], most)
					}
				}
			}
		}
	}
}

// A library keeps the newest tables and does not change.
func TestLibrary(t *testing.T) {
	var l *Library
	var keys []Key
	for i := range 4 {
		s := sketchOf(spotSketch{Facts: new(sure(true)), price: float64(i + 1), delay: 0.2, speed: 1})
		s.slack, s.work = 4, 4
		was := l
		l = l.With(Build(s), 2)
		keys = append(keys, s.Key())
		if was.Has(s.Key()) {
			t.Error("the library changed")
		}
	}
	for i, want := range []bool{false, false, true, true} {
		if got := l.Has(keys[i]); got != want {
			t.Errorf("table %d is there: %v", i, got)
		}
	}
}
