// Package vast makes a simcloud world speak the API of Vast.ai's marketplace as
// its documents (https://docs.vast.ai/api-reference, vast-ai/docs) and its own
// command line (vast-ai/vast-cli) have it: version 0, and version 1 for the list
// of instances.
//
// Clients are pointed at the world's address in place of
// "https://console.vast.ai": the paths /api/v0/… and /api/v1/… are the same. The
// key is the world's API token. The search wants none. A machine finds its number
// and a key that is good for itself alone in CONTAINER_ID and CONTAINER_API_KEY,
// as every container at Vast does.
//
// Quirks that are kept: each offer ("ask") is one machine and can be rented once;
// 410 or 404 no_such_ask to who comes second; a search shows a page and says so
// with truncated; a create sent twice makes two; a bid that is too low is answered
// with an error and leaves a stopped instance, named in new_contract; who is
// outbid is stopped, not ended, and stays until deleted; an instance that was
// destroyed is {"instances": null}; a throttled call answers plain text; the list
// has pages of at most 25; script and arguments are limited to 4,096 bytes.
//
// A market of the world is some asks of one price: a region is a country's code,
// the zone is empty, the kind is the type of rental. Prices hold the disk of
// [DiskGB] at [diskPerGB] a GB and hour. An interruptible machine is charged the
// world's price, not its bid; storage of stopped instances is not on the world's
// invoice. Host names, driver versions and the like are made up.
package vast

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
)

// Dialect is Vast's API over a world.
func Dialect() *simcloud.Dialect {
	keys := keyring(rand.Text())
	return &simcloud.Dialect{
		Name: "vast",
		API:  func(w *simcloud.World) http.Handler { return serve(w, keys) },
		// Vast has no metadata service.
		Metadata: func(*simcloud.World, string) http.Handler { return http.NotFoundHandler() },
		Env: func(m simapi.Machine) []string {
			id := firstContract + m.Number
			return []string{"CONTAINER_ID=" + strconv.Itoa(id), "CONTAINER_API_KEY=" + keys.of(id)}
		},
	}
}

// keyring makes the keys that are good for one instance.
type keyring string

func (k keyring) of(id int) string {
	m := hmac.New(sha256.New, []byte(k))
	m.Write([]byte(strconv.Itoa(id)))
	return hex.EncodeToString(m.Sum(nil))
}
