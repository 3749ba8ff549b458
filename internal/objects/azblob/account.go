package azblob

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/sas"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/service"

	"gpubroker/internal/objects"
	"gpubroker/internal/objects/staging"
)

// Options are what all containers share.
type Options struct {
	// Account is the storage account of addresses that name none; without it
	// AZURE_STORAGE_ACCOUNT is.
	Account string
	// Key is that account's shared key; without it AZURE_STORAGE_KEY is. Without a
	// key Azure's chain is used (environment, workload identity, the machine's
	// identity, az login), and URLs are signed by a user delegation key.
	Key string

	// credential stands in for the chain, and transport for the network, in tests.
	credential azcore.TokenCredential
	transport  policy.Transporter
}

// New returns what opens the containers of azblob://container?account=…&endpoint=….
//
// An endpoint (https://host) takes the place of https://ACCOUNT.blob.core.windows.net.
// On an address of numbers, or localhost, the account goes into the path, as
// emulators have it. Tokens go over https only; a key serves http as well.
//
// An identity of Azure's needs the roles Storage Blob Data Contributor on the
// container and Storage Blob Delegator on the account.
func New(o Options) objects.Opener {
	ours := os.Getenv("AZURE_STORAGE_ACCOUNT")
	if o.Account == "" {
		o.Account = ours
	}
	if o.Key == "" && (ours == "" || ours == o.Account) {
		o.Key = os.Getenv("AZURE_STORAGE_KEY")
	}
	p := &pool{o: o, known: map[string]*account{}}
	return p.open
}

// pool keeps accounts, since their tokens, keys and connections are worth keeping.
type pool struct {
	o Options

	mu    sync.Mutex
	known map[string]*account // by name and URL
}

func (p *pool) open(_ context.Context, u *url.URL) (objects.Store, error) {
	q := u.Query()
	for k := range q {
		if k != "account" && k != "endpoint" {
			return nil, fmt.Errorf("unknown setting %q: want account or endpoint", k)
		}
	}
	if u.Host == "" {
		return nil, errors.New("no container: want azblob://container/prefix")
	}
	name := q.Get("account")
	if name == "" {
		name = p.o.Account
	}
	if name == "" {
		return nil, errors.New("no storage account: add ?account=…, or set account in the configuration or AZURE_STORAGE_ACCOUNT")
	}
	at, err := serviceURL(name, q.Get("endpoint"))
	if err != nil {
		return nil, err
	}
	a, err := p.account(name, at)
	if err != nil {
		return nil, err
	}
	return staging.New(&bucket{name: u.Host, client: a.service.NewContainerClient(u.Host), account: a}), nil
}

func serviceURL(account, endpoint string) (string, error) {
	if endpoint == "" {
		return "https://" + account + ".blob.core.windows.net", nil
	}
	at, err := url.Parse(endpoint)
	if err != nil || at.Scheme != "https" && at.Scheme != "http" || at.Host == "" || at.RawQuery != "" {
		return "", fmt.Errorf("endpoint %q: want https://host", endpoint)
	}
	base := at.Scheme + "://" + at.Host + strings.TrimSuffix(at.Path, "/")
	if strings.Trim(at.Path, "/") == "" && (at.Hostname() == "localhost" || net.ParseIP(at.Hostname()) != nil) {
		base += "/" + account
	}
	return base, nil
}

// account is a storage account.
type account struct {
	service *service.Client
	shared  *service.SharedKeyCredential // nil: a user delegation key signs
	scheme  sas.Protocol
	now     func() time.Time

	mu        sync.Mutex
	delegated *service.UserDelegationCredential
	until     time.Time
}

func (p *pool) account(name, at string) (*account, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.known[name+" "+at]; a != nil {
		return a, nil
	}
	opts := &service.ClientOptions{}
	opts.Retry = policy.RetryOptions{MaxRetries: 2, RetryDelay: 300 * time.Millisecond, MaxRetryDelay: 5 * time.Second}
	opts.Transport = p.o.transport
	if opts.Transport == nil {
		opts.Transport = client()
	}
	a := &account{scheme: sas.ProtocolHTTPS, now: time.Now}
	if strings.HasPrefix(at, "http://") {
		a.scheme = sas.ProtocolHTTPSandHTTP
	}
	var err error
	// A key is good for its own account only.
	if p.o.Key != "" && name == p.o.Account {
		if a.shared, err = service.NewSharedKeyCredential(name, p.o.Key); err != nil {
			return nil, errors.New("the key of the storage account is not base64")
		}
		a.service, err = service.NewClientWithSharedKeyCredential(at, a.shared, opts)
	} else {
		chain := p.o.credential
		if chain == nil {
			if chain, err = azidentity.NewDefaultAzureCredential(nil); err != nil {
				return nil, fmt.Errorf("credentials for Azure: %w", err)
			}
		}
		a.service, err = service.NewClient(at, chain, opts)
	}
	if err != nil {
		return nil, err
	}
	p.known[name+" "+at] = a
	return a, nil
}

// connections is how many are kept open to one host.
const connections = 32

func client() *http.Client {
	t, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return &http.Client{}
	}
	t = t.Clone()
	t.MaxIdleConnsPerHost = connections
	return &http.Client{Transport: t}
}

// longest is how long a user delegation key, and so what it signs, may be valid,
// less an hour for clocks that differ
// (learn.microsoft.com/rest/api/storageservices/get-user-delegation-key).
const longest = 7*24*time.Hour - time.Hour

// sign makes a URL for one blob, of a service SAS with permissions "r" or "w".
func (b *bucket) sign(ctx context.Context, name, permissions string, valid time.Duration) (string, error) {
	a := b.account
	values := sas.BlobSignatureValues{
		Protocol: a.scheme, ExpiryTime: a.now().UTC().Add(min(valid, longest)), Permissions: permissions,
		ContainerName: b.name, BlobName: name,
	}
	var (
		q   sas.QueryParameters
		err error
	)
	if a.shared != nil {
		q, err = values.SignWithSharedKey(a.shared)
	} else {
		var key *service.UserDelegationCredential
		if key, err = a.delegation(ctx, values.ExpiryTime); err == nil {
			q, err = values.SignWithUserDelegation(key)
		}
	}
	if err != nil {
		return "", fail("sign", name, err)
	}
	return b.blob(name).URL() + "?" + q.Encode(), nil
}

// delegation returns a user delegation key that outlives a moment.
func (a *account) delegation(ctx context.Context, until time.Time) (*service.UserDelegationCredential, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.delegated != nil && !until.After(a.until) {
		return a.delegated, nil
	}
	now := a.now().UTC()
	// Longer than is asked for, so that one key serves many.
	end := now.Add(min(2*until.Sub(now)+time.Hour, longest+time.Minute))
	key, err := a.service.GetUserDelegationCredential(ctx, service.KeyInfo{
		Start:  new(now.Add(-15 * time.Minute).Format(sas.TimeFormat)),
		Expiry: new(end.Format(sas.TimeFormat)),
	}, nil)
	if err != nil {
		return nil, err
	}
	a.delegated, a.until = key, end.Truncate(time.Second)
	return key, nil
}
