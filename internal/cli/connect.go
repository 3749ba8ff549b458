package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"

	"gpubroker/internal/api/client"
)

// connection is how the broker is found: flags first, then the environment, then
// the client.json that a broker leaves in its data folder.
type connection struct{ url, token, ca string }

// clientFile is what serve writes for the command line of its own machine.
const clientFile = "client.json"

// places are the folders in which client.json is looked for, in order.
func places() []string {
	var out []string
	if dir := env("GPUBROKER_DATA"); dir != "" {
		out = append(out, dir)
	}
	out = append(out, "gpubroker-data")
	if home, err := os.UserHomeDir(); err == nil {
		out = append(out, filepath.Join(home, ".config", "gpubroker"))
	}
	return out
}

func readClientFile() (s client.Settings, path string, err error) {
	for _, dir := range places() {
		path = filepath.Join(dir, clientFile)
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = json.Unmarshal(text, &s)
		}
		if err != nil {
			return s, path, fmt.Errorf("read %s: %w; give --broker and GPUBROKER_TOKEN instead, or run as who serves", path, err)
		}
		return s, path, nil
	}
	return s, "", nil
}

// broker returns a client of the broker that the flags, the environment or
// client.json name.
func (a *app) broker() (*client.Client, error) {
	set := client.Settings{
		URL:   cmp.Or(a.conn.url, env("GPUBROKER_URL")),
		Token: cmp.Or(a.conn.token, env("GPUBROKER_TOKEN")),
	}
	if file := cmp.Or(a.conn.ca, env("GPUBROKER_CA")); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("broker's CA: %w", err)
		}
		set.CA = string(pem)
	}
	if set.URL == "" || set.Token == "" {
		kept, _, err := readClientFile()
		if err != nil {
			return nil, err
		}
		// A token goes to the broker that it is from, and to no other.
		if set.URL == "" || set.URL == kept.URL {
			set = client.Settings{URL: cmp.Or(set.URL, kept.URL), Token: cmp.Or(set.Token, kept.Token), CA: cmp.Or(set.CA, kept.CA)}
		}
	}
	if set.URL == "" {
		return nil, errNoBroker
	}
	return client.New(set)
}

var errNoBroker = errors.New("no broker is known: start one with gpubroker serve in this folder, give --broker and GPUBROKER_TOKEN, or see one at work with gpubroker demo")

// named reports whether the broker was named on purpose: then nothing else stands
// in for it.
func (a *app) named() bool { return a.conn.url != "" || env("GPUBROKER_URL") != "" }

// codeOf is the exit code for an error of a call.
func codeOf(err error) int {
	if client.Is(err, http.StatusUnprocessableEntity) {
		return ExitUsage
	}
	return ExitFailed
}

// away adds what to do to the error of a call that nobody answered.
func away(err error) error {
	if errors.Is(err, client.ErrUnreachable) {
		return fmt.Errorf("%w; is it running? gpubroker serve starts one", err)
	}
	return err
}
