package cli

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// intro is what stands above the list of commands.
//
//go:embed intro.md
var intro string

// Document returns the page about the command line, docs/cli.md.
func Document() []byte {
	a := &app{Streams: Streams{Out: io.Discard, Err: io.Discard}, Wiring: Wiring{
		Now:   time.Now,
		Demo:  func(context.Context, DemoOptions) error { return nil },
		Sweep: func(context.Context, SweepOptions) (Swept, error) { return Swept{}, nil },
	}}
	root := a.root()
	var b bytes.Buffer
	b.WriteString(intro)
	for _, g := range root.Groups() {
		fmt.Fprintf(&b, "\n## %s\n", strings.TrimSuffix(g.Title, ":"))
		for _, c := range root.Commands() {
			if c.GroupID == g.ID && c.IsAvailableCommand() {
				describe(&b, c, "###")
			}
		}
	}
	return b.Bytes()
}

func describe(b *bytes.Buffer, c *cobra.Command, level string) {
	fmt.Fprintf(b, "\n%s `%s`\n\n", level, strings.TrimSuffix(c.UseLine(), " [flags]"))
	long := c.Short + "."
	if c.Long != "" {
		long = c.Long
	}
	b.WriteString(long + "\n")
	if c.Example != "" {
		fmt.Fprintf(b, "\n```sh\n%s\n```\n", strings.ReplaceAll(strings.TrimPrefix(c.Example, "  "), "\n  ", "\n"))
	}
	if f := c.NonInheritedFlags(); f.HasAvailableFlags() {
		b.WriteString("\n| flag | meaning |\n|---|---|\n")
		f.VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && f.Name != "help" {
				flagRow(b, f)
			}
		})
	}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			describe(b, sub, level+"#")
		}
	}
}

func flagRow(b *bytes.Buffer, f *pflag.Flag) {
	name := "`--" + f.Name + "`"
	if f.Shorthand != "" {
		name = "`-" + f.Shorthand + "`, " + name
	}
	meaning := strings.ReplaceAll(f.Usage, "|", `\|`)
	switch f.DefValue {
	case "", "0", "false", "[]":
	default:
		meaning += " (default `" + strings.Trim(f.DefValue, "[]") + "`)"
	}
	fmt.Fprintf(b, "| %s | %s |\n", name, meaning)
}
