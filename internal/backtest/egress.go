package backtest

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
)

// egressTable is the price in $/GB from one region to another, or one price for all.
type egressTable struct {
	path  string
	flat  float64
	price map[[2]string]float64
}

// readEgress reads a price in $/GB for every pair of regions, or the CSV file
// with columns from_region, to_region and price_usd_per_gb that text names. An
// empty text is the file egress/aws-egress-usd-per-gb.csv.gz beside the folder
// of the market.
func readEgress(text, stem string) (egressTable, error) {
	if flat, err := strconv.ParseFloat(text, 64); err == nil {
		if !(flat >= 0 && flat < 1e6) {
			return egressTable{}, inputError("egress price %q is not in $/GB", text)
		}
		return egressTable{flat: flat}, nil
	}
	path := text
	if path == "" {
		path = filepath.Join(filepath.Dir(stem), "..", "egress", "aws-egress-usd-per-gb.csv")
	}
	records, path, err := readCSV(path)
	if errors.Is(err, fs.ErrNotExist) && text == "" {
		return egressTable{}, inputError("a checkpoint needs prices of egress and %s does not exist; give --egress as a file or in $/GB", path)
	}
	if err != nil {
		return egressTable{}, err
	}
	if len(records) == 0 || !slices.Equal(records[0], []string{"from_region", "to_region", "price_usd_per_gb"}) {
		return egressTable{}, inputError("%s: want a header from_region,to_region,price_usd_per_gb", path)
	}
	e := egressTable{path: path, price: map[[2]string]float64{}}
	for i, rec := range records[1:] {
		p, err := strconv.ParseFloat(rec[2], 64)
		if err != nil || !(p >= 0 && p < 1e6) {
			return egressTable{}, inputError("%s: row %d: %q is not a price", path, i+2, rec[2])
		}
		e.price[[2]string{rec[0], rec[1]}] = p
	}
	return e, nil
}

func (e egressTable) perGB(from, to string) (float64, error) {
	if from == to {
		return 0, nil
	}
	if e.price == nil {
		return e.flat, nil
	}
	p, ok := e.price[[2]string{from, to}]
	if !ok {
		return 0, inputError("missing price: %s has none from %s to %s; give --egress as a file or in $/GB", e.path, from, to)
	}
	return p, nil
}

// settle works out where on demand is bought and what it costs to move a
// checkpoint of gb between regions. The first launch brings it nowhere from, so
// it is free. Where all moves are free, all is one region.
func (m *market) settle(gb float64, e egressTable) error {
	names := []string{}
	m.regions = make([]int, len(m.pools))
	for i, p := range m.pools {
		at := slices.Index(names, p.region)
		if at < 0 {
			at = len(names)
			names = append(names, p.region)
		}
		m.regions[i] = at
	}
	if gb == 0 || len(names) < 2 || e.price == nil && e.flat == 0 {
		clear(m.regions)
		m.egress = [][]float64{{0}}
		m.onDemandAt = []int{m.cheapestOnDemand()}
		return nil
	}
	m.egress = nil
	for _, from := range names {
		row := make([]float64, len(names))
		for b, to := range names {
			p, err := e.perGB(from, to)
			if err != nil {
				return err
			}
			row[b] = p * gb
		}
		m.egress = append(m.egress, row)
	}
	m.egress = append(m.egress, make([]float64, len(names))) // from nowhere
	m.onDemandAt = nil
	for region := range names {
		best := -1
		for i := range m.pools {
			if m.regions[i] == region && (best < 0 || m.pools[i].onDemand < m.pools[best].onDemand) {
				best = i
			}
		}
		m.onDemandAt = append(m.onDemandAt, best)
	}
	return nil
}

// nowhere is the region of a checkpoint before the first launch.
func (m *market) nowhere() int { return len(m.egress) - 1 }

// regionOf is the region of a machine.
func (m *market) regionOf(machine int) int {
	if n := len(m.pools); machine >= n {
		machine = m.onDemandAt[machine-n]
	}
	return m.regions[machine]
}

// machine names a machine, uniquely.
func (m *market) machine(at int) string {
	if n := len(m.pools); at >= n {
		return "on-demand " + m.pools[m.onDemandAt[at-n]].name
	}
	return m.pools[at].name
}

// cheapestOnDemand is the pool whose on-demand machines cost least: in the replay
// they always start.
func (m *market) cheapestOnDemand() int {
	at := 0
	for i := range m.pools {
		if m.pools[i].onDemand < m.pools[at].onDemand {
			at = i
		}
	}
	return at
}
