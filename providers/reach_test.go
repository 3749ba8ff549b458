package providers_test

import (
	"testing"

	"gpubroker/providers"
)

func TestNearness(t *testing.T) {
	for address, want := range map[string]providers.Reach{
		"":                                providers.ReachHost,
		"no url":                          providers.ReachHost,
		"http://127.0.0.1:7743":           providers.ReachHost,
		"http://127.8.0.1":                providers.ReachHost,
		"http://[::1]:7743":               providers.ReachHost,
		"http://[::ffff:127.0.0.1]":       providers.ReachHost,
		"http://0.0.0.0:7743":             providers.ReachHost,
		"https://localhost":               providers.ReachHost,
		"https://LOCALHOST.:1":            providers.ReachHost,
		"https://broker.localhost":        providers.ReachHost,
		"https://10.1.2.3":                providers.ReachPrivate,
		"https://172.31.0.9:7743":         providers.ReachPrivate,
		"https://192.168.1.9":             providers.ReachPrivate,
		"https://100.100.1.1":             providers.ReachPrivate,
		"https://169.254.1.1":             providers.ReachPrivate,
		"https://[fd00::1]":               providers.ReachPrivate,
		"https://broker":                  providers.ReachPrivate,
		"https://broker.corp.internal":    providers.ReachPrivate,
		"https://nas.local":               providers.ReachPrivate,
		"https://172.32.0.9":              providers.ReachInternet,
		"https://203.0.113.9:7743":        providers.ReachInternet,
		"https://[2001:db8::1]":           providers.ReachInternet,
		"https://broker.example.org:7743": providers.ReachInternet,
		"https://notlocalhost.example":    providers.ReachInternet,
	} {
		if got := providers.Nearness(address); got != want {
			t.Errorf("%q is reached from %q, want %q", address, got, want)
		}
	}
}

func TestReach(t *testing.T) {
	for _, tc := range []struct {
		endpoint string
		network  providers.Network
		want     providers.Reach
	}{
		{"", providers.Network{}, providers.ReachInternet},
		{"", providers.Network{Subnet: "subnet-1"}, providers.ReachPrivate},
		{"", providers.Network{Private: true}, providers.ReachPrivate},
		{"", providers.Network{Proxy: "http://10.0.0.1:3128"}, providers.ReachPrivate},
		{"http://127.0.0.1:8700", providers.Network{Subnet: "subnet-1"}, providers.ReachHost},
		{"http://simcloud:8700", providers.Network{}, providers.ReachPrivate},
		{"https://ec2.eu-central-1.amazonaws.com", providers.Network{}, providers.ReachInternet},
	} {
		if got := tc.network.Reach(tc.endpoint); got != tc.want {
			t.Errorf("endpoint %q, %+v: %q, want %q", tc.endpoint, tc.network, got, tc.want)
		}
	}
}
