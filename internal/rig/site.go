package rig

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"gpubroker/internal/api/client"
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
	Cloud   *Cloud
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
	if s.Cloud != nil {
		s.Cloud.Process.Stop(5 * time.Second)
	}
}

// Cloud is a simulated cloud in a process of its own.
type Cloud struct {
	*simapi.Client
	Process *Process
	Address string
}

// StartCloud runs a world; the processes of the site find its token in
// SIMCLOUD_TOKEN. It returns when the cloud answers.
func (s *Site) StartCloud(ctx context.Context, world simcloud.Config) error {
	address, err := FreeAddress()
	if err != nil {
		return err
	}
	token := rand.Text()
	s.Env = append(s.Env, "SIMCLOUD_TOKEN="+token)
	if world.Machines.Dir == "" {
		world.Machines.Dir = s.Path("machines")
	}
	if world.Machines.AgentImage == "" {
		world.Machines.AgentImage = filepath.Join(filepath.Dir(s.Program), "gpubroker-agent")
	}
	text, err := json.MarshalIndent(world, "", "  ")
	if err != nil {
		return fmt.Errorf("the cloud's world: %w", err)
	}
	if err := os.WriteFile(s.Path("world.json"), text, 0o644); err != nil {
		return fmt.Errorf("the cloud's world: %w", err)
	}
	p, err := s.Start("cloud.log", "simcloud", "--config", s.Path("world.json"), "--listen", address)
	if err != nil {
		return err
	}
	s.Cloud = &Cloud{Client: &simapi.Client{URL: "http://" + address, Token: token}, Process: p, Address: address}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return Await(ctx, "the cloud", p, func() error {
		_, err := s.Cloud.About(ctx)
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
