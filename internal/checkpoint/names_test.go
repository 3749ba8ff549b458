package checkpoint_test

import (
	"bytes"
	"context"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/checkpoint"
	"gpubroker/internal/objects"
	"gpubroker/queue"
)

// grants of attempt a2 of task j-1/3, whose checkpoint 6 was written by a1.
func grants(t testing.TB) (*checkpoint.Grants, checkpoint.Scope) {
	t.Helper()
	w := newWorld(t)
	return &checkpoint.Grants{Store: w.store, Valid: time.Hour}, checkpoint.Scope{
		Task: task, Attempt: "a2", Next: 7, Checkpoints: map[int64]string{6: "a1"},
	}
}

func TestGrants(t *testing.T) {
	g, scope := grants(t)
	putKeys := map[string]string{
		"save/7/12":       "j-1/3/a2/7/12",
		"save/7/manifest": "j-1/3/a2/7/manifest",
		"log/3":           "j-1/3/a2/log/3",
	}
	getKeys := map[string]string{
		"get/manifest/6":     "j-1/3/a1/6/manifest",
		"get/part/a1/6/2":    "j-1/3/a1/6/2",
		"get/part/a0/1/9999": "j-1/3/a0/1/9999",
	}
	want := agentapi.Want{
		Put: append(slices.Collect(maps.Keys(putKeys)), // and what it may not have:
			"save/6/1",         // committed
			"save/6/manifest",  // committed
			"save/7/01",        // another spelling
			"save/7/0",         // no part
			"save/-7/1",        //
			"save/7",           //
			"save/7/1/2",       //
			"save/7/../../x/1", // traversal
			"log/0",            //
			"log/../../a1/1",   // traversal
			"out/x/1",          // no output
			"get/manifest/6",   // not for put
			"", "save", "get", "get/part", "nonsense/1",
		),
		Get: append(slices.Collect(maps.Keys(getKeys)),
			"get/manifest/5",           // not committed
			"get/manifest/7",           //
			"get/part/../../j-2/0/a/1", // another task
			"get/part/..%2f..%2fx/1/1", //
			"get/part/a1/6/manifest",   // by its number only
			"get/part/a1/6",            //
			"get/part/a1/log/1",        //
			"get/part/./1/1",           //
			"get/part//1/1",            //
			"save/7/12",                // not for get
		),
	}
	put, get, refused, err := g.Sign(t.Context(), scope, want)
	if err != nil {
		t.Fatal(err)
	}
	check := func(got, want map[string]string) {
		t.Helper()
		keys := map[string]string{}
		for name, u := range got {
			p, err := url.Parse(u)
			if err != nil {
				t.Fatal(err)
			}
			_, keys[name], _ = strings.Cut(strings.TrimPrefix(p.Path, objects.Path), "/")
		}
		if d := cmp.Diff(want, keys); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	}
	check(put, putKeys)
	check(get, getKeys)
	if n := len(want.Put) + len(want.Get) - len(put) - len(get); len(refused) != n {
		t.Errorf("%d refused, want %d", len(refused), n)
	}
}

// An attempt whose own id or task makes no sense gets nothing.
func TestGrantsBadScope(t *testing.T) {
	g, scope := grants(t)
	for _, s := range []checkpoint.Scope{
		{Task: task, Attempt: ""},
		{Task: task, Attempt: "../x"},
		{Task: task, Attempt: "a/b"},
		{Task: queue.TaskID{Job: "..", Index: 0}, Attempt: "a"},
		{Task: queue.TaskID{Job: "j", Index: -1}, Attempt: "a"},
	} {
		put, get, refused, err := g.Sign(t.Context(), s, agentapi.Want{Put: []string{"log/1"}, Get: []string{"get/part/a/1/1"}})
		if err != nil || len(put)+len(get) > 1 || len(refused) == 0 {
			t.Errorf("%+v: %v %v %v %v", s, put, get, refused, err)
		}
	}
	_ = scope
}

// No name whatever leads outside of the task, or to a key that another attempt
// writes, and what is taken has only one spelling.
func FuzzName(f *testing.F) {
	for _, s := range []string{
		"save/7/12", "save/7/manifest", "log/3", "out/NAME/2", "out//2", "out/a/b.txt/10000", "get/manifest/6",
		"get/part/a1/6/2", "save/07/1", "out/../x/1", "get/part/../../x/1/1", "save/9223372036854775808/1", "out/\x00/1",
	} {
		f.Add(s)
	}
	store, err := objects.NewFolders("http://b", bytes.Repeat([]byte("k"), 32), time.Now)
	if err != nil {
		f.Fatal(err)
	}
	folder, err := store.Open(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	g := &checkpoint.Grants{Store: folder, Outputs: keys{folder}, Valid: time.Hour}
	scope := checkpoint.Scope{Task: task, Attempt: "a2", Next: 7, Checkpoints: map[int64]string{6: "a1"}}
	f.Fuzz(func(t *testing.T, name string) {
		put, get, _, err := g.Sign(t.Context(), scope, agentapi.Want{Put: []string{name}, Get: []string{name}})
		if err != nil {
			t.Fatal(err)
		}
		for _, urls := range []map[string]string{put, get} {
			for _, u := range urls {
				p, err := url.Parse(u)
				if err != nil {
					t.Fatal(err)
				}
				_, key, _ := strings.Cut(strings.TrimPrefix(p.Path, objects.Path), "/")
				if objects.CheckKey(key) != nil {
					t.Errorf("%q leads to key %q", name, key)
				}
				own := strings.HasPrefix(key, "j-1/3/a2/") || strings.HasPrefix(key, "done/")
				if len(put) > 0 && !own || !own && !strings.HasPrefix(key, "j-1/3/") {
					t.Errorf("%q leads to key %q", name, key)
				}
			}
		}
		if len(put)+len(get) > 1 {
			t.Errorf("%q is for both", name)
		}
	})
}

// keys signs outputs under done/.
type keys struct{ objects.Store }

func (k keys) SignPart(ctx context.Context, _ checkpoint.Scope, file string, _ int, valid time.Duration) (string, error) {
	return k.SignPut(ctx, "done/"+file+"x", valid)
}
