package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gpubroker/internal/reason"
	"gpubroker/internal/state"
	"gpubroker/providers"
)

// Standing is how an account is, as the broker knows without asking.
type Standing struct {
	Name         string                 `json:"name"`
	Type         string                 `json:"type,omitzero"`
	Capabilities providers.Capabilities `json:"capabilities"`
	Projects     []string               `json:"projects,omitempty" doc:"that may use it; absent means all"`
	Offers       int                    `json:"offers"`
	Unmatched    []string               `json:"unmatched,omitempty" doc:"what is sold there and not offered here, since no price of it is known"`
	Seen         time.Time              `json:"seen,omitzero" doc:"when its offers were last read whole"`
	Tried        time.Time              `json:"tried,omitzero" doc:"when they were last asked for"`
	Error        string                 `json:"error,omitzero" doc:"of that try; absent when it went well"`
	Machines     int                    `json:"machines"`
	Most         int                    `json:"most,omitzero" doc:"machines at once at most; absent means no limit of ours"`
	Joined       time.Time              `json:"joined,omitzero" doc:"when a machine there last called in for the first time"`
	Unreachable  *reason.Reason         `json:"unreachable,omitempty" doc:"why machines there could not call this broker; nothing is launched then"`
	Cooldowns    []CoolView             `json:"cooldowns,omitempty" doc:"parts of its market that are left alone, the widest first"`
	Quotas       []providers.Quota      `json:"quotas,omitempty" doc:"what is known of them, used counting what lives now"`
	QuotasSeen   time.Time              `json:"quotas_seen,omitzero"`
	QuotasError  string                 `json:"quotas_error,omitzero" doc:"of the newest try to read them"`
}

// CoolView is a part of the market that is left alone.
type CoolView struct {
	Key    string        `json:"key" doc:"offer:, family:, region: or provider: and what it is"`
	Until  time.Time     `json:"until"`
	Reason reason.Reason `json:"reason"`
}

// Standings returns how the accounts are, by name.
func (b *Broker) Standings() []Standing {
	view, now := b.state.View(), b.now()
	var out []Standing
	for _, name := range slices.Sorted(maps.Keys(b.accounts)) {
		out = append(out, b.standing(view, b.accounts[name], now))
	}
	return out
}

func (b *Broker) standing(view *state.Tables, a *Account, now time.Time) Standing {
	name := a.Name()
	l := b.market.Lists()[name]
	s := Standing{
		Name: name, Type: a.Type, Capabilities: a.Capabilities(), Projects: a.Projects, Most: a.Limits.Machines,
		Offers: len(l.Offers), Seen: l.Seen, Tried: l.Tried, Joined: b.joinedLast(view, name), Quotas: b.quotasNow(view, name, now),
	}
	if l.Err != nil {
		s.Error = l.Err.Error()
	}
	if a.Unmatched != nil {
		s.Unmatched = a.Unmatched()
	}
	if why := b.unreachable(a); !why.IsZero() {
		s.Unreachable = &why
	}
	for i := range view.Instances.All() {
		if i.Provider == name && lives(i) {
			s.Machines++
		}
	}
	for c := range view.Cooldowns.All() {
		_, of, _ := strings.Cut(c.Key, ":")
		if c.Until.After(now) && (of == name || strings.HasPrefix(of, name+"/")) {
			s.Cooldowns = append(s.Cooldowns, CoolView{Key: c.Key, Until: c.Until, Reason: c.Reason})
		}
	}
	slices.SortStableFunc(s.Cooldowns, func(a, b CoolView) int { return cmp.Compare(width(b.Key), width(a.Key)) })
	b.mu.Lock()
	q := b.limits[name]
	b.mu.Unlock()
	s.QuotasSeen = q.seen
	if q.err != nil {
		s.QuotasError = q.err.Error()
	}
	return s
}

// width orders cool-downs by how far they reach.
func width(key string) int {
	scope, _, _ := strings.Cut(key, ":")
	return slices.Index([]string{"offer", "family", "region", "provider"}, scope)
}

// Result is how a part of a check went.
type Result string

// The results. Only a failed one makes a check fail.
const (
	CheckOK      Result = "ok"
	CheckFailed  Result = "failed"
	CheckNote    Result = "note"    // nothing is wrong, but somebody may want to know
	CheckUnknown Result = "unknown" // the provider does not say, or could not be asked
)

// Finding is one part of a check.
type Finding struct {
	What   string         `json:"what" enum:"reachable,credentials,public_url,offers,quotas,balance,cool_downs"`
	Result Result         `json:"result" enum:"ok,failed,note,unknown"`
	Code   providers.Code `json:"code,omitzero" doc:"of the provider's answer, when that is why"`
	Text   string         `json:"text"`
}

// Checkup is what a check of an account found.
type Checkup struct {
	Standing Standing         `json:"standing"`
	At       time.Time        `json:"at"`
	Failed   bool             `json:"failed"`
	Findings []Finding        `json:"findings"`
	Funds    *providers.Funds `json:"funds,omitempty" doc:"what is left of a prepaid account"`
}

// checkTime is how long an account may take to answer all that a check asks.
const checkTime = 45 * time.Second

// Check asks an account's provider whether it can be used: credentials and
// permissions, quotas, funds. Nothing is rented.
func (b *Broker) Check(ctx context.Context, name string) (Checkup, error) {
	a := b.accounts[name]
	if a == nil {
		return Checkup{}, fmt.Errorf("%w: there is no provider %s", ErrNotFound, name)
	}
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	var preflight, quotasErr, fundsErr error
	var funds providers.Funds
	var wg sync.WaitGroup
	wg.Go(func() {
		if a.Preflight != nil {
			preflight = a.Preflight(ctx)
			return
		}
		_, preflight = a.List(ctx) // what every provider answers
	})
	if a.Quotas != nil {
		wg.Go(func() { quotasErr = b.readQuotas(ctx, a) })
	}
	if a.Balance != nil {
		wg.Go(func() { funds, fundsErr = a.Balance(ctx) })
	}
	wg.Wait()
	now := b.now()
	s := b.standing(b.state.View(), a, now)
	c := Checkup{Standing: s, At: now, Findings: append(access(a, preflight), reached(&s, b.set.PublicURL), offered(&s, now))}
	c.Findings = append(c.Findings, quotaed(a, &s, quotasErr))
	if a.Balance != nil {
		c.Findings = append(c.Findings, funded(funds, fundsErr))
		if fundsErr == nil {
			c.Funds = &funds
		}
	}
	c.Findings = append(c.Findings, cooling(&s))
	c.Failed = slices.ContainsFunc(c.Findings, func(f Finding) bool { return f.Result == CheckFailed })
	return c, nil
}

// access says whether the provider answers, and lets us do what we must.
func access(a *Account, err error) []Finding {
	code := providers.CodeOf(err)
	reach := Finding{What: "reachable", Result: CheckOK, Text: "it answers"}
	may := Finding{What: "credentials", Result: CheckOK, Text: "they are valid, and what is needed is permitted"}
	if a.Preflight == nil {
		may.Text = "machines can be listed; the provider does not tell what else is permitted"
	}
	switch code {
	case "":
	case providers.Unavailable, providers.DeadlineExceed, providers.Canceled, providers.RateLimited:
		reach.Result, reach.Code, reach.Text = CheckFailed, code, said(err)
		may.Result, may.Text = CheckUnknown, "the provider could not be asked"
	default:
		may.Result, may.Code, may.Text = CheckFailed, code, said(err)
	}
	return []Finding{reach, may}
}

// said is a provider's answer without the call's name in front.
func said(err error) string {
	if e, ok := errors.AsType[*providers.Error](err); ok {
		text := string(e.Code)
		if e.Message != "" {
			text = e.Message
		}
		if e.Err != nil {
			text += ": " + e.Err.Error()
		}
		return text
	}
	return err.Error()
}

func reached(s *Standing, url string) Finding {
	f := Finding{What: "public_url", Result: CheckOK}
	switch {
	case s.Unreachable != nil:
		f.Result, f.Text = CheckFailed, s.Unreachable.String()
	case !s.Joined.IsZero():
		f.Text = fmt.Sprintf("%s; a machine there last called in at %s", url, s.Joined.UTC().Format("2006-01-02 15:04Z"))
	default:
		f.Result, f.Text = CheckNote, url+" should be reached; no machine there has called in yet"
	}
	return f
}

func offered(s *Standing, now time.Time) Finding {
	f := Finding{What: "offers", Result: CheckOK, Text: strconv.Itoa(s.Offers)}
	if !s.Seen.IsZero() {
		f.Text += fmt.Sprintf(", read %s ago", now.Sub(s.Seen).Round(time.Second))
	}
	switch {
	case s.Error != "":
		f.Result, f.Text = CheckFailed, f.Text+"; the newest try failed: "+s.Error
	case s.Seen.IsZero():
		f.Result, f.Text = CheckUnknown, "not read yet"
	case s.Offers == 0:
		f.Result, f.Text = CheckNote, f.Text+": nothing is offered there"
	}
	if len(s.Unmatched) > 0 {
		f.Text += "; left out: " + strings.Join(s.Unmatched, "; ")
	}
	return f
}

func quotaed(a *Account, s *Standing, err error) Finding {
	f := Finding{What: "quotas", Result: CheckOK}
	switch {
	case a.Quotas == nil:
		f.Result, f.Text = CheckUnknown, "the provider does not say"
	case err != nil:
		f.Result, f.Code, f.Text = CheckUnknown, providers.CodeOf(err), said(errors.Unwrap(err))
	case len(s.Quotas) == 0:
		f.Text = "none"
	default:
		full := 0
		for _, q := range s.Quotas {
			if q.Limit >= 0 && q.Used >= q.Limit {
				full++
			}
		}
		f.Text = fmt.Sprintf("%d known", len(s.Quotas))
		if full > 0 {
			f.Result, f.Text = CheckNote, f.Text+fmt.Sprintf(", %d of them with nothing left", full)
		}
	}
	return f
}

func funded(funds providers.Funds, err error) Finding {
	f := Finding{What: "balance", Result: CheckOK}
	switch {
	case err != nil:
		f.Result, f.Code, f.Text = CheckUnknown, providers.CodeOf(err), said(err)
	case funds.Left <= 0:
		f.Result, f.Text = CheckFailed, fmt.Sprintf("%s %s are left: pay in before anything is launched", funds.Left.Round(2), funds.Currency)
	default:
		f.Text = fmt.Sprintf("%s %s are left", funds.Left.Round(2), funds.Currency)
	}
	return f
}

func cooling(s *Standing) Finding {
	f := Finding{What: "cool_downs", Result: CheckOK, Text: "none"}
	if n := len(s.Cooldowns); n > 0 {
		widest := s.Cooldowns[0]
		f.Result, f.Text = CheckNote, fmt.Sprintf("%d; %s until %s: %s", n, widest.Key, widest.Until.UTC().Format("15:04:05Z"), widest.Reason)
	}
	return f
}
