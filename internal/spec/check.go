package spec

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/gpu"
	"gpubroker/internal/nearest"
	"gpubroker/internal/scenario"
	"gpubroker/internal/spec/template"
	"gpubroker/internal/yamlfile"
)

// reporter records a fault at a path of the spec.
type reporter func(path, hint, format string, args ...any)

const nameLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

var (
	nameForm    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)
	envNameForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// check holds all rules that go beyond the shape of single values. faulty says
// whether a fault was found at a path already, so that none is reported twice.
func check(j *Job, report reporter, faulty func(string) bool) {
	for _, n := range []struct{ path, value string }{{"name", j.Name}, {"project", j.Project}, {"queue", j.Queue}} {
		if (n.value != "" || n.path == "name") && !faulty(n.path) && !nameForm.MatchString(n.value) {
			report(n.path, "letters, digits, dots, hyphens and underscores, at most 100, the first a letter or digit", "expected a name, found %q", n.value)
		}
	}
	if _, ok := Presets()[j.Preset]; j.Preset != "" && !ok {
		report("preset", cmp.Or(nearest.Hint(j.Preset, PresetNames()), "known: "+strings.Join(PresetNames(), ", ")), "there is no preset %q", j.Preset)
	}
	checkTime(j, report, faulty)
	checkTasks(j, report, faulty)
	checkDescribed(j, report, faulty)
	checkResources(j, report, faulty)
	checkGang(j, report, faulty)
	checkRun(j, report, faulty)
	checkFiles(j, report, faulty)
	checkTemplates(j, report)
	if v := j.ValueOfTime; v != nil && !faulty("value_of_time") && v.Amount == 0 {
		report("value_of_time", "leave it out if waiting costs nothing", "an hour that is worth nothing decides nothing")
	}
	if b := j.Budget; b != nil && !faulty("budget.max") && b.Max.Amount == 0 {
		report("budget.max", "leave budget out if there is no ceiling", "a job that may cost nothing never runs")
	}
	if s := j.Spot; s != nil {
		if s.Policy == "never" && s.OnDemand == "never" {
			report("spot.on_demand", "", "with policy: never this leaves no machines at all")
		}
		if s.Policy == "never" && s.OnDemand == "last-resort" {
			report("spot.on_demand", "leave it out", "with policy: never there is nothing but on-demand")
		}
		if s.OnDemand == "last-resort" && j.Deadline == nil && s.MaxWait == 0 && !faulty("spot.max_wait") {
			report("spot.on_demand", "add a deadline or spot.max_wait, or use auto or never", "there is no deadline to keep, and no end of the wait for spot")
		}
		if s.Policy == "never" && s.MaxWait > 0 {
			report("spot.max_wait", "", "with policy: never there is no wait for spot")
		}
		if s.OnDemand == "never" && s.MaxWait > 0 {
			report("spot.max_wait", "leave it out, or use on_demand: auto or last-resort", "with on_demand: never nothing is taken when the wait is over")
		}
	}
	if p := j.Progress; p != nil && p.Log != "" {
		checkRegexp("progress.log", p.Log, report)
	}
}

func checkRegexp(path, text string, report reporter) {
	re, err := regexp.Compile(text)
	if err != nil {
		report(path, `in quotes, a backslash is written twice: "frame=\\s*(\\d+)"`, "this is no regular expression: %v", strings.TrimPrefix(err.Error(), "error parsing regexp: "))
		return
	}
	if re.NumSubexp() != 1 {
		report(path, `for example "frame=\\s*(\\d+)"`, "expected one group that captures the number, found %d groups", re.NumSubexp())
	}
}

func checkTime(j *Job, report reporter, faulty func(string) bool) {
	if w := j.Window; w != nil && !faulty("window") {
		if p, ok := errors.AsType[*yamlfile.Problem](w.Validate()); ok {
			report("window", p.Hint, "%s", p.Message)
		}
	}
	if d := j.Deadline; d != nil && !faulty("deadline") && d.NeedsZone() && j.Window == nil && j.Queue == "" {
		report("deadline", fmt.Sprintf("write for example %q", d.String()+" UTC"), "this time of day needs a time zone, since the job has no window and no queue")
	}
	if j.AfterDeadline != "" && j.Deadline == nil {
		report("after_deadline", "", "there is no deadline")
	}
	if j.Stall > 0 && j.Stall.Std() < 10*time.Second {
		report("stall", "", "expected at least 10s, found %v", j.Stall)
	}
	if j.MaxDuration > 0 && j.Stall >= j.MaxDuration && j.Stall > 0 {
		report("stall", "", "%v is not under max_duration (%v)", j.Stall, j.MaxDuration)
	}
	if c := j.Checkpoint; c != nil {
		if c.Interval > 0 && c.Interval.Std() < time.Second {
			report("checkpoint.interval", "", "expected at least 1s, found %v", c.Interval)
		}
		if c.Complete != nil && c.Quiesce > 0 {
			report("checkpoint.quiesce", "keep one of them", "complete and quiesce are two ways to tell that a save is whole")
		}
		if p, ok := Presets()[j.Preset]; ok && j.Preset != "" && p.Checkpoint == nil && c.Dir == "" {
			report("checkpoint", "", "%s has no saves of its own: give checkpoint.dir, or leave checkpoint out", p.Title)
		}
	}
}

func checkTasks(j *Job, report reporter, faulty func(string) bool) {
	t := j.Tasks
	if t == nil {
		return
	}
	var forms []string
	for _, form := range []string{"count", "list", "glob", "file"} {
		has := map[string]bool{"count": t.Count != 0, "list": t.List != nil, "glob": t.Glob != "", "file": t.File != ""}[form]
		if has {
			forms = append(forms, form)
		}
	}
	switch len(forms) {
	case 0:
		if !faulty("tasks") {
			report("tasks", "for example {count: 10}", "expected one of count, list, glob and file")
		}
	case 1:
	default:
		report("tasks."+forms[1], "keep one of them", "%s are given, and each of them says which tasks there are", strings.Join(forms, " and "))
	}
	switch {
	case t.List != nil && len(t.List) == 0:
		report("tasks.list", "", "a list without items is a job without tasks")
	case len(t.List) > MaxTasks:
		report("tasks.list", "", "expected at most %d tasks, found %d", MaxTasks, len(t.List))
	}
	for i, item := range t.List {
		if item == "" || strings.ContainsAny(item, "\x00\n") {
			report(fmt.Sprintf("tasks.list[%d]", i), "", "expected a value or a file, found %q", item)
		}
	}
	if t.Glob != "" {
		if err := checkGlob(t.Glob); err != nil {
			report("tasks.glob", `for example "s3://footage/incoming/*.mov" or "clips/**/*.mp4"`, "%s", err)
		}
	}
	if t.Count > 0 && t.Parallelism > t.Count {
		report("tasks.parallelism", "", "%d is more than the %d tasks", t.Parallelism, t.Count)
	}
}

// GPUIDs resolves resources.gpu to canonical ids, each once; nil means any GPU.
func (j *Job) GPUIDs() []string {
	var ids []string
	for _, name := range j.Resources.GPU {
		found, err := gpu.Builtin().Resolve(name)
		if err != nil {
			continue // Parse and Decode refuse such a job
		}
		for _, id := range found {
			if !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// NeedsGPU says whether tasks run on a GPU.
func (j *Job) NeedsGPU() bool { return !slices.Contains(j.Resources.GPU, NoGPU) }

// Requirements returns what the job itself asks of a GPU: resources.require,
// gpu_memory, and the vendors of the GPUs that it names (naming an AMD GPU
// declares that the work runs on it). [scenario.Profile.CheckJob] joins it with
// what the scenario needs.
func (j *Job) Requirements() scenario.Requirements {
	r := scenario.Requirements(j.asks())
	maps.Copy(r, j.Resources.Require)
	if m := j.Resources.GPUMemory; m > 0 {
		r["memory"] = gpu.AtLeast(max(memoryGiB(j), r["memory"].Number))
	}
	if _, ok := r["vendor"]; !ok {
		var vendors []string
		for _, id := range j.GPUIDs() {
			f, _ := gpu.Builtin().Lookup(id)
			if v, ok := f.Vendor.Get(); ok && !slices.Contains(vendors, v) {
				vendors = append(vendors, v)
			}
		}
		if len(vendors) > 0 {
			slices.Sort(vendors)
			r["vendor"] = gpu.OneOf(vendors...)
		}
	}
	return r
}

// memoryGiB is gpu_memory in the GiB that GPUs are sold by. A size in decimal
// GB is read as the label is: 80GB asks for a card called 80 GB.
func memoryGiB(j *Job) float64 {
	m := j.Resources.GPUMemory
	if m.Bytes()%1e9 == 0 && m.Bytes()%gpu.GiB != 0 {
		return float64(m.Bytes()) / 1e9
	}
	return m.GiB()
}

func checkResources(j *Job, report reporter, faulty func(string) bool) {
	r := &j.Resources
	bad := false
	for i, name := range r.GPU {
		at := fmt.Sprintf("resources.gpu[%d]", i)
		if name == NoGPU {
			if len(r.GPU) > 1 {
				report(at, "", "%s stands alone: either the work needs a GPU or it does not", NoGPU)
				bad = true
			}
			continue
		}
		if _, err := gpu.Builtin().Resolve(name); err != nil {
			bad = true
			if e, ok := errors.AsType[*gpu.NameError](err); ok {
				report(at, cmp.Or(e.Ask(), `run "gpubroker gpus" for the list`), "%s", e.Message())
			} else {
				report(at, "", "%v", err)
			}
		}
	}
	if !j.NeedsGPU() {
		for _, x := range []struct {
			path  string
			given bool
		}{
			{"resources.gpu_count", r.GPUCount != 0},
			{"resources.gpu_memory", r.GPUMemory != 0},
			{"resources.slots", r.Slots != 0},
			{"resources.require", len(r.Require) > 0},
			{"scenario", j.Scenario != "" && j.Scenario != scenario.General},
			{"work.on", j.Work != nil && j.Work.On != ""},
		} {
			if x.given {
				report(x.path, "leave it out, or name a GPU", "the job asks for no GPU (gpu: none)")
			}
		}
	} else if !bad && !faulty("resources") && !faulty("scenario") {
		checkFit(j, report)
	}
	if r.Slots > 1 && r.GPUCount > 1 {
		report("resources.slots", "", "tasks share a GPU only when each needs one, and gpu_count is %d", r.GPUCount)
	}
	if r.MaxPrice != nil && !faulty("resources.max_price") && r.MaxPrice.Amount == 0 {
		report("resources.max_price", "", "no machine costs nothing")
	}
	for _, list := range []struct {
		path  string
		words []string
	}{{"resources.providers", r.Providers}, {"resources.regions", r.Regions}, {"resources.zones", r.Zones}} {
		if i := slices.Index(list.words, ""); i >= 0 {
			report(fmt.Sprintf("%s[%d]", list.path, i), "", "expected a name")
		}
	}
	checkWork(j, bad, report, faulty)
}

// checkFit refuses a job that no GPU can do, whatever is on the market.
func checkFit(j *Job, report reporter) {
	if j.profile == nil || j.lenient {
		return
	}
	profile := j.profile
	own := j.Requirements()
	if name, need := profile.Loosened(j.Resources.Require); name != "" {
		report("resources.require."+name, "leave it out, or name another scenario", "asks for less than %s requires, which is %s", profile.Name, need)
		return
	}
	if ids := j.GPUIDs(); len(ids) > 0 {
		var reasons []string
		waive := ""
		for _, id := range ids {
			f, _ := gpu.Builtin().Lookup(id)
			failures := profile.CheckJob(f, own)
			lacks := j.lacks(f)
			if len(failures) == 0 && lacks == "" {
				return
			}
			if len(failures) == 0 {
				reasons = append(reasons, id+" ("+lacks+")")
				continue
			}
			if len(reasons) < 3 {
				reasons = append(reasons, id+" ("+failures[0].String()+")")
			}
			if _, assumed := profile.Assume[failures[0].Attribute]; assumed && waive == "" {
				if _, asked := own[failures[0].Attribute]; !asked {
					waive = fmt.Sprintf("the scenario assumes this; resources: {require: {%s: …}} overrides it", failures[0].Attribute)
				}
			}
		}
		why := "the other requirements"
		if j.Scenario != "" {
			why = j.Scenario
		}
		report("resources.gpu", waive, "no GPU named here fits %s: %s", why, strings.Join(reasons, ", "))
		return
	}
	described := ""
	for _, f := range gpu.Builtin().All() {
		if len(profile.CheckJob(f, own)) > 0 {
			continue
		}
		lacks := j.lacks(f)
		if lacks == "" {
			return
		}
		described = lacks
	}
	if described != "" {
		report("resources", `run "gpubroker gpus" for what there is`, "no GPU known does the work described, on one machine; of the last that came near: %s", described)
		return
	}
	at := "resources.require"
	if j.Resources.GPUMemory > 0 && len(j.Resources.Require) == 0 {
		at = "resources.gpu_memory"
	}
	report(at, `run "gpubroker gpus" for what there is`, "no GPU known meets all of this")
}

func checkWork(j *Job, badGPU bool, report reporter, faulty func(string) bool) {
	w := j.Work
	if w == nil {
		return
	}
	if w.Time == 0 && !faulty("work.time") {
		report("work.time", "", "expected a duration above zero")
	}
	if !j.NeedsGPU() || badGPU {
		return
	}
	ids, at := j.GPUIDs(), "work"
	if w.On != "" {
		at = "work.on"
		found, err := gpu.Builtin().Resolve(w.On)
		if e, ok := errors.AsType[*gpu.NameError](err); ok {
			report(at, e.Ask(), "%s", e.Message())
			return
		}
		ids = found
	}
	switch {
	case len(ids) == 0:
		report(at, "write for example {time: 2h, on: l4}", "on which GPU is missing")
	case len(ids) > 1:
		report(at, nearest.Ask(ids[:min(3, len(ids))]), "the time holds for one GPU, and this names %d", len(ids))
	default:
		f, _ := gpu.Builtin().Lookup(ids[0])
		if figure := j.Figure(); !j.lenient && figure != "" && gpu.Builtin().Rate(f, figure) <= 0 {
			report(at, "name a GPU whose figure is known", "the %s of %s is not known, so the time cannot be scaled to others", figure, ids[0])
		}
	}
}

// WorkReference returns the time of one task and the GPU it was measured on.
func (j *Job) WorkReference() (time.Duration, string, bool) {
	if j.Work == nil {
		return 0, "", false
	}
	ids := j.GPUIDs()
	if j.Work.On != "" {
		ids, _ = gpu.Builtin().Resolve(j.Work.On)
	}
	if len(ids) != 1 {
		return j.Work.Time.Std(), "", true
	}
	return j.Work.Time.Std(), ids[0], true
}

func checkRun(j *Job, report reporter, faulty func(string) bool) {
	r := &j.Run
	switch {
	case faulty("run"):
	case j.Users != nil && r.Command == nil && r.Shell == "": // nothing is run for them yet
	case r.Command == nil && r.Shell == "":
		report("run", `for example {command: [python, train.py]}`, "expected command or shell")
	case r.Command != nil && r.Shell != "":
		report("run.shell", "keep one of them", "command and shell are both given")
	case r.Command != nil && (len(r.Command) == 0 || r.Command[0] == ""):
		report("run.command", "", "the program is missing")
	}
	for i, arg := range r.Command {
		if strings.ContainsRune(arg, 0) {
			report(fmt.Sprintf("run.command[%d]", i), "", "an argument cannot hold a zero byte")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Env)) {
		checkEnvName("run.env", name, report)
		if _, ok := j.Secrets[name]; ok {
			report("run.env."+name, "keep one of them", "is given under secrets too")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(j.Secrets)) {
		checkEnvName("secrets", name, report)
	}
	if t := j.Retry; t != nil && !faulty("retry") && t.Failures == 0 && len(t.OnlyExitCodes) > 0 {
		report("retry.only_exit_codes", "add failures, for example {failures: 2}", "nothing is retried without failures")
	}
}

func checkEnvName(at, name string, report reporter) {
	switch {
	case !envNameForm.MatchString(name):
		report(at+"."+name, "letters, digits and underscores, the first no digit", "%s is no name of an environment variable", strconv.Quote(name))
	case strings.HasPrefix(name, "GPUBROKER_"):
		report(at+"."+name, "", "names that begin with GPUBROKER_ are the broker's")
	}
}

// inside says that a path stays below the working directory.
func inside(p string) bool {
	clean := path.Clean(p)
	return p != "" && !path.IsAbs(p) && clean != ".." && !strings.HasPrefix(clean, "../") && !strings.ContainsRune(p, 0)
}

func checkFiles(j *Job, report reporter, faulty func(string) bool) {
	if c := j.Checkpoint; c != nil && c.Dir != "" && !inside(c.Dir) {
		report("checkpoint.dir", "", "expected a folder below the working directory, found %q", c.Dir)
	}
	if c := j.Checkpoint; c != nil {
		for i, p := range c.Append {
			_, err := path.Match(p, "x")
			if err != nil || !inside(p) || path.Clean(p) != p || strings.Contains(p, "**") {
				report(fmt.Sprintf("checkpoint.append[%d]", i), `for example "*.log", or "run/*.xtc" below the folder of saves`, "expected a file's name or a pattern, found %q", p)
			}
		}
	}
	targets := map[string]int{}
	for i, in := range j.Inputs {
		at := fmt.Sprintf("inputs[%d]", i)
		switch {
		case faulty(at + ".from"):
		case strings.HasSuffix(in.From, "/") && !strings.HasSuffix(in.From, "//"):
			report(at+".from", "name its files one by one, put them into workdir, or have the command fetch them", "is a folder, and only files are fetched")
		default:
			checkLocation(at+".from", in.From, report)
		}
		if !faulty(at+".to") && !inside(in.To) {
			report(at+".to", "", "expected a path below the working directory, found %q", in.To)
		}
		if first, ok := targets[path.Clean(in.To)]; ok && in.To != "" {
			report(at+".to", "", "is also where inputs[%d] goes", first)
		}
		targets[path.Clean(in.To)] = i
	}
	if o := j.Outputs; o != nil {
		if !faulty("outputs.to") {
			checkLocation("outputs.to", o.To, report)
		}
		if o.From != "" && !inside(o.From) {
			report("outputs.from", "", "expected a path below the working directory, found %q", o.From)
		}
	}
}

// schemes are those of the stores that the broker reads.
var schemes = []string{"s3", "gs", "azblob", "file"}

// IsLocation reports whether a text names an object in one of the broker's stores,
// and not a value.
func IsLocation(text string) bool {
	scheme, _, ok := strings.Cut(text, "://")
	return ok && slices.Contains(schemes, scheme) || strings.HasPrefix(text, "/")
}

func checkLocation(at, text string, report reporter) {
	scheme, rest, ok := strings.Cut(text, "://")
	switch {
	case text == "":
		report(at, "write for example s3://bucket/folder/", "expected a location")
	case ok && !slices.Contains(schemes, scheme):
		report(at, cmp.Or(nearest.Hint(scheme, schemes), "this version reads and writes "+strings.Join(schemes, "://, ")+":// and paths"), "there is no store %q", scheme+"://")
	case ok && strings.Trim(rest, "/") == "":
		report(at, "write for example s3://bucket/folder/", "the bucket is missing in %q", text)
	}
}

func checkTemplates(j *Job, report reporter) {
	array := j.Tasks != nil
	hasInput := array && j.Tasks.Count == 0 || !array && len(j.Inputs) > 0
	hasOutput := j.Outputs != nil
	use := func(at, text string, allowed ...string) {
		for _, name := range template.Find(text) {
			placeholder := "{{" + name + "}}"
			switch {
			case !slices.Contains(template.Names(), name):
				hint := nearest.Hint(name, template.Names())
				report(at, cmp.Or(hint, "known: "+strings.Join(template.Names(), ", ")+`; \{{ stands for {{`), "there is no placeholder %s", placeholder)
			case !slices.Contains(allowed, name):
				report(at, "", "%s cannot be used here", placeholder)
			case (name == template.Input || name == template.Stem) && !hasInput:
				report(at, "use {{index}}, or give tasks: list, glob or file", "%s stands for nothing: the tasks have no input", placeholder)
			case name == template.Output && !hasOutput:
				report(at, "add outputs: {to: …}", "%s stands for nothing: the job has no outputs", placeholder)
			}
		}
	}
	all, remote := template.Names(), []string{template.Stem, template.Index, template.Name, template.Job}
	for i, arg := range j.Run.Command {
		use(fmt.Sprintf("run.command[%d]", i), arg, all...)
	}
	use("run.shell", j.Run.Shell, all...)
	for _, name := range slices.Sorted(maps.Keys(j.Run.Env)) {
		use("run.env."+name, j.Run.Env[name], all...)
	}
	for i, in := range j.Inputs {
		use(fmt.Sprintf("inputs[%d].from", i), in.From, remote...)
		use(fmt.Sprintf("inputs[%d].to", i), in.To, remote...)
	}
	if o := j.Outputs; o != nil {
		use("outputs.to", o.To, remote...)
		use("outputs.from", o.From, remote...)
		if found := template.Find(o.To); array && !slices.Contains(found, template.Stem) && !slices.Contains(found, template.Index) {
			from := template.Find(o.From)
			if !strings.HasSuffix(o.To, "/") || !slices.Contains(from, template.Stem) && !slices.Contains(from, template.Index) {
				report("outputs.to", "put {{stem}} or {{index}} into it", "every task would write the same %q", o.To)
			}
		}
	}
	if c := j.Checkpoint; c != nil {
		use("checkpoint.dir", c.Dir, remote...)
	}
}
