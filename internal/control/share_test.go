package control_test

import (
	"context"
	"testing"
	"time"

	"gpubroker/queue"
)

// The project that has spent less lately goes first, though both are idle now,
// and a restart does not change that.
func TestTurnsAreByMoneySpentLately(t *testing.T) {
	inBubble(t, dollar(), func(s *site) {
		one := func(project, name string) *queue.Job {
			return s.submit("name: " + name + "\nproject: " + project + "\nresources: {gpu: none, vcpu: 1}\nspot: {policy: never}\nmax_duration: 20m\nwork: {time: 10m}\nrun: {command: [work, 10m]}\n")
		}
		s.succeeded(one("rich", "first"))
		s.quiet(2 * time.Hour)
		b := capped(1) // counted from now on: room for one machine
		b.Cap += 1000
		s.withBudgets(b)
		time.Sleep(time.Second)
		rich := one("rich", "second")
		poor := one("poor", "third")
		time.Sleep(20 * time.Minute)
		if n := len(s.attempts(poor.ID)); n != 1 {
			t.Errorf("the project that has spent nothing had %d turns", n)
		}
		if n := len(s.attempts(rich.ID)); n != 0 {
			t.Errorf("the project that has spent all had %d turns: %v", n, s.attempts(rich.ID)[0].Reason)
		}
		if _, err := s.up().Cancel(context.Background(), rich.ID, "test"); err != nil {
			t.Fatal(err)
		}
		s.succeeded(poor)
	})
}
