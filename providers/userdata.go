package providers

import "strings"

// WithProxy makes a machine's script, and what it starts, reach the outside
// through a proxy; metadata addresses are reached directly. An empty proxy
// changes nothing.
func WithProxy(userData, proxy string) string {
	if proxy == "" {
		return userData
	}
	quoted := "'" + strings.ReplaceAll(proxy, "'", `'\''`) + "'"
	set := "for v in http_proxy https_proxy HTTP_PROXY HTTPS_PROXY; do export $v=" + quoted + "; done; " +
		"export no_proxy=169.254.169.254,metadata.google.internal,127.0.0.1,localhost NO_PROXY=169.254.169.254,metadata.google.internal,127.0.0.1,localhost\n"
	if first, rest, ok := strings.Cut(userData, "\n"); ok && strings.HasPrefix(first, "#!") {
		return first + "\n" + set + rest
	}
	return set + userData
}
