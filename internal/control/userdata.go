package control

import (
	"fmt"
	"strings"

	"gpubroker/providers"
	"gpubroker/queue"
)

// userData is the script that a machine runs as root at its first boot. Its first
// line arms the machine's own end before anything is downloaded: from then on the
// machine ends by itself, whatever happens to the agent or to us.
func (b *Broker) userData(i *queue.Instance, caps providers.Capabilities, token string) string {
	seconds := int(i.Lease.Sub(b.now()).Seconds())
	var s strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&s, format+"\n", args...) }
	line("#!/bin/sh")
	line(`D="${HOME:-/root}/gpubroker"; mkdir -p "$D"; chmod 700 "$D"`)
	if end := endScript(caps); end != "" {
		line(`cat >"$D/end" <<'END'`)
		line("%s", end)
		line("END")
		line(`read u _ </proc/uptime; s=${u%%.*}`)
		line(`(e=$((s+%d)); while sleep 2; do read u _ </proc/uptime; read d <"$D/deadline" && e=$d; [ "${u%%.*}" -ge "$e" ] && sh "$D/end"; done) >/dev/null 2>&1 &`, seconds)
	}
	line(`umask 077`)
	line(`cat >"$D/settings" <<'SETTINGS'`)
	line("GPUBROKER_URL=%s", b.set.PublicURL)
	line("GPUBROKER_INSTANCE=%s", i.ID)
	line("GPUBROKER_TOKEN=%s", token)
	line("GPUBROKER_LEASE=%ds", seconds)
	if caps.Metadata != providers.MetadataNone {
		line("GPUBROKER_METADATA=%s", caps.Metadata)
	}
	line("SETTINGS")
	line(`echo "GPUBROKER_DIR=$D" >>"$D/settings"`)
	if caps.EndAction == providers.EndAPI {
		line(`echo "GPUBROKER_END=sh $D/end" >>"$D/settings"`)
	}
	if b.set.CA != "" {
		line(`cat >"$D/ca.pem" <<'CA'`)
		line("%s", strings.TrimSpace(b.set.CA))
		line("CA")
		line(`echo "GPUBROKER_CA=$D/ca.pem" >>"$D/settings"`)
	}
	s.WriteString(b.fetchAgent())
	line(`exec "$A" run --settings "$D/settings"`)
	return s.String()
}

// endScript is what a machine does to end itself, "" where it must not.
func endScript(caps providers.Capabilities) string {
	switch caps.EndAction {
	case providers.EndPoweroff:
		return "poweroff -f"
	case providers.EndAPI:
		return strings.TrimSpace(caps.EndScript)
	case providers.EndStopTasks:
	}
	return ""
}

// fetchAgent is the part that gets the agent's program: from the image where it
// has one, else from us, and in both cases only the one whose digest we know.
func (b *Broker) fetchAgent() string {
	var s strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&s, format+"\n", args...) }
	line(`case "$(uname -m)" in`)
	for _, arch := range [][2]string{{"x86_64", "amd64"}, {"aarch64", "arm64"}} {
		if sum := b.set.AgentDigests[arch[1]]; sum != "" {
			line(`%s) ARCH=%s SUM=%s;;`, arch[0], arch[1], sum)
		}
	}
	line(`*) echo "gpubroker: this broker has no agent for $(uname -m)" >&2; exit 1;;`)
	line(`esac`)
	line(`A="${GPUBROKER_AGENT_IMAGE:-}"`)
	line(`ok() { [ -n "$1" ] && [ -x "$1" ] && echo "$SUM  $1" | sha256sum -c - >/dev/null 2>&1; }`)
	line(`if ! ok "$A"; then`)
	line(`  A="$D/gpubroker-agent"; U="%s/agent/program/$ARCH"; C=""`, b.set.PublicURL)
	line(`  [ -f "$D/ca.pem" ] && C="$D/ca.pem"`)
	line(`  n=0; until ok "$A"; do`)
	line(`    if command -v curl >/dev/null; then curl -fsSL ${C:+--cacert "$C"} -o "$A" "$U"; else wget -q ${C:+--ca-certificate="$C"} -O "$A" "$U"; fi; chmod 755 "$A"`)
	line(`    n=$((n+1)); [ $n -gt 30 ] && { echo "gpubroker: the agent at $U cannot be fetched" >&2; exit 1; }; ok "$A" || sleep 2`)
	line(`  done`)
	line(`fi`)
	return s.String()
}
