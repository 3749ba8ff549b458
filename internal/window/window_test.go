package window

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func zone(t interface{ Fatal(...any) }, name string) Zone {
	z, err := LoadZone(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func clock(s string) (t TimeOfDay) {
	if err := t.UnmarshalText([]byte(s)); err != nil {
		panic(err)
	}
	return t
}

func at(s string) time.Time {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		panic(err)
	}
	return t
}

func TestWindowOverNightsThatChangeClocks(t *testing.T) {
	for _, c := range []struct {
		zone, start, end string
		now              string
		wantStart        string
		hours            float64
	}{
		{"Asia/Shanghai", "22:00", "06:00", "2026-03-10T09:00:00Z", "2026-03-10T14:00:00Z", 8},
		{"Asia/Shanghai", "22:00", "06:00", "2026-03-10T21:59:00Z", "2026-03-10T14:00:00Z", 8}, // 05:59
		{"Asia/Shanghai", "22:00", "06:00", "2026-03-10T22:00:00Z", "2026-03-11T14:00:00Z", 8}, // 06:00
		{"Europe/Berlin", "22:00", "06:00", "2026-03-28T20:00:00Z", "2026-03-28T21:00:00Z", 7},
		{"Europe/Berlin", "22:00", "06:00", "2026-10-24T18:00:00Z", "2026-10-24T20:00:00Z", 9},
		{"Europe/Berlin", "02:30", "05:00", "2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z", 2},      // 02:30 is skipped
		{"Europe/Berlin", "02:10", "02:50", "2026-03-29T00:30:00Z", "2026-03-30T00:10:00Z", 2. / 3}, // all of it is
		{"Europe/Berlin", "02:30", "05:00", "2026-10-24T23:00:00Z", "2026-10-25T00:30:00Z", 3.5},    // 02:30 is there twice
		{"America/New_York", "20:00", "01:30", "2026-11-01T04:00:00Z", "2026-11-01T00:00:00Z", 5.5},
		{"Australia/Lord_Howe", "22:00", "06:00", "2026-04-04T10:00:00Z", "2026-04-04T11:00:00Z", 8.5}, // half an hour
		{"Pacific/Apia", "22:00", "06:00", "2011-12-30T05:00:00Z", "2011-12-30T08:00:00Z", 2},          // a whole day is skipped, 06:00 with it
		{"UTC", "00:00", "23:59", "2026-01-01T23:59:30Z", "2026-01-02T00:00:00Z", 23 + 59./60},
	} {
		w := Window{clock(c.start), clock(c.end), zone(t, c.zone)}
		start, end := w.Next(at(c.now))
		if !start.Equal(at(c.wantStart)) || end.Sub(start).Hours() < c.hours-1e-9 || end.Sub(start).Hours() > c.hours+1e-9 {
			t.Errorf("%v at %s: %v, %v long; want %s, %v h", w, c.now, start, end.Sub(start), c.wantStart, c.hours)
		}
		if w.Contains(at(c.now)) != !at(c.now).Before(start) {
			t.Errorf("%v at %s: Contains and Next differ", w, c.now)
		}
	}
}

func TestWindowHolds(t *testing.T) {
	zones := []string{"UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Pacific/Kiritimati", "Australia/Lord_Howe", "America/St_Johns", "Africa/Casablanca"}
	rapid.Check(t, func(t *rapid.T) {
		w := Window{
			TimeOfDay(rapid.IntRange(0, 1439).Draw(t, "start")), TimeOfDay(rapid.IntRange(0, 1439).Draw(t, "end")),
			zone(t, rapid.SampledFrom(zones).Draw(t, "zone")),
		}
		if w.Validate() != nil {
			t.Skip()
		}
		now := time.Unix(rapid.Int64Range(1.6e9, 1.9e9).Draw(t, "now"), 0)
		start, end := w.Next(now)
		if !start.Before(end) || !end.After(now) || end.Sub(start) > 25*time.Hour || start.Sub(now) > 49*time.Hour {
			t.Fatalf("%v at %v: %v to %v", w, now, start, end)
		}
		to := now.Add(time.Duration(rapid.Int64Range(0, int64(9*24*time.Hour)).Draw(t, "span")))
		open, openings := w.Open(now, to)
		minutes, opens, was := time.Duration(0), 0, w.Contains(now)
		for at := now; at.Before(to); at = at.Add(time.Minute) {
			is := w.Contains(at)
			if is {
				minutes += min(time.Minute, to.Sub(at))
			}
			if is && !was {
				opens++
			}
			was = is
		}
		if (open-minutes).Abs() > time.Duration(2*opens+2)*time.Minute || (openings-opens) > 1 || opens-openings > 1 {
			t.Fatalf("%v from %v to %v: open for %v, opens %d times; by the minute %v and %d", w, now, to, open, openings, minutes, opens)
		}
		if !w.Contains(start) || w.Contains(end) && !start.Equal(end) && func() bool { s, _ := w.Next(end); return s.Before(end) }() {
			t.Fatalf("%v: the start is in, the end is out: %v %v", w, start, end)
		}
		if s2, e2 := w.Next(start); !s2.Equal(start) || !e2.Equal(end) {
			t.Fatalf("%v: from its start the window is another: %v %v", w, s2, e2)
		}
	})
}

func TestDeadline(t *testing.T) {
	for _, c := range []struct {
		text, accepted, zone, want string
	}{
		{"06:00", "2026-03-10T09:00:00Z", "Asia/Shanghai", "2026-03-10T22:00:00Z"},
		{"06:00", "2026-03-10T21:59:00Z", "Asia/Shanghai", "2026-03-10T22:00:00Z"},
		{"06:00", "2026-03-10T22:00:00Z", "Asia/Shanghai", "2026-03-11T22:00:00Z"},
		{"06:00 UTC", "2026-03-10T22:00:00Z", "Asia/Shanghai", "2026-03-11T06:00:00Z"},
		{"02:30", "2026-03-28T23:00:00Z", "Europe/Berlin", "2026-03-29T01:00:00Z"},
		{"2026-09-01T06:00:00+08:00", "2026-03-10T22:00:00Z", "", "2026-08-31T22:00:00Z"},
	} {
		var d Deadline
		if err := d.UnmarshalText([]byte(c.text)); err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		var z Zone
		if c.zone != "" {
			z = zone(t, c.zone)
		}
		got, err := d.Resolve(at(c.accepted), z)
		if err != nil || !got.Equal(at(c.want)) || d.String() != c.text {
			t.Errorf("%q accepted %s: %v, %v; want %s", d, c.accepted, got, err, c.want)
		}
	}
	var d Deadline
	if err := d.UnmarshalText([]byte("06:00")); err != nil || !d.NeedsZone() {
		t.Error(err)
	}
	if _, err := d.Resolve(at("2026-03-10T22:00:00Z"), Zone{}); err == nil {
		t.Error("a time of day without a zone was resolved")
	}
	for text, hint := range map[string]string{
		"2026-09-01 06:00":   "2026-09-01T06:00:00+08:00",
		"tomorrow":           "expected a deadline",
		"25:00":              "expected a deadline",
		"06:00 Asia/Shangai": "Asia/Shanghai",
		"":                   "expected a deadline",
	} {
		if err := d.UnmarshalText([]byte(text)); err == nil || !strings.Contains(err.Error(), hint) {
			t.Errorf("%q: %v, want an error with %s", text, err, hint)
		}
	}
}

func TestTimeOfDay(t *testing.T) {
	for text, hint := range map[string]string{"24:00": `"00:00"`, "10pm": "0 to 23", "7": "time of day", "7:5": "time of day", "-1:00": "time of day"} {
		var c TimeOfDay
		if err := c.UnmarshalText([]byte(text)); err == nil || !strings.Contains(err.Error(), hint) {
			t.Errorf("%q: %v, want an error with %s", text, err, hint)
		}
	}
	if _, err := LoadZone("Local"); err == nil {
		t.Error(`"Local" means another zone on each machine and was accepted`)
	}
}
