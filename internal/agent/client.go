package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"gpubroker/internal/agentapi"
)

// Broker is the other side of the two calls.
type Broker interface {
	Join(ctx context.Context, req agentapi.JoinRequest) (agentapi.JoinResponse, error)
	Sync(ctx context.Context, credential string, o agentapi.Observed) (agentapi.Desired, error)
}

// ProblemError is an answer of the broker that is no success.
type ProblemError struct {
	Status int
	agentapi.Problem
}

// Error names the call's status, code and message.
func (e *ProblemError) Error() string {
	return fmt.Sprintf("broker answered %d %s: %s", e.Status, e.Code, e.Message)
}

func isStale(err error) bool {
	p, ok := errors.AsType[*ProblemError](err)
	return ok && p.Status == http.StatusGone
}

func isRefused(err error) bool {
	p, ok := errors.AsType[*ProblemError](err)
	return ok && p.Status == http.StatusForbidden && p.Code == agentapi.Refused
}

type httpBroker struct {
	url    string
	client *http.Client
}

// HTTPBroker calls the broker at url over the transport.
func HTTPBroker(url string, transport http.RoundTripper) Broker {
	return &httpBroker{url, &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // a credential goes to nobody else
	}}}
}

func (b *httpBroker) Join(ctx context.Context, req agentapi.JoinRequest) (agentapi.JoinResponse, error) {
	var res agentapi.JoinResponse
	return res, b.call(ctx, agentapi.PathJoin, "", req, &res)
}

func (b *httpBroker) Sync(ctx context.Context, credential string, o agentapi.Observed) (agentapi.Desired, error) {
	var res agentapi.Desired
	return res, b.call(ctx, agentapi.PathSync, credential, o, &res)
}

func (b *httpBroker) call(ctx context.Context, path, credential string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("agent: write %s: %w", path, err)
	}
	if len(body) > agentapi.MaxBody {
		return fmt.Errorf("agent: %s: the request has %d bytes, above the limit of %d", path, len(body), agentapi.MaxBody)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("agent: %s: %w", path, err)
	}
	req.Header.Set("Content-Type", "application/json")
	if credential != "" {
		req.Header.Set("Authorization", "Bearer "+credential)
	}
	res, err := b.client.Do(req)
	if err != nil {
		return fmt.Errorf("agent: call the broker: %w", err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, agentapi.MaxBody+1))
	if err != nil {
		return fmt.Errorf("agent: read the broker's answer to %s: %w", path, err)
	}
	if len(data) > agentapi.MaxBody {
		return fmt.Errorf("agent: the broker's answer to %s is longer than %d bytes", path, agentapi.MaxBody)
	}
	if res.StatusCode != http.StatusOK {
		p := &ProblemError{Status: res.StatusCode}
		if json.Unmarshal(data, &p.Problem) != nil || p.Code == "" {
			// A proxy in between writes what it likes.
			p.Code, p.Message = "http", http.StatusText(res.StatusCode)
		}
		return fmt.Errorf("agent: %s: %w", path, p)
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("agent: the broker's answer to %s: %w", path, err)
	}
	return nil
}

// Transports are the ways out of the machine: one to the broker that trusts its
// CA alone, one to object stores that trusts the system's CAs too, since a store
// may be the broker itself.
func Transports(ca string) (broker, store http.RoundTripper, err error) {
	plain := func(conf *tls.Config) *http.Transport {
		return &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
			TLSHandshakeTimeout:   10 * time.Second,
			ResponseHeaderTimeout: 2 * time.Minute,
			IdleConnTimeout:       90 * time.Second,
			MaxIdleConnsPerHost:   8,
			TLSClientConfig:       conf,
			// HTTP/1.1: a call that is given up closes its connection, so that the
			// next one does not go down a dead one.
			Protocols: http1(),
		}
	}
	if ca == "" {
		return plain(nil), plain(nil), nil
	}
	pin, err := parsePin(ca)
	if err != nil {
		return nil, nil, err
	}
	return plain(pin.config(false)), plain(pin.config(true)), nil
}

func http1() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return p
}

// pin is the broker's CA, whole or by its digest.
type pin struct {
	pool   *x509.CertPool
	pem    []byte
	digest string
}

func parsePin(ca string) (pin, error) {
	if hexed, ok := strings.CutPrefix(ca, "sha256:"); ok {
		if raw, err := hex.DecodeString(hexed); err != nil || len(raw) != sha256.Size {
			return pin{}, fmt.Errorf("agent: GPUBROKER_CA=%q: want sha256: and 64 hexadecimal digits", ca)
		}
		return pin{digest: strings.ToLower(hexed)}, nil
	}
	text := []byte(ca)
	if !bytes.Contains(text, []byte("-----BEGIN")) {
		var err error
		if text, err = os.ReadFile(ca); err != nil {
			return pin{}, fmt.Errorf("agent: GPUBROKER_CA is neither PEM nor sha256:HEX nor a file: %w", err)
		}
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return pin{}, errors.New("agent: GPUBROKER_CA holds no certificate")
	}
	return pin{pool: pool, pem: text}, nil
}

func (p pin) config(system bool) *tls.Config {
	if p.digest == "" {
		if !system {
			return &tls.Config{RootCAs: p.pool, MinVersion: tls.VersionTLS12}
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			return &tls.Config{RootCAs: p.pool, MinVersion: tls.VersionTLS12}
		}
		pool.AppendCertsFromPEM(p.pem)
		return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // the chain is verified below, against the pinned certificate
		VerifyConnection: func(cs tls.ConnectionState) error {
			err := p.verify(cs)
			// A name is not known for an address in digits; the pinned CA signs only the
			// broker, so it may do without, the system's may not.
			if err != nil && system && cs.ServerName != "" {
				_, err = cs.PeerCertificates[0].Verify(verifyOptions(cs, nil))
			}
			return err
		},
	}
}

// verify builds the chain to the certificate whose digest is pinned; the server
// sends it along.
func (p pin) verify(cs tls.ConnectionState) error {
	roots := x509.NewCertPool()
	found := false
	for _, c := range cs.PeerCertificates {
		if sum := sha256.Sum256(c.Raw); hex.EncodeToString(sum[:]) == p.digest {
			roots.AddCert(c)
			found = true
		}
	}
	if !found {
		return errors.New("agent: the server does not show the pinned CA, so it is not the broker")
	}
	_, err := cs.PeerCertificates[0].Verify(verifyOptions(cs, roots))
	return err
}

func verifyOptions(cs tls.ConnectionState, roots *x509.CertPool) x509.VerifyOptions {
	between := x509.NewCertPool()
	for _, c := range cs.PeerCertificates[1:] {
		between.AddCert(c)
	}
	return x509.VerifyOptions{DNSName: cs.ServerName, Roots: roots, Intermediates: between}
}
