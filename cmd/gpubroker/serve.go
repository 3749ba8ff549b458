package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"gpubroker/internal/api"
	"gpubroker/internal/certs"
	"gpubroker/internal/cli"
	"gpubroker/internal/config"
	"gpubroker/internal/control"
	"gpubroker/internal/egress"
	"gpubroker/internal/money"
	"gpubroker/internal/objects"
	"gpubroker/internal/secret"
	"gpubroker/internal/state"
	"gpubroker/internal/store"
	"gpubroker/providers"
	"gpubroker/providers/all"
	"gpubroker/providers/managed"
	"gpubroker/queue"
	"gpubroker/scheduler"
)

// leadership is how long a broker leads without renewing, and renewal how often
// it renews.
const (
	leadership = 15 * time.Second
	renewal    = 5 * time.Second
)

// serve runs a broker until ctx ends.
func serve(ctx context.Context, o cli.ServeOptions) error {
	cfg, err := readConfig(o.Config)
	if err != nil {
		return err
	}
	log := newLog(cfg.Log, os.Stderr)
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return fmt.Errorf("data folder: %w; set data_dir to one that can be written", err)
	}
	listener, err := listen(cfg)
	if err != nil {
		return err
	}
	defer listener.Close()
	public := publicURL(cfg, listener)
	trust, tlsConfig, err := certificates(cfg, public)
	if err != nil {
		return err
	}
	st, err := openStore(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer func() {
		if err := st.Close(); err != nil {
			log.Error("closing the store", "error", err)
		}
	}()
	meta, err := st.Meta(ctx)
	if err != nil {
		return err
	}
	holder := fmt.Sprintf("%s/%d/%s", hostname(), os.Getpid(), rand.Text()[:6])
	if !strings.HasPrefix(string(cfg.Store), "postgres") {
		// The lock on the file says that nobody else is there: a broker that died
		// holds nothing that would have to be waited for.
		holder = "file"
	}
	epoch, err := lead(ctx, st, holder, log)
	if err != nil {
		return err
	}
	tables, err := state.Open(ctx, st, log)
	if err != nil {
		return err
	}
	tables.SetEpoch(epoch)
	stores, err := openObjects(cfg, public)
	if err != nil {
		return err
	}
	defer stores.Folders.Close()
	kept, err := stores.Open(ctx, objectsURL(cfg))
	if err != nil {
		return fmt.Errorf("objects: %w", err)
	}
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	accounts, err := openAccounts(ctx, cfg, metrics, log)
	if err != nil {
		return err
	}
	agents, err := findAgents(o.Agents)
	if err != nil {
		return err
	}
	set := settings(cfg, public, trust, agents)
	prices, err := openMarket(cfg, accounts, set.Plan.Stale, log)
	if err != nil {
		return err
	}
	defer func() {
		if err := prices.History().Close(); err != nil {
			log.Error("closing the price history", "error", err)
		}
	}()
	broker := control.New(set, tables, meta, accounts, prices, kept, &targets{stores}, log)
	server := api.New(broker, api.Options{
		Version: version, Currency: cfg.Currency, Objects: stores.Folders, ObjectsPath: objects.Path,
		Metrics: promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}), Agents: agents.path,
		Source: &source{stores}, MaxWorkdir: cfg.Limits.Workdir.Bytes(), Log: log,
	})
	srv := &http.Server{
		Handler: server, TLSConfig: tlsConfig, ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	g, ctx := errgroup.WithContext(ctx)
	srv.BaseContext = func(net.Listener) context.Context { return ctx }
	g.Go(func() error { return ended(tables.Run(ctx)) })
	if err := introduce(ctx, cfg, tables, localURL(cfg, listener), trust); err != nil {
		return err
	}
	g.Go(func() error { return ended(broker.Run(ctx)) })
	g.Go(func() error { return keepLeading(ctx, st, holder, epoch, tables, log) })
	g.Go(func() error {
		if tlsConfig != nil {
			return ended(srv.ServeTLS(listener, "", ""))
		}
		return ended(srv.Serve(listener))
	})
	g.Go(func() error {
		<-ctx.Done()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
		defer cancel()
		if err := srv.Shutdown(stop); err != nil {
			return srv.Close()
		}
		return nil
	})
	log.Info("broker is up", "url", public, "generation", meta.Generation, "providers", len(accounts))
	if meta.Copied {
		log.Warn("the store was restored or copied: nothing is launched or ended until gpubroker adopt")
	}
	return g.Wait()
}

func ended(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func readConfig(path string) (*config.Config, error) {
	var types []string
	for _, d := range all.Descriptors() {
		types = append(types, d.Type)
	}
	if path == "" {
		return config.Default(), nil
	}
	return config.Read(path, types)
}

// checkConfig says what serve would not accept of a configuration. It makes no
// call to a provider.
func checkConfig(ctx context.Context, path string) error {
	cfg, err := readConfig(path)
	if err != nil {
		return err
	}
	_, err = openAccounts(ctx, cfg, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	return err
}

func newLog(l config.Log, w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.Level)); err != nil {
		level = slog.LevelInfo
	}
	opts := &slog.HandlerOptions{Level: level}
	if l.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

func hostname() string {
	h, err := os.Hostname()
	if err != nil {
		return "broker"
	}
	return h
}

func listen(cfg *config.Config) (net.Listener, error) {
	l, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w; set listen to a free address", cfg.Listen, err)
	}
	return l, nil
}

func publicURL(cfg *config.Config, l net.Listener) string {
	if cfg.PublicURL != "" {
		return strings.TrimSuffix(cfg.PublicURL, "/")
	}
	scheme := "http"
	if cfg.TLS != nil {
		scheme = "https"
	}
	return scheme + "://" + l.Addr().String()
}

// localURL is how the command line on this machine reaches the broker, which
// need not be the agents' way.
func localURL(cfg *config.Config, l net.Listener) string {
	if cfg.TLS != nil && cfg.TLS.Cert != "" {
		return publicURL(cfg, l) // the certificate is for that name
	}
	scheme := "http"
	if cfg.TLS != nil {
		scheme = "https"
	}
	at, ok := l.Addr().(*net.TCPAddr)
	if ok && at.IP.IsUnspecified() {
		return scheme + "://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(at.Port))
	}
	return scheme + "://" + l.Addr().String()
}

// certificates returns what machines are to trust, and the server's own
// certificate; both are empty without TLS.
func certificates(cfg *config.Config, public string) (string, *tls.Config, error) {
	if cfg.TLS == nil {
		return "", nil, nil
	}
	if cfg.TLS.Cert != "" {
		pair, err := tls.LoadX509KeyPair(cfg.TLS.Cert, cfg.TLS.Key)
		if err != nil {
			return "", nil, fmt.Errorf("tls: %w", err)
		}
		return "", &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}, nil
	}
	authority, err := certs.Open(filepath.Join(cfg.DataDir, "tls"))
	if err != nil {
		return "", nil, err
	}
	names := append([]string{"127.0.0.1", "::1", "localhost", hostname()}, cfg.TLS.Names...)
	if u, err := url.Parse(public); err == nil {
		names = append(names, u.Hostname())
	}
	pair, err := authority.Server(names)
	if err != nil {
		return "", nil, err
	}
	return string(authority.PEM), &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}, nil
}

func openStore(ctx context.Context, cfg *config.Config, log *slog.Logger) (*store.Store, error) {
	where := string(cfg.Store)
	if where == "" {
		where = filepath.Join(cfg.DataDir, "store.db")
	}
	if !cfg.StorePass.IsZero() {
		pass, err := cfg.StorePass.Read()
		if err != nil {
			return nil, fmt.Errorf("store_password: %w", err)
		}
		u, err := url.Parse(where)
		if err != nil {
			return nil, fmt.Errorf("store: %w", err)
		}
		u.User = url.UserPassword(u.User.Username(), pass.Reveal())
		where = u.String()
	}
	return store.Open(ctx, where, store.Options{Log: log})
}

// lead waits until this broker leads the store: another that has died holds the
// leadership for a while.
func lead(ctx context.Context, st queue.Store, holder string, log *slog.Logger) (int64, error) {
	told := false
	for {
		epoch, err := st.Lead(ctx, holder, leadership)
		if err == nil {
			return epoch, nil
		}
		if !errors.Is(err, queue.ErrFenced) {
			return 0, err
		}
		if !told {
			log.Info("another broker led this store; waiting for its leadership to end", "at_most", leadership)
			told = true
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// keepLeading renews the leadership. One that is lost ends the broker: what it
// would write is refused anyway.
func keepLeading(ctx context.Context, st queue.Store, holder string, epoch int64, tables *state.State, log *slog.Logger) error {
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(renewal):
		}
		got, err := st.Lead(ctx, holder, leadership)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, queue.ErrFenced):
			return fmt.Errorf("another broker has taken this store over: %w", err)
		case err != nil:
			if time.Since(last) > leadership {
				last = time.Now()
				log.Warn("the leadership could not be renewed", "error", err)
			}
			continue
		}
		last = time.Now()
		if got != epoch {
			// Nobody else led between: the same holder under a new epoch.
			epoch = got
			tables.SetEpoch(epoch)
		}
	}
}

// secretFile reads a secret of 32 bytes, and draws it when it is not there.
func secretFile(path string) ([]byte, error) {
	key, err := os.ReadFile(path)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	key = make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return nil, err
	}
	return key, os.WriteFile(path, key, 0o600)
}

func openAccounts(ctx context.Context, cfg *config.Config, reg prometheus.Registerer, log *slog.Logger) ([]*control.Account, error) {
	byType := map[string]providers.Descriptor{}
	for _, d := range all.Descriptors() {
		byType[d.Type] = d
	}
	metrics := managed.NewMetrics()
	if err := reg.Register(metrics); err != nil {
		return nil, err
	}
	var out []*control.Account
	var faults []error
	for _, p := range cfg.Providers {
		var secrets []string
		env := providers.Env{Log: log, Owner: cfg.Owner, Secret: func(ref string) (string, error) {
			var r secret.Ref
			if err := r.UnmarshalText([]byte(ref)); err != nil {
				return "", err
			}
			v, err := r.Read()
			if err == nil {
				secrets = append(secrets, v.Reveal())
			}
			return v.Reveal(), err
		}}
		adapter, err := byType[p.Type].Open(ctx, p.Name, p.Settings.JSON, env)
		if err != nil {
			faults = append(faults, err) // it names the account
			continue
		}
		a := &control.Account{
			Provider: managed.New(adapter, managed.Options{Owner: cfg.Owner, Secrets: secrets, Log: log, Metrics: metrics, Discounts: discounts(p.Discounts)}),
			Projects: p.Projects, GuestEnd: p.AllowGuestEnd, Limits: limits(p.Limits), Type: p.Type,
		}
		if h, ok := managed.Find[control.Hosts](adapter); ok {
			a.Hosts = h
		}
		out = append(out, a)
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return out, nil
}

// agents are the agent programs that this broker hands out, by architecture.
type agents map[string]struct{ file, digest string }

func (a agents) path(arch string) (string, bool) {
	p, ok := a[arch]
	return p.file, ok
}

// findAgents looks for agent programs in a folder, by default the broker's own:
// gpubroker-agent-linux-ARCH, or gpubroker-agent for this machine's.
func findAgents(dir string) (agents, error) {
	if dir == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		dir = filepath.Dir(self)
	}
	out := agents{}
	for _, arch := range []string{"amd64", "arm64"} {
		for _, name := range []string{"gpubroker-agent-linux-" + arch, "gpubroker-agent"} {
			if name == "gpubroker-agent" && arch != runtime.GOARCH {
				continue
			}
			file := filepath.Join(dir, name)
			sum, err := fileDigest(file)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("agent program: %w", err)
			}
			out[arch] = struct{ file, digest string }{file, sum}
			break
		}
	}
	return out, nil
}

func fileDigest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// settings turns the configuration into what the loops need.
// lies is where a location is, as far as its entry says more than its kind of store.
func lies(l config.Location, buckets map[string]egress.Place) egress.Place {
	if l.Cloud == "" && l.Region == "" {
		return egress.Place{}
	}
	scheme, _, _ := strings.Cut(l.Prefix, "://")
	return egress.Place{Cloud: cmp.Or(l.Cloud, buckets[scheme].Cloud), Region: l.Region}
}

func settings(cfg *config.Config, public, trust string, found agents) control.Settings {
	s := control.Settings{
		Owner: cfg.Owner, Currency: cfg.Currency, PublicURL: public, CA: trust, Teams: map[string]string{}, Queues: map[string]control.Queue{},
		AgentDigests: map[string]string{}, Secrets: map[string]bool{}, Scenarios: cfg.Kinds(),
		Rules: map[string]scheduler.Rules{}, ShareWindow: cfg.FairShare.Window.Std(),
		Plan: scheduler.Settings{
			Lease: cfg.Leases.Length.Std(), Idle: cfg.Leases.Idle.Std(), ProjectLease: map[string]time.Duration{},
			Launches: cfg.Limits.Launches * max(1, len(cfg.Providers)),
			All:      limits(config.Limits{Machines: cfg.Limits.Machines, GPUs: cfg.Limits.GPUs, PerHour: cfg.Limits.PerHour}),
			Projects: map[string]scheduler.Limits{"": {Tasks: cfg.Limits.RunningPerProject}},
			Queues:   map[string]scheduler.Limits{}, Shares: map[string]int{},
			Stale: scheduler.Stale{Spot: cfg.Stale.Spot.Std(), OnDemand: cfg.Stale.OnDemand.Std()},
		},
		Every: control.Every{
			Offers: cfg.Intervals.Offers.Std(), Observe: cfg.Intervals.Observe.Std(), Sweep: cfg.Intervals.Sweep.Std(),
		},
	}
	for arch, a := range found {
		s.AgentDigests[arch] = a.digest
	}
	if dir, err := filepath.Abs(cfg.DataDir); err == nil {
		s.Closed = append(s.Closed, dir)
	}
	s.Closed = append(s.Closed, objectsURL(cfg))
	scheme, _, _ := strings.Cut(cfg.Objects.URL, "://")
	s.Buckets = control.BucketsAt(scheme, cfg.Objects.Endpoint, cfg.Objects.Region)
	s.ObjectsAt = control.ObjectsAt(objectsURL(cfg), s.Buckets)
	for _, l := range cfg.Locations {
		s.Locations = append(s.Locations, control.Location{Prefix: l.Prefix, Projects: l.Projects, At: lies(l, s.Buckets)})
	}
	for _, ref := range cfg.Secrets {
		s.Secrets[ref.String()] = true
	}
	for _, p := range cfg.Projects {
		s.Teams[p.Name] = p.Team
		s.Plan.ProjectLease[p.Name] = p.Lease.Std()
		s.Plan.Projects[p.Name], s.Plan.Shares[p.Name] = limits(p.Limits), p.Share
		s.Rules[p.Name] = rules("project "+p.Name, p.Rules)
	}
	for _, b := range cfg.Budgets {
		s.Budgets = append(s.Budgets, b.Rule())
	}
	for _, q := range cfg.Queues {
		s.Plan.Queues[q.Name] = limits(q.Limits)
		s.Queues[q.Name] = control.Queue{
			Priority: *q.Priority, Window: q.Window, Projects: q.Projects, Deadline: q.Deadline, Rules: rules("queue "+q.Name, q.Rules),
		}
	}
	return s
}

// limits turns limits of the configuration into the scheduler's.
func limits(l config.Limits) scheduler.Limits {
	out := scheduler.Limits{Tasks: l.Tasks, Machines: l.Machines, GPUs: float64(l.GPUs)}
	if l.PerHour != nil {
		out.PerHour = money.Rate(l.PerHour.Amount)
	}
	return out
}

// rules turns rules of the configuration into the scheduler's. Names of GPUs were
// checked when it was read.
func rules(of string, r config.Rules) scheduler.Rules {
	out := scheduler.Rules{Of: of, GPU: r.GPUIDs(), Providers: r.Providers, Regions: r.Regions}
	for _, k := range r.Kinds {
		out.Kinds = append(out.Kinds, providers.Kind(k))
	}
	if r.MaxPrice != nil {
		out.MaxPrice = money.Rate(r.MaxPrice.Amount)
	}
	return out
}

// introduce makes the first admin token, and leaves what the command line needs
// to reach this broker where only its owner can read it.
func introduce(ctx context.Context, cfg *config.Config, tables *state.State, local, trust string) error {
	file := filepath.Join(cfg.DataDir, "client.json")
	var known struct {
		URL   string `json:"url"`
		Token string `json:"token"`
		CA    string `json:"ca,omitempty"`
	}
	if text, err := os.ReadFile(file); err == nil {
		if err := json.Unmarshal(text, &known); err != nil {
			return fmt.Errorf("%s: %w; remove it, and it is made anew", file, err)
		}
	}
	id, _, _ := strings.Cut(strings.TrimPrefix(known.Token, api.TokenPrefix), "_")
	if tables.View().Tokens.Get(id) == nil {
		text, row := api.NewToken("owner", api.Admin, nil, time.Now().UTC(), time.Time{})
		if err := tables.Do(ctx, func(tx *state.Tx) error { tx.PutToken(row); return nil }); err != nil {
			return err
		}
		known.Token = text
	}
	known.URL, known.CA = local, trust
	text, err := json.MarshalIndent(known, "", "  ")
	if err != nil {
		return err
	}
	tmp := file + ".new"
	if err := os.WriteFile(tmp, append(text, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, file)
}

// targets opens what inputs and outputs name.
type targets struct{ stores *objects.Stores }

func (t *targets) Open(ctx context.Context, address string) (objects.Store, string, error) {
	where, key, err := objects.Split(address)
	if err != nil {
		return nil, "", err
	}
	st, err := t.stores.Open(ctx, where)
	return st, key, err
}
