package simcloud

import (
	"context"

	"gpubroker/providers/rest"
)

// call makes one call and decodes the answer into out, which may be nil. target
// is the market or machine that errors name.
func (a *Adapter) call(ctx context.Context, op, target, method, path string, in, out any) error {
	return a.api.Do(ctx, rest.Call{Op: op, Target: target, Method: method, Path: path, In: in, Out: out})
}
