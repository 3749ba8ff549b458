package docstest

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpubroker/internal/cli"
	"gpubroker/internal/config"
	"gpubroker/internal/spec"
	"gpubroker/providers/all"
)

const root = "../.."

// document is one Markdown file.
type document struct {
	name   string // path from the root
	text   string
	blocks []block
}

// block is a fenced piece of a document.
type block struct {
	where, lang, text string
}

// documents reads the README, the changelog and everything under docs.
func documents(t *testing.T) []document {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	names = append(names, filepath.Join(root, "README.md"), filepath.Join(root, "CHANGELOG.md"))
	var out []document
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			t.Fatal(err)
		}
		d := document{name: filepath.ToSlash(rel), text: string(text)}
		d.blocks = blocks(t, d.name, d.text)
		out = append(out, d)
	}
	if len(out) < 10 {
		t.Fatalf("only %d documents were found", len(out))
	}
	return out
}

func blocks(t *testing.T, name, text string) []block {
	t.Helper()
	var out []block
	open := false
	lines := bufio.NewScanner(strings.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		switch rest, fence := strings.CutPrefix(strings.TrimSpace(line), "```"); {
		case fence && open:
			open = false
		case fence:
			open = true
			out = append(out, block{where: fmt.Sprintf("%s:%d", name, n), lang: rest})
		case open:
			out[len(out)-1].text += line + "\n"
		}
	}
	if open {
		t.Errorf("%s: a fenced block is not closed", name)
	}
	return out
}

// Job specs in documents are valid, and so are configurations. What is only a
// piece of one is left to its reader.
func TestSpecsAndConfigurations(t *testing.T) {
	var types []string
	for _, d := range all.Descriptors() {
		types = append(types, d.Type)
	}
	specs, configs := 0, 0
	for _, d := range documents(t) {
		for _, b := range d.blocks {
			if b.lang != "yaml" {
				continue
			}
			var err error
			switch {
			case has(b.text, "name") && has(b.text, "run"):
				specs++
				_, err = spec.Parse(b.where, []byte(b.text))
			case has(b.text, "providers") || has(b.text, "store") || has(b.text, "listen"):
				configs++
				_, err = config.Parse(b.where, []byte(b.text), types)
			}
			if err != nil {
				t.Errorf("%s is not valid:\n%v", b.where, err)
			}
		}
	}
	if specs < 2 || configs < 2 {
		t.Errorf("%d specs and %d configurations were found: does this test still see them?", specs, configs)
	}
}

// has reports whether a YAML text has a key at its outermost level.
func has(text, key string) bool {
	return regexp.MustCompile(`(?m)^` + key + `:`).MatchString(text)
}

// The spec that the README explains is the example that is shipped.
func TestReadmeExplainsTheExample(t *testing.T) {
	const name = "examples/transcode.yaml"
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	want, err := spec.Parse(name, text)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range documents(t) {
		if d.name != "README.md" {
			continue
		}
		for _, b := range d.blocks {
			if b.lang == "yaml" && has(b.text, "run") {
				got, err := spec.Parse(b.where, []byte(b.text))
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(string(want.Canonical()), string(got.Canonical())); diff != "" {
					t.Errorf("%s is not %s:\n%s", b.where, name, diff)
				}
				return
			}
		}
	}
	t.Error("README.md explains no spec")
}

// commands returns the flags of every command, from its own help.
func commands() map[string][]string {
	out := map[string][]string{}
	current := ""
	heading := regexp.MustCompile("^#+ `gpubroker ([a-z]+(?: [a-z]+)?)")
	flag := regexp.MustCompile("`(-{1,2}[a-z-]+)`")
	for line := range strings.SplitSeq(string(cli.Document()), "\n") {
		if m := heading.FindStringSubmatch(line); m != nil {
			current = m[1]
			out[current] = []string{"-o", "--output", "--broker", "--token", "--ca", "-h", "--help"}
		} else if current != "" && strings.HasPrefix(line, "| `-") {
			cell, _, _ := strings.Cut(line[1:], "|")
			for _, m := range flag.FindAllStringSubmatch(cell, -1) {
				out[current] = append(out[current], m[1])
			}
		}
	}
	out["help"], out["completion"] = nil, nil
	return out
}

// later are commands that documents name as still to come.
var later = []string{"trial"}

// usages finds command lines in a text: gpubroker COMMAND and what follows.
var (
	usages = regexp.MustCompile("(?:^|[\\s`(]|bin/)gpubroker ([a-z]+)([^`\\n]*)")
	flags  = regexp.MustCompile(`(?:^|[\s\[])(--?[a-z][a-z-]*)`)
)

// Every command and flag that a document names in code exists.
func TestCommands(t *testing.T) {
	known := commands()
	if len(known) < 20 || !slices.Contains(known["plan"], "--offers") {
		t.Fatalf("the commands are not understood: %v", known)
	}
	seen := 0
	for _, d := range documents(t) {
		for _, code := range codes(d) {
			for _, m := range usages.FindAllStringSubmatch(code.text, -1) {
				seen++
				name, rest := m[1], m[2]
				if word, _, _ := strings.Cut(strings.TrimSpace(rest), " "); known[name+" "+word] != nil {
					name += " " + word
				}
				have, ok := known[name]
				if !ok && !slices.Contains(later, name) {
					t.Errorf("%s names gpubroker %s: there is no such command", code.where, name)
				}
				rest, _, _ = strings.Cut(rest, "#")
				rest, _, _ = strings.Cut(rest+" ", " -- ")
				for _, f := range flags.FindAllStringSubmatch(rest, -1) {
					if ok && have != nil && !slices.Contains(have, f[1]) {
						t.Errorf("%s names gpubroker %s %s: it has no such flag", code.where, name, f[1])
					}
				}
			}
		}
	}
	if seen < 40 {
		t.Errorf("only %d command lines were found: does this test still see them?", seen)
	}
}

// codes are the fenced blocks of a shell, and what stands between backquotes.
func codes(d document) []block {
	var out []block
	fenced := false
	span := regexp.MustCompile("`([^`]+)`")
	for n, line := range strings.Split(d.text, "\n") {
		where := fmt.Sprintf("%s:%d", d.name, n+1)
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			continue
		}
		if fenced {
			out = append(out, block{where: where, text: line})
			continue
		}
		for _, m := range span.FindAllStringSubmatch(line, -1) {
			out = append(out, block{where: where, text: m[1]})
		}
	}
	return out
}

// Relative links lead to files that are there, and their fragments to headings.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	seen := 0
	for _, d := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(d.text, -1) {
			target, fragment, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			seen++
			file := filepath.Join(root, filepath.FromSlash(d.name))
			if target != "" {
				file = filepath.Join(filepath.Dir(file), filepath.FromSlash(target))
			}
			text, err := os.ReadFile(file)
			if info, statErr := os.Stat(file); statErr == nil && info.IsDir() {
				continue
			}
			if err != nil {
				t.Errorf("%s links to %s: %v", d.name, m[1], err)
				continue
			}
			if fragment != "" && !slices.Contains(anchors(string(text)), fragment) {
				t.Errorf("%s links to %s: it has no such heading; it has %s", d.name, m[1], strings.Join(anchors(string(text)), ", "))
			}
		}
	}
	if seen < 10 {
		t.Errorf("only %d links were found: does this test still see them?", seen)
	}
}

// anchors are the names by which a page's headings can be linked to.
func anchors(text string) []string {
	var out []string
	drop := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for line := range strings.SplitSeq(text, "\n") {
		if title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			out = append(out, strings.ReplaceAll(drop.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), ""), " ", "-"))
		}
	}
	return out
}

// docs/README.md lists every document.
func TestIndexIsWhole(t *testing.T) {
	index, err := os.ReadFile(filepath.Join(root, "docs", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(filepath.Join(root, "docs"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if ext := filepath.Ext(f.Name()); f.Name() != "README.md" && ext != ".svg" && !strings.Contains(string(index), "]("+f.Name()+")") {
			t.Errorf("docs/README.md does not list %s", f.Name())
		}
	}
}
