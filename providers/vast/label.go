package vast

import (
	"net/url"
	"strconv"
	"strings"

	"gpubroker/providers"
)

// An instance has one text of ours, its label, of 256 bytes at most. It holds our
// tags and the market, in the form of a URL's query with short keys, which holds
// any text.

const (
	maxLabel    = 256 // vast-ai/docs, create_instance.yaml
	labelPrefix = "gpubroker?"
)

// The keys of a label.
const (
	keyOwner      = "o"
	keyGeneration = "g"
	keyRequest    = "r"
	keyProject    = "p"
	keyDeleteAt   = "d" // Unix seconds
	keyCountry    = "c"
	keyType       = "t"
)

// label is what a request's instance is called; false when it is too long.
func label(req providers.LaunchRequest) (string, bool) {
	v := url.Values{}
	for key, value := range map[string]string{
		keyOwner: req.Tags.Owner, keyGeneration: req.Tags.Generation, keyRequest: req.Tags.Request, keyProject: req.Tags.Project,
		keyCountry: req.Market.Region, keyType: req.Market.Type,
	} {
		if value != "" {
			v.Set(key, value)
		}
	}
	if !req.Tags.DeleteAt.IsZero() {
		v.Set(keyDeleteAt, strconv.FormatInt(req.Tags.DeleteAt.Unix(), 10))
	}
	text := labelPrefix + v.Encode()
	return text, len(text) <= maxLabel
}

// read reads a label. One that is not ours gives no owner.
func read(text string) (t providers.Tags, region, typ string) {
	query, ok := strings.CutPrefix(text, labelPrefix)
	v, err := url.ParseQuery(query)
	if !ok || err != nil {
		return providers.Tags{}, "", ""
	}
	t = providers.Tags{Owner: v.Get(keyOwner), Generation: v.Get(keyGeneration), Request: v.Get(keyRequest), Project: v.Get(keyProject)}
	t.DeleteAt = providers.Moment(v.Get(keyDeleteAt), 10)
	return t, v.Get(keyCountry), v.Get(keyType)
}
