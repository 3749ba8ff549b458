package demo

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"gpubroker/internal/api"
	"gpubroker/internal/money"
	"gpubroker/queue"
)

// show writes what happens: a line for each event, and a status line that a
// terminal rewrites in place and a file gets now and then.
type show struct {
	out   io.Writer
	live  bool
	start time.Time
	seq   int64 // of the newest event shown
	names map[string]string
	last  time.Time // when the status was last written
	open  bool      // the status line is on the screen
	ill   string    // the trouble last told
}

// quietly is how often a status line goes to a file.
const quietly = 5 * time.Second

func (s *show) line(format string, args ...any) {
	if s.open {
		fmt.Fprint(s.out, "\r\x1b[K")
		s.open = false
	}
	text := fmt.Sprintf(format, args...)
	fmt.Fprintf(s.out, "%6.1fs  %s\n", time.Since(s.start).Seconds(), cut(text, width))
}

// width is how much of a line of 100 columns there is beside the time.
const width = 91

// cut shortens a text to a width at a word, and says that it did.
func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	text = string([]rune(text)[:width-1])
	if at := strings.LastIndexByte(text, ' '); at > len(text)/2 {
		text = strings.TrimRight(text[:at], " ,;:(")
	}
	return text + "…"
}

// say tells what the demo itself does.
func (s *show) say(format string, args ...any) { s.line("● "+format, args...) }

// trouble tells that a look at the broker failed, once for each kind.
func (s *show) trouble(err error) {
	if text := err.Error(); text != s.ill {
		s.ill = text
		s.line("  no look: %s", text)
	}
}

// told are the events that are worth a line, with their words.
var told = map[string]string{
	"job.accepted":          "accepted",
	"job.succeeded":         "job done",
	"job.failed":            "job FAILED",
	"task.failed":           "task FAILED",
	"instance.launching":    "launching",
	"instance.unknown":      "launch in doubt",
	"instance.ready":        "machine ready",
	"instance.draining":     "draining",
	"instance.gone":         "machine gone",
	"instance.orphan":       "orphan ended",
	"attempt.preempted":     "taken back, queued again",
	"attempt.lost":          "lost, queued again",
	"attempt.launch_failed": "not launched, queued again",
	"attempt.failed":        "attempt failed",
	"checkpoint.committed":  "checkpoint",
	"checkpoint.broken":     "checkpoint broken",
	"budget.short":          "no money",
	"budget.overrun":        "OVERRUN",
}

func (s *show) event(e api.Event) {
	s.seq = max(s.seq, e.Seq)
	words, ok := told[e.Kind]
	if !ok {
		return
	}
	what := s.names[e.Job]
	if what != "" && e.Index != nil && *e.Index > 0 {
		what += fmt.Sprintf("/%d", *e.Index)
	}
	if what == "" || e.Index == nil && e.Instance != "" {
		what = short(e.Instance)
	}
	if e.Kind == "checkpoint.committed" && e.Reason.Args["number"] != "1" {
		return // the first of each attempt says that saving works
	}
	s.line("  %-26s %-17s %s", words, what, detail(e))
}

// detail is the gist of an event, short enough for its line.
func detail(e api.Event) string {
	args := e.Reason.Args
	switch e.Kind {
	case "instance.launching":
		return args["market"]
	case "instance.unknown":
		return "an error; the cloud's list will tell"
	case "instance.ready":
		return "after " + args["after"]
	case "checkpoint.committed":
		return args["bytes"] + " bytes"
	case "job.accepted":
		return args["tasks"] + " tasks"
	}
	switch e.Reason.Code {
	case "launch_failed":
		return "the cloud said " + args["code"]
	case "preempted":
		return "without a word"
	case "preempted_notice":
		return "with notice"
	}
	return e.Text
}

func short(id string) string {
	if len(id) > 8 {
		return "…" + id[len(id)-6:]
	}
	return id
}

func counted(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// status shows jobs, machines and money in one line.
func (s *show) status(st *state) {
	every := quietly
	if s.live {
		every = 200 * time.Millisecond
	}
	if time.Since(s.last) < every {
		return
	}
	s.last = time.Now()
	var parts []string
	for _, j := range st.jobs {
		parts = append(parts, progress(j))
	}
	machines := map[string]int{}
	for _, i := range st.instances {
		if i.State != queue.InstanceGone {
			machines[i.Kind]++
		}
	}
	text := fmt.Sprintf("%s | %d spot, %d steady | %s spent, %s held", strings.Join(parts, ", "),
		machines["spot"], machines["on-demand"], dollars(st.costs.Spent), dollars(st.costs.Reserved))
	if !s.live {
		s.line("  %s", text)
		return
	}
	fmt.Fprintf(s.out, "\r\x1b[K%6.1fs  %s", time.Since(s.start).Seconds(), cut(text, width))
	s.open = true
}

// progress is how far a job is: how many of its tasks are done, and how many run;
// with one task a mark says it.
func progress(j api.Job) string {
	_, name, _ := strings.Cut(j.Name, "-")
	switch {
	case j.Tasks > 1 && j.Counts.Running > 0:
		return fmt.Sprintf("%s %d/%d %d▸", name, j.Counts.Succeeded, j.Tasks, j.Counts.Running)
	case j.Tasks > 1:
		return fmt.Sprintf("%s %d/%d", name, j.Counts.Succeeded, j.Tasks)
	case j.Counts.Failed > 0:
		return name + " ✗"
	case j.Counts.Succeeded > 0:
		return name + " ✓"
	case j.Counts.Running > 0:
		return name + " ▸"
	}
	return name + " ·"
}

func dollars(a money.Amount) string { return "$" + a.Round(3).String() }

// summary shows what the night came to.
func (s *show) summary(sum *Summary) {
	s.line("● the night is over")
	w := s.out
	row := func(name, format string, args ...any) {
		fmt.Fprintf(w, "  %-22s %s\n", name, fmt.Sprintf(format, args...))
	}
	fmt.Fprintln(w)
	row("tasks", "%d, %d succeeded, %d failed, in %d attempts", sum.Tasks, sum.Succeeded, sum.Failed, sum.Attempts)
	row("machines taken away", "%d with notice, %d without", sum.Preemptions.Noticed, sum.Preemptions.Silent)
	row("broker killed", "%s", counted(sum.BrokerKills, "time"))
	row("work lost", "%.1f s", sum.WorkLostSeconds)
	row("machine time paid", "%.0f s on spot, %.0f s on demand", sum.SpotSeconds, sum.OnDemandSeconds)
	row("ledger", "%s USD", sum.Ledger)
	row("the cloud's invoice", "%s USD", sum.Invoice)
	row("all on demand", "%s USD for the same machine time: %.1f %% saved", sum.OnDemand, sum.SavedPercent)
	row("machines left", "%d", sum.MachinesLeft)
	row("took", "%.1f s", sum.Seconds)
	fmt.Fprintln(w)
	for _, c := range sum.Checks {
		mark := "ok  "
		if !c.OK {
			mark = "FAIL"
		}
		fmt.Fprintf(w, "  %s  %s: %s\n", mark, c.Name, c.Detail)
	}
	if failed := slices.IndexFunc(sum.Checks, func(c Check) bool { return !c.OK }); failed < 0 {
		fmt.Fprintf(w, "\n  All %d checks hold.\n", len(sum.Checks))
	}
}
