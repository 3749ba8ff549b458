package market

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"fmt"
	"slices"
	"sync"
	"time"

	"gpubroker/providers"
)

//go:embed data/offers.csv.gz
var offersFile []byte

// snapshotNames are the types that this program calls otherwise than the table.
var snapshotNames = map[string]string{
	"vast-ai": "vast", "oracle-cloud": "oci", "cudo-compute": "cudo", "oblivus-cloud": "oblivus",
}

// snapshotOffers are the offers that are built in, by provider.
var snapshotOffers = sync.OnceValues(func() (map[string][]providers.Offer, time.Time) {
	in, err := gzip.NewReader(bytes.NewReader(offersFile))
	if err != nil {
		panic("market: built-in offers: " + err.Error())
	}
	all, _, err := ReadCSV(in)
	if err != nil {
		panic("market: built-in offers: " + err.Error())
	}
	out := map[string][]providers.Offer{}
	var newest time.Time
	for _, o := range all {
		if name, ok := snapshotNames[o.Provider]; ok {
			o.Provider = name
		}
		o.Source = fmt.Sprintf("snapshot of %s: %s", o.Seen.Format(time.DateOnly), o.Source)
		out[o.Provider] = append(out[o.Provider], o)
		if o.Seen.After(newest) {
			newest = o.Seen
		}
	}
	return out, newest
})

// Snapshot returns a market of the offers that are built into the program, and the
// day of the newest: list prices as they once were, for looking and planning where
// nothing better is known. Each offer keeps its own age.
func Snapshot() (*Market, time.Time) {
	lists, newest := snapshotOffers()
	m := With(Options{})
	m.load(lists)
	return m, newest
}

// load takes over many lists at once.
func (m *Market) load(lists map[string][]providers.Offer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.view.Load()
	next := map[string]List{}
	for name, offers := range lists {
		good, odd := judge(offers, builtinBands(), false)
		l := List{Offers: slices.Clip(good), Quarantined: odd}
		for i := range offers {
			if offers[i].Seen.After(l.Seen) {
				l.Seen = offers[i].Seen
			}
		}
		l.Tried = l.Seen
		next[name] = l
	}
	m.view.Store(newView(&m.opts, was.Revision+1, next))
}
