package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/reason"
)

// Kinds of a notice.
const (
	kindPreempt   = "preempt"
	kindRebalance = "rebalance"
)

// Metadata is what the machine's metadata service tells.
type Metadata interface {
	// CloudID is the provider's id of the machine, "" when there is no service.
	CloudID(ctx context.Context) (string, error)
	// Notice is the warning that stands now, or nil. The time is by the machine's
	// wall clock, and zero when none is given.
	Notice(ctx context.Context) (*MetadataNotice, error)
}

// MetadataNotice is a warning of the provider.
type MetadataNotice struct {
	Kind string // preempt, rebalance
	At   time.Time
}

// NoMetadata is the service of a machine that has none.
type NoMetadata struct{}

// errNoMetadata says that the machine has no metadata service.
var errNoMetadata = errors.New("this machine has no metadata service")

// CloudID is unknown.
func (NoMetadata) CloudID(context.Context) (string, error) { return "", nil }

// Notice never comes.
func (NoMetadata) Notice(context.Context) (*MetadataNotice, error) { return nil, nil }

// NewMetadata is the service of the settings.
func NewMetadata(set Settings) (Metadata, error) {
	base := strings.TrimRight(set.MetadataURL, "/")
	// Straight to the address: a proxy would ask about another machine.
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{Proxy: nil}}
	or := func(def string) string {
		if base != "" {
			return base
		}
		return def
	}
	switch set.Metadata {
	case "none", "":
		return NoMetadata{}, nil
	case "simcloud":
		if base == "" {
			return nil, errors.New("agent: SIMCLOUD_METADATA is not set, so there is no metadata address")
		}
		return &simMetadata{base, client}, nil
	case "ec2":
		return &ec2Metadata{base: or("http://169.254.169.254"), client: client}, nil
	case "gce":
		return &gceMetadata{or("http://metadata.google.internal"), client}, nil
	case "azure":
		return &azureMetadata{or("http://169.254.169.254"), client}, nil
	}
	return nil, fmt.Errorf("agent: metadata service %q is not known", set.Metadata)
}

// MetadataAddresses are what tasks must not reach: the port only, since the same
// address may answer for names. A machine of simcloud shares its host's network,
// and what is its own there cannot be told apart.
func MetadataAddresses(set Settings) []netip.AddrPort {
	switch set.Metadata {
	case "ec2":
		return []netip.AddrPort{netip.MustParseAddrPort("169.254.169.254:80"), netip.MustParseAddrPort("[fd00:ec2::254]:80")}
	case "gce", "azure":
		return []netip.AddrPort{netip.MustParseAddrPort("169.254.169.254:80")}
	}
	return nil
}

// ask gets a path; found is false for 404.
func ask(ctx context.Context, client *http.Client, method, url string, header http.Header) (body string, found bool, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return "", false, fmt.Errorf("agent: metadata: %w", err)
	}
	req.Header = header
	res, err := client.Do(req)
	if err != nil {
		return "", false, fmt.Errorf("agent: metadata: %w", err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	switch {
	case err != nil:
		return "", false, fmt.Errorf("agent: metadata: %w", err)
	case res.StatusCode == http.StatusNotFound:
		return "", false, nil
	case res.StatusCode != http.StatusOK:
		return "", false, &metadataError{res.StatusCode, url}
	}
	return string(data), true, nil
}

type metadataError struct {
	status int
	url    string
}

func (e *metadataError) Error() string {
	return fmt.Sprintf("agent: metadata: %s answered %d", e.url, e.status)
}

// simMetadata speaks simcloud's (docs/simcloud.md).
type simMetadata struct {
	base   string
	client *http.Client
}

func (m *simMetadata) get(ctx context.Context, path string) (string, bool, error) {
	return ask(ctx, m.client, http.MethodGet, m.base+"/v1/"+path, http.Header{})
}

// CloudID is the machine's id.
func (m *simMetadata) CloudID(ctx context.Context) (string, error) {
	id, _, err := m.get(ctx, "instance-id")
	return strings.TrimSpace(id), err
}

// Notice looks at both warnings.
func (m *simMetadata) Notice(ctx context.Context) (*MetadataNotice, error) {
	return twoNotices(ctx, m.get, "notice", "rebalance")
}

// twoNotices looks at the warning of an end and at the advice to go; the end
// goes before advice.
func twoNotices(ctx context.Context, get func(context.Context, string) (string, bool, error), end, advice string) (*MetadataNotice, error) {
	body, found, err := get(ctx, end)
	if err != nil {
		return nil, err
	}
	if found {
		var action struct {
			Action string    `json:"action"`
			Time   time.Time `json:"time"`
		}
		if json.Unmarshal([]byte(body), &action) != nil {
			action.Time = time.Time{} // something is coming; when, is not known
		}
		return &MetadataNotice{kindPreempt, action.Time}, nil
	}
	_, found, err = get(ctx, advice)
	if err != nil || !found {
		return nil, err
	}
	return &MetadataNotice{Kind: kindRebalance}, nil
}

// ec2Metadata speaks IMDSv2 (docs.aws.amazon.com/AWSEC2/latest/UserGuide/
// spot-instance-termination-notices.html).
type ec2Metadata struct {
	base   string
	client *http.Client

	mu    sync.Mutex // notices and the id are asked for at the same time
	token string
}

func (m *ec2Metadata) get(ctx context.Context, path string) (string, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for try := 0; ; try++ {
		if m.token == "" {
			token, found, err := ask(ctx, m.client, http.MethodPut, m.base+"/latest/api/token",
				http.Header{"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": {"21600"}})
			if err != nil || !found {
				return "", false, fmt.Errorf("agent: metadata: no token: %w", errors.Join(errNoMetadata, err))
			}
			m.token = token
		}
		body, found, err := ask(ctx, m.client, http.MethodGet, m.base+"/latest/meta-data/"+path,
			http.Header{"X-Aws-Ec2-Metadata-Token": {m.token}})
		if e, ok := errors.AsType[*metadataError](err); ok && e.status == http.StatusUnauthorized && try == 0 {
			m.token = "" // it ran out
			continue
		}
		return body, found, err
	}
}

// CloudID is the instance id.
func (m *ec2Metadata) CloudID(ctx context.Context) (string, error) {
	id, _, err := m.get(ctx, "instance-id")
	return strings.TrimSpace(id), err
}

// Notice looks at both warnings.
func (m *ec2Metadata) Notice(ctx context.Context) (*MetadataNotice, error) {
	return twoNotices(ctx, m.get, "spot/instance-action", "events/recommendations/rebalance")
}

// gceMetadata speaks Google's (cloud.google.com/compute/docs/instances/
// create-use-preemptible: "instance/preempted" becomes TRUE, 30 s before the end).
type gceMetadata struct {
	base   string
	client *http.Client
}

func (m *gceMetadata) get(ctx context.Context, path string) (string, error) {
	body, _, err := ask(ctx, m.client, http.MethodGet, m.base+"/computeMetadata/v1/instance/"+path, http.Header{"Metadata-Flavor": {"Google"}})
	return strings.TrimSpace(body), err
}

// CloudID is the instance's name, by which the API knows it.
func (m *gceMetadata) CloudID(ctx context.Context) (string, error) { return m.get(ctx, "name") }

// Notice says whether the machine is being preempted.
func (m *gceMetadata) Notice(ctx context.Context) (*MetadataNotice, error) {
	body, err := m.get(ctx, "preempted")
	if err != nil || body != "TRUE" {
		return nil, err
	}
	return &MetadataNotice{kindPreempt, time.Now().Add(30 * time.Second)}, nil
}

// azureMetadata speaks Azure's scheduled events (learn.microsoft.com/azure/
// virtual-machines/linux/scheduled-events).
type azureMetadata struct {
	base   string
	client *http.Client
}

func (m *azureMetadata) get(ctx context.Context, path string) (string, error) {
	body, _, err := ask(ctx, m.client, http.MethodGet, m.base+path, http.Header{"Metadata": {"true"}})
	return strings.TrimSpace(body), err
}

// CloudID is the VM's name, by which the API knows it within its group.
func (m *azureMetadata) CloudID(ctx context.Context) (string, error) {
	return m.get(ctx, "/metadata/instance/compute/name?api-version=2021-02-01&format=text")
}

// Notice looks for a Preempt event that names this machine.
func (m *azureMetadata) Notice(ctx context.Context) (*MetadataNotice, error) {
	body, err := m.get(ctx, "/metadata/scheduledevents?api-version=2020-07-01")
	if err != nil || body == "" {
		return nil, err
	}
	name, err := m.CloudID(ctx)
	if err != nil {
		return nil, err
	}
	var doc struct {
		Events []struct {
			EventType string
			NotBefore string
			Resources []string
		}
	}
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		return nil, fmt.Errorf("agent: metadata: scheduled events: %w", err)
	}
	for _, e := range doc.Events {
		if e.EventType != "Preempt" || !slices.Contains(e.Resources, name) {
			continue
		}
		at, err := time.Parse(time.RFC1123, e.NotBefore)
		if err != nil {
			at = time.Time{} // it has begun, or says no time
		}
		return &MetadataNotice{kindPreempt, at}, nil
	}
	return nil, nil
}

// seenNotice is a notice with the moment that it means by the monotonic clock:
// the wall clock is read once, when it comes.
type seenNotice struct {
	kind string
	by   time.Time // zero when not said
}

func (n *seenNotice) wire() *agentapi.Notice {
	w := &agentapi.Notice{Kind: n.kind}
	if !n.by.IsZero() {
		// 0 would mean that no time was said.
		w.In = max(agentapi.Of(time.Until(n.by)), 1)
	}
	return w
}

// noticeEvery is how often the metadata service is asked.
const noticeEvery = time.Second

// watchNotices asks every second, tells the broker at once and acts without
// waiting for it.
func (a *Agent) watchNotices(ctx context.Context) {
	if _, none := a.meta.(NoMetadata); none {
		return
	}
	tick := time.NewTicker(noticeEvery)
	defer tick.Stop()
	failing := false
	for {
		n, err := a.meta.Notice(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing:
			a.log.Warn("the metadata address does not answer", "err", err)
		case err == nil:
			a.take(n)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// take acts on what the metadata says now.
func (a *Agent) take(n *MetadataNotice) {
	a.mu.Lock()
	old := a.notice
	switch {
	case n == nil && old == nil, n != nil && old != nil && old.kind == n.Kind:
		// Nothing new, or the same again.
	case n == nil:
		a.notice = nil // taken back
	default:
		a.notice = &seenNotice{kind: n.Kind}
		if !n.At.IsZero() {
			a.notice.by = time.Now().Add(time.Until(n.At.Round(0)))
		}
	}
	now := a.notice
	a.mu.Unlock()
	if now != old {
		a.log.Warn("the provider's notice changed", "notice", now)
		a.poke()
	}
	if now == nil {
		return
	}
	for _, t := range a.list() {
		if now.kind == kindRebalance {
			t.saveSoon()
			continue
		}
		if t.due(now.by) {
			o := stopOrder{why: reason.New("preempted"), layer: layerMachine, by: now.by, save: true}
			if !now.by.IsZero() && old != now {
				o.why = reason.New("preempted_notice", "notice", time.Until(now.by).Round(time.Second))
			}
			t.stop(o)
		}
	}
}

// due reports whether the attempt must be stopped for a machine that is taken at
// by: at once if it can save, else as late as its end can still be told, since it
// may yet finish.
func (t *attempt) due(by time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rec.Task.Checkpoint != nil || by.IsZero() || time.Until(by) < min(t.rec.Task.StopGrace.Std(), 5*time.Second)+3*time.Second
}
