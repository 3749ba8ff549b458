package simcloud

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Serve runs a world whose machines are real processes and answers its API on
// the listener until ctx ends; then every machine is killed. It returns nil
// when it ended because of ctx. A nil secure serves without TLS.
func Serve(ctx context.Context, cfg Config, l net.Listener, secure *tls.Config, log *slog.Logger) error {
	cfg = cfg.withDefaults()
	runner, err := NewProcesses(cfg.Machines, log)
	if err != nil {
		return err
	}
	w, err := New(cfg, runner, log)
	if err != nil {
		runner.Close()
		return err
	}
	if secure != nil {
		l = tls.NewListener(l, secure)
	}
	srv := &http.Server{Handler: w.handler, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)}
	log.Info("simcloud is up", "address", l.Addr().String(), "offers", len(cfg.Offers), "isolation", runner.Isolation())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	select {
	case err = <-served:
		err = fmt.Errorf("simcloud: serve %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	w.Close()
	if cerr := srv.Close(); cerr != nil && !errors.Is(cerr, net.ErrClosed) {
		err = errors.Join(err, cerr)
	}
	return err
}
