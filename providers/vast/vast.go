package vast

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// Adapter is one account. It is safe for concurrent use.
type Adapter struct {
	name    string
	owner   string
	set     Settings
	filters map[string]any
	log     *slog.Logger
	api     *rest.Client
	once    *rest.Once
	board   *board
	quota   quota
}

// What the API does not say. Each is taken on the side that costs no money.
const (
	listLag       = 10 * time.Second
	stopTime      = time.Minute
	bootTime      = 4 * time.Minute // the image is loaded first
	userDataLimit = 8 << 10         // packed, that fits in what a create takes
)

// endScript has a container destroy itself, with the key that it was given for
// that (vast-ai/docs, documentation/instances/docker-environment.mdx: the key can
// start, stop and destroy this instance). A shell that was not begun by the
// container's first process finds the two variables there.
const endScript = `of() { tr '\0' '\n' </proc/1/environ | sed -n "s/^$1=//p"; }
I="${CONTAINER_ID:-$(of CONTAINER_ID)}"; K="${CONTAINER_API_KEY:-$(of CONTAINER_API_KEY)}"; U="ENDPOINT/api/v0/instances/$I/"
if command -v curl >/dev/null; then curl -fsS -X DELETE -H "Authorization: Bearer $K" "$U"; else wget -qO- --method=DELETE --header="Authorization: Bearer $K" "$U"; fi`

// Name is the account's name.
func (a *Adapter) Name() string { return a.name }

// Capabilities are the facts of Vast's marketplace.
func (a *Adapter) Capabilities() providers.Capabilities {
	return providers.Capabilities{
		Kinds:         kinds(),
		NoticeSource:  providers.NoticeEvents,           // of the end itself: nobody is warned
		Billing:       money.Billing{Unit: time.Second}, // https://docs.vast.ai/documentation/instances/pricing
		BillsBoot:     false,                            // GPUs are charged while the instance runs (ibid.)
		PriceBound:    true,                             // an on-demand price and a bid stay what they were
		TagsAtLaunch:  true,
		LaunchToken:   false,
		ListLag:       listLag,
		SelfEnd:       providers.EndGuest,
		EndAction:     providers.EndAPI,
		EndScript:     strings.Replace(endScript, "ENDPOINT", strings.TrimRight(a.set.Endpoint, "/"), 1),
		StopTime:      stopTime,
		BootTime:      bootTime,
		UserDataLimit: userDataLimit,
		Reach:         a.set.Network.Reach(a.set.Endpoint),
	}
}

// The operations, as errors name them.
const (
	opLaunch    = "launch"
	opTerminate = "terminate"
	opDescribe  = "describe"
	opList      = "list"
	opOffers    = "offers"
	opPreflight = "preflight"
	opBalance   = "balance"
)

// call makes one call.
func (a *Adapter) call(ctx context.Context, c rest.Call) error {
	err := a.api.Do(ctx, c)
	if e, ok := errors.AsType[*providers.Error](err); ok && c.Op != opLaunch {
		ofOther(e)
	}
	return err
}

// pollTime is how often the list is read for instances that were outbid.
const pollTime = 4 * time.Second

// Interruptions tells of instances that lost their machine to a higher bid. Vast
// warns of none, and ends none: it stops them, goes on charging their disk, and
// starts them again once the bid wins. The broker that is told ends them.
func (a *Adapter) Interruptions(ctx context.Context) (<-chan providers.Notice, error) {
	out := make(chan providers.Notice)
	go func() {
		defer close(out)
		told := map[string]bool{}
		for wait := time.Duration(0); ; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			wait = pollTime
			all, err := a.ofOurs(ctx, a.lately)
			if err != nil {
				if ctx.Err() == nil {
					a.log.Debug("instances that were outbid are not known", "provider", a.name, "error", err)
				}
				if e, ok := errors.AsType[*providers.Error](err); ok {
					wait = max(wait, e.RetryAfter)
				}
				continue
			}
			now := map[string]bool{}
			for _, i := range all {
				if i.Cause != providers.CausePreempted {
					continue
				}
				now[i.Ref.ID] = true
				if told[i.Ref.ID] {
					continue
				}
				select {
				case <-ctx.Done():
					return
				case out <- providers.Notice{Ref: i.Ref, Kind: providers.NoticePreempt, At: time.Now().UTC()}:
				}
			}
			told = now
		}
	}()
	return out, nil
}

// Balance returns what is left on the account.
func (a *Adapter) Balance(ctx context.Context) (providers.Funds, error) {
	return a.funds(ctx, opBalance)
}

func (a *Adapter) funds(ctx context.Context, op string) (providers.Funds, error) {
	var got struct {
		Credit rest.Price `json:"credit"`
	}
	if err := a.call(ctx, rest.Call{Op: op, Path: "/api/v0/users/current/", Out: &got}); err != nil {
		return providers.Funds{}, err
	}
	left, err := amount(got.Credit.Text)
	if err != nil {
		return providers.Funds{}, a.api.Strange(op, "", "a credit of %q", got.Credit.Text)
	}
	return providers.Funds{Left: left, Currency: money.USD, At: time.Now().UTC()}, nil
}

// Preflight tries each permission of the key that can be tried without renting
// anything, and says everything that is missing. That to rent shows with the
// first launch.
func (a *Adapter) Preflight(ctx context.Context) error {
	var missing []string
	var first error
	for _, try := range []struct {
		permission string
		call       func() error
	}{
		{"user_read (balance)", func() error { _, err := a.funds(ctx, opPreflight); return err }},
		{"instance_read (instances)", func() error { _, err := a.instances(ctx, opPreflight, ""); return err }},
		{"misc (search)", func() error {
			_, err := a.search(ctx, opPreflight, "", providers.OnDemand, a.set.disk(), map[string]any{"gpu_name": map[string]any{"eq": "RTX 4090"}, "num_gpus": map[string]any{"eq": 1}})
			return err
		}},
	} {
		err := try.call()
		switch {
		case providers.CodeOf(err) == providers.Unauthorized:
			missing = append(missing, try.permission)
			if first == nil {
				first = err
			}
		case err != nil:
			return err
		}
	}
	if e, ok := errors.AsType[*providers.Error](first); ok {
		e.Message = "the key lacks " + strings.Join(missing, ", ") + ": " + e.Message
	}
	return first
}

// amount reads money that may be negative, and that may have more digits than a
// nano-unit.
func amount(text string) (money.Amount, error) {
	if left, err := money.ParseAmount(text); err == nil {
		return left, nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, err
	}
	return money.FromFloat(f)
}
