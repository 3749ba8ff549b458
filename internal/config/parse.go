package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/nearest"
	"gpubroker/internal/quantity"
	"gpubroker/internal/scenario"
	"gpubroker/internal/secret"
	"gpubroker/internal/yamlfile"
)

// Read reads the file at path; see [Parse].
func Read(path string, types []string) (*Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	return Parse(path, text, types)
}

// Parse reads a configuration. name is how errors call the file; types are the
// provider types that the program has, nil for any. The error is an [Errors]
// with all faults.
func Parse(name string, text []byte, types []string) (*Config, error) {
	d := yamlfile.Parse(name, text)
	var c Config
	d.Decode(&c)
	if d.Root != nil && d.Root.Kind == yamlfile.Map {
		// Whether a value was given counts before defaults fill the others.
		k := checker{Doc: d, config: &c}
		k.address()
		k.store()
		k.times()
		c.fill()
		k.names(types)
		k.budgets()
		k.bounds()
		k.ages()
		k.scenarios()
	}
	if err := d.Err(); err != nil {
		return nil, err
	}
	return &c, nil
}

// Database is the URL of the store. Its password has a key of its own.
type Database string

// Sensitive keeps a password that was written into the URL out of errors.
func (Database) Sensitive() {}

// UnmarshalText reads sqlite:PATH, a plain path, or postgres://….
func (s *Database) UnmarshalText(b []byte) error {
	text := string(b)
	scheme, _, hasScheme := strings.Cut(text, "://")
	switch {
	case text == "":
		return &yamlfile.Problem{Message: "expected a database", Hint: "write sqlite:PATH or postgres://user@host/database"}
	case !hasScheme:
	case scheme == "postgres" || scheme == "postgresql":
		u, err := url.Parse(text)
		if err != nil || u.Host == "" && u.Query().Get("host") == "" {
			return &yamlfile.Problem{Message: "this is no URL of a database", Hint: "write postgres://user@host/database"}
		}
		if _, has := u.User.Password(); has || u.Query().Has("password") {
			return &yamlfile.Problem{Message: "a password does not stand in the file", Hint: "write postgres://user@host/database, and store_password: env:NAME (and change the password)"}
		}
	case scheme != "sqlite":
		return &yamlfile.Problem{Message: fmt.Sprintf("there is no store of the kind %q", scheme), Hint: "write sqlite:PATH or postgres://user@host/database"}
	}
	*s = Database(text)
	return nil
}

// MarshalText writes the URL.
func (s Database) MarshalText() ([]byte, error) { return []byte(s), nil }

// secretKey finds settings whose value has to be a reference.
var secretKey = regexp.MustCompile(`(?i)(^|_)(token|secret|password|passphrase|credential|api_?key|access_key|secret_key|private_key)$`)

// DecodeYAML keeps the account's settings as JSON.
func (s *Settings) DecodeYAML(c yamlfile.Cursor) {
	if c.Node.Kind != yamlfile.Map {
		c.Errorf("", "expected a mapping, found %s", c.Node.Kind)
		return
	}
	var b bytes.Buffer
	writeJSON(&b, c)
	s.JSON = b.Bytes()
}

func writeJSON(b *bytes.Buffer, c yamlfile.Cursor) {
	n := c.Node
	put := func(v any) {
		if text, err := json.Marshal(v); err != nil {
			c.Errorf("", "cannot be written as JSON: %v", err)
		} else {
			b.Write(text)
		}
	}
	switch n.Kind {
	case yamlfile.Map:
		b.WriteByte('{')
		for i, e := range n.Entries {
			if i > 0 {
				b.WriteByte(',')
			}
			put(e.Key)
			b.WriteByte(':')
			value := c.Value(e)
			if secretKey.MatchString(e.Key) && value.Node.Kind == yamlfile.Scalar {
				var ref secret.Ref
				if err := ref.UnmarshalText([]byte(value.Node.Text)); err != nil {
					value.Hide()
					if p, ok := errors.AsType[*yamlfile.Problem](err); ok {
						value.Errorf(p.Hint, "%s", p.Message)
					}
					b.WriteString(`""`)
					continue
				}
			}
			writeJSON(b, value)
		}
		b.WriteByte('}')
	case yamlfile.List:
		b.WriteByte('[')
		for i := range n.Items {
			if i > 0 {
				b.WriteByte(',')
			}
			writeJSON(b, c.Item(i))
		}
		b.WriteByte(']')
	case yamlfile.Scalar:
		if !n.Quoted && (n.Text == "true" || n.Text == "false" || json.Valid([]byte(n.Text)) && strings.ContainsAny(n.Text, "0123456789") && n.Text[0] != '"') {
			b.WriteString(n.Text)
		} else {
			put(n.Text)
		}
	default:
		b.WriteString("null")
	}
}

// JSONSchema says that settings may hold anything.
func (Settings) JSONSchema() map[string]any { return map[string]any{"type": "object"} }

// checker holds the rules over several values.
type checker struct {
	*yamlfile.Doc
	config *Config
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

func (k checker) address() {
	c := k.config
	listen := cmp.Or(c.Listen, "127.0.0.1:0")
	host, port, err := net.SplitHostPort(listen)
	switch {
	case k.Faulty("listen"):
	case err != nil || port == "":
		k.Errorf("listen", `write for example "127.0.0.1:7743" or "[::]:7743"`, "expected an address with a port, found %q", listen)
	case !loopback(host) && c.TLS == nil && !k.Faulty("tls") && !c.Insecure:
		k.Errorf("listen", "add tls: {names: [broker.example.org]} for the broker's own certificate, or listen on 127.0.0.1", "%q is reached by other machines, which needs tls (or, knowingly, insecure: true)", listen)
	}
	if c.TLS != nil {
		if (c.TLS.Cert == "") != (c.TLS.Key == "") {
			k.Errorf("tls", "or leave out both, and the broker makes its own", "cert and key go together")
		}
		if c.Insecure {
			k.Errorf("insecure", "", "tls and insecure exclude each other")
		}
	}
	if c.PublicURL != "" {
		u, err := url.Parse(c.PublicURL)
		switch {
		case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
			k.Errorf("public_url", "write for example https://broker.example.org:7743", "expected a URL, found %q", c.PublicURL)
		case u.Scheme == "http" && !c.Insecure && !loopback(u.Hostname()):
			k.Errorf("public_url", "write https:// and add tls, or, knowingly, insecure: true", "machines would reach the broker without TLS")
		}
	}
	if c.Currency != "" && !regexp.MustCompile(`^[A-Z]{3}$`).MatchString(string(c.Currency)) {
		k.Errorf("currency", "", "expected three capitals such as USD, found %q", c.Currency)
	}
	if c.Owner != "" && !nameForm.MatchString(c.Owner) {
		k.Errorf("owner", "letters, digits and hyphens, since it becomes a tag at every provider", "expected a name, found %q", c.Owner)
	}
}

func (k checker) store() {
	c := k.config
	if !c.StorePass.IsZero() && !strings.HasPrefix(string(c.Store), "postgres") && !k.Faulty("store") {
		k.Errorf("store_password", "", "only a PostgreSQL store has a password")
	}
	o := c.Objects
	scheme, rest, isURL := strings.Cut(o.URL, "://")
	if !isURL {
		scheme = "file"
	}
	bucket := slices.Contains([]string{"s3", "gs", "azblob"}, scheme)
	switch {
	case !bucket && scheme != "file":
		k.Errorf("objects.url", "write a folder, s3://bucket/prefix, gs://bucket/prefix or azblob://container/prefix", "there is no object store of the kind %q", scheme)
	case bucket && strings.Trim(rest, "/") == "":
		k.Errorf("objects.url", "write "+scheme+"://bucket/prefix", "the bucket is missing")
	}
	for _, x := range []struct {
		path  string
		given bool
	}{{"path_style", o.PathStyle}, {"access_key", !o.AccessKey.IsZero()}, {"secret_key", !o.SecretKey.IsZero()}} {
		if x.given && scheme != "s3" && !k.Faulty("objects.url") {
			k.Errorf("objects."+x.path, "leave it out, or set objects.url to s3://bucket/prefix", "only an S3 store has this")
		}
	}
	if o.Region != "" && !bucket && !k.Faulty("objects.url") {
		k.Errorf("objects.region", "leave it out, or set objects.url to a bucket", "a folder is in no region")
	}
	if o.Endpoint != "" && !bucket && !k.Faulty("objects.url") {
		k.Errorf("objects.endpoint", "leave it out, or set objects.url to a bucket", "a folder has no endpoint")
	}
	if !o.AccountKey.IsZero() && o.Account == "" {
		k.Errorf("objects.account_key", "name the storage account in objects.account", "there is no account that this is the key of")
	}
	if o.AccessKey.IsZero() != o.SecretKey.IsZero() && !k.Faulty("objects") {
		k.Errorf("objects", "", "access_key and secret_key go together")
	}
	if u, err := url.Parse(o.Endpoint); o.Endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		k.Errorf("objects.endpoint", "write for example https://s3.example.org", "expected a URL, found %q", o.Endpoint)
	}
}

// times refuses durations that would hurt: leases that end while a machine
// boots, looks that come faster than providers answer.
func (k checker) times() {
	between := func(path string, d, least, most time.Duration) {
		if k.Has(path) && !k.Faulty(path) && (d < least || d > most) {
			k.Errorf(path, "", "expected between %s and %s, found %s", short(least), short(most), short(d))
		}
	}
	c := k.config
	between("leases.length", c.Leases.Length.Std(), time.Minute, 24*time.Hour)
	between("leases.idle", c.Leases.Idle.Std(), time.Second, 24*time.Hour)
	between("intervals.offers", c.Intervals.Offers.Std(), time.Second, time.Hour)
	between("stale.spot", c.Stale.Spot.Std(), time.Minute, 30*24*time.Hour)
	between("stale.on_demand", c.Stale.OnDemand.Std(), time.Minute, 30*24*time.Hour)
	between("intervals.observe", c.Intervals.Observe.Std(), time.Second, 10*time.Minute)
	between("intervals.sweep", c.Intervals.Sweep.Std(), 10*time.Second, time.Hour)
	between("fair_share.window", c.FairShare.Window.Std(), time.Hour, 90*24*time.Hour)
	for i, p := range c.Projects {
		between(fmt.Sprintf("projects[%d].lease", i), p.Lease.Std(), time.Minute, 24*time.Hour)
	}
}

func short(d time.Duration) string { return quantity.Duration(d).String() }

var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// names checks that names are well formed, given once, and known where they are
// used.
func (k checker) names(types []string) {
	c := k.config
	unique := func(list string, n int, name func(int) string) []string {
		var seen []string
		for i := range n {
			at := fmt.Sprintf("%s[%d].name", list, i)
			switch s := name(i); {
			case k.Faulty(at):
			case !nameForm.MatchString(s):
				k.Errorf(at, "letters, digits, dots, hyphens and underscores, at most 63", "expected a name, found %q", s)
			case slices.Contains(seen, s):
				k.Errorf(at, "", "%q is given twice", s)
			default:
				seen = append(seen, s)
			}
		}
		return seen
	}
	unique("providers", len(c.Providers), func(i int) string { return c.Providers[i].Name })
	unique("queues", len(c.Queues), func(i int) string { return c.Queues[i].Name })
	unique("budgets", len(c.Budgets), func(i int) string { return c.Budgets[i].Name })
	projects := unique("projects", len(c.Projects), func(i int) string { return c.Projects[i].Name })
	known := func(at, name string) {
		if len(projects) > 0 && !slices.Contains(projects, name) {
			k.Errorf(at, cmp.Or(nearest.Hint(name, projects), "projects: "+strings.Join(projects, ", ")), "there is no project %q", name)
		}
	}
	for i, p := range c.Providers {
		at := fmt.Sprintf("providers[%d]", i)
		if types != nil && !slices.Contains(types, p.Type) && !k.Faulty(at+".type") {
			k.Errorf(at+".type", cmp.Or(nearest.Hint(p.Type, types), "known: "+strings.Join(types, ", ")), "there is no provider of the type %q", p.Type)
		}
		for n, name := range p.Projects {
			known(fmt.Sprintf("%s.projects[%d]", at, n), name)
		}
		k.prices(at, &p)
	}
	for i, q := range c.Queues {
		at := fmt.Sprintf("queues[%d]", i)
		for n, name := range q.Projects {
			known(fmt.Sprintf("%s.projects[%d]", at, n), name)
		}
		if q.Window != nil && !k.Faulty(at+".window") {
			if p, ok := errors.AsType[*yamlfile.Problem](q.Window.Validate()); ok {
				k.Errorf(at+".window", p.Hint, "%s", p.Message)
			}
		}
		if d := q.Deadline; d != nil && !k.Faulty(at+".deadline") && d.NeedsZone() && q.Window == nil {
			k.Errorf(at+".deadline", fmt.Sprintf("write for example %q", d.String()+" UTC"), "this time of day needs a time zone, since the queue has no window")
		}
	}
	for i, b := range c.Budgets {
		at := fmt.Sprintf("budgets[%d].match", i)
		switch {
		case k.Faulty(at) || k.Faulty(fmt.Sprintf("budgets[%d].scope", i)):
		case b.Scope == budget.Org && b.Match != "":
			k.Errorf(at, "leave it out, or set scope to team, project or job", "a budget of the whole org matches everything")
		case b.Scope != budget.Org && b.Match == "":
			k.Errorf(at, "", "say which %s the budget is for", b.Scope)
		case b.Scope == budget.Project:
			known(at, b.Match)
		case b.Scope == budget.Team:
			var teams []string
			for _, p := range c.Projects {
				teams = append(teams, p.Team)
			}
			if !slices.Contains(teams, b.Match) {
				k.Errorf(at, nearest.Hint(b.Match, teams), "no project belongs to a team %q", b.Match)
			}
		}
	}
}

func (k checker) scenarios() {
	scenario.Builtin().With(k.config.Scenarios, func(i int, key, hint, format string, args ...any) {
		at := fmt.Sprintf("scenarios[%d]", i)
		none := k.config.Scenarios[i].Name == "" && k.Faulty(at) // it is told already that this is no scenario
		if key = at + "." + key; !none && !k.Faulty(key) {
			k.Errorf(key, hint, format, args...)
		}
	})
}

func (k checker) budgets() {
	for i, b := range k.config.Budgets {
		at := fmt.Sprintf("budgets[%d]", i)
		if b.Cap.Currency != k.config.Currency && !k.Faulty(at+".cap") && !k.Faulty("currency") {
			k.Errorf(at+".cap", "", "the ledger is in %s, found %s", k.config.Currency, b.Cap)
		}
		if k.Faulty(at + ".period") {
			continue
		}
		if err := b.Rule().Period.Validate(); err != nil && !k.Faulty(at+".anchor") && !k.Faulty(at+".timezone") {
			k.Errorf(at+".anchor", "week: 1 (Monday) to 7, month: 1 to 31", "anchor %d does not fit a period of one %s", b.Anchor, b.Period)
		}
		if b.Period != budget.Total && b.Timezone.IsZero() && !k.Faulty(at+".timezone") {
			k.Errorf(at, "add timezone: UTC, or the zone of your accounts", "where does a %s begin? timezone is missing", b.Period)
		}
		if b.Name == budget.Ledger {
			k.Errorf(at+".name", "", "%q is the name of the ledger itself", b.Name)
		}
	}
}
