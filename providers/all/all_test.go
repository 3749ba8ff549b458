package all_test

import (
	"slices"
	"strings"
	"testing"

	"gpubroker/providers"
	"gpubroker/providers/all"
)

func TestTypesAreNamedOnceAndInOrder(t *testing.T) {
	list := all.Descriptors()
	byType := func(a, b providers.Descriptor) int { return strings.Compare(a.Type, b.Type) }
	if !slices.IsSortedFunc(list, byType) {
		t.Error("the list is not in order of type")
	}
	for n, d := range list {
		if d.Type == "" || d.Title == "" || d.Open == nil || n > 0 && list[n-1].Type == d.Type {
			t.Errorf("descriptor %q is incomplete or there twice", d.Type)
		}
	}
}

// Settings that an adapter does not know are an error, not a silence.
func TestUnknownSettingsAreRefused(t *testing.T) {
	for _, d := range all.Descriptors() {
		if _, err := d.Open(t.Context(), "account", []byte(`{"no_such_setting": 1}`), providers.Env{Owner: "broker"}); err == nil {
			t.Errorf("%s takes a setting that it does not have", d.Type)
		}
	}
}
