package main

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"gpubroker/internal/config"
	"gpubroker/internal/objects"
	"gpubroker/internal/objects/azblob"
	"gpubroker/internal/objects/gcs"
	"gpubroker/internal/objects/s3"
	"gpubroker/internal/secret"
)

func objectsURL(cfg *config.Config) string {
	if cfg.Objects.URL == "" {
		return filepath.Join(cfg.DataDir, "objects")
	}
	return cfg.Objects.URL
}

func openObjects(cfg *config.Config, public string) (*objects.Stores, error) {
	key, err := secretFile(filepath.Join(cfg.DataDir, "objects.key"))
	if err != nil {
		return nil, err
	}
	folders, err := objects.NewFolders(public, key, time.Now)
	if err != nil {
		return nil, err
	}
	schemes, err := bucketOpeners(cfg.Objects)
	if err != nil {
		return nil, err
	}
	return &objects.Stores{Folders: folders, Schemes: schemes}, nil
}

// bucketOpeners open buckets as the configuration says where they are and with
// which keys, for the broker's own objects and for what jobs name.
func bucketOpeners(o config.Objects) (map[string]objects.Opener, error) {
	access, err := reveal("access_key", o.AccessKey)
	if err != nil {
		return nil, err
	}
	secretKey, err := reveal("secret_key", o.SecretKey)
	if err != nil {
		return nil, err
	}
	credentials, err := reveal("credentials", o.Credentials)
	if err != nil {
		return nil, err
	}
	accountKey, err := reveal("account_key", o.AccountKey)
	if err != nil {
		return nil, err
	}
	amazon := objects.Opener(s3.Open)
	if access != "" {
		amazon = s3.With(access, secretKey)
	}
	google := gcs.New(gcs.Options{Credentials: []byte(credentials)})
	azure := azblob.New(azblob.Options{Account: o.Account, Key: accountKey})

	s3Settings := map[string]string{"region": o.Region}
	if o.PathStyle {
		s3Settings["path_style"] = "true"
	}
	settings := map[string]map[string]string{"s3": s3Settings, "gs": {}, "azblob": {}}
	// The endpoint is that of the broker's own store.
	if scheme, _, ok := strings.Cut(o.URL, "://"); ok && settings[scheme] != nil {
		settings[scheme]["endpoint"] = o.Endpoint
	}
	return map[string]objects.Opener{
		"s3":     preset(amazon, settings["s3"]),
		"gs":     preset(google, settings["gs"]),
		"azblob": preset(azure, settings["azblob"]),
	}, nil
}

// reveal reads a secret, "" if there is none.
func reveal(name string, ref secret.Ref) (string, error) {
	if ref.IsZero() {
		return "", nil
	}
	v, err := ref.Read()
	if err != nil {
		return "", fmt.Errorf("objects.%s: %w", name, err)
	}
	return v.Reveal(), nil
}

// preset gives addresses the settings that they do not make themselves.
func preset(open objects.Opener, settings map[string]string) objects.Opener {
	return func(ctx context.Context, u *url.URL) (objects.Store, error) {
		q := u.Query()
		for name, value := range settings {
			if value != "" && !q.Has(name) {
				q.Set(name, value)
			}
		}
		at := *u
		at.RawQuery = q.Encode()
		return open(ctx, &at)
	}
}
