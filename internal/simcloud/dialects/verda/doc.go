// Package verda makes a simcloud world speak Verda's public API, version 1
// (https://api.verda.com/v1/docs; formerly DataCrunch), as the vendor's own SDKs
// read it (github.com/verda-cloud/verdacloud-sdk-go and sdk-python).
//
// Clients are pointed at the world's address with /v1: the base URL
// "http://127.0.0.1:8700/v1" in place of "https://api.verda.com/v1". Tokens are
// given at /v1/oauth2/token for any client_id and, where the world has an API
// token, that token as client_secret; they last an hour.
//
// Quirks that are kept: creates answer a bare id as plain text; a create needs an
// SSH key; one request sent twice makes two machines; a machine cannot be deleted
// while it is provisioned, nor twice; what is deleted stays known as
// "discontinued"; an OS volume outlives its machine unless it is deleted with it;
// 503 with the code service_unavailable means that there is no capacity. A list
// has no pages.
//
// A market's region is a location code, its zone is empty, and its price is that
// of the machine with the OS volume of [DiskGB]: the catalog shows it without.
// Verda has one price for all locations; where those of a world differ, the
// dearest is shown. What volumes cost beside their machines is not on the world's
// invoice. Location names, images and the one SSH key are made up.
package verda

import (
	"time"

	"gpubroker/internal/simcloud"
)

// Dialect is Verda's API over one world.
func Dialect() *simcloud.Dialect {
	s := &server{
		tokens: map[string]time.Time{}, instances: map[string]*instance{},
		scripts: map[string]*script{}, volumes: map[string]*volume{},
	}
	return &simcloud.Dialect{Name: "verda", API: s.api, Left: s.left}
}
