package lambda_test

import (
	"testing"

	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/providers/lambda"
)

// A launch that could not look whether an earlier broker's create has made an
// instance does not promise that there is none.
func TestALaunchThatCouldNotLookPromisesNothing(t *testing.T) {
	inCloud(t, func(t *testing.T, l *lab, a *lambda.Adapter) {
		l.fault(t, simapi.Fault{Op: "launch", Effect: simapi.DropAfter})
		if _, err := a.Launch(t.Context(), request("r1")); providers.OutcomeOf(err) != providers.OutcomeUnknown {
			t.Fatal(err)
		}
		for _, effect := range []string{simapi.Unavailable, simapi.Throttle, simapi.ErrorIn200} {
			l.fault(t, simapi.Fault{Op: "list", Effect: effect})
			again := l.adapter(t, nil, key)
			if _, err := again.Launch(t.Context(), request("r1")); err == nil || providers.OutcomeOf(err) != providers.OutcomeUnknown {
				t.Errorf("%s after a restart: %v, %s", effect, err, providers.OutcomeOf(err))
			}
		}
	})
}
