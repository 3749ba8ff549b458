package gcs_test

import (
	"net/http"
	"net/url"
	"testing"

	"gpubroker/internal/objects"
	"gpubroker/internal/objects/gcs"
	"gpubroker/internal/objects/objectstest"
)

func open(t *testing.T, o gcs.Options, address string) objects.Store {
	t.Helper()
	stores := &objects.Stores{Schemes: map[string]objects.Opener{"gs": gcs.New(o)}}
	s, err := stores.Open(t.Context(), address)
	must(t, err)
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestBucket(t *testing.T) {
	objectstest.Run(t, func(t *testing.T) (objects.Store, *http.Client) {
		return open(t, gcs.Options{}, objectstest.GCS(t)), http.DefaultClient
	})
}

var _ = url.QueryEscape
