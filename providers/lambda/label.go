package lambda

import (
	"strconv"
	"strings"
	"time"

	"gpubroker/providers"
)

// tagLaunched is when we asked for the instance, in Unix seconds: the API itself
// does not say.
const tagLaunched = "gpubroker-launched"

// longestName is of InstanceLaunchRequest.name, document 1.6.0.
const longestName = 64

// nameMark begins the names that hold a label.
const nameMark = "gb1"

// label is what we write on an instance.
type label struct {
	providers.Tags
	launched time.Time
}

// name is the label in at most 64 bytes, false when it does not fit:
// gb1_owner_generation_request_project_deleteAt_launched, the moments in Unix
// seconds to the base 36. Within a part a dot stands twice and an underscore is ".-".
func (l label) name() (string, bool) {
	n := strings.Join([]string{
		nameMark, part(l.Owner), part(l.Generation), part(l.Request), part(l.Project), seconds(l.DeleteAt), seconds(l.launched),
	}, "_")
	return n, len(n) <= longestName
}

// part keeps the separator out of a part.
func part(s string) string {
	return strings.NewReplacer(".", "..", "_", ".-").Replace(s)
}

func unpart(s string) string {
	return strings.NewReplacer("..", ".", ".-", "_").Replace(s)
}

func seconds(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return strconv.FormatInt(t.Unix(), 36)
}

func seconds10(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }

// ofName reads a name that holds a label.
func ofName(name string) (label, bool) {
	p := strings.Split(name, "_")
	if len(p) != 7 || p[0] != nameMark {
		return label{}, false
	}
	return label{
		Tags: providers.Tags{
			Owner: unpart(p[1]), Generation: unpart(p[2]), Request: unpart(p[3]), Project: unpart(p[4]), DeleteAt: providers.Moment(p[5], 36),
		},
		launched: providers.Moment(p[6], 36),
	}, true
}

// labelOf reads what an instance bears: its tags, else its name.
func labelOf(i instance) label {
	tags := map[string]string{}
	for _, t := range i.Tags {
		tags[t.Key] = t.Value
	}
	l := label{providers.TagsOf(tags), providers.Moment(tags[tagLaunched], 10)}
	if l.Owner == "" {
		l, _ = ofName(i.Name)
	}
	return l
}
