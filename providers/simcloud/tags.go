package simcloud

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/providers"
)

// The keys of our tags.
const (
	tagOwner      = "gpubroker-owner"
	tagGeneration = "gpubroker-generation"
	tagRequest    = "gpubroker-request"
	tagProject    = "gpubroker-project"
	tagDeleteAt   = "gpubroker-delete-at"
)

func encodeTags(t providers.Tags) map[string]string {
	m := map[string]string{}
	for key, value := range map[string]string{tagOwner: t.Owner, tagGeneration: t.Generation, tagRequest: t.Request, tagProject: t.Project} {
		if value != "" {
			m[key] = value
		}
	}
	if !t.DeleteAt.IsZero() {
		m[tagDeleteAt] = t.DeleteAt.UTC().Format(time.RFC3339Nano)
	}
	return m
}

// decodeTags reads our tags. A delete-at that somebody has spoilt is the zero
// time: unknown, and not now.
func decodeTags(m map[string]string) providers.Tags {
	t := providers.Tags{Owner: m[tagOwner], Generation: m[tagGeneration], Request: m[tagRequest], Project: m[tagProject]}
	if at, err := time.Parse(time.RFC3339Nano, m[tagDeleteAt]); err == nil {
		t.DeleteAt = at.UTC()
	}
	return t
}

// stated are the rules that settings and cloud must agree on.
type stated struct {
	Notice    time.Duration
	Billing   money.Billing
	BillsBoot bool
	ListLag   time.Duration
	SelfEnd   providers.SelfEnd
	EndAction providers.EndAction
	StopTime  time.Duration
	BootTime  time.Duration
}

func (a *Adapter) stated() stated { return statedBy(a.caps) }

func statedBy(c providers.Capabilities) stated {
	return stated{c.Notice, c.Billing, c.BillsBoot, c.ListLag, c.SelfEnd, c.EndAction, c.StopTime, c.BootTime}
}

// difference names every rule that differs.
func (s stated) difference(cloud stated) string {
	var out []string
	a, b := reflect.ValueOf(s), reflect.ValueOf(cloud)
	for i := range a.NumField() {
		if x, y := a.Field(i).Interface(), b.Field(i).Interface(); x != y {
			out = append(out, fmt.Sprintf("%s is %v, the cloud says %v", a.Type().Field(i).Name, x, y))
		}
	}
	return strings.Join(out, "; ")
}
