package budget

import (
	"fmt"
	"sync"
	"time"
)

// Length is how long a budget's period is.
type Length string

// The lengths.
const (
	Total Length = "total" // one period, for ever
	Day   Length = "day"
	Week  Length = "week"
	Month Length = "month"
)

// Rule says where a budget's periods begin: at midnight in Zone, every day, on
// the Anchor day of the week (1 Monday to 7 Sunday) or of the month (1 to 31;
// in a shorter month its last day). Days with a clock change have 23 or 25
// hours.
type Rule struct {
	Length Length `json:"length"`
	Anchor int    `json:"anchor,omitzero"` // 0 means 1
	Zone   string `json:"zone,omitzero"`   // IANA name; "" means UTC
}

// Validate reports a rule that cannot be computed.
func (r Rule) Validate() error {
	if _, err := r.location(); err != nil {
		return err
	}
	top := map[Length]int{Total: 0, "": 0, Day: 1, Week: 7, Month: 31}
	limit, known := top[r.Length]
	if !known {
		return fmt.Errorf("budget: period %q is none of total, day, week, month", r.Length)
	}
	if r.Anchor < 0 || r.Anchor > limit {
		return fmt.Errorf("budget: anchor %d does not fit a period of one %s", r.Anchor, r.Length)
	}
	return nil
}

// zones keeps what was read: LoadLocation opens a file each time.
var zones sync.Map // name → *time.Location

func (r Rule) location() (*time.Location, error) {
	if known, ok := zones.Load(r.Zone); ok {
		if l, ok := known.(*time.Location); ok {
			return l, nil
		}
	}
	l, err := time.LoadLocation(r.Zone)
	if err != nil {
		return nil, fmt.Errorf("budget: time zone %q is not known; write for example Europe/Berlin", r.Zone)
	}
	zones.Store(r.Zone, l)
	return l, nil
}

// At returns the period that t falls in: [start, end) in UTC. Total has zero
// times.
func (r Rule) At(t time.Time) (start, end time.Time, err error) {
	if r.Length == Total || r.Length == "" {
		return time.Time{}, time.Time{}, nil
	}
	zone, err := r.location()
	if err != nil {
		return time.Time{}, time.Time{}, err
	}
	local := t.In(zone)
	y, m, d := local.Date()
	anchor := max(r.Anchor, 1)
	var from, to time.Time
	switch r.Length {
	case Day:
		from, to = midnight(y, m, d, zone), midnight(y, m, d+1, zone)
	case Week:
		back := (int(local.Weekday()) + 6 - (anchor - 1)) % 7
		from, to = midnight(y, m, d-back, zone), midnight(y, m, d-back+7, zone)
	case Month:
		if from = monthStart(y, m, anchor, zone); t.Before(from) {
			from = monthStart(y, m-1, anchor, zone)
		}
		fy, fm, _ := from.In(zone).Date()
		to = monthStart(fy, fm+1, anchor, zone)
	default:
		return time.Time{}, time.Time{}, r.Validate()
	}
	return from.UTC(), to.UTC(), nil
}

// midnight is the first moment of a day: where a clock change skips midnight,
// the moment of the change.
func midnight(y int, m time.Month, d int, zone *time.Location) time.Time {
	t := time.Date(y, m, d, 0, 0, 0, 0, zone)
	if t.Hour() == 0 && t.Day() == time.Date(y, m, d, 12, 0, 0, 0, zone).Day() {
		// A night that repeats midnight begins at the first of the two.
		if earlier := t.Add(-time.Hour); earlier.Day() == t.Day() {
			return earlier
		}
		return t
	}
	// time.Date answers with one of the offsets around the gap: walk to the day.
	for t.Day() != time.Date(y, m, d, 12, 0, 0, 0, zone).Day() {
		t = t.Add(15 * time.Minute)
	}
	for {
		earlier := t.Add(-15 * time.Minute)
		if earlier.Day() != t.Day() {
			return t
		}
		t = earlier
	}
}

func monthStart(y int, m time.Month, anchor int, zone *time.Location) time.Time {
	last := time.Date(y, m+1, 0, 12, 0, 0, 0, zone).Day()
	first := time.Date(y, m, 1, 12, 0, 0, 0, zone)
	return midnight(first.Year(), first.Month(), min(anchor, last), zone)
}
