package providers

import (
	"net/netip"
	"net/url"
	"strings"
)

// Reach is from where a provider's machines can call the broker.
type Reach string

// The reaches, near to far. The zero value asks nothing of public_url.
const (
	ReachHost     Reach = ""         // the broker's own machine, or one that its owner has connected
	ReachPrivate  Reach = "private"  // a network that private addresses may be reached from
	ReachInternet Reach = "internet" // anywhere: only a public address is reached
)

// Reach is from where the machines of an account can call the broker, by its
// endpoint ("" is the cloud's own) and its network. A cloud that is served on
// this machine has its machines here too.
func (n Network) Reach(endpoint string) Reach {
	near := Nearness(endpoint)
	switch {
	case endpoint != "" && near == ReachHost:
		return ReachHost
	case endpoint != "" && near == ReachPrivate, n.Subnet != "", n.Private, n.Proxy != "":
		return ReachPrivate
	}
	return ReachInternet
}

// Nearness is from where the host of a URL can be reached, as far as its name or
// address tells. A URL without a host is reached from nowhere else.
func Nearness(address string) Reach {
	u, err := url.Parse(address)
	if err != nil {
		return ReachHost
	}
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if ip, err := netip.ParseAddr(host); err == nil {
		ip = ip.Unmap()
		switch {
		case ip.IsLoopback(), ip.IsUnspecified():
			return ReachHost
		case ip.IsPrivate(), ip.IsLinkLocalUnicast(), shared.Contains(ip):
			return ReachPrivate
		}
		return ReachInternet
	}
	if host == "" || host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return ReachHost
	}
	if !strings.Contains(host, ".") {
		return ReachPrivate
	}
	for _, end := range []string{".local", ".internal", ".lan", ".home.arpa"} {
		if strings.HasSuffix(host, end) {
			return ReachPrivate
		}
	}
	return ReachInternet
}

// shared are the addresses that carriers and overlay networks use among
// themselves (RFC 6598).
var shared = netip.MustParsePrefix("100.64.0.0/10")
