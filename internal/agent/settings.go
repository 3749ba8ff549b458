package agent

import (
	"bufio"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
)

// Settings are what the user data, or the owner of a machine, tells the agent.
// The package comment lists where each is read from.
type Settings struct {
	URL      string
	Instance string // "" for a machine that somebody owns
	Token    string
	Host     string // name of an owned machine
	CA       string
	Dir      string

	Lease       time.Duration // lease 0, from boot
	Metadata    string        // simcloud, ec2, gce, azure, none
	MetadataURL string

	PowerOff string // commands, run by sh
	End      string
	Rearm    string

	Report time.Duration

	Address string // that other machines of a gang reach this one at; "" means the one towards the broker
}

// FromEnv reads the settings. Where getenv is of a file, see [ReadFile].
func FromEnv(getenv func(string) string) (Settings, error) {
	s := Settings{
		URL:         strings.TrimRight(getenv("GPUBROKER_URL"), "/"),
		Instance:    getenv("GPUBROKER_INSTANCE"),
		Token:       getenv("GPUBROKER_TOKEN"),
		CA:          getenv("GPUBROKER_CA"),
		Dir:         getenv("GPUBROKER_DIR"),
		Metadata:    getenv("GPUBROKER_METADATA"),
		MetadataURL: getenv("GPUBROKER_METADATA_URL"),
		PowerOff:    getenv("GPUBROKER_POWEROFF"),
		End:         getenv("GPUBROKER_END"),
		Rearm:       getenv("GPUBROKER_REARM"),
		Address:     getenv("GPUBROKER_ADDRESS"),
	}
	if sim := getenv("SIMCLOUD_METADATA"); sim != "" && (s.Metadata == "" || s.Metadata == "simcloud") {
		s.Metadata, s.MetadataURL = "simcloud", sim
	}
	var errs []error
	for _, d := range []struct {
		name string
		into *time.Duration
	}{{"GPUBROKER_LEASE", &s.Lease}, {"GPUBROKER_REPORT", &s.Report}} {
		text := getenv(d.name)
		if text == "" {
			continue
		}
		v, err := time.ParseDuration(text)
		if err != nil || v <= 0 {
			errs = append(errs, fmt.Errorf("agent: %s=%q is no duration above zero; write for example 20m", d.name, text))
		}
		*d.into = v
	}
	return s, errors.Join(errs...)
}

// Check fills the defaults and returns every fault.
func (s *Settings) Check() error {
	var errs []error
	u, err := url.Parse(s.URL)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		errs = append(errs, fmt.Errorf("agent: the broker's address %q is no http or https URL; set GPUBROKER_URL or --url", s.URL))
	}
	if s.Token == "" {
		errs = append(errs, errors.New("agent: no join token; set GPUBROKER_TOKEN or --token"))
	}
	if (s.Instance == "") == (s.Host == "") {
		errs = append(errs, errors.New("agent: either GPUBROKER_INSTANCE (a rented machine) or join --name HOST (your own)"))
	}
	if s.Dir == "" {
		s.Dir = "/var/lib/gpubroker"
	}
	if s.Lease == 0 {
		s.Lease = 20 * time.Minute
	}
	if s.Report == 0 {
		s.Report = 5 * time.Second
	}
	if s.PowerOff == "" {
		s.PowerOff = "poweroff"
	}
	if s.Metadata == "" {
		s.Metadata = "none"
	}
	if known := []string{"simcloud", "ec2", "gce", "azure", "none"}; !slices.Contains(known, s.Metadata) {
		errs = append(errs, fmt.Errorf("agent: GPUBROKER_METADATA=%q; want one of %s", s.Metadata, strings.Join(known, ", ")))
	}
	if _, err := netip.ParseAddr(s.Address); s.Address != "" && err != nil {
		errs = append(errs, fmt.Errorf("agent: GPUBROKER_ADDRESS=%q is no IP address", s.Address))
	}
	return errors.Join(errs...)
}

// ReadFile reads KEY=VALUE lines. Blank lines and lines with # are skipped, a
// value in single quotes may span lines. A file that others may read is refused,
// since it holds the token.
func ReadFile(path string) (func(string) string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("agent: read settings: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("agent: %s can be read by others (mode %04o); chmod 600 it", path, info.Mode().Perm())
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("agent: read settings: %w", err)
	}
	defer f.Close()
	values := map[string]string{}
	in := bufio.NewScanner(f)
	for n := 1; in.Scan(); n++ {
		line := strings.TrimPrefix(strings.TrimSpace(in.Text()), "export ")
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			return nil, fmt.Errorf("agent: %s:%d: want KEY=VALUE", path, n)
		}
		if rest, quoted := strings.CutPrefix(value, "'"); quoted {
			for !strings.HasSuffix(rest, "'") {
				if !in.Scan() {
					return nil, fmt.Errorf("agent: %s:%d: the quote of %s is never closed", path, n, key)
				}
				n++
				rest += "\n" + in.Text()
			}
			value = strings.TrimSuffix(rest, "'")
		}
		values[key] = value
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("agent: read settings %s: %w", path, err)
	}
	return func(key string) string { return values[key] }, nil
}
