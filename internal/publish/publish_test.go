package publish_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/checkpoint"
	"gpubroker/internal/objects"
	"gpubroker/internal/objects/azblob"
	"gpubroker/internal/objects/emulatortest"
	"gpubroker/internal/objects/gcs"
	"gpubroker/internal/objects/objectstest"
	"gpubroker/internal/objects/s3"
	"gpubroker/internal/publish"
	"gpubroker/queue"
)

var task = queue.TaskID{Job: "j-1", Index: 4}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// site is a store for records, one for outputs, and the client of a machine.
type site struct {
	t       *testing.T
	records objects.Store
	out     *objectstest.Store
	client  *http.Client
}

func folders(t *testing.T) *site {
	t.Helper()
	fs, err := objects.NewFolders("http://broker.test", bytes.Repeat([]byte("k"), 32), time.Now)
	must(t, err)
	t.Cleanup(func() { fs.Close() })
	records, err := fs.Open(objectstest.Dir(t))
	must(t, err)
	out, err := fs.Open(objectstest.Dir(t))
	must(t, err)
	return &site{t, records, &objectstest.Store{Store: out}, (&objectstest.Transport{Handler: fs}).Client()}
}

// remote is a site in one bucket of a cloud's.
func remote(t *testing.T, address string, open objects.Opener) *site {
	t.Helper()
	scheme, _, _ := strings.Cut(address, "://")
	stores := &objects.Stores{Schemes: map[string]objects.Opener{scheme: open}}
	at := func(prefix string) objects.Store {
		s, err := stores.Open(t.Context(), strings.Replace(address, "?", "/"+prefix+"?", 1))
		must(t, err)
		return s
	}
	return &site{t, at("records"), &objectstest.Store{Store: at("done")}, http.DefaultClient}
}

// everywhere runs a test over each kind of store.
func everywhere(t *testing.T, f func(t *testing.T, s *site)) {
	t.Helper()
	t.Run("folder", func(t *testing.T) { f(t, folders(t)) })
	t.Run("s3", func(t *testing.T) {
		t.Setenv("AWS_ACCESS_KEY_ID", "test")
		t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
		t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
		backend := s3mem.New()
		must(t, backend.CreateBucket("b"))
		srv := httptest.NewServer(gofakes3.New(backend).Server())
		t.Cleanup(srv.Close)
		f(t, remote(t, "s3://b?endpoint="+url.QueryEscape(srv.URL), s3.Open))
	})
	t.Run("gcs", func(t *testing.T) { f(t, remote(t, emulatortest.GCS(t), gcs.New(gcs.Options{}))) })
	t.Run("azblob", func(t *testing.T) {
		open := azblob.New(azblob.Options{Account: emulatortest.AzuriteAccount, Key: emulatortest.AzuriteKey})
		f(t, remote(t, emulatortest.Azurite(t), open))
	})
}

func (s *site) stage(task queue.TaskID, attempt string, target publish.Target) *publish.Stage {
	s.t.Helper()
	target.Store = s.out
	st, err := publish.NewStage(s.records, target, task, attempt)
	must(s.t, err)
	return st
}

// upload does what the agent does: parts by signed URLs. A file has one part, an
// empty one none.
func (s *site) upload(st *publish.Stage, task queue.TaskID, attempt string, files map[string]string) agentapi.Output {
	s.t.Helper()
	var out agentapi.Output
	all := ""
	for _, name := range []string{"", "a.txt", "b/c.txt", "empty"} {
		text, ok := files[name]
		if !ok {
			continue
		}
		all += name + text
		f := agentapi.OutputFile{Name: name, Bytes: int64(len(text))}
		if text == "" {
			out.Files = append(out.Files, f)
			continue
		}
		g := checkpoint.Grants{Store: s.records, Outputs: st, Valid: time.Hour}
		want := "out/" + name + "/1"
		put, _, refused, err := g.Sign(s.t.Context(), checkpoint.Scope{Task: task, Attempt: attempt}, agentapi.Want{Put: []string{want}})
		must(s.t, err)
		if len(refused) > 0 {
			s.t.Fatal(refused)
		}
		code, body, etag := objectstest.Do(s.t, s.client, "PUT", put[want], text)
		if !objects.Stored(code) {
			s.t.Fatalf("put: %d %s", code, body)
		}
		f.Parts = []agentapi.Part{{Number: 1, ETag: etag, Bytes: f.Bytes}}
		out.Files = append(out.Files, f)
	}
	out.Digest = checkpoint.Digest([]byte(all))
	return out
}

func (s *site) read(key string) string {
	s.t.Helper()
	data, err := objects.ReadAll(s.t.Context(), s.out.Store, key, 1<<20)
	if objects.Is(err, objects.NotFound) {
		return "(nothing)"
	}
	must(s.t, err)
	return string(data)
}

func how(ps []publish.Published) string {
	var l []string
	for _, p := range ps {
		l = append(l, fmt.Sprintf("%s %d %s", p.Key, p.Bytes, p.How))
	}
	return strings.Join(l, ", ")
}

func TestPublishFolder(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		st := s.stage(task, "a1", publish.Target{Key: "run/", Folder: true})
		out := s.upload(st, task, "a1", map[string]string{"a.txt": "A", "b/c.txt": "C", "empty": ""})
		if got := s.read("run/a.txt"); got != "(nothing)" {
			t.Errorf("before publishing there is %q", got)
		}
		done, err := st.Publish(t.Context(), out, publish.ReplaceOwn, nil)
		must(t, err)
		if want := "run/a.txt 1 written, run/b/c.txt 1 written, run/empty 0 written"; how(done) != want {
			t.Errorf("published %s, want %s", how(done), want)
		}
		// Again, by a broker that has forgotten all.
		done, err = s.stage(task, "a1", publish.Target{Key: "run/", Folder: true}).Publish(t.Context(), out, publish.ReplaceOwn, nil)
		must(t, err)
		if want := "run/a.txt 1 there, run/b/c.txt 1 there, run/empty 0 there"; how(done) != want {
			t.Errorf("published again %s, want %s", how(done), want)
		}
		must(t, st.Drop(t.Context()))
		if s.read("run/a.txt") != "A" || s.read("run/b/c.txt") != "C" || s.read("run/empty") != "" {
			t.Error("what was published is not what was sent")
		}
		for i, err := range s.records.List(t.Context(), "") {
			must(t, err)
			t.Errorf("record %s is left", i.Key)
		}
	})
}

// What becomes of an object that is already there, by rule and owner.
func TestRules(t *testing.T) {
	other := queue.TaskID{Job: "j-9", Index: 0}
	for _, c := range []struct {
		owner  string // of what is there: foreign, own, other, same
		rule   publish.Rule
		want   publish.How // "" for a ForeignError
		reads  string
		errHas string
	}{
		{"foreign", publish.ReplaceOwn, "", "old", "no task of ours"},
		{"foreign", "", "", "old", "no task of ours"},
		{"foreign", publish.Skip, publish.Skipped, "old", ""},
		{"foreign", publish.Overwrite, publish.Written, "new", ""},
		{"own", publish.ReplaceOwn, publish.Written, "new", ""},
		{"own", publish.Skip, publish.Written, "new", ""},
		{"own", publish.Overwrite, publish.Written, "new", ""},
		{"other", publish.ReplaceOwn, "", "old", "task j-9/0"},
		{"other", publish.Skip, publish.Skipped, "old", ""},
		{"other", publish.Overwrite, publish.Written, "new", ""},
		{"same", publish.ReplaceOwn, publish.Same, "new", ""},
	} {
		t.Run(c.owner+" "+string(c.rule), func(t *testing.T) {
			everywhere(t, func(t *testing.T, s *site) {
				target := publish.Target{Key: "x.mp4"}
				before, text := other, "old"
				switch c.owner {
				case "own":
					before = task
				case "same":
					text = "new"
				}
				var was agentapi.Output
				if c.owner == "foreign" {
					_, err := s.out.Put(t.Context(), "x.mp4", strings.NewReader("old"), objects.PutOptions{})
					must(t, err)
				} else {
					st := s.stage(before, "a0", target)
					was = s.upload(st, before, "a0", map[string]string{"": text})
					_, err := st.Publish(t.Context(), was, publish.ReplaceOwn, nil)
					must(t, err)
				}
				known := func(_ context.Context, task, attempt string) (string, error) {
					if task != before.String() || attempt != "a0" {
						t.Errorf("asked for %s %s", task, attempt)
					}
					return was.Digest, nil
				}
				st := s.stage(task, "a1", target)
				out := s.upload(st, task, "a1", map[string]string{"": "new"})
				done, err := st.Publish(t.Context(), out, c.rule, known)
				f, foreign := errors.AsType[*publish.ForeignError](err)
				switch {
				case c.want == "" && (!foreign || !strings.Contains(f.Error(), c.errHas)):
					t.Errorf("got %v, want a foreign object %q", err, c.errHas)
				case c.want != "" && err != nil:
					t.Error(err)
				case c.want != "" && done[0].How != c.want:
					t.Errorf("%s, want %s", done[0].How, c.want)
				}
				if got := s.read("x.mp4"); got != c.reads {
					t.Errorf("there is %q, want %q", got, c.reads)
				}
			})
		})
	}
}

// A conflict in one file of a folder publishes none of it.
func TestConflictPublishesNothing(t *testing.T) {
	s := folders(t)
	_, err := s.out.Put(t.Context(), "run/b/c.txt", strings.NewReader("foreign"), objects.PutOptions{})
	must(t, err)
	st := s.stage(task, "a1", publish.Target{Key: "run/", Folder: true})
	out := s.upload(st, task, "a1", map[string]string{"a.txt": "A", "b/c.txt": "C"})
	if _, err := st.Publish(t.Context(), out, publish.ReplaceOwn, nil); err == nil {
		t.Fatal("published over a foreign object")
	}
	if got := s.read("run/a.txt"); got != "(nothing)" {
		t.Errorf("a.txt holds %q", got)
	}
}

// A broker that dies before or after any step of publishing publishes the same
// when it comes back, and nothing twice.
func TestCrashAnywhere(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		crash := errors.New("crash")
		for n := 0; ; n++ {
			prefix := fmt.Sprintf("run-%d/", n)
			attempt := fmt.Sprintf("a%d", n)
			target := publish.Target{Key: prefix, Folder: true}
			// An earlier attempt's output is there and must give way.
			old := s.stage(task, "old"+attempt, target)
			_, err := old.Publish(t.Context(), s.upload(old, task, "old"+attempt, map[string]string{"a.txt": "before", "empty": "x"}), "", nil)
			must(t, err)

			st := s.stage(task, attempt, target)
			out := s.upload(st, task, attempt, map[string]string{"a.txt": "A", "b/c.txt": "C", "empty": ""})
			step := 0
			hook := func(string, string) error {
				if step++; step == n+1 {
					return crash
				}
				return nil
			}
			s.out.Fail, s.out.After = hook, hook
			_, first := s.stage(task, attempt, target).Publish(t.Context(), out, "", nil)
			if first != nil && !errors.Is(first, crash) {
				t.Fatal(first)
			}
			s.out.Fail, s.out.After = nil, nil
			_, err = s.stage(task, attempt, target).Publish(t.Context(), out, "", nil)
			must(t, err)
			got := map[string]string{}
			for i, err := range s.out.List(t.Context(), prefix) {
				must(t, err)
				got[strings.TrimPrefix(i.Key, prefix)] = s.read(i.Key)
			}
			if d := cmp.Diff(map[string]string{"a.txt": "A", "b/c.txt": "C", "empty": ""}, got); d != "" {
				t.Errorf("crash at step %d (-want +got):\n%s", n, d)
			}
			must(t, st.Drop(t.Context()))
			must(t, old.Drop(t.Context()))
			for up, err := range s.out.Uploads(t.Context(), prefix) {
				must(t, err)
				t.Errorf("crash at step %d: upload of %s is left", n, up.Key)
			}
			if first == nil {
				t.Logf("%d crash points", n)
				break
			}
		}
	})
}

// A stale attempt that uploads while its successor publishes changes nothing.
func TestStaleAttempt(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		target := publish.Target{Key: "x.mp4"}
		stale, now := s.stage(task, "a1", target), s.stage(task, "a2", target)
		s.upload(stale, task, "a1", map[string]string{"": "stale"})
		out := s.upload(now, task, "a2", map[string]string{"": "right"})
		s.upload(stale, task, "a1", map[string]string{"": "stale again"})
		_, err := now.Publish(t.Context(), out, "", nil)
		must(t, err)
		s.upload(stale, task, "a1", map[string]string{"": "and again"})
		must(t, stale.Drop(t.Context()))
		if got := s.read("x.mp4"); got != "right" {
			t.Errorf("there is %q", got)
		}
	})
}

func TestLost(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		st := s.stage(task, "a1", publish.Target{Key: "x.mp4"})
		out := s.upload(st, task, "a1", map[string]string{"": "text"})
		check := func(what string, out agentapi.Output) {
			t.Helper()
			_, err := st.Publish(t.Context(), out, "", nil)
			if _, ok := errors.AsType[*publish.LostError](err); !ok {
				t.Errorf("%s: got %v, want a LostError", what, err)
			}
		}
		wrong := out
		wrong.Files = []agentapi.OutputFile{out.Files[0]}
		wrong.Files[0].Bytes++
		check("a size that the parts do not have", wrong)
		wrong.Files = append([]agentapi.OutputFile{}, out.Files...)
		wrong.Files[0].Parts = []agentapi.Part{{Number: 1, ETag: strings.Repeat("0", 32), Bytes: 4}}
		check("a part that is not there", wrong)
		check("no file", agentapi.Output{})
		check("two files", agentapi.Output{Files: append(out.Files, out.Files...)})
		must(t, st.Drop(t.Context()))
		check("parts that were given up", out)
	})
}

// A store that answers a completion of an upload it does not know with the object
// that lies there has published nothing.
func TestStoreThatOnlyAnswers(t *testing.T) {
	s := folders(t)
	target := publish.Target{Key: "x.mp4"}
	old := s.stage(task, "a0", target)
	_, err := old.Publish(t.Context(), s.upload(old, task, "a0", map[string]string{"": "old"}), "", nil)
	must(t, err)
	st := s.stage(task, "a1", target)
	out := s.upload(st, task, "a1", map[string]string{"": "new"})
	s.out.Store = answers{s.out.Store}
	_, err = st.Publish(t.Context(), out, "", nil)
	if _, ok := errors.AsType[*publish.LostError](err); !ok {
		t.Errorf("got %v, want a LostError", err)
	}
}

type answers struct{ objects.Store }

func (a answers) Complete(ctx context.Context, key, _ string, _ []objects.Part, _ objects.Cond) (objects.Info, error) {
	return a.Stat(ctx, key)
}

func TestStageRefuses(t *testing.T) {
	s := folders(t)
	st := s.stage(task, "a1", publish.Target{Key: "run/", Folder: true})
	g := checkpoint.Grants{Store: s.records, Outputs: st, Valid: time.Hour}
	scope := checkpoint.Scope{Task: task, Attempt: "a1"}
	names := []string{"out//1", "out/../x/1", "out/a/../../x/1", "out//etc/passwd/1", "out/.gpubroker/x/1", "out/x/0", "out/x/10001", "out/x"}
	put, _, refused, err := g.Sign(t.Context(), scope, agentapi.Want{Put: names})
	if err != nil || len(put) > 0 || len(refused) != len(names) {
		t.Errorf("signed %v, refused %v, %v", put, refused, err)
	}
}
