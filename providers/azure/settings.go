package azure

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/internal/quantity"
	"gpubroker/providers"
)

// Settings are an account's part of the configuration.
type Settings struct {
	Subscription string `json:"subscription"`            // id of the subscription
	Tenant       string `json:"tenant,omitempty"`        // with client_id and client_secret; else Azure's own credential chain
	ClientID     string `json:"client_id,omitempty"`     // id of the application, or a reference
	ClientSecret string `json:"client_secret,omitempty"` // reference: "env:AZURE_SECRET", "file:/run/secret"

	Regions []string `json:"regions,omitempty"` // "eastus"; empty is every region, and slow
	Sizes   []string `json:"sizes,omitempty"`   // sizes without a GPU that are offered too; default three of the Dasv5 series

	Image      string            `json:"image,omitempty"`       // "publisher:offer:sku:version", or the id of an image; x64, with the GPU's driver
	Disk       quantity.Size     `json:"disk,omitempty"`        // default 128GiB; rounded up to a size that is sold
	DiskType   string            `json:"disk_type,omitempty"`   // Premium_LRS (default) or StandardSSD_LRS
	Network    providers.Network `json:"network,omitzero"`      // subnet is the subnet's resource id
	PlainNIC   bool              `json:"plain_nic,omitempty"`   // without accelerated networking
	Proximity  map[string]string `json:"proximity,omitempty"`   // region to proximity placement group, for machines of one group
	SSHKey     string            `json:"ssh_key,omitempty"`     // public key of the user gpubroker; default one that nobody has
	Tags       map[string]string `json:"tags,omitempty"`        // on everything that is made
	SelfEnd    *bool             `json:"self_end,omitempty"`    // machines may delete themselves; default true
	EndRole    string            `json:"end_role,omitempty"`    // GUID of the role that lets them; default Contributor, on their own group alone
	ConsoleLog bool              `json:"console_log,omitempty"` // keep the serial console's log (boot diagnostics)
	Endpoint   string            `json:"endpoint,omitempty"`    // ARM, default https://management.azure.com
	Login      string            `json:"login,omitempty"`       // authority, default https://login.microsoftonline.com
	Prices     string            `json:"prices,omitempty"`      // Retail Prices, default https://prices.azure.com
	Audience   string            `json:"audience,omitempty"`    // of ARM's tokens; default https://management.azure.com
}

// The defaults.
const (
	defaultARM    = "https://management.azure.com"
	defaultLogin  = "https://login.microsoftonline.com"
	defaultPrices = "https://prices.azure.com"
	// Ubuntu with the drivers of every GPU series, free of charge
	// (learn.microsoft.com/azure/virtual-machines/azure-hpc-vm-images).
	defaultImage = "microsoft-dsvm:ubuntu-hpc:2204:latest"
	// Contributor (learn.microsoft.com/azure/role-based-access-control/built-in-roles).
	defaultEndRole = "b24988ac-6180-42a0-ab88-20f7382dd24c"
	premium        = "Premium_LRS"
	standardSSD    = "StandardSSD_LRS"
)

// defaultSizes are those without a GPU, for tasks that need none.
var defaultSizes = []string{"Standard_D4as_v5", "Standard_D8as_v5", "Standard_D16as_v5"}

// Descriptor is Azure's entry in the list of built-in adapters.
func Descriptor() providers.Descriptor {
	return providers.Descriptor{Type: "azure", Title: "Microsoft Azure", Open: open, Public: public}
}

func open(_ context.Context, name string, raw json.RawMessage, env providers.Env) (providers.Provider, error) {
	var s Settings
	if err := providers.DecodeSettings(name, raw, &s); err != nil {
		return nil, err
	}
	access := Access{Owner: env.Owner, Log: env.Log}
	for _, ref := range []*string{&s.Tenant, &s.ClientID, &s.ClientSecret} {
		scheme, _, _ := strings.Cut(*ref, ":")
		if scheme != "env" && scheme != "file" {
			continue
		}
		value, err := env.Read(name, "credentials", *ref)
		if err != nil {
			return nil, err
		}
		if ref == &s.ClientSecret {
			access.Secret, *ref = value, ""
		} else {
			*ref = value
		}
	}
	if s.ClientSecret != "" {
		return nil, fmt.Errorf("provider %s: client_secret: write a reference such as env:AZURE_CLIENT_SECRET, not the secret", name)
	}
	return New(name, s, access)
}

// Access is what is not in the settings' text.
type Access struct {
	Secret string       // the client secret; "" means Azure's own credential chain
	Owner  string       // List shows this owner's machines alone; "" shows every owner's
	Client *http.Client // nil means one of the adapter's own
	Log    *slog.Logger // nil discards
}

// New returns the adapter of one account. It makes no call.
func New(name string, s Settings, access Access) (*Adapter, error) {
	if name == "" {
		return nil, errors.New("provider: the name is missing")
	}
	s = s.withDefaults()
	if err := s.check(access.Secret); err != nil {
		return nil, fmt.Errorf("provider %s: %w", name, err)
	}
	if access.Client == nil {
		access.Client = ownClient()
	}
	if access.Log == nil {
		access.Log = slog.New(slog.DiscardHandler)
	}
	a := &Adapter{
		name: name, owner: access.Owner, set: s, log: access.Log.With("provider", name), table: gpu.Builtin(),
		secrets: []string{access.Secret}, busy: map[string]*turn{}, sides: map[string]sides{},
	}
	var err error
	if a.cloud, err = connect(s, access); err != nil {
		return nil, fmt.Errorf("provider %s: %w", name, err)
	}
	if a.prices, err = newPrices(name, s.Prices, access.Client); err != nil {
		return nil, err
	}
	return a, nil
}

func (s Settings) withDefaults() Settings {
	s.Image = cmp.Or(s.Image, defaultImage)
	s.Disk = cmp.Or(s.Disk, 128<<30)
	s.DiskType = cmp.Or(s.DiskType, premium)
	s.EndRole = cmp.Or(s.EndRole, defaultEndRole)
	s.Endpoint = strings.TrimRight(cmp.Or(s.Endpoint, defaultARM), "/")
	s.Login = strings.TrimRight(cmp.Or(s.Login, defaultLogin), "/")
	s.Prices = strings.TrimRight(cmp.Or(s.Prices, defaultPrices), "/")
	s.Audience = cmp.Or(s.Audience, defaultARM)
	if s.SelfEnd == nil {
		s.SelfEnd = new(true)
	}
	if s.Sizes == nil {
		s.Sizes = slices.Clone(defaultSizes)
	}
	regions := make([]string, 0, len(s.Regions))
	for _, r := range s.Regions {
		regions = append(regions, strings.ToLower(strings.ReplaceAll(r, " ", "")))
	}
	s.Regions = regions
	return s
}

func (s Settings) check(secret string) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if s.Subscription == "" {
		bad("subscription is missing: give the subscription's id")
	}
	if secret != "" && (s.Tenant == "" || s.ClientID == "") {
		bad("client_secret needs tenant and client_id")
	}
	if secret == "" && s.ClientID != "" {
		bad("client_id needs client_secret; without both, Azure's own credential chain is used")
	}
	if s.DiskType != premium && s.DiskType != standardSSD {
		bad("disk_type %q: want %s or %s", s.DiskType, premium, standardSSD)
	}
	if _, ok := tierFor(s.Disk.Bytes()); !ok {
		bad("disk %s: at most 32767GiB", s.Disk)
	}
	if _, err := imageOf(s.Image); err != nil {
		bad("image: %w", err)
	}
	if s.Network.Private && s.Network.Subnet == "" {
		bad("network.private needs network.subnet: a subnet with a way out, such as a NAT gateway")
	}
	if n := s.Network.Subnet; n != "" && !strings.Contains(strings.ToLower(n), "/subnets/") {
		bad("network.subnet %q: want the subnet's resource id, /subscriptions/…/subnets/NAME", n)
	}
	for key, address := range map[string]string{"endpoint": s.Endpoint, "login": s.Login, "prices": s.Prices} {
		u, err := url.Parse(address)
		switch {
		case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
			bad("%s: want a URL such as %s", key, defaultARM)
		case u.User != nil || u.RawQuery != "":
			bad("%s: no user and no query; credentials have keys of their own", key)
		case u.Scheme == "http" && key == "login":
			bad("login %q: Azure's library signs in over https only", address)
		}
	}
	for k, v := range s.Tags {
		if strings.HasPrefix(strings.ToLower(k), "gpubroker-") || len(k) > 512 || len(v) > 256 || strings.ContainsAny(k, `<>%&\?/`) {
			bad("tags: %q: names are at most 512 characters without <>%%&\\?/ and not gpubroker's own, values at most 256", k)
		}
	}
	if len(s.Tags) > 40 {
		bad("tags: at most 40, since ten of the 50 that Azure permits are ours")
	}
	return errors.Join(errs...)
}

// ownClient is used where none is given.
func ownClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second,
		MaxIdleConnsPerHost: 8,
		IdleConnTimeout:     time.Minute,
		ForceAttemptHTTP2:   true,
	}}
}

// Adapter is one account. It is safe for concurrent use.
type Adapter struct {
	name    string
	owner   string
	set     Settings
	log     *slog.Logger
	table   *gpu.Table
	secrets []string
	cloud   *cloud
	prices  *prices

	providers.LeftOut

	mu    sync.Mutex
	busy  map[string]*turn // launches under way, by request
	sides map[string]sides // what a disk and an address cost, by region, as last read
}

// sides is what stands in a machine's price beside the machine.
type sides struct{ disk, address money.Rate }

// Name is the account's name.
func (a *Adapter) Name() string { return a.name }
