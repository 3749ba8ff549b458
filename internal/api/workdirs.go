package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// uploadTime is the longest that a body may take to arrive.
const uploadTime = 30 * time.Minute

// WorkdirPath names a work folder in a path. It is exported because huma reads
// only exported fields.
type WorkdirPath struct {
	Digest string `path:"digest" pattern:"^[0-9a-f]{64}$" doc:"SHA-256 of the archive, in hex"`
}

// workdirInput hands on the body as it comes: it may be larger than memory.
type workdirInput struct {
	WorkdirPath
	body io.Reader
}

// Resolve takes the body out of the call.
func (in *workdirInput) Resolve(ctx huma.Context) []error {
	in.body = ctx.BodyReader()
	if err := ctx.SetReadDeadline(time.Now().Add(uploadTime)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return []error{err}
	}
	return nil
}

// Workdir is a work folder that was uploaded.
type Workdir struct {
	Ref  string `json:"ref" doc:"goes into workdir of the spec"`
	Have bool   `json:"have" doc:"it was there already"`
}

type workdirOutput struct{ Body Workdir }

func (s *Server) registerWorkdirs() {
	put := operation("put-workdir", http.MethodPut, "/api/v1/workdirs/{digest}", "Upload a work folder by its content", Submit, "jobs")
	put.RequestBody = &huma.RequestBody{
		Required: true, Description: "the folder as tar.gz, at most as long as limits.workdir of the broker's configuration",
		Content: map[string]*huma.MediaType{"application/gzip": {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}},
	}
	huma.Register(s.api, put, s.putWorkdir)
	huma.Register(s.api, operation("get-workdir", http.MethodGet, "/api/v1/workdirs/{digest}", "Ask whether a work folder is there", View, "jobs"), s.getWorkdir)
}

// putWorkdir keeps the archive in a file until all of it is here, so that nothing
// is stored that does not bear its name.
func (s *Server) putWorkdir(ctx context.Context, in *workdirInput) (*workdirOutput, error) {
	f, err := os.CreateTemp(s.opts.TempDir, "workdir-*.tar.gz")
	if err != nil {
		return nil, s.failure(ctx, err)
	}
	defer func() {
		if err := errors.Join(f.Close(), os.Remove(f.Name())); err != nil {
			s.log.Warn("upload's file stays", "path", f.Name(), "error", err)
		}
	}()
	n, err := io.Copy(f, io.LimitReader(in.body, s.opts.MaxWorkdir+1))
	switch {
	case n > s.opts.MaxWorkdir:
		return nil, huma.NewError(http.StatusRequestEntityTooLarge, fmt.Sprintf(
			"the work folder's archive is larger than %d bytes, the broker's limit (limits.workdir): leave files out with .gpubrokerignore, or give large files as inputs", s.opts.MaxWorkdir))
	case err != nil:
		return nil, huma.Error400BadRequest("the upload broke off: " + err.Error() + "; try again")
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, s.failure(ctx, err)
	}
	ref, have, err := s.broker.PutWorkdir(ctx, in.Digest, f)
	if err != nil {
		return nil, s.failure(ctx, err)
	}
	return &workdirOutput{Workdir{Ref: ref, Have: have}}, nil
}

func (s *Server) getWorkdir(ctx context.Context, in *WorkdirPath) (*workdirOutput, error) {
	ref, have, err := s.broker.HasWorkdir(ctx, in.Digest)
	if err != nil {
		return nil, s.failure(ctx, err)
	}
	return &workdirOutput{Workdir{Ref: ref, Have: have}}, nil
}
