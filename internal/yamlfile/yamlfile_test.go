package yamlfile

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type word string

func (word) Sensitive() {}

func (w *word) UnmarshalText(b []byte) error {
	if !strings.HasPrefix(string(b), "env:") {
		return &Problem{"a secret is given by reference", "write env:NAME"}
	}
	*w = word(b)
	return nil
}

type inner struct {
	Level int      `json:"level" min:"1" max:"9" doc:"how high"`
	Kinds []string `json:"kinds" enum:"red,green" single:"true"`
}

func (inner) RefusedKeys() map[string]string {
	return map[string]string{"image": "containers come later"}
}

type sample struct {
	Name   string            `json:"name" required:"true" doc:"what it is called"`
	Ratio  float64           `json:"ratio"`
	On     bool              `json:"on"`
	Inner  *inner            `json:"inner"`
	Env    map[string]string `json:"env"`
	Secret word              `json:"secret"`
}

func read(text string, sets ...string) (sample, error) {
	d := Parse("s.yaml", []byte(text))
	for _, s := range sets {
		d.Set("--set", s)
	}
	var s sample
	d.Decode(&s)
	return s, d.Err()
}

func TestDecode(t *testing.T) {
	got, err := read("name: 007\nratio: 1.50\non: true\ninner: &i {level: 3, kinds: red}\nenv: {A: 06:00, B: 1.10, C: yes, D: \"\"}\nsecret: env:X\n")
	if err != nil {
		t.Fatal(err)
	}
	want := sample{Name: "007", Ratio: 1.5, On: true, Inner: &inner{3, []string{"red"}}, Env: map[string]string{"A": "06:00", "B": "1.10", "C": "yes", "D": ""}, Secret: "env:X"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestAllErrorsAtOnceInOrder(t *testing.T) {
	_, err := read("nmae: x\nratio: much\non: \"true\"\ninner:\n  level: 12\n  kinds: [red, gren]\n  image: a\n  image: b\nenv: [a]\n")
	want := strings.TrimPrefix(`
s.yaml:1:1: nmae: unknown key; did you mean "name"?
s.yaml:1:1: name: is missing; what it is called
s.yaml:2:8: ratio: expected a number, found "much"
s.yaml:3:5: on: expected true or false, found the text "true"
s.yaml:5:10: inner.level: expected at most 9, found 12
s.yaml:6:16: inner.kinds[1]: expected "red" or "green", found "gren"; did you mean "green"?
s.yaml:7:3: inner.image: is not read here; containers come later
s.yaml:8:3: image is given twice; the first is in line 7
s.yaml:9:6: env: expected a mapping, found a list`, "\n")
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(fmt.Sprint(err), "\n")); diff != "" {
		t.Error(diff)
	}
	es, ok := errors.AsType[Errors](err)
	if !ok || es[0].Line != 1 || es[0].File != "s.yaml" || es[0].Path != "nmae" || es[0].Hint == "" {
		t.Errorf("%+v", es)
	}
}

func TestSet(t *testing.T) {
	got, err := read("name: a\ninner: {level: 1}\non: true\n", "inner.kinds=[green, red]", "env.X=1=2", "on=null", "name=", "ratio=2")
	if err != nil {
		t.Fatal(err)
	}
	want := sample{Ratio: 2, Inner: &inner{1, []string{"green", "red"}}, Env: map[string]string{"X": "1=2"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	_, err = read("name: a\n", "inner.level=x", "inner.colour=red", "nothing", "name.x=1", "env=[")
	for _, part := range []string{
		`--set inner.level=x:1:13: inner.level: expected a whole number, found "x"`,
		`--set inner.colour=red:1:7: inner.colour: unknown key`,
		`--set nothing:1:1: this is no assignment`,
		`--set name.x=1:1:6: name is no mapping`,
		`--set env=[:1:`,
	} {
		if !strings.Contains(fmt.Sprint(err), part) {
			t.Errorf("no %q in\n%v", part, err)
		}
	}
}

func TestSecretsAreNotShown(t *testing.T) {
	for _, text := range []string{
		"name: x\nsecret: hunter2\nratio: z\n",
		"name: x\nenv: {}\nsecret: |\n  hunter2\n  hunter2\nratio: z\n",
		"{name: x, secret: hunter2, ratio: z}",
		"name: x\nsecret: \"hunter2\nratio: [", // no YAML at all
	} {
		_, err := read(text)
		es, ok := errors.AsType[Errors](err)
		if !ok {
			t.Errorf("%q was accepted", text)
		} else if strings.Contains(es.Text(), "hunter2") {
			t.Errorf("shown:\n%s", es.Text())
		}
	}
}

func TestHostileFiles(t *testing.T) {
	bomb := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 9; i++ {
		bomb += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
	}
	for name, text := range map[string]string{
		"brackets":  "name: " + strings.Repeat("[", 1_000_000),
		"dashes":    strings.Repeat("- ", 1_000_000),
		"deep":      "name: " + strings.Repeat("[", 500) + strings.Repeat("]", 500),
		"zero byte": "name: a\x00b",
		"too long":  "name: " + strings.Repeat("x", MaxBytes),
		"documents": "name: a\n---\nname: b\n",
		"itself":    "name: &a [*a]\n",
		"aliases":   bomb,
	} {
		if _, err := read(text); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	d := Parse("bomb.yaml", []byte(strings.ReplaceAll(bomb, "a8:", "env: &x\n  a8:")))
	var out struct {
		Env map[string][][][][][][][][][]string `json:"env"`
	}
	d.Decode(&out)
	if err := d.Err(); err == nil || !strings.Contains(err.Error(), "expand without end") {
		t.Errorf("the bomb went off: %.300v", err)
	}
}

func TestSchemaFollowsTheStruct(t *testing.T) {
	b, err := Schema(sample{}, "https://example.org/s.json", "sample")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`"required": [`, `"how high"`, `"maximum": 9`, `"additionalProperties": false`, `"green"`} {
		if !strings.Contains(string(b), part) {
			t.Errorf("no %s in\n%s", part, b)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"name: x\n", "a: &a [*a]", "- {", "? a\n: b", "--- \n...\n", "a: |\n  b\n c", "\"\\u", "name: !!binary x", "%YAML 1.2\n---\nname: x"} {
		f.Add(s, "inner.level=3")
	}
	f.Fuzz(func(t *testing.T, text, set string) {
		if _, err := read(text, set); err != nil {
			es, ok := errors.AsType[Errors](err)
			if !ok || len(es) == 0 || es.Text() == "" {
				t.Fatalf("%#v", err)
			}
			for _, e := range es {
				if e.Line < 1 || e.Column < 1 || e.Message == "" || e.File == "" {
					t.Fatalf("%+v", e)
				}
			}
		}
	})
}
