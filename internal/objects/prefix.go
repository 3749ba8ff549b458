package objects

import (
	"context"
	"errors"
	"io"
	"iter"
	"strings"
	"time"
)

// Under returns the part of s whose keys begin with prefix, under the keys that
// follow it. The prefix is a path without slashes at its ends; "" is s itself.
func Under(s Store, prefix string) (Store, error) {
	if prefix == "" {
		return s, nil
	}
	if err := CheckKey(prefix); err != nil {
		return nil, invalid("open", prefix, err)
	}
	return under{s, prefix + "/"}, nil
}

type under struct {
	s      Store
	prefix string
}

// check comes before the key is put behind the prefix, which would hide a
// reserved name.
func (u under) check(op, key string) error {
	if err := CheckKey(key); err != nil {
		return invalid(op, key, err)
	}
	return nil
}

// back gives an error the key that the caller knows.
func (u under) back(err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		c := *e
		c.Key = strings.TrimPrefix(c.Key, u.prefix)
		return &c
	}
	return err
}

func (u under) info(i Info, err error) (Info, error) {
	i.Key = strings.TrimPrefix(i.Key, u.prefix)
	return i, u.back(err)
}

func (u under) Put(ctx context.Context, key string, body io.ReadSeeker, opts PutOptions) (Info, error) {
	if err := u.check("put", key); err != nil {
		return Info{}, err
	}
	return u.info(u.s.Put(ctx, u.prefix+key, body, opts))
}

func (u under) Get(ctx context.Context, key string, r Range) (io.ReadCloser, Info, error) {
	if err := u.check("get", key); err != nil {
		return nil, Info{}, err
	}
	body, info, err := u.s.Get(ctx, u.prefix+key, r)
	info, err = u.info(info, err)
	return body, info, err
}

func (u under) Stat(ctx context.Context, key string) (Info, error) {
	if err := u.check("stat", key); err != nil {
		return Info{}, err
	}
	return u.info(u.s.Stat(ctx, u.prefix+key))
}

func (u under) List(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		for i, err := range u.s.List(ctx, u.prefix+prefix) {
			if !yield(u.info(i, err)) {
				return
			}
		}
	}
}

func (u under) Delete(ctx context.Context, key string) error {
	if err := u.check("delete", key); err != nil {
		return err
	}
	return u.back(u.s.Delete(ctx, u.prefix+key))
}

func (u under) SignGet(ctx context.Context, key string, valid time.Duration) (string, error) {
	if err := u.check("sign", key); err != nil {
		return "", err
	}
	url, err := u.s.SignGet(ctx, u.prefix+key, valid)
	return url, u.back(err)
}

func (u under) SignPut(ctx context.Context, key string, valid time.Duration) (string, error) {
	if err := u.check("sign", key); err != nil {
		return "", err
	}
	url, err := u.s.SignPut(ctx, u.prefix+key, valid)
	return url, u.back(err)
}

func (u under) Begin(ctx context.Context, key string, meta map[string]string) (string, error) {
	if err := u.check("begin", key); err != nil {
		return "", err
	}
	id, err := u.s.Begin(ctx, u.prefix+key, meta)
	return id, u.back(err)
}

func (u under) SignPart(ctx context.Context, key, upload string, number int, valid time.Duration) (string, error) {
	if err := u.check("sign", key); err != nil {
		return "", err
	}
	url, err := u.s.SignPart(ctx, u.prefix+key, upload, number, valid)
	return url, u.back(err)
}

func (u under) Complete(ctx context.Context, key, upload string, parts []Part, cond Cond) (Info, error) {
	if err := u.check("complete", key); err != nil {
		return Info{}, err
	}
	return u.info(u.s.Complete(ctx, u.prefix+key, upload, parts, cond))
}

func (u under) Abort(ctx context.Context, key, upload string) error {
	if err := u.check("abort", key); err != nil {
		return err
	}
	return u.back(u.s.Abort(ctx, u.prefix+key, upload))
}

func (u under) Uploads(ctx context.Context, prefix string) iter.Seq2[Upload, error] {
	return func(yield func(Upload, error) bool) {
		for up, err := range u.s.Uploads(ctx, u.prefix+prefix) {
			up.Key = strings.TrimPrefix(up.Key, u.prefix)
			if !yield(up, u.back(err)) {
				return
			}
		}
	}
}
