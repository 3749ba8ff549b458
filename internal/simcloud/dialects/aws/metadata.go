package aws

import (
	"cmp"
	"encoding/base64"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/providers"
)

// metadata is the instance metadata service of a machine: version 2 alone, as
// with HttpTokens "required" (EC2 user guide, "Instance metadata").
func (c *cloud) metadata(w *simcloud.World, id string) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/latest/api/token" {
			imdsToken(rw, r, w.Now())
			return
		}
		if !imdsValid(r.Header.Get("X-Aws-Ec2-Metadata-Token"), w.Now()) {
			page(rw, http.StatusUnauthorized, "401 - Unauthorized")
			return
		}
		inside, err := w.Inside(id)
		if err != nil {
			page(rw, http.StatusNotFound, "404 - Not Found")
			return
		}
		x := c.extra(id)
		if r.URL.Path == "/latest/user-data" && x.raw != "" {
			rw.Header().Set("Content-Type", "application/octet-stream")
			_, _ = io.WriteString(rw, x.raw)
			return
		}
		rest, ok := strings.CutPrefix(r.URL.Path, "/latest/meta-data/")
		text, there := imdsTree(inside, x)[strings.TrimSuffix(rest, "/")]
		if !ok || !there {
			page(rw, http.StatusNotFound, "404 - Not Found")
			return
		}
		rw.Header().Set("Content-Type", "text/plain")
		if strings.HasPrefix(text, "{") {
			rw.Header().Set("Content-Type", "application/json")
		}
		_, _ = io.WriteString(rw, text)
	})
}

// imdsTree is what stands below /latest/meta-data/.
func imdsTree(in simcloud.Inside, x extra) map[string]string {
	m := in.Machine
	life := "on-demand"
	if m.Kind == providers.Spot {
		life = "spot"
	}
	tree := map[string]string{
		"instance-id": InstanceID(m.ID), "ami-id": cmp.Or(x.image.id, OwnImage(m.Region)), "ami-launch-index": strconv.Itoa(x.index), "instance-type": m.Type,
		"instance-life-cycle": life, "placement/availability-zone": m.Zone, "placement/region": m.Region, "placement/group-name": x.group,
		"local-ipv4": m.Address, "reservation-id": x.reservation, "services/domain": "amazonaws.com", "services/partition": "aws",
	}
	if x.group == "" {
		delete(tree, "placement/group-name")
	}
	if in.Notice != nil {
		at := in.Notice.Time.UTC().Format("2006-01-02T15:04:05Z")
		tree["spot/instance-action"] = string(encode(struct {
			Action string `json:"action"`
			Time   string `json:"time"`
		}{in.Notice.Action, at}))
		tree["spot/termination-time"] = at
	}
	if !in.Rebalance.IsZero() {
		tree["events/recommendations/rebalance"] = string(encode(struct {
			NoticeTime string `json:"noticeTime"`
		}{in.Rebalance.UTC().Format("2006-01-02T15:04:05Z")}))
	}
	return tree
}

// imdsToken gives a session token, which is when it runs out.
func imdsToken(rw http.ResponseWriter, r *http.Request, now time.Time) {
	ttl, err := strconv.Atoi(r.Header.Get("X-Aws-Ec2-Metadata-Token-Ttl-Seconds"))
	switch {
	case r.Method != http.MethodPut:
		page(rw, http.StatusMethodNotAllowed, "405 - Method Not Allowed")
	case err != nil || ttl < 1 || ttl > 21600 || r.Header.Get("X-Forwarded-For") != "":
		page(rw, http.StatusBadRequest, "400 - Bad Request")
	default:
		rw.Header().Set("Content-Type", "text/plain")
		rw.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", strconv.Itoa(ttl))
		_, _ = io.WriteString(rw, base64.URLEncoding.EncodeToString([]byte("imds:"+strconv.FormatInt(now.Unix()+int64(ttl), 10))))
	}
}

func imdsValid(token string, now time.Time) bool {
	plain, err := base64.URLEncoding.DecodeString(token)
	until, ok := strings.CutPrefix(string(plain), "imds:")
	if err != nil || !ok {
		return false
	}
	n, err := strconv.ParseInt(until, 10, 64)
	return err == nil && now.Unix() < n
}

// page is an error as the service shows it: a web page.
func page(rw http.ResponseWriter, status int, title string) {
	rw.Header().Set("Content-Type", "text/html")
	rw.WriteHeader(status)
	_, _ = io.WriteString(rw, `<?xml version="1.0" encoding="iso-8859-1"?>`+"\n<html><head><title>"+title+"</title></head><body><h1>"+title+"</h1></body></html>\n")
}
