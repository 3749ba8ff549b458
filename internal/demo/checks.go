package demo

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/api/client"
	"gpubroker/internal/money"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/queue"
)

// summary checks everything and adds the night up.
func (n *night) summary(ctx context.Context) (*Summary, error) {
	n.show.say("all machines are gone; checking every result")
	n.references.Wait()
	s := &Summary{BrokerKills: n.kills}
	check := func(name string, ok bool, format string, args ...any) {
		s.Checks = append(s.Checks, Check{name, ok, fmt.Sprintf(format, args...)})
	}
	attempts, err := n.attempts(ctx, s)
	if err != nil {
		return nil, err
	}
	costs, err := n.Broker.Costs(ctx, client.CostQuery{})
	if err != nil {
		return nil, err
	}
	invoice, err := n.Cloud.Invoice(ctx)
	if err != nil {
		return nil, err
	}
	machines, err := n.Cloud.Machines(ctx)
	if err != nil {
		return nil, err
	}
	s.Ledger, s.Invoice, s.OnDemand = costs.Spent, invoice.Total, costs.OnDemand
	s.WorkLostSeconds = costs.Lost.Seconds()
	s.SpotSeconds, s.OnDemandSeconds = costs.Spot.Seconds(), costs.Steady.Seconds()
	if costs.Saved != nil {
		s.SavedPercent = math.Round(*costs.Saved*10) / 10
	}
	noticed, faults, err := n.happened(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range machines {
		if m.State != providers.Terminated {
			s.MachinesLeft++
		}
		if m.Cause == providers.CausePreempted && !noticed[m.ID] {
			s.Preemptions.Silent++
		}
	}
	s.Preemptions.Noticed = len(noticed) // the broker ends most of them itself once their work is saved

	check("every task succeeded", s.Succeeded == s.Tasks && s.Tasks == n.clips+len(n.renders)+1, "%d of %d", s.Succeeded, s.Tasks)
	n.checkClips(ctx, check)
	n.checkImages(check)
	n.checkIndex(check)
	n.checkAttempts(attempts, check)
	check("a machine was taken with notice, and one without", s.Preemptions.Noticed >= 1 && s.Preemptions.Silent >= 1,
		"%d with, %d without", s.Preemptions.Noticed, s.Preemptions.Silent)
	check("one launch met no capacity, one a 500 after the fact",
		faults[simapi.NoCapacity] == 1 && faults[simapi.InternalAfter] == 1, "%d and %d", faults[simapi.NoCapacity], faults[simapi.InternalAfter])
	check("the broker was killed and went on", s.BrokerKills == 1, "%s", counted(s.BrokerKills, "time"))
	check("no machine is left", s.MachinesLeft == 0, "%d of %d live", s.MachinesLeft, len(machines))
	check("the ledger is the cloud's invoice", s.Ledger == s.Invoice && s.Invoice > 0, "%s and %s USD", s.Ledger, s.Invoice)
	if err := n.checkBudgets(ctx, check); err != nil {
		return nil, err
	}
	s.Seconds = math.Round(time.Since(n.start).Seconds()*10) / 10
	return s, nil
}

// happened tells which machines the cloud announced to take, and how often each
// of the planned faults hit a call.
func (n *night) happened(ctx context.Context) (noticed map[string]bool, faults map[string]int, err error) {
	noticed, faults = map[string]bool{}, map[string]int{}
	events, err := n.Cloud.Events(ctx, 0)
	for _, e := range events.Events {
		switch e.Kind {
		case "notice":
			noticed[e.Machine] = true
		case "fault":
			for _, effect := range []string{simapi.NoCapacity, simapi.InternalAfter} {
				if strings.Contains(e.Text, effect) {
					faults[effect]++
				}
			}
		}
	}
	return noticed, faults, err
}

type checker func(name string, ok bool, format string, args ...any)

// attempts counts tasks and attempts, and returns the attempts by job.
func (n *night) attempts(ctx context.Context, s *Summary) (map[string][]*queue.Attempt, error) {
	out := map[string][]*queue.Attempt{}
	for _, j := range n.jobs {
		row, err := n.Broker.Job(ctx, j.id)
		if err != nil {
			return nil, err
		}
		s.Tasks += row.Tasks
		s.Succeeded += row.Counts.Succeeded
		s.Failed += row.Counts.Failed
		list, err := n.Broker.Attempts(ctx, j.id, -1, "", 1000)
		if err != nil {
			return nil, err
		}
		s.Attempts += len(list.Attempts)
		out[j.name] = list.Attempts
	}
	return out, nil
}

func (n *night) checkClips(ctx context.Context, check checker) {
	good, worst := 0, 0.0
	var bad []string
	for k := range n.clips {
		want, _ := clip(k)
		name := fmt.Sprintf("clip-%02d.mp4", k)
		got, err := duration(ctx, n.Path("done", name))
		if err != nil {
			bad = append(bad, name+": "+err.Error())
			continue
		}
		worst = max(worst, math.Abs(got-want))
		if math.Abs(got-want) <= 0.15 {
			good++
		} else {
			bad = append(bad, fmt.Sprintf("%s: %.2f s instead of %.2f s", name, got, want))
		}
	}
	detail := fmt.Sprintf("%d of %d, off by %.2f s at most", good, n.clips, worst)
	if len(bad) > 0 {
		detail += "; " + strings.Join(bad, "; ")
	}
	check("every clip has picture, sound and its length (ffprobe)", good == n.clips, "%s", detail)
}

// duration asks ffprobe for a clip's length, and that it has picture and sound.
func duration(ctx context.Context, file string) (float64, error) {
	out, err := exec.CommandContext(ctx, "ffprobe", "-v", "error", "-show_entries", "format=duration:stream=codec_type",
		"-of", "default=noprint_wrappers=1:nokey=1", file).Output()
	if err != nil {
		return 0, fmt.Errorf("ffprobe: %w", err)
	}
	text := string(out)
	if !strings.Contains(text, "video") || !strings.Contains(text, "audio") {
		return 0, fmt.Errorf("no picture or no sound")
	}
	lines := strings.Fields(text)
	return strconv.ParseFloat(lines[len(lines)-1], 64)
}

func (n *night) checkImages(check checker) {
	for _, r := range n.renders {
		got, err := os.ReadFile(n.Path("done", r.name+".pgm"))
		want, err2 := os.ReadFile(n.Path("reference", r.name+".pgm"))
		switch {
		case err != nil:
			check(r.name+" equals an uninterrupted run", false, "%v", err)
		case err2 != nil || n.refErr != nil:
			check(r.name+" equals an uninterrupted run", false, "the reference: %v %v", err2, n.refErr)
		default:
			check(r.name+" equals an uninterrupted run", bytes.Equal(got, want), "%d bytes compared", len(want))
		}
	}
}

func (n *night) checkIndex(check checker) {
	got, err := os.ReadFile(n.Path("done", "index.sha256"))
	check("the steady job left its result", err == nil && len(strings.TrimSpace(string(got))) == 64, "%d bytes", len(got))
}

func (n *night) checkAttempts(byJob map[string][]*queue.Attempt, check checker) {
	for _, r := range n.renders {
		list := byJob[r.name]
		resumed := int64(0)
		for _, a := range list {
			resumed = max(resumed, a.Resume)
		}
		check(r.name+" went on from a committed checkpoint", len(list) >= 2 && resumed >= 1, "%d attempts, resumed from checkpoint %d", len(list), resumed)
	}
	steady := byJob["steady-index"]
	check("the job that must not be interrupted was not", len(steady) == 1 && steady[0].Outcome == queue.Succeeded, "%d attempt", len(steady))
	wins := map[queue.TaskID]int{}
	twice := 0
	for _, list := range byJob {
		for _, a := range list {
			if a.Outcome == queue.Succeeded {
				if wins[a.TaskID]++; wins[a.TaskID] > 1 {
					twice++
				}
			}
		}
	}
	check("no task has two results", twice == 0, "%d tasks, one result each", len(wins))
}

func (n *night) checkBudgets(ctx context.Context, check checker) error {
	out, err := n.Broker.Budgets(ctx)
	if err != nil {
		return err
	}
	for _, b := range out.Budgets {
		if !b.Capped {
			continue
		}
		check(fmt.Sprintf("budget %s of %s USD was kept", b.Name, b.Cap), b.Current.Committed() <= b.Cap && b.Current.Overrun == 0,
			"%s USD committed, nothing beyond a reservation", b.Current.Committed().Round(4))
	}
	var left money.Amount
	for _, b := range out.Budgets {
		left += b.Current.Reserved
	}
	check("nothing is reserved any more", left == 0, "%s USD", left)
	return nil
}
