package backtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"time"

	"gpubroker/scheduler/policy"
)

// SuiteOptions say what of the suite to run. Zero values are as the fields say.
type SuiteOptions struct {
	// Traces is the folder of the recorded markets.
	Traces string
	// Tracks are some of A, B and C; empty = all.
	Tracks []string
	// Starts of each cell, and with one pool each of each pool; 0 = 24.
	Starts int
	// Full takes every start of a stride instead: 4 h in tracks A and B, 1 h in C,
	// whose captures are short.
	Full     bool
	Policies []string
	Free     bool
	// Cold starts each job knowing nothing of the market, see [Options].
	Cold     bool
	CacheDir string
}

// Suite is the result of the suite.
type Suite struct {
	Cells  []Cell   `json:"cells"`
	Tracks []Track  `json:"tracks"`
	Notes  []string `json:"notes,omitempty"`
}

// Cell is one job in one market. In track A costs are shares of on demand, so
// that its pools count alike.
type Cell struct {
	Track string `json:"track"`
	Name  string `json:"name"`
	Result
}

// Track sums up its cells: each score is the mean over them.
type Track struct {
	Track    string       `json:"track"`
	Policies []TrackScore `json:"policies"`
}

// TrackScore is how one policy did in a track.
type TrackScore struct {
	Name      string  `json:"name"`
	SumRatio  float64 `json:"sum_ratio"`
	MeanRatio float64 `json:"mean_ratio"`
	P90Ratio  float64 `json:"p90_ratio"`
	MaxRatio  float64 `json:"max_ratio"` // the worst window of all
	Misses    int     `json:"misses"`    // of all
}

// cell is a job, and the captures that it is replayed in.
type cell struct {
	track, name string
	captures    []string
	job         Options
}

// cells of tracks A to C. A: one pool (the captures of NSDI'24 and ADRS). B: zones
// with moving prices (the V100 capture of SkyNomad, NSDI'27). C: gangs; the price
// table of egress knows no GCP, so 0.02 $/GB stands for it.
func cells() []cell {
	var all []cell
	hours := func(h float64) time.Duration { return time.Duration(math.Round(h*3600)) * time.Second }
	for _, capture := range []string{"2022-10-26", "2022-12-13"} {
		for _, delay := range []float64{0.05, 0.2, 0.4} {
			for _, fraction := range []float64{0.6, 0.7, 0.8, 0.9} {
				all = append(all, cell{
					"A", fmt.Sprintf("%s, fraction %v, delay %.0fm", capture, fraction, delay*60),
					[]string{"aws-k80-v100-2022/" + capture},
					Options{Length: hours(48), Fraction: fraction, Delay: hours(delay), PerPool: true, Alike: true},
				})
			}
		}
	}
	v100 := []string{"aws-v100x1-2023-02/s1", "aws-v100x1-2023-02/s2", "aws-v100x1-2023-02/s3"}
	for _, pools := range [][]string{nil, {"us-east-1c", "us-east-2b", "us-west-2a"}} {
		for _, gb := range []float64{50, 500} {
			for _, deadline := range []float64{53.3, 60, 72} {
				all = append(all, cell{
					"B", fmt.Sprintf("V100, %d zones, 48h in %vh, %vGB", cmp.Or(len(pools), 9), deadline, gb), v100,
					Options{Pools: pools, Length: hours(48), Deadline: hours(deadline), Delay: 13 * time.Minute, Checkpoint: gb},
				})
			}
		}
	}
	h100 := []string{"gcp-h100x16-2025-10/s1", "gcp-h100x16-2025-10/s2", "gcp-h100x16-2025-10/s3"}
	for _, c := range []struct {
		length, deadline float64
		gang             int
	}{
		{40, 44, 1},
		{40, 44, 8},
		{40, 44, 16},
		{40, 50, 1},
		{40, 50, 8},
		{40, 50, 16},
		{12, 13.2, 16},
		{12, 15, 16},
		{12, 18, 16},
	} {
		all = append(all, cell{
			"C", fmt.Sprintf("H100, gang %d, %vh in %vh", c.gang, c.length, c.deadline), h100,
			Options{
				Gang: c.gang, Length: hours(c.length), Deadline: hours(c.deadline), Delay: 12 * time.Minute,
				Checkpoint: 50, Egress: "0.02", SplitAtHoles: true,
			},
		})
	}
	// One pool of this capture ends early, so what is used is where all go on.
	return append(all, cell{
		"C", "V100, gang 4, 40h in 50h",
		[]string{"aws-v100x4-2023-08/count"},
		Options{Gang: 4, Length: hours(40), Deadline: hours(50), Delay: 12 * time.Minute, Checkpoint: 50, SplitAtHoles: true},
	})
}

// fullStride is how far apart the starts of a full run are.
func fullStride(track string) time.Duration {
	if track == "C" {
		return time.Hour
	}
	return 4 * time.Hour
}

// RunSuite replays the cells, and calls progress before each.
func RunSuite(ctx context.Context, o SuiteOptions, progress func(cell, of int)) (Suite, error) {
	names, err := chosen(o.Policies)
	if err != nil {
		return Suite{}, err
	}
	for _, t := range o.Tracks {
		if !slices.Contains([]string{"A", "B", "C"}, t) {
			return Suite{}, inputError("unknown track %q; known are A, B and C", t)
		}
	}
	if o.Starts < 0 {
		return Suite{}, inputError("%d starts", o.Starts)
	}
	todo := slices.DeleteFunc(cells(), func(c cell) bool { return len(o.Tracks) > 0 && !slices.Contains(o.Tracks, c.track) })
	var s Suite
	// What ours believes of a capture is fitted to the others.
	believed := map[string]*policy.Knowledge{}
	for i, c := range todo {
		progress(i, len(todo))
		var rows []row
		var notes []string
		for k, capture := range c.captures {
			// Starts are shared out among the captures.
			n, of := cmp.Or(o.Starts, 24), len(c.captures)
			job := c.job
			job.Market, job.Policies, job.Free, job.CacheDir = filepath.Join(o.Traces, capture), names, o.Free, o.CacheDir
			job.Cold = o.Cold
			if job.N = n*(k+1)/of - n*k/of; o.Full {
				job.N, job.Every = 0, fullStride(c.track)
			} else if job.N == 0 {
				continue
			}
			if _, ok := believed[capture]; !ok && slices.Contains(names, "ours") {
				if believed[capture], err = fitWithout(o.Traces, capture); err != nil {
					return Suite{}, err
				}
			}
			job.Knowledge = believed[capture]
			more, notes2, err := replay(ctx, job, names)
			if err != nil {
				if errors.Is(err, ErrInput) {
					err = fmt.Errorf("track %s, %s: %w", c.track, c.name, err)
				}
				return Suite{}, err
			}
			rows, notes = append(rows, more...), append(notes, notes2...)
		}
		s.Cells = append(s.Cells, Cell{c.track, c.name, summarize(rows, names, nil)})
		for _, n := range notes {
			if !slices.Contains(s.Notes, n) {
				s.Notes = append(s.Notes, n)
			}
		}
	}
	s.sumUp(names)
	return s, nil
}

func (s *Suite) sumUp(names []string) {
	for _, track := range []string{"A", "B", "C"} {
		t := Track{Track: track, Policies: make([]TrackScore, len(names))}
		n := 0.0
		for _, c := range s.Cells {
			if c.Track != track {
				continue
			}
			n++
			for p, score := range c.Policies {
				to := &t.Policies[p]
				to.Name = score.Name
				to.SumRatio += score.SumRatio
				to.MeanRatio += score.MeanRatio
				to.P90Ratio += score.P90Ratio
				to.MaxRatio = max(to.MaxRatio, score.MaxRatio)
				to.Misses += score.Misses
			}
		}
		if n == 0 {
			continue
		}
		for p := range t.Policies {
			t.Policies[p].SumRatio /= n
			t.Policies[p].MeanRatio /= n
			t.Policies[p].P90Ratio /= n
		}
		s.Tracks = append(s.Tracks, t)
	}
}

// fitWithout fits knowledge to the recorded markets but for one, so that what is
// scored was not learned from; nil, for what is shipped, where there are no others.
func fitWithout(traces, capture string) (*policy.Knowledge, error) {
	k, ok, err := FitTo(traces, capture)
	if err != nil || !ok {
		return nil, err
	}
	return &k, nil
}
