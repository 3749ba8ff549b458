package simcloud

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/providers"
)

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
