package scheduler_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gpubroker/internal/gpu"
	"gpubroker/internal/reason"
)

var quoted = regexp.MustCompile(`"([a-z0-9_.]+)"`)

// codes are the reasons that this package's sources give, by the file that
// names them: the string literals that are registered codes.
func codes(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	made := regexp.MustCompile(`reason\.New\("([a-z0-9_.]+)"`)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range made.FindAllStringSubmatch(string(text), -1) {
			found[m[1]] = true
		}
		for _, m := range quoted.FindAllStringSubmatch(string(text), -1) {
			if _, registered := reason.Sentences[reason.Code(m[1])]; registered {
				found[m[1]] = true
			}
		}
	}
	for _, a := range gpu.Attributes() {
		found[a.Code] = true
	}
	return found
}

// TestEveryReasonHasASentenceAndARow: what a plan can say is registered, and
// docs/scheduling.md lists it with that sentence.
func TestEveryReasonHasASentenceAndARow(t *testing.T) {
	doc, err := os.ReadFile("../docs/scheduling.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range slices.Sorted(maps.Keys(codes(t))) {
		sentence, ok := reason.Outline(reason.Code(code))
		if !ok {
			t.Errorf("%s has no sentence in reason.Sentences", code)
			continue
		}
		if row := "| `" + code + "` | " + sentence + " |"; !strings.Contains(string(doc), row) {
			t.Errorf("docs/scheduling.md lacks the row\n%s", row)
		}
	}
}

// TestEveryReasonIsInAScript: each code that the scheduler itself gives has an
// example in testdata/plans.
func TestEveryReasonIsInAScript(t *testing.T) {
	scripts, err := filepath.Glob("testdata/plans/*")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, name := range scripts {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	slot := regexp.MustCompile(`\\\{[a-z_]+\\\}`)
	parts := strings.NewReplacer(`\[`, "(?:", `\]`, ")?")
	for _, code := range slices.Sorted(maps.Keys(codes(t))) {
		sentence, _ := reason.Outline(reason.Code(code))
		pattern := parts.Replace(slot.ReplaceAllString(regexp.QuoteMeta(sentence), ".+"))
		switch {
		case strings.HasPrefix(code, "gpu."): // package gpu has its own tests
		case code == "not_admitted": // a budget whose zone is not known: config refuses it
		case code == "dearer": // seen in TestEarlyStopLosesNothing, many offers
		case !regexp.MustCompile(pattern).MatchString(strings.ReplaceAll(all.String(), "\n          ", " ")):
			t.Errorf("no script shows %s: %s", code, sentence)
		}
	}
}

// TestEveryWaitSaysWhatWouldChangeIt: docs/scheduling.md lists why tasks wait, and
// each of those codes has a sentence of what would change it.
func TestEveryWaitSaysWhatWouldChangeIt(t *testing.T) {
	doc, err := os.ReadFile("../docs/scheduling.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(doc), "**Why a task waits**")
	table, _, _ = strings.Cut(table, "**What ")
	listed := regexp.MustCompile("(?m)^\\| `([a-z_.]+)` \\|").FindAllStringSubmatch(table, -1)
	if len(listed) < 20 {
		t.Fatalf("%d codes are listed", len(listed))
	}
	for _, m := range listed {
		if reason.Changes[reason.Code(m[1])] == "" {
			t.Errorf("nothing says what would change %s", m[1])
		}
	}
	for code := range reason.Changes {
		if _, ok := reason.Sentences[code]; !ok {
			t.Errorf("%s is no reason", code)
		}
	}
}
