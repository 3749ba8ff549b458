package reason

import (
	"encoding/json"
	"testing"
)

func TestReasonHidesNothing(t *testing.T) {
	r := New("over_budget", "budget", "media", "free", "1.25", "cap", "25.00", "need", "2.00", "period", "2026-11")
	want := "budget media has 1.25 USD free of 25.00, and the lease needs 2.00 (period 2026-11)"
	if got := r.String(); got != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
	if got := New("new_code", "n", 3).String(); got != "new code (n 3)" {
		t.Errorf("unregistered code: %q", got)
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Reason
	if err := json.Unmarshal(b, &back); err != nil || back.String() != want {
		t.Errorf("round trip: %v, %v", back, err)
	}
}
