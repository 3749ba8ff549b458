package control

import (
	"testing"
	"time"
)

// A URL that was refused is asked for anew, and must not come back the same: a
// broker that starts has not opened the folders that its predecessor signed for.
func TestAURLAskedForAnewIsAnother(t *testing.T) {
	lease := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	var last time.Time
	for now := lease.Add(-3 * time.Hour); now.Before(lease.Add(time.Minute)); now = now.Add(time.Second) {
		ends := now.Add(validFor(lease, now))
		if ends.Equal(last) || ends.Before(lease.Add(signedFor)) {
			t.Fatalf("signed at %v it ends at %v, the one before at %v", now, ends, last)
		}
		last = ends
	}
}
