// Gpubroker-agent is the program on each instance: it calls the broker and runs
// what the broker wants there. Package agent says how it is set up.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"gpubroker/internal/agent"
)

var version = "unknown" // set by the linker

const usage = `usage:
  gpubroker-agent run [--settings FILE]     on a rented machine; settings come from the environment or the file
  gpubroker-agent join --url URL --token TOKEN --name HOST [--ca CA] [--dir DIR]
                                            on a machine of your own
  gpubroker-agent version
`

// Exit codes: as the broker's own.
const (
	exitFailed  = 1
	exitUsage   = 2
	exitRefused = 3
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == agent.InitArg {
		os.Exit(agent.Init())
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, out, errOut io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(errOut, usage)
		return exitUsage
	}
	var set agent.Settings
	var err error
	switch args[0] {
	case "version":
		fmt.Fprintf(out, "gpubroker-agent %s %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return 0
	case "help", "-h", "--help":
		fmt.Fprint(out, usage)
		return 0
	case "run":
		set, err = runSettings(args[1:], errOut)
	case "join":
		set, err = joinSettings(args[1:], errOut)
	default:
		fmt.Fprintf(errOut, "gpubroker-agent: %q is no command\n%s", args[0], usage)
		return exitUsage
	}
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err == nil {
		err = set.Check()
	}
	if err != nil {
		fmt.Fprintln(errOut, err)
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, set, slog.New(slog.NewTextHandler(errOut, nil))); err != nil {
		fmt.Fprintln(errOut, err)
		if errors.Is(err, agent.ErrRefused) {
			return exitRefused
		}
		return exitFailed
	}
	return 0
}

func runSettings(args []string, errOut io.Writer) (agent.Settings, error) {
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	flags.SetOutput(errOut)
	file := flags.String("settings", "", "`file` of KEY=VALUE lines that only its owner may read")
	if err := flags.Parse(args); err != nil {
		return agent.Settings{}, err
	}
	if flags.NArg() > 0 {
		return agent.Settings{}, fmt.Errorf("gpubroker-agent run: %q is not understood", flags.Arg(0))
	}
	getenv := os.Getenv
	if *file != "" {
		read, err := agent.ReadFile(*file)
		if err != nil {
			return agent.Settings{}, err
		}
		getenv = func(key string) string {
			if v := read(key); v != "" {
				return v
			}
			return os.Getenv(key)
		}
	}
	return agent.FromEnv(getenv)
}

func joinSettings(args []string, errOut io.Writer) (agent.Settings, error) {
	set, err := agent.FromEnv(os.Getenv)
	if err != nil {
		return set, err
	}
	set.Instance, set.Metadata = "", "none"
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	flags := flag.NewFlagSet("join", flag.ContinueOnError)
	flags.SetOutput(errOut)
	flags.StringVar(&set.URL, "url", set.URL, "the broker's `URL`")
	flags.StringVar(&set.Token, "token", set.Token, "join `token`; better in GPUBROKER_TOKEN, which other users cannot see")
	flags.StringVar(&set.Host, "name", host, "`name` of this machine in the broker's configuration")
	flags.StringVar(&set.CA, "ca", set.CA, "the broker's `CA`: a file, or sha256:HEX")
	flags.StringVar(&set.Dir, "dir", set.Dir, "`folder` for state and workspaces")
	if err := flags.Parse(args); err != nil {
		return set, err
	}
	if flags.NArg() > 0 {
		return set, fmt.Errorf("gpubroker-agent join: %q is not understood", flags.Arg(0))
	}
	return set, nil
}

func serve(ctx context.Context, set agent.Settings, log *slog.Logger) error {
	broker, store, err := agent.Transports(set.CA)
	if err != nil {
		return err
	}
	meta, err := agent.NewMetadata(set)
	if err != nil {
		return err
	}
	clock, err := agent.KernelClock()
	if err != nil {
		return err
	}
	processes, err := agent.NewProcesses(set.Dir, agent.MetadataAddresses(set), log)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(set.Dir, 0o700); err != nil {
		return fmt.Errorf("gpubroker-agent: make the state folder: %w", err)
	}
	return agent.New(set, agent.Parts{
		Broker: agent.HTTPBroker(set.URL, broker), Store: store, Executor: processes, Metadata: meta,
		Clock: clock, Log: log, Version: version, Machine: agent.Look(set.Dir),
	}).Run(ctx)
}
