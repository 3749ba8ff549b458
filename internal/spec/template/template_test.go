package template

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRender(t *testing.T) {
	v := ForTask("j1", "night", 7, "s3://a/b/clip.v2.mov")
	v[Input] = "/in/{{stem}}.mov"
	for in, want := range map[string]string{
		"{{input}}":                       "/in/{{stem}}.mov", // not filled twice
		"s3://d/{{stem}}-{{ index }}.mp4": "s3://d/clip.v2-7.mp4",
		"{{name}}/{{job}}":                "night/j1",
		"{{output}} {{.Name}} {{ }}":      "{{output}} {{.Name}} {{ }}",
		`\{{stem}} \{{.X}}`:               "{{stem}} {{.X}}",
		"plain":                           "plain",
	} {
		if got := Render(in, v); got != want {
			t.Errorf("%q = %q, want %q", in, got, want)
		}
	}
}

func TestFind(t *testing.T) {
	if diff := cmp.Diff([]string{"input", "stm"}, Find(`{{input}} {{stm}} {{input}} \{{index}} {{.Name}}`)); diff != "" {
		t.Error(diff)
	}
}

func TestStemOf(t *testing.T) {
	for in, want := range map[string]string{"a/b.mov": "b", "b": "b", ".hidden": ".hidden", "s3://x/y/z.tar.gz?v=1": "z.tar", "dir/": "dir", "": "", "lr=0.1": "lr=0"} {
		if got := StemOf(in); got != want {
			t.Errorf("%q = %q, want %q", in, got, want)
		}
	}
}
