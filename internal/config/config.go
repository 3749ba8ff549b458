// Package config reads the broker's configuration: one strict YAML file, with
// the same errors as a job spec. config.example.yaml documents every key.
//
// [Parse] returns a configuration that is whole and valid: defaults are filled
// in and names that refer to each other exist. Secrets stand in it by reference
// and are read by whoever uses them. What only an adapter can know (the settings
// of an account) is handed on as it is.
package config

import (
	"encoding/json"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/money"
	"gpubroker/internal/quantity"
	"gpubroker/internal/scenario"
	"gpubroker/internal/secret"
	"gpubroker/internal/window"
	"gpubroker/internal/yamlfile"
)

// Errors are all faults of a configuration.
type Errors = yamlfile.Errors

// Config is the broker's configuration.
type Config struct {
	Owner     string         `json:"owner" doc:"name of this broker; every machine that it rents bears it"`
	DataDir   string         `json:"data_dir" doc:"folder for keys, certificates and, by default, the store"`
	Listen    string         `json:"listen" doc:"address of API, page and agents"`
	PublicURL string         `json:"public_url" doc:"URL under which rented machines reach the broker"`
	TLS       *TLS           `json:"tls" doc:"certificate; needed on any address but the own machine's"`
	Insecure  bool           `json:"insecure" doc:"serve other machines without TLS; everybody on the way can read and command"`
	Store     Database       `json:"store" doc:"sqlite:PATH, or postgres://user@host/database"`
	StorePass secret.Ref     `json:"store_password" doc:"password of the database"`
	Objects   Objects        `json:"objects" doc:"where checkpoints, working directories and logs are kept"`
	Currency  money.Currency `json:"currency" doc:"the ledger's only currency"`
	Providers []Provider     `json:"providers" doc:"accounts at clouds and marketplaces"`
	Projects  []Project      `json:"projects" doc:"who machines are rented for"`
	Queues    []Queue        `json:"queues" doc:"named defaults and limits that jobs are submitted to"`
	Budgets   []Budget       `json:"budgets" doc:"caps on money; all that match hold together"`
	// Scenarios are the owner's own: [Config.Kinds] has the built-in ones too.
	Scenarios []scenario.Profile `json:"scenarios" doc:"kinds of work beside those built in, by the same keys"`
	Locations []Location         `json:"locations" doc:"places that jobs may read inputs from and write outputs to; admins' jobs may name any"`
	Secrets   []secret.Ref       `json:"secrets" doc:"references that job specs may use for their own secrets; none without it"`
	Stale     Stale              `json:"stale" doc:"from what age on a price is not used"`
	FairShare FairShare          `json:"fair_share" doc:"how turns are shared among projects"`
	Leases    Leases             `json:"leases" doc:"how long machines may live without a word from the broker"`
	Limits    Bounds             `json:"limits" doc:"bounds that protect accounts and the broker"`
	Intervals Intervals          `json:"intervals" doc:"how often the broker looks"`
	Log       Log                `json:"log" doc:"the broker's own log"`
}

// RefusedKeys explains keys that people know from elsewhere.
func (Config) RefusedKeys() map[string]string {
	return map[string]string{
		"database":  "write store",
		"bind":      "write listen",
		"port":      "the port stands in listen: \"127.0.0.1:7743\"",
		"clouds":    "write providers",
		"token":     "tokens are made with gpubroker token, not configured",
		"passwords": "secrets are references (env:NAME, file:/path) where they are used",
	}
}

// TLS is the broker's certificate. Without Cert and Key the broker makes its
// own authority, which machines are given when they are launched.
type TLS struct {
	Cert  string   `json:"cert" doc:"certificate file (PEM); without it the broker's own authority signs one"`
	Key   string   `json:"key" doc:"its key file (PEM)"`
	Names []string `json:"names" single:"true" doc:"further names and addresses for the broker's own certificate"`
}

// Objects is where files are kept: a folder, or a bucket of an S3 store, Google
// Cloud Storage or Azure Blob Storage. Its keys serve the locations that jobs name
// as well.
type Objects struct {
	URL         string     `json:"url" doc:"a folder, s3://bucket/prefix, gs://bucket/prefix or azblob://container/prefix"`
	Endpoint    string     `json:"endpoint" doc:"URL of the store where it is not the cloud's usual one: an S3 store that is not AWS, an emulator"`
	Region      string     `json:"region" doc:"region of the bucket: S3 needs it, and what leaves it costs by it"`
	PathStyle   bool       `json:"path_style" doc:"address S3 buckets by path, as most stores other than AWS want"`
	AccessKey   secret.Ref `json:"access_key" doc:"of an S3 store; without it the standard credential chain is used"`
	SecretKey   secret.Ref `json:"secret_key" doc:"goes with access_key"`
	Credentials secret.Ref `json:"credentials" doc:"a service account's key file for gs://; without it Google's credential chain is used"`
	Account     string     `json:"account" doc:"storage account of azblob://"`
	AccountKey  secret.Ref `json:"account_key" doc:"shared key of account; without it Azure's credential chain is used"`
}

// Location is a place that jobs may name.
type Location struct {
	Prefix   string   `json:"prefix" required:"true" doc:"a folder of the broker's machine, or s3://bucket/prefix, gs://… or azblob://…"`
	Projects []string `json:"projects" single:"true" doc:"only jobs of these projects; default: all"`
	Cloud    string   `json:"cloud" enum:"aws,gcp,azure,lambda,runpod,verda,vast,on-premises" doc:"whose network it is on, for what moving its bytes costs; default: that of its kind of store"`
	Region   string   `json:"region" doc:"where it lies; default: objects.region for buckets of that kind"`
}

// Provider is a named account.
type Provider struct {
	Name          string       `json:"name" required:"true" doc:"what people call it"`
	Type          string       `json:"type" required:"true" doc:"kind of provider: simcloud, hosts, …"`
	Projects      []string     `json:"projects" single:"true" doc:"only these projects may use it; default: all"`
	AllowGuestEnd bool         `json:"allow_guest_end" doc:"use it although nothing at the provider ends a machine that the broker has lost"`
	Limits        Limits       `json:"limits" doc:"what may be in use at once there; default: the account's quotas"`
	Discounts     []Discount   `json:"discounts" doc:"what the account pays less than the provider's prices; the first that fits counts"`
	Commitments   []Commitment `json:"commitments" doc:"machines that are paid for already, used or not"`
	Settings      Settings     `json:"settings" doc:"what the provider's type asks for"`
}

// Discount is a part of a price that the account does not pay.
type Discount struct {
	Percent Percent  `json:"percent" required:"true" doc:"of the price, such as 12%"`
	Kinds   []string `json:"kinds" single:"true" enum:"spot,on-demand" doc:"kinds of machines that it holds for; default: both"`
	Types   []string `json:"types" single:"true" doc:"instance types that it holds for, * stands for any letters; default: all"`
}

// Commitment is capacity that is paid for by the hour, used or not.
type Commitment struct {
	Type     string         `json:"type" required:"true" doc:"instance type"`
	Machines int            `json:"machines" required:"true" min:"1" max:"100000" doc:"how many"`
	Region   string         `json:"region" doc:"where; default: anywhere"`
	Zone     string         `json:"zone" doc:"where in the region; default: anywhere"`
	Kind     string         `json:"kind" enum:"spot,on-demand" doc:"kind of machines"`
	Sunk     quantity.Money `json:"sunk" doc:"what each of them costs per hour, used or not; shown beside the price"`
	Until    Day            `json:"until" doc:"its last day (UTC); default: no end"`
}

// Stale is from what age on a price is not used.
type Stale struct {
	Spot     quantity.Duration `json:"spot" doc:"price of a spot machine"`
	OnDemand quantity.Duration `json:"on_demand" doc:"price of an on-demand machine"`
}

// Settings is an account's own part, as JSON. The adapter reads and checks it.
type Settings struct{ JSON json.RawMessage }

// RefusedKeys explains keys of older files.
func (Provider) RefusedKeys() map[string]string {
	return map[string]string{"max_machines": "write limits: {machines: …}"}
}

// Project is who machines are rented for.
type Project struct {
	Name   string            `json:"name" required:"true" doc:"what jobs name in project:"`
	Team   string            `json:"team" doc:"team whose budgets pay too"`
	Lease  quantity.Duration `json:"lease" doc:"length of its leases; default: leases.length"`
	Share  int               `json:"share" min:"1" max:"1000" doc:"its part of the money, against the parts of other projects; default 1"`
	Limits Limits            `json:"limits" doc:"what may be in use at once; default: no limit but limits.running_per_project"`
	Rules  Rules             `json:"rules" doc:"what its jobs may rent, whatever they ask for"`
}

// RefusedKeys explains keys of older files.
func (Project) RefusedKeys() map[string]string {
	return map[string]string{"max_running": "write limits: {tasks: …}"}
}

// Limits bound what is in use at once. What is not given is not limited.
type Limits struct {
	Tasks    int             `json:"tasks" min:"1" max:"1000000" doc:"tasks that run"`
	Machines int             `json:"machines" min:"1" max:"1000000" doc:"machines, from the wish for one until its provider says that it is gone"`
	GPUs     int             `json:"gpus" min:"1" max:"1000000" doc:"GPUs of those machines"`
	PerHour  *quantity.Money `json:"per_hour" doc:"what those machines may cost per hour in all, by the prices that they are bound to"`
}

// Rules are what jobs may rent. A job cannot override them; what is not given
// allows all.
type Rules struct {
	MaxPrice  *quantity.Money `json:"max_price" doc:"most that a machine may cost per hour"`
	GPU       []string        `json:"gpu" single:"true" doc:"only these GPUs, by id, family or common name; machines without a GPU are not meant"`
	Kinds     []string        `json:"kinds" single:"true" enum:"spot,on-demand" doc:"only these kinds of machines"`
	Providers []string        `json:"providers" single:"true" doc:"only at these providers"`
	Regions   []string        `json:"regions" single:"true" doc:"only in these regions"`
}

// FairShare says how turns are shared among projects.
type FairShare struct {
	Window quantity.Duration `json:"window" doc:"how far back a project's money counts against its turn"`
}

// Queue is a named set of defaults and limits.
type Queue struct {
	Name     string           `json:"name" required:"true" doc:"what jobs name in queue:"`
	Window   *window.Window   `json:"window" doc:"hours in which its tasks run"`
	Deadline *window.Deadline `json:"deadline" doc:"deadline of jobs that name none"`
	Priority *int             `json:"priority" min:"0" max:"100" doc:"priority of jobs that name none; default 50"`
	Limits   Limits           `json:"limits" doc:"what may be in use at once; a machine counts while a task of the queue runs on it; default: no limit"`
	Rules    Rules            `json:"rules" doc:"what its jobs may rent, whatever they ask for"`
	Projects []string         `json:"projects" single:"true" doc:"only these projects may submit; default: all"`
}

// RefusedKeys explains keys of older files.
func (Queue) RefusedKeys() map[string]string {
	return map[string]string{"parallelism": "write limits: {tasks: …}", "kinds": "write rules: {kinds: …}"}
}

// Budget is a cap on money.
type Budget struct {
	Name     string         `json:"name" required:"true" doc:"what reasons and reports call it"`
	Scope    budget.Scope   `json:"scope" enum:"org,team,project,job" doc:"what it covers"`
	Match    string         `json:"match" doc:"which team, project or job"`
	Cap      quantity.Money `json:"cap" required:"true" doc:"most that may be spent and reserved in a period"`
	Period   budget.Length  `json:"period" enum:"day,week,month,total" doc:"after which it starts anew"`
	Anchor   int            `json:"anchor" min:"0" max:"31" doc:"first day of the week (1 Monday to 7 Sunday) or of the month (1 to 31)"`
	Timezone window.Zone    `json:"timezone" doc:"where days begin"`
	Guard    budget.Guard   `json:"guard" enum:"normal,strict" doc:"strict: only machines that the provider ends by itself, reserved up to that end"`
}

// Leases is how long machines may live without a word from the broker.
type Leases struct {
	Length quantity.Duration `json:"length" doc:"money is reserved, and a machine lives, for so long at a time"`
	Idle   quantity.Duration `json:"idle" doc:"a machine without work is kept for so long, or to the end of a paid hour"`
}

// Bounds protect accounts and the broker.
type Bounds struct {
	RunningPerProject int             `json:"running_per_project" min:"1" max:"1000000" doc:"most tasks of a project at once that has no limit of its own"`
	Machines          int             `json:"machines" min:"1" max:"1000000" doc:"most machines at once, over all providers"`
	GPUs              int             `json:"gpus" min:"1" max:"1000000" doc:"most GPUs at once, over all providers; default: no limit"`
	PerHour           *quantity.Money `json:"per_hour" doc:"what all machines may cost per hour, by the prices that they are bound to; default: no limit"`
	Launches          int             `json:"launches" min:"1" max:"1000" doc:"most launches under way at one provider"`
	Workdir           quantity.Size   `json:"workdir" doc:"largest working directory that may be uploaded"`
}

// Intervals say how often the broker looks.
type Intervals struct {
	Offers  quantity.Duration `json:"offers" doc:"between two looks at offers and prices"`
	Observe quantity.Duration `json:"observe" doc:"between two looks at machines that are starting or ending"`
	Sweep   quantity.Duration `json:"sweep" doc:"between two searches for machines that nobody knows"`
}

// Log is the broker's own log.
type Log struct {
	Level  string `json:"level" enum:"debug,info,warn,error" doc:"least that is written"`
	Format string `json:"format" enum:"text,json" doc:"form of a line"`
}

// Default is the configuration of an empty file.
func Default() *Config {
	c := &Config{}
	c.fill()
	return c
}

func (c *Config) fill() {
	fill(&c.Owner, "gpubroker")
	fill(&c.DataDir, "gpubroker-data")
	fill(&c.Listen, "127.0.0.1:7743")
	fill(&c.Currency, money.USD)
	fill(&c.Stale.Spot, minutes(60))
	fill(&c.Stale.OnDemand, minutes(6*60))
	fill(&c.FairShare.Window, minutes(24*60))
	fill(&c.Leases.Length, minutes(20))
	fill(&c.Leases.Idle, minutes(2))
	fill(&c.Limits.RunningPerProject, 100_000)
	fill(&c.Limits.Machines, 10_000)
	fill(&c.Limits.Launches, 8)
	fill(&c.Limits.Workdir, quantity.Size(1<<30))
	fill(&c.Intervals.Offers, minutes(1))
	fill(&c.Intervals.Observe, quantity.Duration(10*time.Second))
	fill(&c.Intervals.Sweep, minutes(5))
	fill(&c.Log.Level, "info")
	fill(&c.Log.Format, "text")
	for i := range c.Queues {
		if c.Queues[i].Priority == nil {
			c.Queues[i].Priority = new(50)
		}
	}
	for i := range c.Projects {
		fill(&c.Projects[i].Lease, c.Leases.Length)
		fill(&c.Projects[i].Share, 1)
		fill(&c.Projects[i].Limits.Tasks, c.Limits.RunningPerProject)
	}
	for i := range c.Providers {
		for j := range c.Providers[i].Commitments {
			fill(&c.Providers[i].Commitments[j].Kind, "on-demand")
		}
	}
	for i := range c.Budgets {
		b := &c.Budgets[i]
		fill(&b.Scope, budget.Org)
		fill(&b.Period, budget.Total)
		fill(&b.Guard, budget.Normal)
	}
}

func minutes(n int) quantity.Duration { return quantity.Duration(time.Duration(n) * time.Minute) }

func fill[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}

// Rule returns the budget as the ledger keeps it.
func (b Budget) Rule() budget.Budget {
	return budget.Budget{
		Name: b.Name, Scope: b.Scope, Match: b.Match, Capped: true, Cap: b.Cap.Amount, Guard: b.Guard,
		Period: budget.Rule{Length: b.Period, Anchor: b.Anchor, Zone: b.Timezone.String()},
	}
}

// Project returns the project of a name. One that the configuration does not
// list exists only while it lists none, with the defaults.
func (c *Config) Project(name string) (Project, bool) {
	for _, p := range c.Projects {
		if p.Name == name {
			return p, true
		}
	}
	return Project{Name: name, Lease: c.Leases.Length, Share: 1, Limits: Limits{Tasks: c.Limits.RunningPerProject}}, len(c.Projects) == 0
}

// Kinds returns the scenarios that jobs may name: those built in and the owner's.
func (c *Config) Kinds() *scenario.Set {
	return scenario.Builtin().With(c.Scenarios, func(int, string, string, string, ...any) {}) // Parse has told the faults
}

// Queue returns the queue of a name; "" is one without window and limits.
func (c *Config) Queue(name string) (Queue, bool) {
	for _, q := range c.Queues {
		if q.Name == name {
			return q, true
		}
	}
	return Queue{Priority: new(50)}, name == ""
}
