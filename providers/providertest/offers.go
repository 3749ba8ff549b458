package providertest

import (
	"context"
	"errors"
	"reflect"
	"regexp"
	"slices"
	"testing"
	"time"

	"gpubroker/providers"
	"gpubroker/providers/managed"
)

func factChecks() []Check {
	return []Check{
		{"name", "Name is the account's name in the configuration, stable and lower-case", func(t testing.TB, s *subject) {
			if name := s.Name(); !regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]*$`).MatchString(name) || s.Name() != name {
				t.Errorf("name %q", name)
			}
		}},
		{"capabilities", "Capabilities are static facts that do not contradict each other or the optional abilities", checkCapabilities},
	}
}

func checkCapabilities(t testing.TB, s *subject) {
	c := s.Capabilities()
	if !reflect.DeepEqual(c, s.Capabilities()) {
		t.Error("two answers differ")
	}
	if len(c.Kinds) == 0 {
		t.Error("no kinds")
	}
	for _, k := range c.Kinds {
		if k != providers.Spot && k != providers.OnDemand {
			t.Errorf("unknown kind %q", k)
		}
	}
	for what, d := range map[string]time.Duration{
		"notice": c.Notice, "billing unit": c.Billing.Unit, "billing minimum": c.Billing.Minimum, "list lag": c.ListLag,
		"stop time": c.StopTime, "boot time": c.BootTime, "longest life": c.LongestLife,
	} {
		if d < 0 {
			t.Errorf("negative %s", what)
		}
	}
	switch c.SelfEnd {
	case providers.EndRolling, providers.EndFixed, providers.EndGuest, providers.EndNone:
	default:
		t.Errorf("unknown self-end %q", c.SelfEnd)
	}
	switch c.EndAction {
	case "", providers.EndStopTasks, providers.EndPoweroff, providers.EndAPI:
	default:
		t.Errorf("unknown end action %q", c.EndAction)
	}
	if c.Shared && c.EndAction != "" && c.EndAction != providers.EndStopTasks {
		t.Errorf("machines that are not ours would end by %q", c.EndAction)
	}
	if _, ok := managed.Find[providers.EndMover](s.raw); !ok && c.SelfEnd == providers.EndRolling {
		t.Error("self-end is rolling, and the end cannot be moved")
	}
	if _, ok := managed.Find[providers.Interrupter](s.raw); !ok && c.NoticeSource == providers.NoticeEvents {
		t.Error("notices come as events, and there is no stream of them")
	}
	if c.Notice > 0 && (c.NoticeSource == providers.NoticeNone || c.NoticeSource == "") {
		t.Errorf("a notice of %v comes from nowhere", c.Notice)
	}
}

func offerChecks() []Check {
	return []Check{
		{"offers", "Offers returns every offer once, each with its price and the moment it was seen, and the same list when nothing changed", checkOffers},
		{"offers-fresh", "An adapter returns fresh values that the caller may keep", func(t testing.TB, s *subject) {
			first, err := s.Offers(t.Context(), providers.Scope{})
			if err != nil || len(first) == 0 {
				t.Fatalf("%d offers, %v", len(first), err)
			}
			want := first[0].Market
			for i := range first {
				first[i] = providers.Offer{}
			}
			again, err := s.Offers(t.Context(), providers.Scope{})
			if err != nil || !slices.ContainsFunc(again, func(o providers.Offer) bool { return o.Market == want }) {
				t.Errorf("what the caller did to its list shows in the next one (%v)", err)
			}
		}},
		{"offers-scope", "A scope narrows the list and changes nothing in it", checkOffersScope},
		{"offers-unavailable", "Unavailable offers are listed too", func(t testing.TB, s *subject) {
			o := s.offers(t)[0]
			s.inject(t, Fault{Op: "launch", Code: providers.NoCapacity})
			if _, err := s.Launch(t.Context(), s.request(o)); !code(err, providers.NoCapacity) {
				t.Fatalf("launch: %v, want no_capacity", err)
			}
			all, err := s.Offers(t.Context(), providers.Scope{})
			if err != nil || !slices.ContainsFunc(all, func(other providers.Offer) bool { return other.Market == o.Market }) {
				t.Errorf("%s is no longer listed after no_capacity (%v)", o.Market, err)
			}
		}},
		{"offers-error", "Offers is the whole list or an error, never a part, and is not retried by the adapter", func(t testing.TB, s *subject) {
			s.inject(t, Fault{Op: "offers", Code: providers.Unavailable})
			if all, err := s.Offers(t.Context(), providers.Scope{}); !code(err, providers.Unavailable) {
				t.Errorf("%d offers and %v, want unavailable", len(all), err)
			}
		}},
	}
}

func keys(offers []providers.Offer) []string {
	var out []string
	for _, o := range offers {
		out = append(out, o.Market.String())
	}
	slices.Sort(out)
	return out
}

func checkOffers(t testing.TB, s *subject) {
	all, err := s.Offers(t.Context(), providers.Scope{})
	if err != nil || len(all) == 0 {
		t.Fatalf("%d offers, %v", len(all), err)
	}
	again, err := s.Offers(t.Context(), providers.Scope{})
	if err != nil {
		t.Fatalf("offers: %v", err)
	}
	if !slices.Equal(keys(all), keys(again)) {
		t.Errorf("two lists differ though nothing changed: %d and %d offers", len(all), len(again))
	}
	catalog, err := managed.New(&listed{s, all}, managed.Options{}).Catalog(t.Context(), providers.Scope{})
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range catalog.Quarantined {
		t.Errorf("%s: %s", q.Offer.Market, q.Reason)
	}
	for _, o := range all {
		if !slices.Contains(s.caps.Kinds, o.Kind) {
			t.Errorf("%s is of a kind that the capabilities do not name", o.Market)
		}
		if o.Seen.Location() != time.UTC {
			t.Errorf("%s was seen at a time in %v, not UTC", o.Market, o.Seen.Location())
		}
		if o.Available != providers.Unsaid && o.Available != providers.Open && o.Available != providers.Full {
			t.Errorf("%s has the unknown availability %q", o.Market, o.Available)
		}
		if o.GPU != "" && o.GPUs <= 0 {
			t.Errorf("%s has a GPU %q and %v of them", o.Market, o.GPU, o.GPUs)
		}
		if o.Source == "" {
			t.Errorf("%s does not say where its price is from", o.Market)
		}
	}
}

// listed is a provider with a given list of offers.
type listed struct {
	*subject
	all []providers.Offer
}

func (l *listed) Offers(_ context.Context, _ providers.Scope) ([]providers.Offer, error) {
	return slices.Clone(l.all), nil
}

func checkOffersScope(t testing.TB, s *subject) {
	all, err := s.Offers(t.Context(), providers.Scope{})
	if err != nil {
		t.Fatalf("offers: %v", err)
	}
	byRegion := map[string][]providers.Offer{}
	for _, o := range all {
		byRegion[o.Region] = append(byRegion[o.Region], o)
	}
	for region, want := range byRegion {
		if region == "" {
			continue // the zero scope is everything
		}
		got, err := s.Offers(t.Context(), providers.Scope{Region: region})
		if err != nil || !slices.Equal(keys(got), keys(want)) {
			t.Errorf("region %s: %d offers, %d in the whole list (%v)", region, len(got), len(want), err)
		}
	}
	none, err := s.Offers(t.Context(), providers.Scope{Region: "no-such-region"})
	if e, failed := errors.AsType[*providers.Error](err); len(none) > 0 || failed && e.Code != providers.NotFound && e.Code != providers.InvalidRequest {
		t.Errorf("a region that is not there: %d offers, %v", len(none), err)
	}
}
