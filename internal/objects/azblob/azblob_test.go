package azblob_test

import (
	"net/http"
	"testing"

	"gpubroker/internal/objects"
	"gpubroker/internal/objects/azblob"
	"gpubroker/internal/objects/objectstest"
)

func open(t *testing.T, o azblob.Options, address string) objects.Store {
	t.Helper()
	stores := &objects.Stores{Schemes: map[string]objects.Opener{"azblob": azblob.New(o)}}
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

var azurite = azblob.Options{Account: objectstest.AzuriteAccount, Key: objectstest.AzuriteKey}

func TestContainer(t *testing.T) {
	objectstest.Run(t, func(t *testing.T) (objects.Store, *http.Client) {
		return open(t, azurite, objectstest.Azurite(t)), http.DefaultClient
	})
}
