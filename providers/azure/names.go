package azure

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"time"

	"gpubroker/providers"
)

// A machine's resource group and its VM have one name, made of the request id. It
// is the machine's id at the provider: the metadata service tells it as
// compute/name.
const namePrefix = "gpubroker-"

// maxName is the longest name of a Linux VM
// (learn.microsoft.com/azure/azure-resource-manager/management/resource-name-rules).
const maxName = 64

var plainName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

// nameOf is the name of the machine of a request. One that Azure would not take,
// or would not tell from another by its capitals, is told by its digest.
func nameOf(request string) string {
	if name := namePrefix + request; plainName.MatchString(request) && len(name) <= maxName {
		return name
	}
	clean := strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(request), "-"), "-")
	sum := sha256.Sum256([]byte(request))
	return namePrefix + clean[:min(len(clean), 24)] + "-" + hex.EncodeToString(sum[:8])
}

// remainsOf is the id under which the list shows what a machine leaves behind.
func remainsOf(name string) string { return name + ":remains" }

// The group's tags beside [providers.Tags].
const (
	tagMarket  = "gpubroker-market"  // "region|zone|size|kind"
	tagCreated = "gpubroker-created" // Unix seconds, when the group was asked for
	tagStarted = "gpubroker-started" // Unix seconds, when Azure had accepted the machine
)

// mark are the tags of a new group.
func mark(req providers.LaunchRequest, more map[string]string, now time.Time) map[string]*string {
	all := maps.Clone(more)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, req.Tags.Map())
	m := req.Market
	all[tagMarket] = strings.Join([]string{m.Region, m.Zone, m.Type, string(m.Kind)}, "|")
	all[tagCreated] = seconds(now)
	return pointers(all)
}

func pointers(m map[string]string) map[string]*string {
	out := make(map[string]*string, len(m))
	for k, v := range m {
		out[k] = new(v)
	}
	return out
}

// read returns tags by lower-case name: Azure may change the capitals.
func read(tags map[string]*string) map[string]string {
	out := make(map[string]string, len(tags))
	for k, v := range tags {
		if v != nil {
			out[strings.ToLower(k)] = *v
		}
	}
	return out
}

func seconds(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }

// moment reads a tag that holds seconds; what somebody has spoilt is the zero time.
func moment(s string) time.Time {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n <= 0 {
		return time.Time{}
	}
	return time.Unix(n, 0).UTC()
}

// market reads the tag of a market.
func (a *Adapter) market(s string) (providers.Market, bool) {
	part := strings.Split(s, "|")
	if len(part) != 4 {
		return providers.Market{}, false
	}
	return providers.Market{Provider: a.name, Region: part[0], Zone: part[1], Type: part[2], Kind: providers.Kind(part[3])}, true
}

// uuid makes an id that is the same each time for the same words.
func uuid(words string) string {
	sum := sha256.Sum256([]byte(words))
	h := hex.EncodeToString(sum[:16])
	return fmt.Sprintf("%s-%s-5%s-a%s-%s", h[:8], h[8:12], h[13:16], h[17:20], h[20:])
}
