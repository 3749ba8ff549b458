package backtest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/quantity"
)

// draw draws the jobs of the generate section, and their teams where none are
// listed. The markets are as long as each job's whole time.
func (q *Queue) draw(ground *ground) ([]Job, error) {
	g := q.Generate
	lengths, err := readLengths(strings.TrimSuffix(q.path(g.Lengths), ".gz"))
	if err != nil {
		return nil, err
	}
	// What is drawn must fit even with the longest deadline.
	room := ground.horizon() - 2*ground.step
	longest := time.Duration(room.Seconds()/g.Deadline[1])*time.Second - q.Delay.Std()
	if given := g.Longest.Std(); given > 0 {
		longest = min(longest, given)
	}
	var fit []time.Duration
	over := 0
	for _, l := range lengths {
		switch {
		case l < g.Shortest.Std():
		case l > longest:
			over++
		default:
			fit = append(fit, l)
		}
	}
	if len(fit) == 0 {
		return nil, inputError("%s: no run time lies between %s and %s, what fits the markets' %s with deadlines of up to %v times",
			g.Lengths, g.Shortest, short(longest), short(ground.horizon()), g.Deadline[1])
	}
	if over > 0 {
		ground.note("lengths are drawn from %d run times of %s to %s; %d longer ones are left out", len(fit), g.Shortest, short(longest), over)
	}

	rng := rand.New(rand.NewPCG(uint64(g.Seed), 0))
	if len(q.Teams) == 0 {
		for i := range g.Teams {
			share := math.Round(between(rng, g.Budget[0].Share, g.Budget[1].Share)*1000) / 1000
			q.Teams = append(q.Teams, Team{fmt.Sprintf("team-%d", i+1), &Budget{Share: share}})
		}
	}
	gangs := [2]float64{float64(g.Gang[0]), float64(g.Gang[1])}
	var jobs []Job
	for i := range g.Jobs {
		j := Job{Name: fmt.Sprintf("drawn-%04d", i+1), Team: q.Teams[rng.IntN(len(q.Teams))].Name}
		length := fit[rng.IntN(len(fit))]
		deadline := time.Duration(between(rng, g.Deadline[0], g.Deadline[1]) * (length + q.Delay.Std()).Seconds() * float64(time.Second))
		// It may be rounded up to a tick before it begins.
		deadline = max(deadline.Round(time.Second), length+q.Delay.Std()+ground.step)
		arrival := time.Duration(rng.Float64()*(room-deadline).Seconds()) * time.Second
		j.Arrival, j.Length, j.Deadline = quantity.Duration(max(0, arrival)), quantity.Duration(length), quantity.Duration(deadline)
		j.Gang = int(math.Round(evenly(rng, gangs[0], gangs[1])))
		j.Checkpoint = quantity.Size(math.Round(evenly(rng, float64(g.Checkpoint[0])/1e9, float64(g.Checkpoint[1])/1e9) * 1e9))
		jobs = append(jobs, j)
	}
	return jobs, nil
}

func between(rng *rand.Rand, a, b float64) float64 { return a + rng.Float64()*(b-a) }

// evenly draws so that each doubling is as likely as any other.
func evenly(rng *rand.Rand, a, b float64) float64 {
	return math.Exp(between(rng, math.Log(a), math.Log(b)))
}

// readLengths reads a CSV file of one column, with a head: run times in seconds.
func readLengths(path string) ([]time.Duration, error) {
	records, path, err := readCSV(path)
	if err != nil {
		return nil, err
	}
	if len(records) < 2 || len(records[0]) != 1 {
		return nil, inputError("%s: want one column of run times in seconds, with a head", path)
	}
	var lengths []time.Duration
	for i, rec := range records[1:] {
		s, err := strconv.ParseFloat(rec[0], 64)
		if err != nil || !(s >= 0 && s < 1e9) {
			return nil, inputError("%s: row %d: %q is not a run time in seconds", path, i+2, rec[0])
		}
		lengths = append(lengths, time.Duration(s)*time.Second)
	}
	return lengths, nil
}

func isNumber(text string) bool {
	_, err := strconv.ParseFloat(text, 64)
	return err == nil
}
