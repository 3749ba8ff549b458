package market

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"gpubroker/internal/geo"
	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/internal/nearest"
	"gpubroker/internal/scenario"
	"gpubroker/providers"
	"gpubroker/scheduler"
)

// Quote is an offer as people compare it.
type Quote struct {
	providers.Offer
	PerGPU    money.Rate            `json:"per_gpu,omitzero" doc:"price of one whole GPU for an hour"`
	ListPrice money.Rate            `json:"list_price,omitzero" doc:"before the discount that is in the price"`
	Stale     bool                  `json:"stale,omitzero" doc:"too old to be used"`
	Committed *scheduler.Commitment `json:"committed,omitempty" doc:"machines of it that are paid for already"`
}

// UnknownGPU asks for offers whose GPU nobody knows.
const UnknownGPU = "unknown"

// Query selects and orders offers. Zero asks for nothing; what an offer does not
// say meets no wish.
type Query struct {
	GPU      string  // an id, a family or a common name; or [UnknownGPU]
	Memory   float64 // GB of each GPU, at least
	Provider string
	Region   string // one, or patterns of [path.Match] with commas between
	Kind     providers.Kind
	MaxPrice money.Rate // of the whole machine per hour
	Near     scheduler.Near
	Link     string // how the words for the machine's GPU link begin; "fabric" for a full one
	RDMA     bool
	Scenario string // GPU and machine are fit for that kind of work
	Sort     string // one of [Sorts], "-" before it turns it round; "" is the price
	Limit    int    // at most so many; 0 means all
}

// Sorts are the words that a query may be sorted by.
var Sorts = []string{"price", "per-gpu", "memory", "age", "gpu", "provider", "region"}

// QueryError says what of a query means nothing. Its text is one line.
type QueryError struct {
	Field string
	err   error
}

func (e *QueryError) Error() string { return e.err.Error() }
func (e *QueryError) Unwrap() error { return e.err }

// Find returns the offers that a query asks for, and how many there are without
// its limit. now decides what is stale. The error is a [*QueryError].
func (v *View) Find(q Query, now time.Time) (quotes []Quote, total int, err error) {
	wanted, profile, err := v.wanted(q)
	if err != nil {
		return nil, 0, err
	}
	sort, down := strings.CutPrefix(q.Sort, "-")
	if sort == "" {
		sort = Sorts[0]
	}
	if !slices.Contains(Sorts, sort) {
		return nil, 0, &QueryError{"sort", fmt.Errorf("sort %q: expected %s", q.Sort, strings.Join(Sorts, ", "))}
	}
	limit := q.Limit
	if limit <= 0 {
		limit = math.MaxInt
	}
	var found []int32
	asIs := sort == "price" && !down // the rows stand in that order
	for i := range v.rows {
		r := &v.rows[i]
		if !v.matches(r, &q, wanted, profile) {
			continue
		}
		if total++; asIs && total > limit {
			continue
		}
		found = append(found, int32(i))
	}
	if !asIs {
		found = v.order(found, sort, down, limit)
	}
	quotes = make([]Quote, len(found))
	for i, at := range found {
		quotes[i] = v.quote(&v.rows[at], now)
	}
	return quotes, total, nil
}

func (v *View) quote(r *row, now time.Time) Quote {
	q := Quote{Offer: *r.offer, PerGPU: money.Rate(r.perGPU), Stale: v.opts.Stale.Is(r.offer.Kind, r.offer.Seen, now)}
	if list := ListPrice(r.offer); list != r.offer.Price {
		q.ListPrice = list
	}
	if r.committed >= 0 {
		q.Committed = &v.opts.Commitments[r.committed]
	}
	return q
}

// named says whether the query is content with a GPU. An id that leaves a variant
// open is as good as all its variants.
func (q *Query) named() (func(id string) bool, error) {
	facts := gpu.Builtin()
	switch q.GPU {
	case "":
		return func(string) bool { return true }, nil
	case UnknownGPU:
		return func(id string) bool { return len(facts.Variants(id)) == 0 }, nil
	}
	ids, err := facts.Resolve(q.GPU)
	if err != nil {
		return nil, &QueryError{"gpu", err}
	}
	other := func(id string) bool { return !slices.Contains(ids, id) }
	return func(id string) bool {
		all := facts.Variants(id)
		return !other(id) || len(all) > 0 && !slices.ContainsFunc(all, other)
	}, nil
}

// inRegion says whether a region is wanted. A pattern that cannot be read fits none.
func (q *Query) inRegion(region string) bool {
	if q.Region == "" || q.Region == region {
		return true
	}
	if !strings.ContainsAny(q.Region, "*?[,") {
		return false
	}
	for pattern := range strings.SplitSeq(q.Region, ",") {
		if ok, err := path.Match(strings.TrimSpace(pattern), region); ok && err == nil {
			return true
		}
	}
	return false
}

// Series returns what of a history the query asks for: by GPU, provider, region and
// kind. The error is a [*QueryError].
func (q Query) Series() (func(Series) bool, error) {
	named, err := q.named()
	if err != nil {
		return nil, err
	}
	return func(s Series) bool {
		return (q.Kind == "" || s.Kind == q.Kind) && (q.Provider == "" || s.Provider == q.Provider) &&
			q.inRegion(s.Region) && (q.GPU == "" || s.GPUs > 0) && named(s.GPU)
	}, nil
}

// wanted says of each GPU that is offered whether the query is content with it,
// and which scenario it names; nil for none.
func (v *View) wanted(q Query) ([]bool, *scenario.Profile, error) {
	facts := gpu.Builtin()
	named, err := q.named()
	if err != nil {
		return nil, nil, err
	}
	if err := q.checkNear(); err != nil {
		return nil, nil, err
	}
	var profile *scenario.Profile
	if q.Scenario != "" {
		p, ok := v.opts.scenarios().Find(q.Scenario)
		if !ok {
			message, hint := v.opts.scenarios().Why(q.Scenario)
			return nil, nil, &QueryError{"scenario", errors.New(message + "; " + hint)}
		}
		profile = &p
	}
	out := make([]bool, len(v.gpus))
	for i, id := range v.gpus {
		ok := named(id)
		if profile != nil && (len(profile.Require) > 0 || len(profile.Assume) > 0) {
			f, known := facts.Lookup(id)
			ok = ok && known && len(profile.Check(f)) == 0
		}
		out[i] = ok
	}
	return out, profile, nil
}

func (v *View) matches(r *row, q *Query, wanted []bool, profile *scenario.Profile) bool {
	o := r.offer
	switch {
	case !wanted[r.gpu],
		(q.GPU != "" || q.Scenario != "") && o.GPUs <= 0,
		q.Kind != "" && o.Kind != q.Kind,
		q.MaxPrice > 0 && o.Price > q.MaxPrice,
		q.Memory > 0 && r.memory < q.Memory,
		q.Provider != "" && o.Provider != q.Provider,
		!q.inRegion(o.Region),
		!q.Near.IsZero() && !v.near(&q.Near, o),
		q.RDMA && !o.RDMA.Or(false):
		return false
	}
	if q.Link != "" && !r.linked(q.Link) {
		return false
	}
	return profile == nil || suits(o, profile)
}

// suits says whether a machine is fit for a kind of work, as far as it is not its
// GPU that decides.
func suits(o *providers.Offer, p *scenario.Profile) bool {
	if o.GPUs < 1 && p.Share != scenario.Fraction {
		return false
	}
	return len(p.CheckPlacement(int(math.Ceil(o.GPUs)), 1, o.Fabric, o.RDMA)) == 0
}

// ParseNear reads places with commas between and a time such as 30ms. The error is
// a [*QueryError].
func ParseNear(places, rtt string) (n scheduler.Near, err error) {
	for place := range strings.SplitSeq(places, ",") {
		if place = strings.TrimSpace(place); place != "" {
			n.From = append(n.From, place)
		}
	}
	if rtt != "" {
		if n.RTT, err = time.ParseDuration(rtt); err != nil || n.RTT <= 0 {
			return n, &QueryError{"max_rtt", fmt.Errorf("max_rtt %s: expected a time such as 30ms", rtt)}
		}
	}
	return n, (&Query{Near: n}).checkNear()
}

func (q *Query) checkNear() error {
	n := &q.Near
	if len(n.From) == 0 && n.RTT == 0 {
		return nil
	}
	if n.IsZero() {
		return &QueryError{"near", errors.New("near and max_rtt go together: where users are, and how long a round trip may take")}
	}
	for _, from := range n.From {
		if !geo.Known(from) {
			hint := ""
			if like := nearest.Of(from, geo.Names(), 3); len(like) > 0 {
				hint = "; did you mean " + strings.Join(like, ", ") + "?"
			}
			return &QueryError{"near", fmt.Errorf("near: no place is called %q%s", from, hint)}
		}
	}
	return nil
}

// near says whether an offer is near enough to all users.
func (v *View) near(n *scheduler.Near, o *providers.Offer) bool {
	cloud := cmp.Or(v.opts.Types[o.Provider], o.Provider)
	return !slices.ContainsFunc(n.From, func(from string) bool {
		rtt, ok := geo.RTT(from, cloud+"/"+o.Region)
		return !ok || rtt > n.RTT
	})
}

func (r *row) linked(want string) bool {
	if strings.EqualFold(want, "fabric") {
		return r.offer.Fabric.Or(false)
	}
	return r.link != "" && strings.HasPrefix(r.link, strings.ToLower(want))
}

// order sorts what was found, which stands by price; equals stay so. Only the
// first limit of it are wanted.
func (v *View) order(found []int32, sort string, down bool, limit int) []int32 {
	type keyed struct {
		key int64
		at  int32
	}
	keys := make([]keyed, len(found))
	for i, at := range found {
		k := v.rows[at].key(sort)
		if down {
			k = -k
		}
		keys[i] = keyed{k, at}
	}
	byKey := func(a, b keyed) int { return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.at, b.at)) }
	if limit < len(keys) {
		keys = least(keys, limit, byKey)
	}
	slices.SortFunc(keys, byKey)
	out := found[:0]
	for _, k := range keys {
		out = append(out, k.at)
	}
	return out
}

// least moves the n least elements to the front and returns them, in any order
// (Hoare's selection).
func least[E any](s []E, n int, compare func(a, b E) int) []E {
	for lo, hi := 0, len(s)-1; lo < hi; {
		pivot := s[lo+(hi-lo)/2]
		i, j := lo, hi
		for i <= j {
			for compare(s[i], pivot) < 0 {
				i++
			}
			for compare(pivot, s[j]) < 0 {
				j--
			}
			if i <= j {
				s[i], s[j] = s[j], s[i]
				i, j = i+1, j-1
			}
		}
		switch {
		case n-1 <= j:
			hi = j
		case n-1 >= i:
			lo = i
		default:
			return s[:n]
		}
	}
	return s[:n]
}

// key orders a row by a word; what is not known comes last.
func (r *row) key(sort string) int64 {
	switch sort {
	case "per-gpu":
		if r.perGPU == 0 {
			return math.MaxInt64
		}
		return r.perGPU
	case "memory": // the largest first
		return -int64(r.memory * 1e6)
	case "age": // the youngest first
		return -r.offer.Seen.Unix()
	case "gpu":
		if r.offer.GPU == "" {
			return math.MaxInt64
		}
		return int64(r.gpu)
	case "provider":
		return int64(r.provider)
	case "region":
		return int64(r.region)
	}
	return int64(r.offer.Price)
}

func sortRows(rows []row) {
	slices.SortFunc(rows, func(a, b row) int {
		if a.offer.Price != b.offer.Price {
			return cmp.Compare(a.offer.Price, b.offer.Price)
		}
		return a.offer.Compare(b.offer.Market)
	})
}

// ranks gives words numbers, and at the end the order of the words.
type ranks struct{ gpus, regions words }

type words struct {
	at   map[string]int32
	list []string
}

func newRanks() *ranks {
	return &ranks{words{at: map[string]int32{}}, words{at: map[string]int32{}}}
}

func (*ranks) of(w *words, word string) int32 {
	i, ok := w.at[word]
	if !ok {
		i = int32(len(w.list))
		w.at[word] = i
		w.list = append(w.list, word)
	}
	return i
}

func (w *words) settle() (sorted []string, place []int32) {
	sorted = slices.Sorted(slices.Values(w.list))
	place = make([]int32, len(sorted))
	for i, word := range sorted {
		place[w.at[word]] = int32(i)
	}
	return sorted, place
}

// settle replaces the numbers by places in the sorted lists that it returns.
func (k *ranks) settle(rows []row) (gpus, regions []string) {
	gpus, gpuAt := k.gpus.settle()
	regions, regionAt := k.regions.settle()
	for i := range rows {
		rows[i].gpu, rows[i].region = gpuAt[rows[i].gpu], regionAt[rows[i].region]
	}
	return gpus, regions
}

// facts fills in what is known of the machines of one provider.
type facts struct {
	cloud string
	gpus  *gpu.Table
	types map[string]gpu.InstanceType
	gb    map[string]float64
}

func newFacts(cloud string) *facts {
	return &facts{cloud: cloud, gpus: gpu.Builtin(), types: map[string]gpu.InstanceType{}, gb: map[string]float64{}}
}

// fill sets what follows from the facts: a machine with one GPU, or a share of
// one, has no link and needs none.
func (f *facts) fill(r *row) {
	o := r.offer
	if o.GPUs <= 0 {
		return
	}
	it, ok := f.types[o.Type]
	if !ok {
		it, _ = f.gpus.InstanceType(f.cloud, o.Type)
		f.types[o.Type] = it
	}
	r.link = strings.ToLower(it.Link.Or(""))
	r.perGPU = int64(perGPU(o.Price, o.GPUs))
	r.memory = f.memory(o)
}

// memory is in GB for each GPU, or for the share of one: the nominal size where the
// GPU is known, else what the provider says. 0 is unknown.
func (f *facts) memory(o *providers.Offer) float64 {
	gb, ok := f.gb[o.GPU]
	if !ok {
		fact, _ := f.gpus.Lookup(o.GPU)
		gb = fact.Memory.Or(0)
		f.gb[o.GPU] = gb
	}
	if gb == 0 {
		gb = float64(o.GPUMemory) / 1e9
	}
	return gb * min(1, o.GPUs)
}
