package nearest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOf(t *testing.T) {
	keys := []string{"deadline", "after_deadline", "resources", "retry", "run", "queue", "quiesce"}
	for _, c := range []struct {
		word string
		want []string
	}{
		{"deadlnie", []string{"deadline"}},
		{"Resource", []string{"resources"}},
		{"rn", []string{"run"}},
		{"queu", []string{"queue"}},
		{"colour", nil},
		{"", nil},
	} {
		if diff := cmp.Diff(c.want, Of(c.word, keys, 2)); diff != "" {
			t.Errorf("Of(%q): %s", c.word, diff)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"abc", "acb", 1}, {"kitten", "sitting", 3}, {"ca", "abc", 3}} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("distance(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestHint(t *testing.T) {
	if got := Hint("gpus", []string{"gpu", "slots"}); got != `did you mean "gpu"?` {
		t.Error(got)
	}
	if got := Hint("FP8", []string{"fp4", "fp8"}); got != `did you mean "fp8"?` {
		t.Errorf("a word in capitals: %s", got)
	}
	if got := Or([]string{"a", "b", "c"}); got != `"a", "b" or "c"` {
		t.Error(got)
	}
}
