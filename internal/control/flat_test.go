package control_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"
)

// Days of work leave nothing behind in memory: what has ended is in the store.
func TestMemoryStaysFlat(t *testing.T) {
	if testing.Short() {
		t.Skip("many days of virtual time")
	}
	inBubble(t, calm(), func(s *site) {
		s.slow()
		heap := func() uint64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.GC()
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		days := func(n int) {
			for range n {
				for range 4 {
					j := s.submit(task(20*time.Minute, saves+"tasks: {count: 4}\n"))
					s.await(j.ID, 24*time.Hour)
				}
				time.Sleep(20 * time.Hour)
				// The world and the checker remember everything; they are not the broker.
				s.rig(func() { s.check.Forget(time.Now().Add(-4 * 24 * time.Hour)) })
			}
		}
		days(5)
		before, size := heap(), s.up().Remembered()
		days(12)
		after, sizeAfter := heap(), s.up().Remembered()
		if fmt.Sprint(size) != fmt.Sprint(sizeAfter) {
			t.Errorf("the broker remembers %v, and 12 days later %v", size, sizeAfter)
		}
		// 48 jobs of four tasks each, and their machines in the cloud's own memory.
		if after > before+8<<20 {
			t.Errorf("the heap grew from %d to %d KiB", before>>10, after>>10)
		}
	})
}
