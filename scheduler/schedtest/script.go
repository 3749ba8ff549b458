// Package schedtest writes scheduler snapshots as short lines of text, renders
// plans as text, and checks what must hold of every plan. It is for tests.
//
// A line names one thing and then its properties:
//
//	offers    sim/a/1/small/spot 0.30 1xl4 vcpu=4 memory=16 capacity=2 seen=-5m full
//	machines  m1 sim/a/1/small/spot 0.30 1xl4 vcpu=4 used=1/1 by=nightly idle=-5m
//	jobs      nightly waiting=24 scenario=transcode gpu=l4|t4 task=10m on=l4 steady
//	          moving in=30@aws/us-east-1 out=2@on-premises keep=5@aws/us-east-1 every=10m value=5
//	providers sim boot=2m unit=1s end=rolling cloud=aws
//	rates     nightly g2 1xl4 vcpu=4 busy=9m|10m n=3 ago=24h
//	rules     project dev max-price=1.50 gpu=l4|t4 kinds=spot
//	settings  project dev tasks=4 machines=2 gpus=8 per-hour=6 share=2
//	quotas    spot-vcpus provider=sim region=a kind=spot types=small|big unit=vcpu used=12 limit=16
//
// Times are moments ("22:30", "2026-11-06T01:00") or counted from now ("-5m",
// "+1h"); memory and disk are in GiB.
package schedtest

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/egress"
	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/internal/reason"
	"gpubroker/providers"
	"gpubroker/scheduler"
	"gpubroker/scheduler/policy"
)

// Start is the moment of a new World.
var Start = time.Date(2026, 11, 5, 22, 0, 0, 0, time.UTC)

// World is a snapshot in the making.
type World struct {
	scheduler.Snapshot
	Offers      []providers.Offer
	Commitments []scheduler.Commitment
	Rules       map[string]scheduler.Rules // by whose they are; they stand before the jobs
	Rows        Book
	Memo        scheduler.Memo
}

// Book is accounts and holds as rows.
type Book struct {
	Accounts map[string]budget.Account
	Holds    map[string]budget.Hold
}

// Account implements [budget.Book].
func (b Book) Account(k budget.Key) *budget.Account {
	if a, ok := b.Accounts[k.String()]; ok {
		return &a
	}
	return nil
}

// Hold implements [budget.Book].
func (b Book) Hold(instance string, k budget.Key) *budget.Hold {
	if h, ok := b.Holds[instance+" "+k.String()]; ok {
		return &h
	}
	return nil
}

// New returns an empty world with one provider, sim, that boots in two minutes
// and bills by the second.
func New() *World {
	w := &World{Rules: map[string]scheduler.Rules{}, Rows: Book{Accounts: map[string]budget.Account{}, Holds: map[string]budget.Hold{}}}
	w.Now, w.Facts, w.Egress = Start, gpu.Builtin(), egress.Builtin()
	w.Settings = scheduler.Settings{Lease: 20 * time.Minute, Idle: 5 * time.Minute, Stale: scheduler.Stale{Spot: 24 * time.Hour, OnDemand: 24 * time.Hour}, Projects: map[string]scheduler.Limits{}, Queues: map[string]scheduler.Limits{}, Shares: map[string]int{}}
	w.Providers = map[string]scheduler.Provider{"sim": {Capabilities: providers.Capabilities{
		BootTime: 2 * time.Minute, SelfEnd: providers.EndRolling, Billing: money.Billing{Unit: time.Second},
	}}}
	w.Cooldowns, w.Spent, w.History = map[string]scheduler.Cooldown{}, map[string]money.Amount{}, map[string]policy.History{}
	w.Book = w.Rows
	return w
}

// Snap is the snapshot with its catalog built.
func (w *World) Snap() *scheduler.Snapshot {
	if w.Catalog == nil {
		w.Catalog = scheduler.NewCatalog(1, w.Offers).Commit(w.Commitments)
	}
	return &w.Snapshot
}

// A Parse panics with a line that cannot be read; Command turns it into an error.
type parseError struct{ text string }

func fail(format string, args ...any) { panic(parseError{fmt.Sprintf(format, args...)}) }

// Command runs one command of a script on the lines that follow it.
func (w *World) Command(name string, input string) (out string, err error) {
	defer func() {
		if e, ok := recover().(parseError); ok {
			err = fmt.Errorf("%s: %s", name, e.text)
		}
	}()
	run := map[string]func(*World, *line){
		"now":      func(w *World, l *line) { w.Now = w.when(l.name) },
		"settings": (*World).setting, "providers": (*World).provider, "offers": (*World).offer, "commitments": (*World).commitment,
		"machines": (*World).machine, "jobs": (*World).job, "running": (*World).running,
		"cooldowns": (*World).cooldown, "budgets": (*World).budget, "history": (*World).past,
		"quotas": (*World).quota, "rates": (*World).rate, "rules": (*World).rule,
		"spent":  func(w *World, l *line) { w.Spent[l.name] = amount(l.rest()) },
		"frozen": func(w *World, l *line) { w.Frozen = reason.New(reason.Code(l.name)) },
	}[name]
	if run == nil {
		return "", fmt.Errorf("no command %q", name)
	}
	for text := range strings.SplitSeq(strings.TrimSpace(input), "\n") {
		if text = strings.TrimSpace(text); text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		l := parse(text)
		run(w, l)
		for key := range l.values {
			if !l.read[key] {
				fail("%q: %s means nothing here", text, key)
			}
		}
		if len(l.words) > 0 {
			fail("%q: %s means nothing here", text, l.words[0])
		}
	}
	w.Catalog = nil
	return "", nil
}

type line struct {
	name   string
	words  []string
	values map[string]string
	read   map[string]bool
}

func parse(text string) *line {
	fields := strings.Fields(text)
	l := &line{name: fields[0], values: map[string]string{}, read: map[string]bool{}}
	for _, f := range fields[1:] {
		if key, value, ok := strings.Cut(f, "="); ok {
			l.values[key] = value
		} else {
			l.words = append(l.words, f)
		}
	}
	return l
}

func (l *line) get(key string) string {
	l.read[key] = true
	return l.values[key]
}

// rest takes the next word.
func (l *line) rest() string {
	if len(l.words) == 0 {
		fail("%s: something is missing", l.name)
	}
	w := l.words[0]
	l.words = l.words[1:]
	return w
}

// flag takes a word if it is there.
func (l *line) flag(word string) bool {
	for i, w := range l.words {
		if w == word {
			l.words = append(l.words[:i:i], l.words[i+1:]...)
			return true
		}
	}
	return false
}

func (l *line) number(key string, def float64) float64 {
	s := l.get(key)
	if s == "" {
		return def
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		fail("%s=%s is no number", key, s)
	}
	return f
}

func (l *line) integer(key string, def int) int { return int(l.number(key, float64(def))) }

func (l *line) span(key string, def time.Duration) time.Duration {
	s := l.get(key)
	if s == "" {
		return def
	}
	return span(s)
}

func span(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		fail("%s is no duration", s)
	}
	return d
}

func (l *line) words2(key string) []string {
	if s := l.get(key); s != "" {
		return strings.Split(s, "|")
	}
	return nil
}

func (w *World) when(s string) time.Time {
	if s == "" {
		return time.Time{}
	}
	if s == "now" {
		return w.Now
	}
	if s[0] == '+' || s[0] == '-' {
		return w.Now.Add(span(strings.TrimPrefix(s, "+")))
	}
	for _, layout := range []string{"15:04", "15:04:05", "2006-01-02T15:04", time.RFC3339} {
		if t, err := time.Parse(layout, s); err == nil {
			if t.Year() == 0 {
				day := w.Now.Truncate(24 * time.Hour)
				t = day.Add(time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute + time.Duration(t.Second())*time.Second)
			}
			return t.UTC()
		}
	}
	fail("%s is no moment", s)
	return time.Time{}
}

func (w *World) moment(l *line, key string) time.Time { return w.when(l.get(key)) }

func rate(s string) money.Rate {
	r, err := money.RateOf(s)
	if err != nil {
		fail("%s is no price", s)
	}
	return r
}

func amount(s string) money.Amount {
	a, err := money.ParseAmount(s)
	if err != nil {
		fail("%s is no amount of money", s)
	}
	return a
}

// Market reads provider/region/zone/type/kind.
func Market(s string) providers.Market {
	parts := strings.Split(s, "/")
	if len(parts) != 5 {
		fail("%s is no market: provider/region/zone/type/kind", s)
	}
	return providers.Market{Provider: parts[0], Region: parts[1], Zone: parts[2], Type: parts[3], Kind: providers.Kind(parts[4])}
}

// known reads a word, "no-" before it, or neither.
func (l *line) known(word string) gpu.Known[bool] {
	switch {
	case l.flag(word):
		return gpu.Of(true)
	case l.flag("no-" + word):
		return gpu.Of(false)
	}
	return gpu.Known[bool]{}
}

// shape reads "1xl4 vcpu=4 memory=16"; "cpu" has no GPU, "1x?" one that is not known.
func (l *line) shape() providers.Shape {
	s := providers.Shape{
		VCPU: l.number("vcpu", 0), Memory: int64(l.number("memory", 0) * (1 << 30)), Disk: int64(l.number("disk", 0) * (1 << 30)),
		Arch: l.get("arch"), NetworkBps: int64(l.number("net", 0) * 1e9), GPUMemory: int64(l.number("gpu-memory", 0) * 1e9),
	}
	word := l.rest()
	if word == "cpu" {
		return s
	}
	count, id, ok := strings.Cut(word, "x")
	n, err := strconv.ParseFloat(count, 64)
	if !ok || err != nil {
		fail("%s is no number of GPUs, for example 1xl4", word)
	}
	s.GPUs, s.GPU, s.GPUName = n, id, id
	s.Fabric, s.RDMA = l.known("fabric"), l.known("rdma")
	if strings.HasPrefix(id, "?") {
		s.GPU, s.GPUName = "", id[1:]
	}
	return s
}

func (w *World) offer(l *line) {
	o := providers.Offer{Market: Market(l.name), Price: rate(l.rest()), Currency: money.Currency(l.get("currency")), Seen: w.Now}
	o.Shape = l.shape()
	if seen := l.get("seen"); seen != "" {
		o.Seen = w.when(seen)
	}
	o.Capacity = l.integer("capacity", 0)
	if l.flag("full") {
		o.Available = providers.Full
	}
	w.Offers = append(w.Offers, o)
}

// commitment reads the market that it covers, where "-" is any region or zone, and
// how many machines.
func (w *World) commitment(l *line) {
	m := Market(strings.ReplaceAll(l.name, "/-/", "//"))
	w.Commitments = append(w.Commitments, scheduler.Commitment{
		Provider: m.Provider, Region: m.Region, Zone: strings.TrimPrefix(m.Zone, "-"), Type: m.Type, Kind: m.Kind,
		Machines: l.integer("machines", 1), Sunk: rate(l.get("sunk")), Until: w.moment(l, "until"),
	})
}

func (w *World) provider(l *line) {
	p := scheduler.Provider{
		Cloud: l.get("cloud"), Projects: l.words2("projects"), GuestEnd: l.flag("guest-end"), Launching: l.integer("launching", 0),
		Capabilities: providers.Capabilities{
			BootTime: l.span("boot", 2*time.Minute), SelfEnd: providers.SelfEnd(l.get("end")), Shared: l.flag("shared"),
			StopTime: l.span("stop", 0), LongestLife: l.span("life", 0),
			Billing: money.Billing{Unit: l.span("unit", time.Second), Minimum: l.span("minimum", 0)},
		},
	}
	p.Limits = l.limits()
	if p.Capabilities.SelfEnd == "" {
		p.Capabilities.SelfEnd = providers.EndRolling
	}
	if code := l.get("not-ready"); code != "" {
		p.Ready = reason.New(reason.Code(code), "provider", l.name, "code", "unauthorized", "until", "22:10")
	}
	if url := l.get("unreachable-from"); url != "" {
		p.Ready = reason.New("unreachable", "provider", l.name, "url", url)
	}
	w.Providers[l.name] = p
}

func (w *World) quota(l *line) {
	q := providers.Quota{
		Name: l.name, Region: l.get("region"), Kind: providers.Kind(l.get("kind")), Types: l.words2("types"), Unit: l.get("unit"),
		Limit: l.number("limit", 0), Used: l.number("used", 0),
	}
	name := cmp.Or(l.get("provider"), "sim")
	p := w.Providers[name]
	p.Quotas = append(p.Quotas, q)
	w.Providers[name] = p
}

func (w *World) setting(l *line) {
	switch l.name {
	case "lease":
		w.Settings.Lease = span(l.rest())
	case "idle":
		w.Settings.Idle = span(l.rest())
	case "stale":
		old := span(l.rest())
		w.Settings.Stale = scheduler.Stale{Spot: old, OnDemand: l.span("on-demand", old)}
	case "margin":
		w.Settings.Margin = span(l.rest())
	case "launches":
		w.Settings.Launches = int(span(l.rest() + "ns"))
	case "all":
		w.Settings.All = l.limits()
	case "project":
		project := l.rest()
		w.Settings.Projects[project] = l.limits()
		if share := l.integer("share", 0); share > 0 {
			w.Settings.Shares[project] = share
		}
	case "queue":
		queue := l.rest()
		w.Settings.Queues[queue] = l.limits()
	default:
		fail("no setting %s", l.name)
	}
}

// limits reads what is in use at once at most: "tasks=2 machines=3 gpus=8 per-hour=4.00".
func (l *line) limits() scheduler.Limits {
	out := scheduler.Limits{Tasks: l.integer("tasks", 0), Machines: l.integer("machines", 0), GPUs: l.number("gpus", 0)}
	if r := l.get("per-hour"); r != "" {
		out.PerHour = rate(r)
	}
	return out
}

// rule reads what the owner allows: "project dev max-price=1.50 gpu=l4|t4 kinds=spot".
func (w *World) rule(l *line) {
	of := l.name + " " + l.rest()
	r := scheduler.Rules{Of: of, Providers: l.words2("providers"), Regions: l.words2("regions")}
	if m := l.get("max-price"); m != "" {
		r.MaxPrice = rate(m)
	}
	for _, name := range l.words2("gpu") {
		ids, err := w.Facts.Resolve(name)
		if err != nil {
			fail("%v", err)
		}
		r.GPU = append(r.GPU, ids...)
	}
	for _, k := range l.words2("kinds") {
		r.Kinds = append(r.Kinds, providers.Kind(k))
	}
	w.Rules[of] = r
}

func (w *World) machine(l *line) {
	m := scheduler.Machine{ID: l.name, Market: Market(l.rest()), Price: rate(l.rest())}
	m.Shape = l.shape()
	m.Project, m.Payer = l.get("project"), l.get("payer")
	if m.Project == "" {
		m.Project = "media"
	}
	used, slots, _ := strings.Cut(l.get("used"), "/")
	m.Used, m.Slots = int(span(used+"ns")), int(span(slots+"ns"))
	m.Ready, m.Open = !l.flag("booting"), !l.flag("draining")
	m.Born, m.Idle, m.Lease = w.Now.Add(-time.Hour), w.moment(l, "idle"), w.Now.Add(20*time.Minute)
	if at := w.moment(l, "born"); !at.IsZero() {
		m.Born = at
	}
	if at := w.moment(l, "lease"); !at.IsZero() {
		m.Lease = at
	}
	m.Billing = w.Providers[m.Market.Provider].Capabilities.Billing
	if by := l.get("by"); by != "" {
		for i := range w.Groups {
			if w.Groups[i].ID == by {
				m.SlotKey = w.Groups[i].Needs.SlotKey()
			}
		}
		if m.SlotKey == "" {
			fail("no job %s before the machine %s", by, l.name)
		}
	}
	w.Machines = append(w.Machines, m)
}

func (w *World) cooldown(l *line) {
	w.Cooldowns[l.name] = scheduler.Cooldown{Until: w.when(l.rest()), Reason: reason.New(reason.Code(l.get("after"))), Taken: l.flag("taken")}
}

func (w *World) budget(l *line) {
	scope, match, _ := strings.Cut(l.get("for"), ":")
	b := budget.Budget{Name: l.name, Scope: budget.Scope(scope), Match: match, Capped: true, Cap: amount(l.rest()), Guard: budget.Normal, Period: budget.Rule{Length: budget.Length(l.get("per"))}}
	if scope == "" {
		b.Scope = budget.Org
	}
	if l.flag("strict") {
		b.Guard = budget.Strict
	}
	if spent := l.get("spent"); spent != "" {
		start, end, err := b.Period.At(w.Now)
		if err != nil {
			fail("%v", err)
		}
		a := budget.Account{Key: budget.Key{Budget: b.Name, Start: start}, End: end, Cost: amount(spent)}
		w.Rows.Accounts[a.Key.String()] = a
	}
	w.Budgets = append(w.Budgets, b)
}

func (w *World) past(l *line) {
	w.History[l.name] = policy.History{Preemptions: l.integer("preempted", 0), Held: l.span("held", 0)}
}
