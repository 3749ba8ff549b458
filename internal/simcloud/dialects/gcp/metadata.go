package gcp

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// metadata is a machine's metadata server
// (cloud.google.com/compute/docs/metadata/overview). It is called with the world
// locked, and so only makes the handler.
func (s *Server) metadata(w *simcloud.World, id string) http.Handler {
	return &metadataServer{s, w, id}
}

type metadataServer struct {
	s  *Server
	w  *simcloud.World
	id string
}

func (m *metadataServer) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	rw.Header().Set("Metadata-Flavor", "Google")
	rw.Header().Set("Server", "Metadata Server for VM")
	path, found := strings.CutPrefix(r.URL.Path, "/computeMetadata/v1/")
	switch {
	case r.URL.Path == "/":
		_, _ = io.WriteString(rw, "0.1/\ncomputeMetadata/\n") // how libraries find out where they run
		return
	case r.Header.Get("Metadata-Flavor") != "Google" || r.Header.Get("X-Forwarded-For") != "":
		http.Error(rw, "Your client does not have permission to get URL "+r.URL.Path+" from this server. Missing Metadata-Flavor:Google header.", http.StatusForbidden)
		return
	case !found || r.Method != http.MethodGet:
		http.NotFound(rw, r)
		return
	}
	q := r.URL.Query()
	value, known := m.value(path)
	tag := etag(value)
	if q.Get("wait_for_change") == "true" && known && (q.Get("last_etag") == "" || q.Get("last_etag") == tag) {
		value, known = m.changed(r, path, value)
	}
	if !known {
		http.NotFound(rw, r)
		return
	}
	rw.Header().Set("ETag", etag(value))
	rw.Header().Set("Content-Type", "application/text")
	if strings.HasSuffix(path, "/token") {
		rw.Header().Set("Content-Type", "application/json")
	}
	_, _ = io.WriteString(rw, value) // the caller has gone; nothing to do about it
}

func etag(value string) string {
	return fmt.Sprintf("%016x", []byte(number(value))[:8])
}

// changed waits until a value is another one, or as long as the caller says.
func (m *metadataServer) changed(r *http.Request, path, old string) (string, bool) {
	limit := time.Hour
	if n, err := strconv.Atoi(r.URL.Query().Get("timeout_sec")); err == nil && n > 0 {
		limit = time.Duration(n) * time.Second
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		changed := m.w.Changed()
		value, known := m.value(path)
		if !known || value != old {
			return value, known
		}
		select {
		case <-changed:
		case <-timer.C:
			return value, known
		case <-r.Context().Done():
			return value, known
		}
	}
}

// value returns what stands at a path below computeMetadata/v1.
func (m *metadataServer) value(path string) (string, bool) {
	in, err := m.w.Inside(m.id)
	if err != nil {
		return "", false
	}
	m.s.mu.Lock()
	m.s.catchUp(m.w)
	i := m.s.byMachine[m.id]
	if i == nil {
		i = m.s.adopt(m.w, m.id)
	}
	m.s.mu.Unlock()
	if i == nil {
		return "", false
	}
	boolean := func(b bool) string { return strings.ToUpper(strconv.FormatBool(b)) }
	switch path {
	case "project/project-id":
		return Project, true
	case "project/numeric-project-id":
		return "1", true
	case "instance/id":
		return strconv.FormatUint(i.id, 10), true
	case "instance/name":
		return i.name, true
	case "instance/hostname":
		return i.name + "." + i.zone + ".c." + Project + ".internal", true
	case "instance/zone":
		return "projects/1/zones/" + i.zone, true
	case "instance/machine-type":
		return "projects/1/machineTypes/" + last(i.given.MachineType), true
	case "instance/preempted":
		return boolean(in.Notice != nil), true
	case "instance/maintenance-event":
		return "NONE", true
	case "instance/scheduling/preemptible":
		return boolean(in.Machine.Kind == providers.Spot), true
	case "instance/scheduling/automatic-restart":
		return boolean(in.Machine.Kind != providers.Spot), true
	case "instance/network-interfaces/0/ip":
		return in.Machine.Address, true
	case "instance/attributes/":
		var keys strings.Builder
		for _, item := range i.given.Metadata.Items {
			keys.WriteString(item.Key + "\n")
		}
		return keys.String(), true
	case "instance/service-accounts/":
		if len(i.given.ServiceAccounts) == 0 {
			return "", true
		}
		return "default/\n" + i.given.ServiceAccounts[0].Email + "/\n", true
	}
	if key, ok := strings.CutPrefix(path, "instance/attributes/"); ok {
		for _, item := range i.given.Metadata.Items {
			if item.Key == key {
				return item.Value, true
			}
		}
	}
	if rest, ok := strings.CutPrefix(path, "instance/service-accounts/default/"); ok && len(i.given.ServiceAccounts) > 0 {
		account := i.given.ServiceAccounts[0]
		switch rest {
		case "email":
			return account.Email, true
		case "scopes":
			return strings.Join(account.Scopes, "\n") + "\n", true
		case "token":
			return tokenOf(in.Machine), true
		}
	}
	return "", false
}

// tokenOf is a token with which a machine may do what its service account may.
func tokenOf(m simapi.Machine) string {
	data, err := json.Marshal(struct {
		Token   string `json:"access_token"`
		Expires int    `json:"expires_in"`
		Type    string `json:"token_type"`
	}{machineToken + m.ID, 3599, "Bearer"})
	if err != nil {
		return "" // plain values only
	}
	return string(data)
}
