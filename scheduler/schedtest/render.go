package schedtest

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"gpubroker/scheduler"
)

// Render is a plan as text: its actions in order, the decisions, and the next
// look. Launches that differ in nothing stand on one line.
func Render(s *scheduler.Snapshot, r *scheduler.Result) string {
	var b strings.Builder
	for _, a := range r.Stops {
		fmt.Fprintf(&b, "stop %s (%s): %s\n", a.Attempt, a.Outcome, a.Why)
	}
	for _, a := range r.Assigns {
		recut := ""
		if a.Slots > 0 {
			recut = fmt.Sprintf(", cut into %d", a.Slots)
		}
		fmt.Fprintf(&b, "assign %d of %s to %s%s%s\n", a.Count, a.Group, a.Machine, recut, gang(a.Gang))
	}
	times := map[string]int{}
	var texts []string
	for i := range r.Launches {
		text := launch(s, &r.Launches[i])
		if takes := r.Launches[i].Takes; takes != "" {
			text += ", takes " + takes + ": " + r.Launches[i].Why.String()
		}
		if times[text]++; times[text] == 1 {
			texts = append(texts, text)
		}
	}
	for _, text := range texts {
		fmt.Fprintf(&b, "launch %d x %s\n", times[text], text)
	}
	for _, a := range r.Releases {
		fmt.Fprintf(&b, "release %s: %s\n", a.Machine, a.Why)
	}
	for i := range r.Decisions {
		d := &r.Decisions[i]
		fmt.Fprintf(&b, "%s: %d of %d placed: %s", d.Group, d.Placed, d.Waiting, d.Why)
		if !d.Again.IsZero() {
			fmt.Fprintf(&b, "; again %s", clock(s, d.Again))
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "next look: %s\n", cmp.Or(clock(s, r.Wake), "when something changes"))
	return b.String()
}

func launch(s *scheduler.Snapshot, l *scheduler.Launch) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s at %s, bound %s: %d of %s on %d slots", l.Market, l.Price, l.Bound, l.Tasks, l.Group, l.Slots)
	for _, m := range l.More {
		fmt.Fprintf(&b, " + %d of %s", m.Tasks, m.Group)
	}
	return b.String() + ", lease until " + clock(s, l.Lease) + gang(l.Gang)
}

func gang(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", gang %d", n)
}

// Reasons is a decision's counts, one a line.
func Reasons(d *scheduler.Decision) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d offers, %d usable\n", d.Considered, d.Usable)
	for _, c := range d.Reasons {
		fmt.Fprintf(&b, "%d %s: %s\n", c.Offers, c.Code, c.Sample)
	}
	return b.String()
}

// clock shows a time of the snapshot's day without the day.
func clock(s *scheduler.Snapshot, t time.Time) string {
	switch {
	case t.IsZero():
		return ""
	case t.Format(time.DateOnly) == s.Now.Format(time.DateOnly):
		return t.Format("15:04:05")
	}
	return t.Format("2006-01-02 15:04:05")
}
