package cli

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gpubroker/internal/api"
	"gpubroker/internal/api/client"
	"gpubroker/internal/certs"
	"gpubroker/internal/config"
	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/dialects"
)

// defaultConfig is read when there is such a file and no other is named.
const defaultConfig = "gpubroker.yaml"

func configFile(named string) string {
	if named != "" {
		return named
	}
	if _, err := os.Stat(defaultConfig); err == nil {
		return defaultConfig
	}
	return ""
}

// noProviders is said to who serves without a configuration.
const noProviders = `no configuration: nothing can be rented. To try with the simulated cloud, run
    SIMCLOUD_TOKEN=secret gpubroker simcloud
and put into ` + defaultConfig + `, then run SIMCLOUD_TOKEN=secret gpubroker serve again:
    providers:
      - {name: sim, type: simcloud, settings: {endpoint: "http://127.0.0.1:8700", token: env:SIMCLOUD_TOKEN}}
or see it all at work with gpubroker demo.
`

func (a *app) serve() *cobra.Command {
	var o ServeOptions
	var check bool
	cmd := &cobra.Command{
		Use: "serve", Short: "Run a broker",
		Long: "Run a broker until it is interrupted. It leaves client.json in its data folder, from which the other\n" +
			"commands on this machine know it.",
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Config = configFile(o.Config)
			if check {
				if o.Config == "" {
					return usage("--check needs a configuration: --config FILE")
				}
				if _, err := config.Read(o.Config, a.ProviderTypes); err != nil {
					return err
				}
				if a.Check != nil {
					if err := a.Check(cmd.Context(), o.Config); err != nil {
						return &exit{ExitUsage, err}
					}
				}
				if done, err := a.json(map[string]any{"valid": true, "file": o.Config}); done {
					return err
				}
				return a.look.printf("%s: valid\n", o.Config)
			}
			if o.Config == "" {
				fmt.Fprint(a.Err, noProviders)
			}
			return a.Serve(cmd.Context(), o)
		},
	}
	cmd.Flags().StringVarP(&o.Config, "config", "c", "", "configuration; default: "+defaultConfig+" if it is there, else all defaults")
	cmd.Flags().StringVar(&o.Agents, "agents", "", "folder with the agent programs; default: the one of this program")
	cmd.Flags().BoolVar(&check, "check", false, "only check the configuration and the settings and credentials it names; nobody is asked")
	return cmd
}

func (a *app) demo() *cobra.Command {
	var o DemoOptions
	cmd := &cobra.Command{
		Use: "demo", Short: "Show a night of real work on a simulated cloud", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.JSON, o.Out, o.Err = a.format == "json", a.Out, a.Err
			return a.Demo(cmd.Context(), o)
		},
	}
	cmd.Flags().BoolVar(&o.Keep, "keep", false, "leave everything running and say how to look at it")
	cmd.Flags().BoolVar(&o.Short, "short", false, "a third of the work")
	return cmd
}

func (a *app) simcloud() *cobra.Command {
	var file, listen, image, as, secure string
	var seed uint64
	cmd := &cobra.Command{
		Use: "simcloud", Short: "Run a simulated cloud, which fights back",
		Long: "Run a simulated cloud: offers, moving prices, quotas, preemptions and faults, and machines that are\n" +
			"real processes. Its token comes from SIMCLOUD_TOKEN, or from the configuration.",
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg := simcloud.Default(seed)
			var dialect *simcloud.Dialect
			if as != "" {
				known := dialects.All()
				d, ok := known[as]
				if !ok {
					return usage("--as %s: simcloud speaks as %s", as, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
				}
				cfg, dialect = d.Default(seed), d.Dialect()
			}
			if file != "" {
				var err error
				if cfg, err = simcloud.Load(file); err != nil {
					return &exit{ExitUsage, err}
				}
				if cmd.Flags().Changed("seed") {
					cfg.Seed = seed
				}
			}
			cfg.Dialect = dialect
			if t := env("SIMCLOUD_TOKEN"); t != "" {
				cfg.Tokens.API = t
			}
			if image != "" {
				cfg.Machines.AgentImage = image
			}
			if cfg.Tokens.API == "" {
				return usage("the cloud needs a token: set SIMCLOUD_TOKEN, the same that the broker's provider names")
			}
			l, err := net.Listen("tcp", listen)
			if err != nil {
				return fmt.Errorf("listen on %s: %w; --listen names another address", listen, err)
			}
			var certificate *tls.Config
			if secure != "" {
				if certificate, err = ownCertificate(secure); err != nil {
					return err
				}
			}
			return simcloud.Serve(cmd.Context(), cfg, l, certificate, slog.New(slog.NewTextHandler(a.Err, nil)))
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "config", "c", "", "description of the world (YAML or JSON); default: a built-in one")
	f.StringVar(&listen, "listen", "127.0.0.1:8700", "address of its API")
	f.StringVar(&image, "agent-image", "", "agent program that its machines hold, as if in their image")
	f.Uint64Var(&seed, "seed", 1, "of all that is random")
	f.StringVar(&as, "as", "", "speak as another cloud, with its API and its machines' metadata: "+strings.Join(slices.Sorted(maps.Keys(dialects.All())), ", "))
	f.StringVar(&secure, "tls", "", "serve TLS; an authority of its own is kept in this folder, ca.pem to be trusted")
	return cmd
}

// ownCertificate is a certificate for this machine by an authority in a folder.
func ownCertificate(dir string) (*tls.Config, error) {
	authority, err := certs.Open(dir)
	if err != nil {
		return nil, err
	}
	pair, err := authority.Server([]string{"127.0.0.1", "::1", "localhost"})
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}, nil
}

func (a *app) sweep() *cobra.Command {
	var o SweepOptions
	cmd := &cobra.Command{
		Use: "sweep", Short: "List our machines at the providers, without a broker",
		Long: "List the machines that bear this configuration's owner at every provider, without a broker and its\n" +
			"store. With --expired only those past their delete-at: nobody extends them any more. --end ends these.",
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.End && !o.Expired {
				return usage("--end goes with --expired: machines that a broker still wants are not ended here")
			}
			o.Config = configFile(o.Config)
			defer a.slow("reading the providers' lists")()
			out, err := a.Sweep(cmd.Context(), o)
			if err != nil {
				return err
			}
			if out.Machines == nil {
				out.Machines = []SweptMachine{}
			}
			if done, err := a.json(out); done {
				return errors.Join(err, swept(out))
			}
			return errors.Join(a.printSwept(out, o), swept(out))
		},
	}
	cmd.Flags().StringVarP(&o.Config, "config", "c", "", "configuration; default: "+defaultConfig+" if it is there")
	cmd.Flags().BoolVar(&o.Expired, "expired", false, "only machines past their delete-at")
	cmd.Flags().BoolVar(&o.End, "end", false, "and end them")
	return cmd
}

// swept fails when a list could not be read or a machine not be ended: what was
// seen is then not all.
func swept(s Swept) error {
	for _, m := range s.Machines {
		if m.Error != "" {
			return &exit{code: ExitFailed}
		}
	}
	if len(s.Unread) > 0 {
		return &exit{code: ExitFailed}
	}
	return nil
}

func (a *app) printSwept(s Swept, o SweepOptions) error {
	for _, name := range sorted(s.Unread) {
		fmt.Fprintf(a.Err, "provider %s could not be read: %s\n", name, s.Unread[name])
	}
	if len(s.Machines) == 0 {
		return a.look.printf("no machines%s\n", map[bool]string{true: " past their delete-at"}[o.Expired])
	}
	t := table{head: []string{"PROVIDER", "CLOUD ID", "MACHINE", "TYPE", "LAUNCHED", "DELETE AT", "NOTE"}, flexible: []int{6, 1, 3}}
	for _, m := range s.Machines {
		note := ""
		switch {
		case m.Error != "":
			note = m.Error
		case m.Ended:
			note = "asked to end"
		case m.Expired:
			note = "expired"
		}
		t.row(m.Market.Provider, m.Ref.ID, m.Tags.Request, m.Market.Type, a.look.age(m.Launched), a.look.age(m.Tags.DeleteAt), note)
	}
	return a.look.printf("%s", t.String())
}

func (a *app) adopt() *cobra.Command {
	return &cobra.Command{
		Use: "adopt", Short: "Make a restored or copied store the broker's own",
		Long: "After a store was restored or copied its broker only reports: another may still be using the original.\n" +
			"When that is certain not to be so, adopt gives the store a new generation. Restart the broker then.",
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.broker()
			if err != nil {
				return err
			}
			m, err := c.Adopt(cmd.Context())
			if err != nil {
				return away(err)
			}
			if done, err := a.json(m); done {
				return err
			}
			return a.look.printf("the store is this broker's own, generation %s; restart the broker now\n", m.Generation)
		},
	}
}

func (a *app) version() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Say which version this is, and the broker's", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := struct {
				Version string `json:"version"`
				Go      string `json:"go"`
				OS      string `json:"os"`
				Arch    string `json:"arch"`
				Broker  string `json:"broker,omitempty"`
			}{Version: a.Version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
			if c, err := a.broker(); err == nil {
				if h, err := c.Health(cmd.Context()); err == nil {
					v.Broker = h.Version
				}
			}
			if done, err := a.json(v); done {
				return err
			}
			text := fmt.Sprintf("gpubroker %s %s %s/%s\n", v.Version, v.Go, v.OS, v.Arch)
			if v.Broker != "" {
				text += "broker    " + v.Broker + "\n"
			}
			return a.look.printf("%s", text)
		},
	}
}

func (a *app) token() *cobra.Command {
	cmd := &cobra.Command{
		Use: "token", Short: "Make, list and revoke tokens",
		Args: func(cmd *cobra.Command, args []string) error { return unknownCommand(cmd, args) },
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.createToken(), a.listTokens(), a.revokeToken())
	return cmd
}

func (a *app) createToken() *cobra.Command {
	var role string
	var r api.TokenRequest
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Make a token; it is shown once", Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			r.Name, r.Role = args[0], api.Role(role)
			var roles []string
			for _, x := range api.Roles() {
				roles = append(roles, string(x))
			}
			if !slices.Contains(roles, role) {
				return usage("--role %q: expected one of %s", role, strings.Join(roles, ", "))
			}
			c, err := a.broker()
			if err != nil {
				return err
			}
			t, err := c.CreateToken(cmd.Context(), r)
			if err != nil {
				return away(err)
			}
			if done, err := a.json(t); done {
				return err
			}
			fmt.Fprintf(a.Err, "token %s for %s; it is not shown again\n", t.ID, t.Name)
			return a.look.printf("%s\n", t.Text)
		},
	}
	f := cmd.Flags()
	f.StringVar(&role, "role", string(api.Submit), "what it may do: admin, submit, finance, view, host")
	f.StringSliceVar(&r.Projects, "project", nil, "only for these projects; default: all")
	f.IntVar(&r.Days, "days", 0, "until it expires; 0 means never")
	return cmd
}

func (a *app) listTokens() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List tokens without their secrets", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.broker()
			if err != nil {
				return err
			}
			out, err := c.Tokens(cmd.Context())
			if err != nil {
				return away(err)
			}
			if done, err := a.json(out); done {
				return err
			}
			t := table{head: []string{"TOKEN", "NAME", "ROLE", "PROJECTS", "MADE", "STATE"}, flexible: []int{1, 3}}
			for _, x := range out.Tokens {
				t.row(x.ID, x.Name, string(x.Role), orAll(x.Projects), a.look.age(x.Created), a.tokenState(x))
			}
			return a.look.printf("%s", t.String())
		},
	}
}

func orAll(list []string) string {
	if len(list) == 0 {
		return "all"
	}
	return strings.Join(list, ",")
}

func (a *app) tokenState(t api.Token) string {
	switch {
	case t.Revoked != nil:
		return styleBad.Render("revoked " + a.look.age(*t.Revoked))
	case t.Expires == nil:
		return "good"
	case t.Expires.Before(a.Now()):
		return styleBad.Render("expired " + a.look.age(*t.Expires))
	}
	return "good, expires " + a.look.age(*t.Expires)
}

func (a *app) revokeToken() *cobra.Command {
	return &cobra.Command{
		Use: "revoke TOKEN", Short: "End a token, by its id", Args: exactly("TOKEN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.broker()
			if err != nil {
				return err
			}
			t, err := c.RevokeToken(cmd.Context(), args[0])
			if client.Is(err, 404) {
				return fmt.Errorf("%w; gpubroker token list lists them", err)
			}
			if err != nil {
				return away(err)
			}
			if done, err := a.json(t); done {
				return err
			}
			return a.look.printf("token %s (%s) is revoked\n", t.ID, t.Name)
		},
	}
}
