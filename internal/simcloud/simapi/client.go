package simapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// Client reaches what stands beside the broker's own calls: the world's levers,
// its log and its invoice. A demonstration drives the cloud with it.
type Client struct {
	URL   string       // "http://127.0.0.1:8700"
	Token string       // the admin token
	HTTP  *http.Client // nil means http.DefaultClient
}

// Do changes the world.
func (c *Client) Do(ctx context.Context, a Action) (res ActionResult, err error) {
	err = c.call(ctx, http.MethodPost, "/admin/actions", a, &res)
	return res, err
}

// Machines returns every machine that ever was, as it is now, without lag.
func (c *Client) Machines(ctx context.Context) ([]Machine, error) {
	var page Machines
	err := c.call(ctx, http.MethodGet, "/admin/machines", nil, &page)
	return page.Machines, err
}

// Events returns what happened after a number.
func (c *Client) Events(ctx context.Context, after int64) (Events, error) {
	var e Events
	err := c.call(ctx, http.MethodGet, "/admin/events?after="+strconv.FormatInt(after, 10), nil, &e)
	return e, err
}

// ClearFaults removes every fault.
func (c *Client) ClearFaults(ctx context.Context) error {
	return c.call(ctx, http.MethodDelete, "/admin/faults", nil, nil)
}

// Invoice returns what the cloud charges.
func (c *Client) Invoice(ctx context.Context) (Invoice, error) {
	var inv Invoice
	err := c.call(ctx, http.MethodGet, "/admin/invoice", nil, &inv)
	return inv, err
}

// About returns the rules of the cloud.
func (c *Client) About(ctx context.Context) (About, error) {
	var a About
	err := c.call(ctx, http.MethodGet, "/admin/about", nil, &a)
	return a, err
}

// Console returns the last bytes that a machine wrote.
func (c *Client) Console(ctx context.Context, machine string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+"/admin/machines/"+machine+"/console", nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+c.Token)
	res, err := cmp.Or(c.HTTP, http.DefaultClient).Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	return io.ReadAll(io.LimitReader(res.Body, 1<<20))
}

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("simcloud: %s %s: %w", method, path, err)
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(c.URL, "/")+path, body)
	if err != nil {
		return fmt.Errorf("simcloud: %w", err)
	}
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	client := c.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	res, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("simcloud: %w", err)
	}
	data, err := io.ReadAll(res.Body)
	_ = res.Body.Close() // it has been read
	if err != nil {
		return fmt.Errorf("simcloud: %s %s: %w", method, path, err)
	}
	if res.StatusCode >= 300 {
		var failed ErrorBody
		if err := json.Unmarshal(data, &failed); err != nil || failed.Error == nil {
			return fmt.Errorf("simcloud: %s %s: HTTP %d", method, path, res.StatusCode)
		}
		failed.Error.Status = res.StatusCode
		return failed.Error
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("simcloud: %s %s: %w", method, path, err)
	}
	return nil
}
