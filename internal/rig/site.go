package rig

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"gpubroker/internal/api/client"
	"gpubroker/internal/certs"
	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
)

// patience is how long a program may take until it answers: a loaded machine is
// slow.
const patience = time.Minute

// Site is a folder with a broker and a simulated cloud in it.
type Site struct {
	Dir     string   // everything is made in it
	Program string   // gpubroker; the agent lies beside it
	Env     []string // of every process
	Broker  *Broker
	Cloud   *Cloud // that of StartCloud

	token  string
	clouds []*Cloud
}

// NewSite makes a site over a folder that exists.
func NewSite(dir, program string) (*Site, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("folder %s: %w", dir, err)
	}
	return &Site{Dir: dir, Program: program, Env: os.Environ()}, nil
}

// Path is a place in the site's folder.
func (s *Site) Path(parts ...string) string {
	return filepath.Join(append([]string{s.Dir}, parts...)...)
}

// Close ends what runs: the broker first.
func (s *Site) Close() {
	if s.Broker != nil {
		s.Broker.Process.Stop(5 * time.Second)
	}
	for _, c := range s.clouds {
		c.Process.Stop(5 * time.Second)
	}
}

// Cloud is a simulated cloud in a process of its own.
type Cloud struct {
	*simapi.Client
	Process *Process
	Address string
	CA      string // file with the certificate to trust; "" without TLS
}

// StartCloud runs a world in simcloud's own words; the processes of the site
// find its token in SIMCLOUD_TOKEN. It returns when the cloud answers.
func (s *Site) StartCloud(ctx context.Context, world simcloud.Config) (err error) {
	s.Cloud, err = s.AddCloud(ctx, "", world)
	return err
}

// AddCloud runs a world that speaks as the named dialect, over TLS when as is
// not empty: real clouds do. All clouds of a site have one token. It returns when
// the cloud answers.
func (s *Site) AddCloud(ctx context.Context, as string, world simcloud.Config) (*Cloud, error) {
	address, err := FreeAddress()
	if err != nil {
		return nil, err
	}
	if s.token == "" {
		s.token = rand.Text()
		s.Env = append(s.Env, "SIMCLOUD_TOKEN="+s.token)
	}
	name := "cloud"
	if as != "" {
		name = as
	}
	if world.Machines.Dir == "" {
		world.Machines.Dir = s.Path(name + "-machines")
		if as == "" {
			world.Machines.Dir = s.Path("machines")
		}
	}
	if world.Machines.AgentImage == "" {
		world.Machines.AgentImage = filepath.Join(filepath.Dir(s.Program), "gpubroker-agent")
	}
	text, err := json.MarshalIndent(world, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("the world of %s: %w", name, err)
	}
	if err := os.WriteFile(s.Path(name+".json"), text, 0o644); err != nil {
		return nil, fmt.Errorf("the world of %s: %w", name, err)
	}
	args := []string{"simcloud", "--config", s.Path(name + ".json"), "--listen", address}
	c := &Cloud{Client: &simapi.Client{URL: "http://" + address, Token: s.token}, Address: address}
	if as != "" {
		ca := s.Path(name + "-ca")
		authority, err := certs.Open(ca)
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(authority.PEM)
		c.CA = filepath.Join(ca, "ca.pem")
		c.URL = "https://" + address
		c.HTTP = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}}}
		args = append(args, "--as", as, "--tls", ca)
	}
	if c.Process, err = s.Start(name+".log", args...); err != nil {
		return nil, err
	}
	s.clouds = append(s.clouds, c)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return c, Await(ctx, "the cloud", c.Process, func() error {
		_, err := c.About(ctx)
		return err
	})
}

// Broker is a broker in a process of its own. Its client has the rights of the
// broker's owner.
type Broker struct {
	*client.Client
	Settings client.Settings // what its client.json says
	Process  *Process
	Data     string // its data folder
}

// StartBroker runs a broker with a configuration file, and returns when it
// answers. Its log is named after the data folder.
func (s *Site) StartBroker(ctx context.Context, config, data string) (*Broker, error) {
	b, err := s.LaunchBroker(config, data)
	if err != nil {
		return nil, err
	}
	return b, b.Ready(ctx)
}

// LaunchBroker is [Site.StartBroker] that does not wait.
func (s *Site) LaunchBroker(config, data string) (*Broker, error) {
	p, err := s.Start(filepath.Base(data)+".log", "serve", "--config", config)
	if err != nil {
		return nil, err
	}
	return &Broker{Process: p, Data: data}, nil
}

// Ready waits until the broker answers; before it there is no client.
func (b *Broker) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return Await(ctx, "the broker", b.Process, func() error { return b.connect(ctx) })
}

// connect reaches the broker as its client.json says.
func (b *Broker) connect(ctx context.Context) error {
	text, err := os.ReadFile(filepath.Join(b.Data, "client.json"))
	if err != nil {
		return err
	}
	var set client.Settings
	if err := json.Unmarshal(text, &set); err != nil {
		return err
	}
	c, err := client.New(set)
	if err != nil {
		return err
	}
	if _, err := c.Health(ctx); err != nil {
		return err
	}
	b.Client, b.Settings = c, set
	return nil
}

// Start starts this site's program with its output in a log of the site.
func (s *Site) Start(log string, args ...string) (*Process, error) {
	cmd := exec.Command(s.Program, args...)
	cmd.Env, cmd.Dir = s.Env, s.Dir
	p, err := Start(cmd, s.Path(log))
	if err != nil {
		return nil, err
	}
	p.Name = "gpubroker " + args[0]
	return p, nil
}

// Run runs a command line of this site's program to its end. An exit code that
// is not 0 is no error.
func (s *Site) Run(ctx context.Context, args ...string) (stdout, stderr string, code int, err error) {
	cmd := exec.CommandContext(ctx, s.Program, args...)
	var out, errOut bytes.Buffer
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = s.Env, s.Dir, &out, &errOut
	if s.Broker != nil {
		cmd.Env = append(cmd.Env, "GPUBROKER_DATA="+s.Broker.Data)
	}
	bind(cmd)
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return out.String(), errOut.String(), exit.ExitCode(), nil
	}
	return out.String(), errOut.String(), 0, err
}
