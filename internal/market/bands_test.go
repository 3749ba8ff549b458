package market

import (
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpubroker/internal/gpu"
)

var update = flag.Bool("update", false, "write data/bands.csv anew")

// bandFactor is how far beyond what was seen a price is believed; data/README.md
// says why.
const bandFactor = 4

// The bands are what data/README.md says they are: made from the offers beside them.
func TestBands(t *testing.T) {
	type span struct{ low, high float64 }
	spans := map[string]span{}
	widen := func(id string, low, high float64) {
		s, ok := spans[id]
		if !ok {
			s = span{low, high}
		}
		spans[id] = span{min(s.low, low), max(s.high, high)}
	}
	lists, _ := snapshotOffers()
	for _, offers := range lists {
		for i := range offers {
			if o := &offers[i]; o.GPU != "" {
				each := perGPU(o.Price, o.GPUs).Float()
				widen(o.GPU, each, each)
			}
		}
	}
	// What leaves a variant open spans its variants.
	for id := range maps.Clone(spans) {
		for _, v := range gpu.Builtin().Variants(id) {
			if s, ok := spans[v]; ok {
				widen(id, s.low, s.high)
			}
		}
	}
	var b strings.Builder
	b.WriteString("gpu,low,high\n")
	for _, id := range slices.Sorted(maps.Keys(spans)) {
		fmt.Fprintf(&b, "%s,%s,%s\n", id, digits(spans[id].low/bandFactor), digits(spans[id].high*bandFactor))
	}
	if *update {
		if err := os.WriteFile("data/bands.csv", []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(b.String(), bandsCSV); diff != "" {
		t.Errorf("data/bands.csv does not follow from data/offers.csv.gz; go test ./internal/market -run TestBands -update writes it anew:\n%s", diff)
	}
	if len(spans) < 60 {
		t.Errorf("only %d GPUs have a band", len(spans))
	}
}

// digits rounds to three of them.
func digits(f float64) string {
	scale := math.Pow(10, 2-math.Floor(math.Log10(f)))
	return strconv.FormatFloat(math.Round(f*scale)/scale, 'f', -1, 64)
}
