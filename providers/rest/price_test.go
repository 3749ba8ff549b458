package rest_test

import (
	"encoding/json"
	"testing"

	"gpubroker/providers/rest"
)

func TestPrices(t *testing.T) {
	for text, want := range map[string]string{
		`3.17`: "3.17", `"0.67"`: "0.67", `3.2199999999999998`: "3.22", `1e-2`: "0.01", `0`: "", `null`: "", `""`: "", `"free"`: "", `-1`: "",
		`0.30000000000000004`: "0.300000001", `0.16666666666666666`: "0.166666667", `1e999999999`: "", `1e-999999999`: "", `"1/3"`: "", `1e15`: "",
	} {
		var p rest.Price
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			t.Fatal(err)
		}
		r, ok := p.Rate()
		if got := r.String(); ok != (want != "") || ok && got != want {
			t.Errorf("%s is %s, %t; want %q", text, got, ok, want)
		}
	}
}
