package gcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/auth/credentials"
	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/api/option"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// scopes are what tokens are good for.
var scopes = []string{"https://www.googleapis.com/auth/cloud-platform"}

// New returns the adapter of one account. It makes no call, except that
// Application Default Credentials may be looked for in the machine's own metadata.
func New(name string, s Settings, access Access) (*Adapter, error) {
	if name == "" {
		return nil, errors.New("provider: the name is missing")
	}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("provider %s: %w", name, err)
	}
	if access.Log == nil {
		access.Log = slog.New(slog.DiscardHandler)
	}
	base := access.Client
	if base == nil {
		base = &http.Client{Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
			TLSHandshakeTimeout: 5 * time.Second,
			MaxIdleConnsPerHost: 8,
			IdleConnTimeout:     time.Minute,
			ForceAttemptHTTP2:   true,
		}}
	}
	t := &transport{base: base.Transport}
	if t.base == nil {
		t.base = http.DefaultTransport
	}
	if !s.Anonymous {
		creds, err := detect(access.Credentials, base)
		if err != nil {
			return nil, fmt.Errorf("provider %s: credentials: %w; name a key file in credentials, or run gcloud auth application-default login", name, err)
		}
		t.tokens = creds
	}
	client := &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	a := &Adapter{name: name, owner: access.Owner, set: s, log: access.Log}
	var err error
	if a.api, err = rest.New(rest.Options{Provider: name, Base: cmp.Or(s.Endpoint, computeHost), Client: client, Judge: judgeBody}); err != nil {
		return nil, err
	}
	if a.billing, err = rest.New(rest.Options{Provider: name, Base: cmp.Or(s.BillingEndpoint, s.Endpoint, billingHost), Client: client, Judge: judgeBody}); err != nil {
		return nil, err
	}
	if a.manager, err = rest.New(rest.Options{Provider: name, Base: cmp.Or(s.Endpoint, managerHost), Client: client, Judge: judgeBody}); err != nil {
		return nil, err
	}
	if err := a.connect(client); err != nil {
		return nil, fmt.Errorf("provider %s: %w", name, err)
	}
	return a, nil
}

// detect finds the credentials. A key file's text must be of a service account:
// other kinds name programs and addresses of their own.
func detect(text string, client *http.Client) (auth.TokenProvider, error) {
	opts := &credentials.DetectOptions{Scopes: scopes, Client: client, DisableAsyncRefresh: true}
	if text == "" {
		return credentials.DetectDefault(opts)
	}
	return credentials.NewCredentialsFromJSON(credentials.ServiceAccount, []byte(text), opts)
}

// connect makes the library's clients. One call is one call: what the library
// would repeat is switched off.
func (a *Adapter) connect(client *http.Client) error {
	ctx := context.Background() //nolint:forbidigo // it makes no call, and the clients live on
	opts := []option.ClientOption{option.WithHTTPClient(client), option.WithEndpoint(strings.TrimRight(cmp.Or(a.set.Endpoint, computeHost), "/"))}
	var errs [5]error
	a.instances, errs[0] = compute.NewInstancesRESTClient(ctx, opts...)
	a.operations, errs[1] = compute.NewZoneOperationsRESTClient(ctx, opts...)
	a.disks, errs[2] = compute.NewDisksRESTClient(ctx, opts...)
	a.projects, errs[3] = compute.NewProjectsRESTClient(ctx, opts...)
	a.policies, errs[4] = compute.NewResourcePoliciesRESTClient(ctx, opts...)
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	*a.instances.CallOptions = compute.InstancesCallOptions{}
	*a.operations.CallOptions = compute.ZoneOperationsCallOptions{}
	*a.disks.CallOptions = compute.DisksCallOptions{}
	*a.projects.CallOptions = compute.ProjectsCallOptions{}
	*a.policies.CallOptions = compute.ResourcePoliciesCallOptions{}
	return nil
}

// maxAnswer is the longest answer that is read, in bytes.
const maxAnswer = 64 << 20

// maxError is the longest answer that is looked at for an error under status 200.
const maxError = 64 << 10

// transport authorizes requests, keeps the library from sending one twice, and
// gives an error body its status where it came with 200.
type transport struct {
	base   http.RoundTripper
	tokens auth.TokenProvider // nil: anonymous
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if r.Method != http.MethodGet {
		r.GetBody = nil // Go would send it again when an idle connection dies
	}
	if t.tokens != nil {
		token, err := t.tokens.Token(r.Context())
		if err != nil {
			if r.Body != nil {
				_ = r.Body.Close() // nothing was sent
			}
			return nil, &tokenError{err}
		}
		r.Header.Set("Authorization", "Bearer "+token.Value)
	}
	res, err := t.base.RoundTrip(r)
	if err != nil || res.StatusCode != http.StatusOK {
		return res, err
	}
	head, err := io.ReadAll(io.LimitReader(res.Body, maxError))
	if err != nil {
		_ = res.Body.Close() // it has failed already
		return nil, err
	}
	if len(head) < maxError {
		var body errorBody
		if json.Unmarshal(head, &body) == nil && body.Error != nil && body.Error.Code >= 400 {
			res.StatusCode = body.Error.Code
		}
	}
	rest := io.LimitReader(res.Body, maxAnswer)
	res.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), rest), res.Body}
	return res, nil
}

// page is one page of a list of Google's.
type page interface {
	proto.Message
	GetNextPageToken() string
}

// pages calls take for every page of a list. The library's own lists are not used:
// they ignore their context (compute v1.75.0, AggregatedList and List).
func pages[P page](ctx context.Context, a *Adapter, path, filter string, empty func() P, take func(P)) error {
	token := ""
	for {
		q := url.Values{}
		if filter != "" {
			q.Set("filter", filter)
		}
		if token != "" {
			q.Set("pageToken", token)
		}
		var body []byte
		if err := a.api.Do(ctx, rest.Call{Op: "list", Path: "/compute/v1/projects/" + a.set.Project + path, Query: q, Out: &body, Page: token != ""}); err != nil {
			return err
		}
		p := empty()
		if err := (protojson.UnmarshalOptions{AllowPartial: true, DiscardUnknown: true}).Unmarshal(body, p); err != nil {
			return rest.Transport(errors.New("a page of the list cannot be read"), true)
		}
		if u, ok := any(p).(interface{ GetUnreachables() []string }); ok && len(u.GetUnreachables()) > 0 {
			return unreachable(u.GetUnreachables()[0])
		}
		take(p)
		switch next := p.GetNextPageToken(); next {
		case "":
			return nil
		case token:
			return a.api.Strange("list", "", "a page of %s names itself as the next", path)
		default:
			token = next
		}
	}
}

// scope is what an aggregated list says of one zone or region.
type scope interface{ GetWarning() *computepb.Warning }

// each calls f for every scope of a page, in the order of their names. A scope that
// Google cannot reach makes the list a part of itself, which is an error.
func each[S scope](items map[string]S, lost *error, f func(scope string, s S)) {
	for _, key := range slices.Sorted(maps.Keys(items)) {
		if items[key].GetWarning().GetCode() == "UNREACHABLE" && *lost == nil {
			*lost = unreachable(key)
		}
		f(key, items[key])
	}
}

func unreachable(scope string) error {
	return &providers.Error{Code: providers.Unavailable, Scope: providers.ScopeProvider, Outcome: providers.NotCreated, Message: "the list lacks " + scope + ", which Google cannot reach"}
}
