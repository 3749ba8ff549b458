package gcs

import (
	"context"
	"fmt"
	"net/http"

	"golang.org/x/sync/errgroup"

	"gpubroker/internal/objects"
	"gpubroker/internal/objects/staging"
)

// width is how many objects one call composes, at most
// (cloud.google.com/storage/docs/composite-objects).
const width = 32

// atOnce is how many compositions are under way at a time.
const atOnce = 8

type source struct {
	Name          string `json:"name"`
	Generation    string `json:"generation"`
	Preconditions struct {
		IfGenerationMatch string `json:"ifGenerationMatch"`
	} `json:"objectPreconditions"`
}

func sourceOf(i objects.Info) source {
	s := source{Name: i.Key, Generation: i.ETag}
	s.Preconditions.IfGenerationMatch = i.ETag
	return s
}

// Join implements [staging.Bucket]: a tree of compositions, of which only the last
// writes the object.
func (b *bucket) Join(ctx context.Context, name string, meta map[string]string, parts []staging.Object, scratch string, cond objects.Cond) (objects.Info, error) {
	q, err := condition(cond)
	if err != nil {
		return objects.Info{}, fail("compose", name, err)
	}
	sources := make([]source, len(parts))
	for i, p := range parts {
		sources[i] = sourceOf(p.Info)
	}
	for level := 1; len(sources) > width; level++ {
		next := make([]source, (len(sources)+width-1)/width)
		g, each := errgroup.WithContext(ctx)
		g.SetLimit(atOnce)
		for i := range next {
			from := sources[i*width : min((i+1)*width, len(sources))]
			to := fmt.Sprintf("%s%d-%05d", scratch, level, i)
			g.Go(func() error {
				// To write it again does no harm.
				r, err := b.compose(each, true, to, "", nil, from)
				next[i] = sourceOf(r.info())
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return objects.Info{}, fail("compose", name, err)
		}
		sources = next
	}
	r, err := b.compose(ctx, false, name, q.Encode(), meta, sources)
	if err != nil {
		return objects.Info{}, fail("compose", name, err)
	}
	return r.info(), nil
}

func (b *bucket) compose(ctx context.Context, repeat bool, name, query string, meta map[string]string, from []source) (resource, error) {
	in := map[string]any{
		"sourceObjects": from,
		"destination":   map[string]any{"contentType": contentType, "metadata": meta},
	}
	var r resource
	err := b.json(ctx, repeat, http.MethodPost, b.object(name)+"/compose?"+query, in, &r)
	return r, err
}
