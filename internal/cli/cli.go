// Package cli is the broker's command line: what people type, and how it is
// shown to them.
//
// Nearly every command asks a broker over its HTTP API; what needs none
// (validate, scenarios, backtest, simcloud) works alone, and so do offers, gpus and
// plan where no broker is known: over a dated snapshot and public prices.
// What only the program can do, such as running a broker, is handed in as
// [Wiring]. Answers go to standard output, all else to standard error. Times are
// shown in the local zone, and JSON (-o json) has the names of the API.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gpubroker/internal/nearest"
	"gpubroker/internal/spec"
	"gpubroker/providers"
	"gpubroker/providers/managed"
)

// The exit codes.
const (
	ExitDone    = 0
	ExitFailed  = 1
	ExitUsage   = 2 // wrong usage, or an invalid spec
	ExitNoPlace = 3 // nothing that is offered fits
	ExitNoMoney = 4 // a budget has no room
)

// Wiring is what the program brings: what needs adapters, the store or the loops.
type Wiring struct {
	Version string
	// Serve runs a broker until ctx ends.
	Serve func(ctx context.Context, o ServeOptions) error
	// Check reads a configuration and opens its accounts as Serve does, which makes
	// no call. nil: the file alone is read.
	Check func(ctx context.Context, file string) error
	// Demo shows a night of work. It writes to the streams that it is given. Without
	// it, and without Sweep, there is no such command.
	Demo func(ctx context.Context, o DemoOptions) error
	// Sweep lists machines through the providers, without a broker.
	Sweep func(ctx context.Context, o SweepOptions) (Swept, error)
	// Public reads the prices that clouds publish to everybody; nil reads none. Each
	// list is whole or an error.
	Public func(ctx context.Context) []PublicList
	// ProviderTypes are the types that a configuration may name.
	ProviderTypes []string
	// Now tells the time; nil means the clock.
	Now func() time.Time
}

// PublicList is what one cloud publishes.
type PublicList struct {
	Title  string // of the cloud, for people
	Type   string // of its providers
	Offers managed.Catalog
	Err    error
}

// ServeOptions are the flags of serve.
type ServeOptions struct {
	Config string // file; "" means the defaults
	Agents string // folder with the agent programs; "" means beside this program
}

// DemoOptions are the flags of demo.
type DemoOptions struct {
	Keep  bool // leave everything running
	Short bool // a third of the work
	JSON  bool // print the summary as one JSON object
	Out   io.Writer
	Err   io.Writer
}

// SweepOptions are the flags of sweep.
type SweepOptions struct {
	Config  string
	Expired bool // only machines past their delete-at
	End     bool // and end them
}

// Swept is what a sweep found.
type Swept struct {
	Machines []SweptMachine `json:"machines"`
	// Unread are providers whose list could not be read, and why.
	Unread map[string]string `json:"unread,omitempty"`
}

// SweptMachine is a machine that bears our tags.
type SweptMachine struct {
	providers.Instance
	Expired bool   `json:"expired"`         // past its delete-at
	Ended   bool   `json:"ended"`           // asked to end by this sweep
	Error   string `json:"error,omitempty"` // why it could not be
}

// Streams are where input comes from and output goes.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Run carries out a command line and returns the exit code.
func Run(ctx context.Context, args []string, streams Streams, w Wiring) int {
	if w.Now == nil {
		w.Now = time.Now
	}
	a := &app{Wiring: w, Streams: streams}
	a.look = look{out: streams.Out, now: w.Now}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return ExitDone
	}
	return a.fail(ctx, err)
}

// app is one run of the program.
type app struct {
	Wiring
	Streams
	look   look
	conn   connection
	format string
	begun  bool // a command's own work began: what fails now is no wrong usage
	// ended holds the jobs whose end has been shown with its reason, by id.
	ended map[string]string
}

// exit is an error with its own exit code. A nil err has been told already.
type exit struct {
	code int
	err  error
}

func (e *exit) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

func usage(format string, args ...any) error {
	return &exit{ExitUsage, fmt.Errorf(format, args...)}
}

// fail tells what went wrong and returns the exit code.
func (a *app) fail(ctx context.Context, err error) int {
	code := ExitFailed
	e, coded := errors.AsType[*exit](err)
	faults, invalid := errors.AsType[spec.Errors](err)
	switch {
	case coded:
		code = e.code
		if e.err == nil {
			return code
		}
	case invalid:
		code = ExitUsage
	case !a.begun:
		code = ExitUsage
	case ctx.Err() != nil:
		fmt.Fprintln(a.Err, "stopped")
		return code
	default:
		code = codeOf(err)
	}
	switch {
	case a.format == "json":
		out := struct {
			Error string      `json:"error"`
			Exit  int         `json:"exit"`
			Fault spec.Errors `json:"faults,omitempty"`
		}{err.Error(), code, faults}
		if err := writeJSON(a.Err, out); err != nil {
			return ExitFailed
		}
	case invalid:
		fmt.Fprint(a.Err, faults.Text())
	default:
		fmt.Fprintln(a.Err, "error: "+strings.TrimSpace(err.Error()))
	}
	return code
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// json reports whether the answer is to be JSON, and writes it then.
func (a *app) json(v any) (bool, error) {
	if a.format != "json" {
		return false, nil
	}
	return true, writeJSON(a.Out, v)
}

// moreForms annotates a command with forms of its answer beside text and json.
const moreForms = "forms"

const (
	groupWork  = "work"
	groupSee   = "see"
	groupRun   = "run"
	groupAlone = "alone"
)

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "gpubroker",
		Short: "Rent GPUs wherever the work is finished cheapest",
		Long: "gpubroker rents GPUs wherever the work is finished cheapest, brings it back when a machine is taken\n" +
			"away, and never commits more money than the caps allow.\n\n" +
			"Exit codes: 0 done, 1 failed, 2 wrong usage or invalid spec, 3 cannot be placed, 4 over budget.",
		SilenceErrors: true, SilenceUsage: true, DisableSuggestions: true,
		Args: func(cmd *cobra.Command, args []string) error { return unknownCommand(cmd, args) },
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			forms := append([]string{"text", "json"}, strings.Fields(cmd.Annotations[moreForms])...)
			if !slices.Contains(forms, a.format) {
				return usage("-o %s: expected %s", a.format, strings.Join(forms, " or "))
			}
			a.begun = true
			return nil
		},
	}
	root.SetFlagErrorFunc(flagError)
	f := root.PersistentFlags()
	f.StringVarP(&a.format, "output", "o", "text", "form of the answer: text or json; for offers csv, too")
	f.StringVar(&a.conn.url, "broker", "", "address of the broker (GPUBROKER_URL)")
	f.StringVar(&a.conn.token, "token", "", "token for it (GPUBROKER_TOKEN; better not on the command line)")
	f.StringVar(&a.conn.ca, "ca", "", "file with the authority of its certificate (GPUBROKER_CA)")
	root.AddGroup(
		&cobra.Group{ID: groupWork, Title: "Jobs:"},
		&cobra.Group{ID: groupSee, Title: "Machines and money:"},
		&cobra.Group{ID: groupAlone, Title: "Without a broker:"},
		&cobra.Group{ID: groupRun, Title: "Running a broker:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add(groupWork, a.submit(), a.plan(), a.trial(), a.jobs(), a.logs(), a.watch(), a.cancel(), a.retry(), a.hold(), a.release())
	add(groupSee, a.offers(), a.instances(), a.providers(), a.budgets(), a.costs(), a.ledger())
	add(groupAlone, a.validate(), a.gpus(), a.scenarios(), a.backtest())
	add(groupRun, a.serve(), a.simcloud(), a.token(), a.adopt(), a.version())
	if a.Demo != nil {
		add(groupRun, a.demo())
	}
	if a.Sweep != nil {
		add(groupAlone, a.sweep())
	}
	root.SetHelpCommand(help(root))
	root.SetHelpCommandGroupID(groupRun)
	root.SetCompletionCommandGroupID(groupRun)
	return root
}

// help is the command that shows the help of another.
func help(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "Show the help of a command",
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			var names []string
			for _, c := range root.Commands() {
				if c.IsAvailableCommand() {
					names = append(names, c.Name()+"\t"+c.Short)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			at := root
			for _, name := range args {
				i := slices.IndexFunc(at.Commands(), func(c *cobra.Command) bool { return c.Name() == name })
				if i < 0 {
					return unknownCommand(at, []string{name})
				}
				at = at.Commands()[i]
			}
			return at.Help()
		},
	}
}

// unknownCommand is for commands that only hold others.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return usage("there is no command %q; %s", cmd.CommandPath()+" "+args[0], hint(args[0], names, cmd.CommandPath()+" --help lists them"))
}

// hint suggests near misses, or says what to do without one.
func hint(word string, names []string, otherwise string) string {
	if h := nearest.Hint(word, names); h != "" {
		return h
	}
	return otherwise
}

func flagError(cmd *cobra.Command, err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
		name := unknown.GetSpecifiedName()
		if unknown.GetSpecifiedShortnames() == "" {
			name = "--" + name
		} else {
			name = "-" + name
		}
		return usage("%s has no flag %s; %s", cmd.CommandPath(), name, hint(name, names, cmd.CommandPath()+" --help lists them"))
	}
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		f := bad.GetFlag()
		return usage("--%s %q: expected %s; see %s --help", f.Name, bad.GetValue(), expected(f.Value.Type(), errors.Unwrap(bad)), cmd.CommandPath())
	}
	return usage("%w; see %s --help", err, cmd.CommandPath())
}

// expected says what a flag of a type takes.
func expected(kind string, err error) string {
	switch kind {
	case "int", "int64", "uint64":
		return "a whole number"
	case "float64":
		return "a number"
	case "bool":
		return "true or false"
	}
	return strings.TrimPrefix(err.Error(), "expected ")
}

// exactly and atMostOne check the number of arguments, and name what is missing.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return usage("%s is missing; usage: %s", names[len(args)], cmd.UseLine())
		case len(args) > len(names):
			return usage("%q is one argument too many; usage: %s", args[len(names)], cmd.UseLine())
		}
		return nil
	}
}

func atMostOne(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usage("%q is one argument too many; usage: %s", args[1], cmd.UseLine())
	}
	return nil
}

// slow says what is being waited for when it takes more than two seconds.
func (a *app) slow(what string) (done func()) {
	t := time.AfterFunc(2*time.Second, func() { fmt.Fprintln(a.Err, what+" …") })
	return func() { t.Stop() }
}

// env reads a variable.
func env(name string) string { return os.Getenv(name) }

func writeJSONLine(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
