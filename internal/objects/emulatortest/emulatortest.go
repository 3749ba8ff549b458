// Package emulatortest starts the emulators of object stores that tests run against:
// fake-gcs-server and Azurite, as make emulators installs them. It is apart from
// objectstest since it links an SDK.
package emulatortest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/service"
)

// The account that Azurite knows, and its key, which is no secret
// (learn.microsoft.com/azure/storage/common/storage-connect-azurite).
const (
	AzuriteAccount = "devstoreaccount1"
	AzuriteKey     = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

// errNotThere is an emulator that is not installed.
var errNotThere = errors.New("not installed")

// One server of each kind serves all tests of a program.
var (
	gcsServer     = sync.OnceValues(startGCS)
	azuriteServer = sync.OnceValues(startAzurite)
	buckets       atomic.Int64

	// running holds what would close the servers' inputs if it were collected.
	running sync.Map
)

// GCS makes an empty bucket at fake-gcs-server, and returns its address. The test
// is skipped when the program is not installed.
func GCS(t testing.TB) string {
	t.Helper()
	at, err := gcsServer()
	installed(t, "fake-gcs-server", err)
	name := fmt.Sprintf("bucket-%d", buckets.Add(1))
	body, err := json.Marshal(map[string]string{"name": name})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at+"/storage/v1/b?project=p", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("make a bucket: %s", resp.Status)
	}
	return "gs://" + name + "?endpoint=" + url.QueryEscape(at)
}

// Azurite makes an empty container at Azurite, and returns its address. The test
// is skipped when the program is not installed.
func Azurite(t testing.TB) string {
	t.Helper()
	at, err := azuriteServer()
	if _, none := exec.LookPath("npm"); none != nil && errors.Is(err, errNotThere) {
		t.Skipf("Azurite: %v, which takes npm", err)
	}
	installed(t, "Azurite", err)
	key, err := service.NewSharedKeyCredential(AzuriteAccount, AzuriteKey)
	if err != nil {
		t.Fatal(err)
	}
	c, err := service.NewClientWithSharedKeyCredential(at+"/"+AzuriteAccount, key, nil)
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("container-%d", buckets.Add(1))
	if _, err := c.CreateContainer(t.Context(), name, nil); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("azblob://%s?account=%s&endpoint=%s", name, AzuriteAccount, url.QueryEscape(at))
}

// installed skips a test whose emulator is not there, as the other tests do
// without their programs: in make test it fails.
func installed(t testing.TB, what string, err error) {
	t.Helper()
	if errors.Is(err, errNotThere) {
		if os.Getenv("GPUBROKER_TEST_REQUIRE") == "1" {
			t.Fatalf("%s: %v", what, err)
		}
		t.Skipf("%s: %v", what, err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// cached returns a file of the module's folder .cache.
func cached(name string) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("no go.mod above the test's folder")
		}
		dir = up
	}
	file := filepath.Join(dir, ".cache", filepath.FromSlash(name))
	if _, err := os.Stat(file); err != nil {
		return "", fmt.Errorf("%w: %s is not there; make emulators installs it", errNotThere, file)
	}
	return file, nil
}

func startGCS() (string, error) {
	program, err := cached("tools/fake-gcs-server")
	if err != nil {
		return "", err
	}
	port, err := freePort()
	if err != nil {
		return "", err
	}
	at := "127.0.0.1:" + port
	return start(at, program, "-scheme", "http", "-host", "127.0.0.1", "-port", port, "-backend", "memory", "-public-host", at, "-log-level", "error")
}

func startAzurite() (string, error) {
	program, err := cached("azurite/node_modules/.bin/azurite-blob")
	if err != nil {
		return "", err
	}
	port, err := freePort()
	if err != nil {
		return "", err
	}
	return start("127.0.0.1:"+port, program, "--blobHost", "127.0.0.1", "--blobPort", port,
		"--silent", "--skipApiVersionCheck", "--inMemoryPersistence", "--disableTelemetry")
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, errors.Join(err, l.Close())
}

// start runs a server that lives as long as this process: the shell ends it when
// its standard input does.
func start(at, program string, args ...string) (string, error) {
	var said bytes.Buffer
	cmd := exec.Command("sh", append([]string{"-c", `"$@" </dev/null & read -r _; kill $!`, "sh", program}, args...)...)
	cmd.Stdout, cmd.Stderr = &said, &said
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	running.Store(at, in)
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", at)
		if err == nil {
			return "http://" + at, c.Close()
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return "", fmt.Errorf("%s does not answer: %w\n%s", filepath.Base(program), err, strings.TrimSpace(said.String()))
		}
	}
}
