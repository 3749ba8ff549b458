package s3_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/checkpoint"
	"gpubroker/internal/objects"
	"gpubroker/internal/objects/objectstest"
	"gpubroker/queue"
)

// versitygw starts a real S3 server on a fresh folder and returns the address of
// an empty bucket. The program is built once, from internal/tools/versitygw.
func versitygw(t *testing.T) (address func(bucket string) string) {
	t.Helper()
	if testing.Short() || os.Getenv("GPUBROKER_SLOW") != "1" {
		t.Skip("set GPUBROKER_SLOW=1 to build versitygw and test against it")
	}
	program, err := filepath.Abs("../../../.cache/tools/versitygw")
	must(t, err)
	if _, err := os.Stat(program); err != nil {
		build := exec.CommandContext(t.Context(), "go", "build", "-C", "../../tools/versitygw", "-o", program,
			"github.com/versity/versitygw/cmd/versitygw")
		build.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false", "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build versitygw: %v\n%s", err, out)
		}
	}
	root := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	at := l.Addr().String()
	must(t, l.Close())
	ctx, cancel := context.WithCancel(context.Background())
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, program, "--quiet", "--port", at, "--access", "test", "--secret", "test-secret", "posix", root)
	cmd.Stdout, cmd.Stderr = &out, &out
	must(t, cmd.Start())
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("versitygw said:\n%s", &out)
		}
	})
	for deadline := time.Now().Add(20 * time.Second); ; {
		c, err := net.Dial("tcp", at)
		if err == nil {
			must(t, c.Close())
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("versitygw does not answer: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	return func(bucket string) string {
		must(t, os.Mkdir(filepath.Join(root, bucket), 0o755))
		return fmt.Sprintf("s3://%s?endpoint=%s", bucket, url.QueryEscape("http://"+at))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestVersitygw(t *testing.T) {
	address := versitygw(t)
	n := 0
	objectstest.Run(t, func(t *testing.T) (objects.Store, *http.Client) {
		n++
		return open(t, address(fmt.Sprintf("bucket%d", n))), http.DefaultClient
	})
}

// urls signs what one attempt asks for.
type urls struct {
	g     checkpoint.Grants
	scope checkpoint.Scope
}

func (u *urls) Put(ctx context.Context, name, _ string) (string, error) {
	put, _, _, err := u.g.Sign(ctx, u.scope, agentapi.Want{Put: []string{name}})
	return put[name], err
}

func (u *urls) Get(ctx context.Context, name, _ string) (string, error) {
	_, get, _, err := u.g.Sign(ctx, u.scope, agentapi.Want{Get: []string{name}})
	return get[name], err
}

// A file of 6 GB, in parts of the real size, over a real S3 server.
func TestVersitygwSixGigabytes(t *testing.T) {
	const size = 6_000_000_000
	store := open(t, versitygw(t)("big"))
	task := queue.TaskID{Job: "j", Index: 0}
	u := &urls{checkpoint.Grants{Store: store, Valid: time.Hour}, checkpoint.Scope{Task: task, Attempt: "a1", Checkpoints: map[int64]string{1: "a1"}}}
	tr := &checkpoint.Transfer{URLs: u, Client: http.DefaultClient, Log: slog.New(slog.DiscardHandler)}
	top := t.TempDir()
	dir := filepath.Join(top, "ckpt")
	must(t, os.Mkdir(dir, 0o755))
	file, err := os.Create(filepath.Join(dir, "state.bin"))
	must(t, err)
	must(t, file.Truncate(size))
	for off, n := int64(0), 0; off < size; off, n = off+agentapi.PartSize, n+1 {
		_, err := file.WriteAt(fmt.Appendf(nil, "%08d", n), off)
		must(t, err)
	}
	must(t, file.Close())
	saver, err := checkpoint.NewSaver("a1", tr, 0)
	must(t, err)
	set, err := checkpoint.Snapshot(t.Context(), dir, filepath.Join(top, "aside"))
	must(t, err)
	defer set.Close()
	begin := time.Now()
	save, err := saver.Save(t.Context(), set, checkpoint.Taken{Number: 1})
	must(t, err)
	up := time.Since(begin)
	key, err := checkpoint.ManifestKey(task, "a1", 1)
	must(t, err)
	_, err = checkpoint.Verify(t.Context(), store, key, save.Digest)
	must(t, err)
	begin = time.Now()
	_, err = checkpoint.Restore(t.Context(), tr, agentapi.Resume{Number: 1, Digest: save.Digest}, filepath.Join(top, "back"))
	must(t, err)
	t.Logf("6 GB: saved in %s, restored in %s", up.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond))
}
