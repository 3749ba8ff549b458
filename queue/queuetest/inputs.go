package queuetest

import (
	"fmt"
	"strings"
	"testing"

	"gpubroker/queue"
)

func testInputs(t *testing.T, e Engine) {
	s, epoch := opened(t, e)
	chunk := func(n int, values ...string) *queue.Inputs { return &queue.Inputs{Job: "j", Chunk: n, Values: values} }
	var many []string
	for i := range queue.ChunkSize {
		many = append(many, fmt.Sprintf("s3://footage/incoming/%06d.mov", i))
	}
	want := []*queue.Inputs{
		chunk(0, many...),
		chunk(1, "", "two\nlines", "NUL\x00", "not UTF-8 \xff\xfe", strings.Repeat("long ", 100_000), ""),
		chunk(2),
	}
	if err := s.PutInputs(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	for _, w := range want {
		same(t, fmt.Sprint("chunk ", w.Chunk), must(s.Inputs(t.Context(), "j", w.Chunk))(t), w)
	}
	again := chunk(1, "another")
	if err := s.PutInputs(t.Context(), []*queue.Inputs{again}); err != nil {
		t.Fatal(err)
	}
	same(t, "a chunk that was put again", must(s.Inputs(t.Context(), "j", 1))(t), again)
	same(t, "its neighbour", must(s.Inputs(t.Context(), "j", 0))(t), want[0])
	_, err := s.Inputs(t.Context(), "j", 3)
	wantErr(t, err, queue.ErrNotFound)
	_, err = s.Inputs(t.Context(), "other", 0)
	wantErr(t, err, queue.ErrNotFound)
	commit(t, s, full(epoch)) // inputs need no leader and disturb none
}
