// Package window deals with times of day: the hours in which work may run, and
// the moment by which it has to be done.
//
// A window is given in local time of a zone and stays there when clocks change:
// 22:00 to 06:00 has 9 hours on the night that sets clocks back and 7 on the
// one that sets them forward. A time that does not exist on a day (it is
// skipped) means the moment of the change; one that exists twice means the
// first.
package window

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // zones also where the system has none

	"gpubroker/internal/nearest"
	"gpubroker/internal/yamlfile"
)

// TimeOfDay is a local time in minutes after midnight, 0 to 1439, written 22:00.
type TimeOfDay int

// Describe says how a time of day is written.
func (TimeOfDay) Describe() string { return "a time of day such as 22:00" }

// UnmarshalText reads hours and minutes.
func (t *TimeOfDay) UnmarshalText(b []byte) error {
	s := string(b)
	h, m, ok := strings.Cut(s, ":")
	hour, err1 := strconv.ParseUint(h, 10, 8)
	minute, err2 := strconv.ParseUint(m, 10, 8)
	if !ok || err1 != nil || err2 != nil || len(h) > 2 || len(m) != 2 || hour > 23 || minute > 59 {
		hint := ""
		switch {
		case s == "24:00":
			hint = `write "00:00"`
		case strings.HasSuffix(strings.ToLower(s), "am") || strings.HasSuffix(strings.ToLower(s), "pm"):
			hint = "hours go from 0 to 23"
		}
		return &yamlfile.Problem{Message: fmt.Sprintf("expected %s, found %q", t.Describe(), s), Hint: hint}
	}
	*t = TimeOfDay(hour*60 + minute)
	return nil
}

// MarshalText writes 22:00.
func (t TimeOfDay) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

func (t TimeOfDay) String() string { return fmt.Sprintf("%02d:%02d", int(t)/60, int(t)%60) }

// On returns the moment of the time of day on a date in a zone.
func (t TimeOfDay) On(year int, month time.Month, day int, zone *time.Location) time.Time {
	wall := time.Date(year, month, day, 0, int(t), 0, 0, time.UTC)
	_, before := wall.Add(-36 * time.Hour).In(zone).Zone()
	_, after := wall.Add(36 * time.Hour).In(zone).Zone()
	first := wall.Add(-time.Duration(max(before, after)) * time.Second).In(zone)
	last := wall.Add(-time.Duration(min(before, after)) * time.Second).In(zone)
	is := func(m time.Time) bool {
		return m.Hour()*60+m.Minute() == int(t) && m.Second() == 0 && m.Day() == wall.Day()
	}
	switch {
	case is(first):
		return first
	case is(last):
		return last
	}
	change, _ := last.ZoneBounds() // the time is skipped on this day
	if change.IsZero() {
		return last
	}
	return change
}

// Zone is a time zone by its IANA name. The zero value is no zone.
type Zone struct{ location *time.Location }

// LoadZone returns the zone of an IANA name such as Asia/Shanghai, or UTC.
func LoadZone(name string) (Zone, error) {
	l, err := time.LoadLocation(name)
	if err != nil || name == "" || name == "Local" {
		hint := nearest.Hint(name, commonZones)
		return Zone{}, &yamlfile.Problem{Message: fmt.Sprintf("expected %s, found %q", Zone{}.Describe(), name), Hint: hint}
	}
	return Zone{l}, nil
}

// commonZones serve for hints; every IANA name is read.
var commonZones = []string{
	"UTC", "Africa/Cairo", "Africa/Johannesburg", "Africa/Lagos", "Africa/Nairobi", "America/Bogota", "America/Buenos_Aires", "America/Chicago",
	"America/Denver", "America/Los_Angeles", "America/Mexico_City", "America/New_York", "America/Sao_Paulo", "America/Toronto", "Asia/Dubai",
	"Asia/Hong_Kong", "Asia/Jakarta", "Asia/Jerusalem", "Asia/Kolkata", "Asia/Manila", "Asia/Seoul", "Asia/Shanghai", "Asia/Singapore", "Asia/Taipei",
	"Asia/Tokyo", "Australia/Melbourne", "Australia/Sydney", "Europe/Amsterdam", "Europe/Berlin", "Europe/Dublin", "Europe/Helsinki", "Europe/Istanbul",
	"Europe/Kyiv", "Europe/Lisbon", "Europe/London", "Europe/Madrid", "Europe/Moscow", "Europe/Paris", "Europe/Prague", "Europe/Rome", "Europe/Stockholm",
	"Europe/Vienna", "Europe/Warsaw", "Europe/Zurich", "Pacific/Auckland",
}

// Describe says how a zone is written.
func (Zone) Describe() string { return "a time zone such as Asia/Shanghai or UTC" }

// UnmarshalText reads an IANA name.
func (z *Zone) UnmarshalText(b []byte) (err error) {
	*z, err = LoadZone(string(b))
	return err
}

// MarshalText writes the IANA name.
func (z Zone) MarshalText() ([]byte, error) { return []byte(z.String()), nil }

func (z Zone) String() string {
	if z.location == nil {
		return ""
	}
	return z.location.String()
}

// Location returns the zone, nil when there is none.
func (z Zone) Location() *time.Location { return z.location }

// IsZero says that there is no zone.
func (z Zone) IsZero() bool { return z.location == nil }

// Equal says that both are the same zone; it serves comparisons in tests.
func (z Zone) Equal(o Zone) bool { return z.String() == o.String() }

// Window is the daily span in which work may run, from Start up to End. An End
// at or before Start lies on the next day.
type Window struct {
	Start TimeOfDay `json:"start" required:"true" doc:"when work may begin, local time: \"22:00\""`
	End   TimeOfDay `json:"end" required:"true" doc:"when work has to stop, local time: \"06:00\""`
	Zone  Zone      `json:"timezone" required:"true" doc:"IANA time zone of both, for example Asia/Shanghai"`
}

func (w Window) String() string {
	return w.Start.String() + "–" + w.End.String() + " " + w.Zone.String()
}

// Validate refuses a window that never, or always, is open.
func (w Window) Validate() error {
	if w.Start == w.End {
		return &yamlfile.Problem{Message: fmt.Sprintf("starts and ends at %s", w.Start), Hint: "leave the window out if work may always run"}
	}
	return nil
}

// on returns the window that starts on a date. It is empty on a day whose clock
// change skips all of it.
func (w Window) on(year int, month time.Month, day int) (start, end time.Time) {
	l := w.location()
	next := day
	if w.End <= w.Start {
		next++
	}
	return w.Start.On(year, month, day, l), w.End.On(year, month, next, l)
}

func (w Window) location() *time.Location {
	if w.Zone.location == nil {
		return time.UTC
	}
	return w.Zone.location
}

// Next returns the window that t lies in, else the first one after t, in UTC.
func (w Window) Next(t time.Time) (start, end time.Time) {
	y, m, d := t.In(w.location()).Date()
	for day := d - 1; ; day++ {
		s, e := w.on(y, m, day)
		if e.After(t) && s.Before(e) || day > d+7 {
			return s.UTC(), e.UTC()
		}
	}
}

// most is how many windows [Window.Open] looks at one by one.
const most = 400

// Open is for how long the window is open between two moments, and how often it opens
// after the first of them. Beyond 400 windows it is as open as in those.
func (w Window) Open(from, to time.Time) (open time.Duration, openings int) {
	at := from
	for range most {
		start, end := w.Next(at)
		if !start.Before(to) {
			return open, openings
		}
		if start.After(from) {
			openings++
		}
		if start.Before(at) {
			start = at
		}
		if !end.Before(to) {
			return open + to.Sub(start), openings
		}
		open += end.Sub(start)
		at = end
	}
	if span := to.Sub(at); span > 0 {
		share := float64(span) / float64(at.Sub(from))
		open += time.Duration(float64(open) * share)
		openings += int(float64(openings) * share)
	}
	return open, openings
}

// Contains says whether work may run at t. The start belongs to the window, the
// end does not.
func (w Window) Contains(t time.Time) bool {
	start, end := w.Next(t)
	return !t.Before(start) && t.Before(end)
}

// Deadline is the moment by which a job has to be done: an instant, or a time
// of day, with a zone of its own or in the zone of the window.
type Deadline struct {
	at   time.Time // an instant, or else zero
	time TimeOfDay
	zone Zone
}

// Describe says how a deadline is written.
func (Deadline) Describe() string {
	return `a deadline such as "06:00", "06:00 Asia/Shanghai" or 2026-09-01T06:00:00+08:00`
}

// UnmarshalText reads an RFC 3339 instant, or a time of day with or without a
// zone.
func (d *Deadline) UnmarshalText(b []byte) error {
	s := strings.TrimSpace(string(b))
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		*d = Deadline{at: t}
		return nil
	}
	clock, name, _ := strings.Cut(s, " ")
	var out Deadline
	if err := out.time.UnmarshalText([]byte(clock)); err != nil {
		hint := ""
		for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02T15:04", "2006-01-02"} {
			if t, err := time.Parse(layout, s); err == nil {
				hint = fmt.Sprintf("a date needs a time and a zone: %q", t.Format("2006-01-02T15:04:05")+"+08:00")
			}
		}
		return &yamlfile.Problem{Message: fmt.Sprintf("expected %s, found %q", d.Describe(), s), Hint: hint}
	}
	if name = strings.TrimSpace(name); name != "" {
		if err := out.zone.UnmarshalText([]byte(name)); err != nil {
			return err
		}
	}
	*d = out
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (d Deadline) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func (d Deadline) String() string {
	if !d.at.IsZero() {
		return d.at.Format(time.RFC3339Nano)
	}
	if d.zone.IsZero() {
		return d.time.String()
	}
	return d.time.String() + " " + d.zone.String()
}

// Equal says that both mean the same.
func (d Deadline) Equal(o Deadline) bool {
	return d.at.Equal(o.at) && d.time == o.time && d.zone.Equal(o.zone)
}

// NeedsZone says that it is a time of day that does not say where.
func (d Deadline) NeedsZone() bool { return d.at.IsZero() && d.zone.IsZero() }

// Resolve returns the instant in UTC: for a time of day its first occurrence
// after the job was accepted. zone is the window's; it is used when the
// deadline has none. Without either it fails.
func (d Deadline) Resolve(accepted time.Time, zone Zone) (time.Time, error) {
	if !d.at.IsZero() {
		return d.at.UTC(), nil
	}
	l := d.zone.location
	if l == nil {
		l = zone.location
	}
	if l == nil {
		return time.Time{}, fmt.Errorf("deadline %s: neither it nor the window names a time zone; write for example \"%s UTC\"", d, d)
	}
	y, m, day := accepted.In(l).Date()
	for ; ; day++ {
		if t := d.time.On(y, m, day, l); t.After(accepted) {
			return t.UTC(), nil
		}
	}
}
