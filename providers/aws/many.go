package aws

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"gpubroker/providers"
)

// most is how many machines one call rents at most: their request ids must fit
// into tags.
const most = 100

// LaunchMany rents machines in as few calls of RunInstances as their scripts and
// names allow. What differs between their scripts is chosen on each machine by its
// launch index, which the metadata service knows. EC2 may make fewer than were asked
// for: the rest is no_capacity.
func (a *Adapter) LaunchMany(ctx context.Context, reqs []providers.LaunchRequest) []providers.LaunchAnswer {
	out := make([]providers.LaunchAnswer, len(reqs))
	for _, batch := range batches(reqs) {
		some := make([]providers.LaunchRequest, len(batch))
		for i, at := range batch {
			some[i] = reqs[at]
		}
		for i, answer := range a.launchBatch(ctx, some) {
			out[batch[i]] = answer
		}
	}
	return out
}

// batches groups requests, by their places in the list, that one call can make:
// with the same tags, end and disk.
func batches(reqs []providers.LaunchRequest) [][]int {
	var out [][]int
	for i, r := range reqs {
		placed := false
		for n, batch := range out {
			if len(batch) < most && alike(reqs[batch[0]], r) {
				out[n], placed = append(batch, i), true
				break
			}
		}
		if !placed {
			out = append(out, []int{i})
		}
	}
	return out
}

func alike(x, y providers.LaunchRequest) bool {
	x.Tags.Request, y.Tags.Request = "", ""
	return x.Market == y.Market && x.PriceMax == y.PriceMax && x.Group == y.Group && x.Disk == y.Disk && x.End.Equal(y.End) &&
		x.Tags.Owner == y.Tags.Owner && x.Tags.Generation == y.Tags.Generation && x.Tags.Project == y.Tags.Project && x.Tags.DeleteAt.Equal(y.Tags.DeleteAt)
}

// launchBatch rents one batch, or its halves when their scripts do not fit.
func (a *Adapter) launchBatch(ctx context.Context, reqs []providers.LaunchRequest) []providers.LaunchAnswer {
	if len(reqs) == 1 {
		made, err := a.Launch(ctx, reqs[0])
		return []providers.LaunchAnswer{{Instance: made, Err: err}}
	}
	scripts := make([]string, len(reqs))
	ids := make([]string, len(reqs))
	for i, r := range reqs {
		scripts[i], ids[i] = r.UserData, r.Request
	}
	script, ok := together(scripts)
	tags, named := batchTags(reqs[0].Tags, ids)
	if !ok || !named || len(zip(providers.WithProxy(script, a.set.Network.Proxy))) > userDataLimit {
		half := len(reqs) / 2
		return append(a.launchBatch(ctx, reqs[:half]), a.launchBatch(ctx, reqs[half:])...)
	}
	sum := sha256.Sum256([]byte(strings.Join(ids, "\n")))
	answers, err := a.run(ctx, hex.EncodeToString(sum[:]), script, tags, reqs)
	if err != nil {
		answers = make([]providers.LaunchAnswer, len(reqs))
		for i := range answers {
			answers[i].Err = err
		}
	}
	return answers
}

// batchTags are the tags of machines of one call: the request ids in order, as
// many to a tag as fit into 256 characters.
func batchTags(t providers.Tags, ids []string) (map[string]string, bool) {
	t.Request = ""
	tags := t.Map()
	line, n := "", 0
	for _, id := range ids {
		if strings.ContainsAny(id, " \t\n") || len(id) > 256 {
			return nil, false
		}
		if line != "" && len(line)+1+len(id) > 256 {
			tags[tagBatch+strconv.Itoa(n)] = line
			line, n = "", n+1
		}
		line = strings.TrimSpace(line + " " + id)
	}
	tags[tagBatch+strconv.Itoa(n)] = line
	return tags, n < 25 // of the 50 tags that an instance can have
}

// together is one script for machines whose scripts differ in some lines. It asks
// the metadata service which of them it is, puts its own script together and
// becomes it. A machine that cannot learn who it is powers itself off: nobody could
// use it.
func together(scripts []string) (string, bool) {
	const mark = "GPUBROKER-PART"
	split := make([][]string, len(scripts))
	for i, s := range scripts {
		if !strings.HasPrefix(s, "#!/bin/sh\n") || strings.Contains(s, mark) || strings.Contains(s, "\x00") {
			return "", false
		}
		split[i] = strings.Split(strings.TrimSuffix(s, "\n"), "\n")
	}
	head := 0
	for ; head < len(split[0]) && all(split, func(l []string) bool { return head < len(l) && l[head] == split[0][head] }); head++ {
	}
	tail := 0
	for ; tail < len(split[0])-head && all(split, func(l []string) bool {
		return tail < len(l)-head && l[len(l)-1-tail] == split[0][len(split[0])-1-tail]
	}); tail++ {
	}
	var b strings.Builder
	b.WriteString(`#!/bin/sh
M="${GPUBROKER_METADATA_URL:-http://169.254.169.254}/latest"
if command -v curl >/dev/null; then
  put() { curl -fsS -m 5 --noproxy '*' -X PUT -H "$1" "$2"; }; get() { curl -fsS -m 5 --noproxy '*' -H "$1" "$2"; }
else
  put() { wget -qO- -T 5 --no-proxy --method=PUT --header "$1" "$2"; }; get() { wget -qO- -T 5 --no-proxy --header "$1" "$2"; }
fi
n=0
until T=$(put "X-aws-ec2-metadata-token-ttl-seconds: 300" "$M/api/token") && N=$(get "X-aws-ec2-metadata-token: $T" "$M/meta-data/ami-launch-index") && [ -n "$N" ]; do
  n=$((n+1)); [ $n -gt 100 ] && poweroff -f; sleep 2
done
umask 077
S=$(mktemp)
`)
	part := func(lines []string) {
		if len(lines) > 0 {
			fmt.Fprintf(&b, "cat >>\"$S\" <<'%s'\n%s\n%s\n", mark, strings.Join(lines, "\n"), mark)
		}
	}
	part(split[0][:head])
	b.WriteString("case \"$N\" in\n")
	for i, l := range split {
		fmt.Fprintf(&b, "%d)\n", i)
		part(l[head : len(l)-tail])
		b.WriteString(";;\n")
	}
	b.WriteString("*) poweroff -f;;\nesac\n")
	part(split[0][len(split[0])-tail:])
	b.WriteString("chmod 700 \"$S\"\nexec /bin/sh \"$S\"\n")
	return b.String(), true
}

func all(lists [][]string, ok func([]string) bool) bool {
	for _, l := range lists {
		if !ok(l) {
			return false
		}
	}
	return true
}
