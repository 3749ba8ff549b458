package main

import (
	"context"
	"io"
	"iter"
	"strings"

	"gpubroker/internal/objects"
)

// source lists and reads inputs on the broker's side, when a job is expanded.
type source struct{ stores *objects.Stores }

// List yields what lies under a prefix, each with its whole address.
func (s *source) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		where, key, err := objects.Split(prefix)
		if err != nil {
			yield("", err)
			return
		}
		st, err := s.stores.Open(ctx, where)
		if err != nil {
			yield("", err)
			return
		}
		base := strings.TrimSuffix(prefix, key)
		for info, err := range st.List(ctx, key) {
			if err != nil {
				yield("", err)
				return
			}
			if !yield(base+info.Key, nil) {
				return
			}
		}
	}
}

// Open reads one object.
func (s *source) Open(ctx context.Context, location string) (io.ReadCloser, error) {
	where, key, err := objects.Split(location)
	if err != nil {
		return nil, err
	}
	st, err := s.stores.Open(ctx, where)
	if err != nil {
		return nil, err
	}
	body, _, err := st.Get(ctx, key, objects.Range{})
	return body, err
}

// Weigh asks for an object's size.
func (s *source) Weigh(ctx context.Context, location string) (int64, error) {
	where, key, err := objects.Split(location)
	if err != nil {
		return 0, err
	}
	st, err := s.stores.Open(ctx, where)
	if err != nil {
		return 0, err
	}
	info, err := st.Stat(ctx, key)
	return info.Bytes, err
}
