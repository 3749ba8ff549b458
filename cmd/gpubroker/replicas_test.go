package main_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpubroker/internal/pgtest"
	"gpubroker/internal/rig"
)

// Brokers on one PostgreSQL database: one leads, the next takes over when it has
// been killed, and one that was only stopped ends when it finds itself replaced.
// A job goes on through all of it.
func TestBrokersTakeOver(t *testing.T) {
	t.Parallel()
	s := newSite(t, 5*time.Minute)
	url := pgtest.Database(t)
	s.must(s.StartCloud(s.ctx, quick(1)))
	network := newProxy(t, s.listen)
	config := func(name string) (string, string) {
		listen, err := rig.FreeAddress()
		s.must(err)
		text := strings.NewReplacer(s.Path("broker"), s.Path(name), s.listen, listen).Replace(s.plain(fmt.Sprintf(
			"public_url: http://%s\nstore: %q\nobjects: {url: %s}\n", network.Addr(), url, s.Path("objects"))))
		return s.write(name+".yaml", text), listen
	}
	var files [3]string
	var at [3]string
	for k, name := range []string{"first", "second", "third"} {
		files[k], at[k] = config(name)
	}
	network.set(whole, at[0])
	var err error
	s.Broker, err = s.StartBroker(s.ctx, files[0], s.Path("first"))
	s.must(err)
	first := s.Broker
	id := s.submit(s.gated("long", 2, 4, ""))
	s.running(id, 2)

	second, err := s.LaunchBroker(files[1], s.Path("second"))
	s.must(err)
	t.Cleanup(func() { second.Process.Kill() })
	s.await("the second to wait", func() error {
		if log := second.Process.Log(); !strings.Contains(log, "another broker led this store") {
			return fmt.Errorf("it says %q", log)
		}
		return nil
	})
	killed := time.Now()
	first.Process.Kill()
	network.set(cut, at[1])
	network.set(whole, at[1])
	s.Broker = second
	s.must(second.Ready(s.ctx))
	took := time.Since(killed)
	t.Logf("taken over after %s", took.Round(100*time.Millisecond))
	if took > 25*time.Second {
		t.Errorf("the second took over after %s", took)
	}

	third, err := s.LaunchBroker(files[2], s.Path("third"))
	s.must(err)
	t.Cleanup(func() { third.Process.Kill() })
	s.must(second.Process.Signal(syscall.SIGSTOP))
	network.set(cut, at[2])
	network.set(whole, at[2])
	s.Broker = third
	s.must(third.Ready(s.ctx))
	s.must(second.Process.Signal(syscall.SIGCONT))
	select {
	case <-second.Process.Ended():
	case <-s.ctx.Done():
		t.Fatal("the broker that was replaced goes on")
	}
	if log := second.Process.Log(); second.Process.ExitCode() != 1 || !strings.Contains(log, "another broker has taken this store over") {
		t.Errorf("the replaced broker ended with exit code %d: %s", second.Process.ExitCode(), log)
	}
	s.open()
	s.ended(id)
	s.onceEach(id)
	s.empty()
	s.settled()
}
