package control_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/internal/control"
	"gpubroker/internal/market"
	"gpubroker/internal/money"
	"gpubroker/internal/objects"
	"gpubroker/internal/state"
	"gpubroker/internal/store"
	"gpubroker/providers"
	"gpubroker/providers/managed"
)

// listing is a provider that only lists offers.
type listing struct {
	providers.Provider
	name   string
	looks  []time.Time
	offers func(ctx context.Context, look int) ([]providers.Offer, error)
}

func (l *listing) Name() string                                       { return l.name }
func (l *listing) Capabilities() providers.Capabilities               { return providers.Capabilities{} }
func (l *listing) List(context.Context) ([]providers.Instance, error) { return nil, nil }
func (l *listing) Offers(ctx context.Context, _ providers.Scope) ([]providers.Offer, error) {
	l.looks = append(l.looks, time.Now())
	return l.offers(ctx, len(l.looks))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (l *listing) offer(price money.Rate) []providers.Offer {
	return []providers.Offer{{
		Market: providers.Market{Provider: l.name, Type: "t", Kind: providers.OnDemand}, Shape: providers.Shape{GPU: "l4", GPUs: 1},
		Price: price, Currency: money.USD, Seen: time.Now().UTC(), Source: "test",
	}}
}

// Each account is refreshed by itself: one that hangs and one that fails hold up
// no other, what fails keeps its old prices at their age, and the looks do not fall
// together.
func TestAccountsAreRefreshedApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const dollar = money.Rate(money.Unit)
		quick := &listing{name: "quick"}
		quick.offers = func(context.Context, int) ([]providers.Offer, error) { return quick.offer(dollar), nil }
		hung := &listing{name: "hung", offers: func(ctx context.Context, _ int) ([]providers.Offer, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		failing := &listing{name: "failing"}
		failing.offers = func(_ context.Context, look int) ([]providers.Offer, error) {
			if look > 1 {
				return nil, &providers.Error{Code: providers.Unauthorized, Err: errors.New("expired")}
			}
			return failing.offer(dollar), nil
		}
		absurd := &listing{name: "absurd"}
		absurd.offers = func(context.Context, int) ([]providers.Offer, error) { return absurd.offer(dollar / 1000), nil }

		ctx, cancel := context.WithCancel(t.Context())
		st, err := store.Open(ctx, filepath.Join(t.TempDir(), "store.db"), store.Options{})
		must(t, err)
		epoch, err := st.Lead(ctx, "test", 24*time.Hour)
		must(t, err)
		log := slog.New(slog.DiscardHandler)
		tables, err := state.Open(ctx, st, log)
		must(t, err)
		tables.SetEpoch(epoch)
		meta, err := st.Meta(ctx)
		must(t, err)
		folders, err := objects.NewFolders("http://broker.internal", []byte(strings.Repeat("k", 32)), time.Now)
		must(t, err)
		defer folders.Close()
		kept, err := folders.Open(t.TempDir())
		must(t, err)
		var accounts []*control.Account
		for _, l := range []*listing{quick, hung, failing, absurd} {
			accounts = append(accounts, &control.Account{Provider: managed.New(l, managed.Options{})})
		}
		m := market.New()
		set := control.Settings{Owner: "test", Every: control.Every{Offers: time.Minute}}
		b := control.New(set, tables, meta, accounts, m, kept, nil, log)
		begun := time.Now()
		done := make(chan error, 2)
		go func() { done <- tables.Run(ctx) }()
		go func() { done <- b.Run(ctx) }()
		time.Sleep(30 * time.Minute)
		synctest.Wait()

		lists := m.Lists()
		if l := lists["quick"]; time.Since(l.Seen) > time.Minute || l.Err != nil || len(l.Offers) != 1 {
			t.Errorf("quick: %+v", l)
		}
		if l := lists["hung"]; !l.Seen.IsZero() || l.Err == nil {
			t.Errorf("hung: %+v", l)
		}
		if l := lists["failing"]; !l.Seen.Equal(begun) || providers.CodeOf(l.Err) != providers.Unauthorized || !l.Offers[0].Seen.Equal(begun) {
			t.Errorf("failing: %+v", l)
		}
		if l := lists["absurd"]; len(l.Offers) > 0 || len(l.Quarantined) != 1 || l.Quarantined[0].Why.Code != "price_outside_band" {
			t.Errorf("absurd: %+v", l)
		}
		if n := len(quick.looks); n < 30 || n > 38 {
			t.Errorf("%d looks in 30 minutes", n)
		}
		if together := slices.ContainsFunc(quick.looks[1:], func(at time.Time) bool {
			return slices.ContainsFunc(absurd.looks[1:], at.Equal)
		}); together {
			t.Error("two accounts are looked at in the same moment")
		}
		cancel()
		<-done
		<-done
		must(t, st.Close())
	})
}
