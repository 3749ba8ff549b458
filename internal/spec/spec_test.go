package spec

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"gpubroker/internal/gpu"
	"gpubroker/internal/scenario"
)

var update = flag.Bool("update", false, "write golden files and the schema anew")

func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (go test ./internal/spec -update writes it)", err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("%s is not current; go test ./internal/spec -update writes it anew:\n%s", path, diff)
	}
}

// What a person reads: each testdata/*.yaml beside its .golden.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no testdata", err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		j, err := Parse(filepath.Base(f), text)
		out := ""
		if es, ok := errors.AsType[Errors](err); ok {
			out = es.Text()
		} else if err != nil {
			t.Errorf("%s: %T is no Errors", f, err)
		} else {
			out = string(j.Canonical()) + "\n"
		}
		if strings.Contains(out, "hunter2") {
			t.Errorf("%s: a secret is shown:\n%s", f, out)
		}
		golden(t, strings.TrimSuffix(f, ".yaml")+".golden", []byte(out))
	}
}

func TestSchemaIsCurrent(t *testing.T) {
	b, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "../../docs/job.schema.json", b)
}

func TestExamplesAreValid(t *testing.T) {
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no examples", err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(f, text); err != nil {
			t.Errorf("%v", err)
		}
	}
}

// Every key is in the reference, and every preset, scenario and attribute.
func TestReferenceNamesEverything(t *testing.T) {
	text, err := os.ReadFile("../../docs/spec.md")
	if err != nil {
		t.Fatal(err)
	}
	var keys func(reflect.Type)
	seen := map[reflect.Type]bool{}
	keys = func(v reflect.Type) {
		for v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice || v.Kind() == reflect.Map {
			v = v.Elem()
		}
		if v.Kind() != reflect.Struct || seen[v] {
			return
		}
		seen[v] = true
		for _, f := range reflect.VisibleFields(v) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
				if !strings.Contains(string(text), "`"+name+"`") {
					t.Errorf("docs/spec.md does not name `%s` of %v", name, v)
				}
				keys(f.Type)
			}
		}
	}
	keys(reflect.TypeFor[Job]())
	for _, name := range slices.Concat(PresetNames(), gpu.AttributeNames(), scenario.Builtin().Names()) {
		if !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("docs/spec.md does not name `%s`", name)
		}
	}
}

func TestSetOverrides(t *testing.T) {
	text := []byte("name: a\nresources: {gpu: l4}\nrun: {command: [x]}\n")
	j, err := Parse("a.yaml", text, "resources.gpu=[t4, l4]", "resources.slots=2", "name=b", "run.env.LANG=C", "stall=30m")
	if err != nil {
		t.Fatal(err)
	}
	if j.Name != "b" || j.Resources.Slots != 2 || j.Run.Env["LANG"] != "C" || !slices.Equal(j.Resources.GPU, []string{"t4", "l4"}) || j.Stall.Std().Minutes() != 30 {
		t.Errorf("%s", j.Canonical())
	}
	_, err = Parse("a.yaml", text, "resources.gpu=l5", "retries=2")
	for _, part := range []string{`--set resources.gpu=l5:1:15: resources.gpu[0]: no GPU is named "l5"`, `--set retries=2:1:1: retries: unknown key`} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("no %q in %v", part, err)
		}
	}
}

func TestFromCommand(t *testing.T) {
	j, err := Reader{}.FromCommand([]string{"/usr/bin/ffmpeg", "-i", "a: b", "null", "12"}, "resources.gpu=l4")
	if err != nil {
		t.Fatal(err)
	}
	if got := string(j.Canonical()); got != `{"name":"ffmpeg","resources":{"gpu":["l4"]},"run":{"command":["/usr/bin/ffmpeg","-i","a: b","null","12"]}}` {
		t.Error(got)
	}
	for _, args := range [][]string{nil, {""}, {"./-"}} {
		j, err := Reader{}.FromCommand(args)
		if len(args) == 0 || args[0] == "" {
			if err == nil {
				t.Errorf("%q: %s", args, j.Canonical())
			}
		} else if err != nil {
			t.Errorf("%q: %v", args, err)
		}
	}
	if _, err := (Reader{}).FromCommand([]string{"x"}, "resources.gpu=l5"); err == nil || !strings.Contains(err.Error(), "did you mean") {
		t.Errorf("%v", err)
	}
}

func TestDigestTellsContent(t *testing.T) {
	a, err := Parse("a", []byte("run: {command: [x]}\nname: a\nstall: 60m\nresources: {memory: 1024MiB}\n"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Parse("b", []byte("name: \"a\"   # the same\nresources:\n  memory: 1GiB\n  zones: []\nstall: 1h\nrun:\n  env: {}\n  command:\n  - x\n"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := Parse("c", []byte("name: a\nrun: {command: [y]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if a.Digest() != b.Digest() || a.Digest() == c.Digest() {
		t.Errorf("%s\n%s\n%s", a.Canonical(), b.Canonical(), c.Canonical())
	}
}

// Decode holds the rules of Parse: nothing is accepted at one side only.
func TestDecodeRefusesWhatParseRefuses(t *testing.T) {
	for _, text := range []string{
		``, `{}`, `null`, `[]`, `{"name":"a","run":{}}`, `{"name":"a","run":{"command":["x"]}} x`,
		`{"name":"a","run":{"command":["x"]},"colour":1}`, `{"name":"a","name":"b","run":{"command":["x"]}}`,
		`{"name":"a","run":{"command":["x"]},"priority":101}`, `{"name":"a","run":{"command":["x"]},"tasks":{}}`,
		`{"name":"a","run":{"command":["x"]},"resources":{"gpu":["l5"]}}`, `{"name":"a","run":{"command":["x"]},"after_deadline":"never"}`,
		`{"name":"a","run":{"command":["x"]},"window":{"start":"22:00","end":"06:00"}}`,
		`{"name":"a","run":{"command":["x"]},"stall":"5"}`,
		strings.Repeat(`{"name":`, 10_000),
	} {
		if j, err := Decode([]byte(text)); err == nil {
			t.Errorf("%.100s was accepted: %s", text, j.Canonical())
		}
	}
}

// A job that was accepted reads back as it was, and has one canonical form.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := drawSpec(t)
		j, err := Parse("drawn.yaml", []byte(text))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		roundTrip(t, j)
	})
}

func roundTrip(t interface{ Fatalf(string, ...any) }, j *Job) {
	c := j.Canonical()
	back, err := Decode(c)
	if err != nil {
		t.Fatalf("%v\n%s", err, c)
	}
	if diff := cmp.Diff(j, back, cmp.AllowUnexported(gpu.Want{}), cmpopts.IgnoreUnexported(Job{})); diff != "" {
		t.Fatalf("%s\n%s", c, diff)
	}
	if string(back.Canonical()) != string(c) {
		t.Fatalf("%s\n%s", c, back.Canonical())
	}
	if again, err := Parse("c.yaml", c); err != nil || again.Digest() != j.Digest() { // JSON is YAML
		t.Fatalf("%v\n%s", err, c)
	}
}

func drawSpec(t *rapid.T) string {
	var b strings.Builder
	maybe := func(line string, choices ...string) {
		if rapid.Bool().Draw(t, line) {
			if len(choices) > 0 {
				line = fmt.Sprintf(line, rapid.SampledFrom(choices).Draw(t, "value"))
			}
			b.WriteString(line + "\n")
		}
	}
	fmt.Fprintf(&b, "name: %s\n", rapid.StringMatching(`[A-Za-z0-9][A-Za-z0-9._-]{0,20}`).Draw(t, "name"))
	maybe("project: media")
	b.WriteString("queue: night\n")
	maybe("priority: %s", "0", "7", "100")
	maybe("window: {start: %s, timezone: Europe/Berlin}", `22:00, end: 06:00`, `"9:30", end: 17:05`)
	if rapid.Bool().Draw(t, "deadline") {
		fmt.Fprintf(&b, "deadline: %s\n", rapid.SampledFrom([]string{"06:00", "06:00 UTC", "2026-09-01T06:00:00+08:00", "2026-09-01T06:00:00.5Z"}).Draw(t, "value"))
		maybe("after_deadline: %s", "continue", "carry-over", "stop")
	}
	maybe("budget: {max: %s}", "25 USD", "$0.000000001", "1.5 EUR")
	tasks := rapid.SampledFrom([]string{"", "count: 1000000", `list: [a, "b: c", 0.10, "é\u2028\u0001"]`, `glob: "s3://b/**/*.mov"`, "file: list.txt"}).Draw(t, "tasks")
	if tasks != "" {
		fmt.Fprintf(&b, "tasks: {%s, parallelism: 9}\n", tasks)
	}
	maybe("resources: {gpu: %s}", "none", "[l4, t4]", "A100 80GB", "h100, gpu_count: 8", "l4, slots: 3, vcpu: 2", "[l40s], memory: 1.5GiB, disk: 123456789B, zones: a, regions: [x, y], max_price: 2 USD, gpu_memory: 24GB, require: {fp32: 1.5, ecc: true, class: datacenter}")
	maybe("workdir: .")
	maybe("inputs: [{from: s3://a/b, to: in/}, {from: ./x, to: y}]")
	maybe("secrets: {A: %s}", "env:B", "file:/run/x")
	fmt.Fprintf(&b, "run:\n  %s\n", rapid.SampledFrom([]string{`command: [x, -1, 1e3, "null", "", "a\tb", 'c''d', "<&>\U0001F600"]`, "shell: |\n    set -e\n    echo \"$x\"  # y\n", "command: [a]\n  env: {A1: 06:00, B: \"\", C: yes, D: 0x10}"}).Draw(t, "run"))
	maybe("checkpoint: {dir: ckpt, interval: 5m%s}", "", ", quiesce: 10s", ", complete: rename", ", complete: {marker: done.txt}", ", stop_signal: SIGUSR1, keep: 5", `, append: "*.log"`, ", append: [run/*.xtc, md.log]")
	maybe("preset: %s", "gromacs", "deepspeed")
	maybe(`progress: {log: "frame=\\s*(\\d+)", total: %s}`, "1000", "0.5")
	maybe("retry: {failures: 2, only_exit_codes: %s}", "1", "[1, 255]")
	maybe("spot: {%s}", "policy: always, max_wait: 1h30m", "on_demand: never", "on_demand: last-resort, max_wait: 2h")
	maybe("exclusive: %s", "true", "false")
	maybe("stall: 2d")
	maybe("max_duration: %s", "72h", "72h0m0.000000001s")
	return b.String()
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	for _, text := range []string{
		"model: {parameters: 70B, method: qlora-4bit, context: 8k, batch: 4, layers: 80, hidden: 8192, heads: 64, kv_heads: 8}\nscenario: lora\nprecision: fp8",
		"encode: {codec: av1, preset: p2, resolution: 1920x1080, fps: 29.97}\ndecode: {codec: hevc}\nscenario: transcode",
		"encode: {codec: hevc, streams: 8, resolution: 4k}\nruntime: {cuda: \">=12.4 <13\", rocm: \">=6\"}",
		"users: {count: 10, memory: 4GiB, resolution: 1440p, fps: 120, max_rtt: 20ms, from: [eu-west, london]}\nscenario: vdi",
		"nodes: 8\nlauncher: mpi\nvalue_of_time: 5 USD\noutputs: {to: /out/x, size: 5GB}\ncheckpoint: {size: 20GB, interval: 5m}",
	} {
		f.Add([]byte("name: x\nrun: {command: [x]}\n" + text + "\n"))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		j, err := Parse("f.yaml", text)
		if err != nil {
			if es, ok := errors.AsType[Errors](err); !ok || len(es) == 0 {
				t.Fatalf("%#v", err)
			}
			return
		}
		c := j.Canonical()
		if back, err := Decode(c); err != nil || string(back.Canonical()) != string(c) {
			t.Fatalf("%v\n%s", err, c)
		}
		j.WithDefaults()
		if d, notes := j.Demand(); d.Held < 0 || d.PerGPU < 0 || d.FrameBuffer < 0 || strings.Contains(fmt.Sprint(notes), "({") {
			t.Fatalf("%+v %v", d, notes)
		}
		j.Figure()
		j.GPUIDs()
		j.Class()
		_ = j.PricedIn("USD")
	})
}

func TestWithDefaults(t *testing.T) {
	parse := func(text string) *Job {
		t.Helper()
		j, err := Parse("d.yaml", []byte("name: a\nrun: {command: [x]}\n"+text))
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	j := parse("preset: gromacs\nscenario: md\ncheckpoint: {interval: 10m}\n")
	before := string(j.Canonical())
	d := j.WithDefaults()
	if c := d.Checkpoint; c.Dir != "." || c.StopSignal != "SIGTERM" || c.Complete == nil || *c.Complete != (Complete{}) || c.Keep != 3 || c.Interval.Std().Minutes() != 10 || !slices.Contains(c.Append, "*.xtc") {
		t.Errorf("%+v", c)
	}
	if d.Progress == nil || d.Spot.Policy != "auto" || d.Resources.GPUCount != 1 || d.Resources.Slots != 1 || d.Retry.Failures != 0 {
		t.Errorf("%s", d.Canonical())
	}
	if string(j.Canonical()) != before {
		t.Error("the job itself was changed")
	}
	if d := parse("scenario: transcode\n").WithDefaults(); d.Resources.Slots != 2 || d.Checkpoint != nil {
		t.Errorf("%s", d.Canonical())
	}
	if d := parse("resources: {gpu: none}\n").WithDefaults(); d.Resources.GPUCount != 0 || d.Resources.Slots != 1 {
		t.Errorf("%s", d.Canonical())
	}
	if d := parse("preset: lightning\n").WithDefaults(); d.Checkpoint.Complete != nil || d.Checkpoint.Quiesce == 0 {
		t.Errorf("%s", d.Canonical())
	}
	for text, want := range map[string]Interruption{
		"":                                     StartOver,
		"checkpoint: {dir: c}":                 Resumes,
		"preset: gromacs":                      Resumes,
		"preset: ffmpeg":                       StartOver,
		"scenario: llm-serve":                  Forbidden,
		"scenario: llm-train":                  Forbidden,
		"scenario: llm-train\npreset: pytorch": Resumes,
		"spot: {policy: never}\ncheckpoint: {dir: c}": Forbidden,
		"scenario: llm-train\nspot: {policy: always}": StartOver,
	} {
		if got := parse(text + "\n").Interruption(); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// What a job asks of a GPU itself stands in for what its kind of work assumes.
func TestRequirements(t *testing.T) {
	for _, c := range []struct{ text, id, code string }{
		{"resources: {gpu: l4}", "l4", ""},
		{"resources: {gpu_memory: 24GiB}", "l4", ""},
		{"resources: {gpu_memory: 24GB}", "l4", ""},
		{"resources: {gpu_memory: 80GB}", "a100-sxm-40gb", "gpu.memory"},
		{"resources: {gpu_memory: 1GiB}", "k80", "gpu.memory"}, // unknown is not enough
		{"scenario: fp64", "mi300x", "gpu.vendor"},
		{"scenario: fp64\nresources: {gpu: [mi300x, h100]}", "mi300x", ""}, // naming it declares ROCm
		{"scenario: transcode", "h200-sxm-141gb", "gpu.encoders"},
		{"", "gaudi3", ""},
	} {
		j, err := Parse("f.yaml", []byte("name: a\nrun: {command: [x]}\n"+c.text+"\n"))
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		f, _ := gpu.Builtin().Lookup(c.id)
		code := ""
		if fs := j.Profile().CheckJob(f, j.Requirements()); len(fs) > 0 {
			code = fs[0].Code
		}
		if code != c.code {
			t.Errorf("%q on %s: %q, want %q", c.text, c.id, code, c.code)
		}
	}
}

type fakeSource struct {
	names []string
	file  string
	err   error
}

func (s fakeSource) List(_ context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, n := range s.names {
			if strings.HasPrefix(n, prefix) && !yield(n, nil) {
				return
			}
		}
		if s.err != nil {
			yield("", s.err)
		}
	}
}

func (s fakeSource) Open(context.Context, string) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader(s.file)), s.err
}

func expand(t *testing.T, tasks string, s Source) ([]string, error) {
	t.Helper()
	j, err := Parse("e.yaml", []byte("name: a\nrun: {command: [x]}\n"+tasks+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for input, err := range j.Expand(t.Context(), s) {
		if err != nil {
			return got, err
		}
		got = append(got, input)
	}
	return got, nil
}

func TestExpand(t *testing.T) {
	store := fakeSource{
		names: []string{"s3://b/in/a.mov", "s3://b/in/b.mp4", "s3://b/in/deep/c.mov", "s3://b/in/deep/er/d.mov", "s3://b/inner/e.mov"},
		file:  "s3://x/1\r\n\n  two words \n3",
	}
	for _, c := range []struct {
		tasks string
		want  []string
	}{
		{"", []string{""}},
		{"tasks: {count: 3}", []string{"", "", ""}},
		{"tasks: {list: [b, a, b]}", []string{"b", "a", "b"}},
		{`tasks: {glob: "s3://b/in/*.mov"}`, []string{"s3://b/in/a.mov"}},
		{`tasks: {glob: "s3://b/in/**/*.mov"}`, []string{"s3://b/in/a.mov", "s3://b/in/deep/c.mov", "s3://b/in/deep/er/d.mov"}},
		{`tasks: {glob: "s3://b/in/*/[a-c].m?v"}`, []string{"s3://b/in/deep/c.mov"}},
		{"tasks: {file: list.txt}", []string{"s3://x/1", "two words", "3"}},
	} {
		got, err := expand(t, c.tasks, store)
		if err != nil {
			t.Errorf("%s: %v", c.tasks, err)
		} else if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", c.tasks, diff)
		}
	}
	away := errors.New("the store is away")
	if _, err := expand(t, `tasks: {glob: "s3://b/in/*.mov"}`, fakeSource{names: store.names, err: away}); !errors.Is(err, away) {
		t.Errorf("a listing that breaks off is not a list: %v", err)
	}
	for _, tasks := range []string{`tasks: {glob: "s3://b/none/*.mov"}`, "tasks: {file: empty.txt}"} {
		if _, err := expand(t, tasks, fakeSource{}); !errors.Is(err, ErrNoTasks) {
			t.Errorf("%s: %v", tasks, err)
		}
	}
	if _, err := expand(t, "tasks: {file: x}", fakeSource{file: "ok\n" + strings.Repeat("x", maxLine+1)}); err == nil || !strings.Contains(err.Error(), "x:2") {
		t.Errorf("an endless line: %v", err)
	}
}

func TestExpandAMillion(t *testing.T) {
	many := fakeSource{file: strings.Repeat("x\n", MaxTasks)}
	j, err := Parse("m.yaml", []byte("name: a\nrun: {command: [x]}\ntasks: {file: many}\n"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, err := range j.Expand(t.Context(), many) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != MaxTasks {
		t.Errorf("%d tasks", n)
	}
	many.file += "x\n"
	var last error
	for _, err := range j.Expand(t.Context(), many) {
		last = err
	}
	if last == nil {
		t.Error("a million and one were accepted")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range j.Expand(ctx, many) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	}
}

func TestLocal(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"clips/b.mov", "clips/a.mov", "clips/x/c.mov", "clips/d.txt", "other/e.mov"} {
		p := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte("in1\nin2\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "clips/dangling.mov")); err != nil {
		t.Fatal(err)
	}
	local := Local{Dir: dir}
	for _, c := range []struct {
		tasks string
		want  []string
	}{
		{`tasks: {glob: "clips/*.mov"}`, []string{"clips/a.mov", "clips/b.mov"}},
		{`tasks: {glob: "clips/**/*.mov"}`, []string{"clips/a.mov", "clips/b.mov", "clips/x/c.mov"}},
		{`tasks: {glob: "./clips/*/*.mov"}`, []string{"./clips/x/c.mov"}},
		{`tasks: {glob: "**/e.mov"}`, []string{"other/e.mov"}},
		{`tasks: {glob: "` + dir + `/other/*"}`, []string{dir + "/other/e.mov"}},
		{`tasks: {glob: "file://` + dir + `/other/*"}`, []string{"file://" + dir + "/other/e.mov"}},
		{"tasks: {file: clips/d.txt}", []string{"in1", "in2"}},
	} {
		got, err := expand(t, c.tasks, local)
		if err != nil {
			t.Errorf("%s: %v", c.tasks, err)
		} else if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", c.tasks, diff)
		}
	}
	if _, err := expand(t, `tasks: {glob: "s3://b/*.mov"}`, local); err == nil {
		t.Error("a bucket was listed on this machine")
	}
	if _, err := expand(t, `tasks: {glob: "missing/*.mov"}`, local); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func TestFoldersAreNoInputs(t *testing.T) {
	for from, want := range map[string]string{"s3://data/train.jsonl": "", "s3://data/chat/": "is a folder", "/srv/data/": "is a folder"} {
		_, err := Parse("job.yaml", fmt.Appendf(nil, "name: x\ninputs: [{from: %q, to: data}]\nrun: {command: [x]}\nmax_duration: 1h\n", from))
		if got := fmt.Sprint(err); want == "" && err != nil || want != "" && !strings.Contains(got, "inputs[0].from: "+want) {
			t.Errorf("%s: %v; want it to say %q", from, err, want)
		}
	}
}
