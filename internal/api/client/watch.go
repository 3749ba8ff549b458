package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"gpubroker/internal/api"
)

// longest bounds one line of a stream.
const longest = 1 << 20

// Watch follows events from q.After on, or from now on when it is 0, and hands
// each to fn, until ctx ends, fn fails or the connection breaks. It returns the
// number of the last event, from which another call goes on without a gap.
func (c *Client) Watch(ctx context.Context, q EventQuery, fn func(api.Event) error) (last int64, err error) {
	last = q.After
	req, err := c.request(ctx, http.MethodGet, path("events", "watch"), values("job", q.Job, "project", q.Project), nil)
	if err != nil {
		return last, err
	}
	req.Header.Set("Accept", "text/event-stream")
	if q.After > 0 {
		req.Header.Set("Last-Event-ID", strconv.FormatInt(q.After, 10))
	}
	res, err := c.do(c.once, req)
	if err != nil {
		return last, err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, longest)
	var data []byte
	for lines.Scan() {
		line := lines.Bytes()
		switch {
		case bytes.HasPrefix(line, []byte("data: ")):
			data = append(data, line[len("data: "):]...)
		case len(line) == 0 && len(data) > 0:
			var e api.Event
			if err := json.Unmarshal(data, &e); err != nil {
				return last, fmt.Errorf("event after %d: %w", last, err)
			}
			data = data[:0]
			if err := fn(e); err != nil {
				return last, err
			}
			last = e.Seq
		}
	}
	if ctx.Err() != nil {
		return last, context.Cause(ctx)
	}
	if err := lines.Err(); err != nil {
		return last, fmt.Errorf("%w: the stream broke: %w", ErrUnreachable, err)
	}
	return last, fmt.Errorf("%w: the stream ended", ErrUnreachable)
}
