package backtest

import (
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/nearest"
)

// ErrInput marks errors in what was given: the options or the recorded market.
var ErrInput = errors.New("backtest")

func inputError(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInput, fmt.Errorf(format, args...))
}

// Where a capture recorded no spot prices at all, spot is this share of on
// demand: the fixed ratio used in the published evaluation of that capture
// (NSDI'24, 0.9731 of 3.06 $/h).
const (
	assumedSpot     = 0.9731
	assumedOnDemand = 3.06
)

// pool is one place to rent in: a zone, or a zone and an instance size.
type pool struct {
	name     string
	region   string
	onDemand money.Rate
	// spot is the static spot price; hasSpot is false if prices move or were not recorded.
	spot    money.Rate
	hasSpot bool
	step    time.Duration
}

// stretch is an unbroken part of a capture on an even grid of ticks.
type stretch struct {
	start time.Time
	// up[tick][pool], and the spot price of one instance at that tick.
	up    [][]bool
	price [][]money.Rate
	// count is how many instances could be had; 1 or 0 where only that was recorded.
	count [][]int
}

// market is a recorded market, read for a gang size.
type market struct {
	step      time.Duration
	counts    bool // how many could be had was recorded
	pools     []pool
	stretches []stretch
	notes     []string
	// Set by settle: the region of each pool, the pools that sell on demand, and
	// the $ to take the checkpoint from one region to another.
	regions    []int
	onDemandAt []int
	egress     [][]float64
}

// load reads STEM.avail.csv[.gz] or STEM.count.csv[.gz] (or STEM.csv[.gz] when
// the stem ends in "count"), STEM.price.csv[.gz] if there is one, and zones.csv
// beside them. A row holds until the next one; the grid's step is the nominal
// one of zones.csv.
func load(stem string, names []string, gang int, split bool) (*market, error) {
	dir := filepath.Dir(stem)
	zones, err := readZones(filepath.Join(dir, "zones.csv"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, inputError("no recorded market %s: there is no %s/zones.csv%s", stem, dir, meant(filepath.Base(dir), foldersIn(filepath.Dir(dir))))
	}
	if err != nil {
		return nil, err
	}
	avail, counts, err := readAvailability(stem)
	if err != nil {
		return nil, err
	}
	if gang > 1 && !counts {
		return nil, inputError("%s records up or down for one instance; a gang of %d needs STEM.count.csv.gz", avail.path, gang)
	}
	if len(names) == 0 {
		names = avail.pools
	}
	m := &market{counts: counts}
	cols := make([]int, len(names))
	for i, name := range names {
		cols[i] = slices.Index(avail.pools, name)
		if cols[i] < 0 {
			return nil, inputError("%s has no pool %q%s", avail.path, name, meant(name, avail.pools))
		}
		if slices.Index(names, name) != i {
			return nil, inputError("pool %q is named twice", name)
		}
		z, ok := zones[name]
		if !ok {
			return nil, inputError("pool %q of %s has no row in zones.csv", name, avail.path)
		}
		if i == 0 {
			m.step = z.step
		} else if m.step != z.step {
			return nil, inputError("zones.csv: pools %q and %q have different steps; replay them apart", names[0], name)
		}
		m.pools = append(m.pools, z)
	}

	prices, err := readPrices(stem, avail, names)
	if err != nil {
		return nil, err
	}
	if prices == nil {
		if err := m.staticPrices(zones); err != nil {
			return nil, err
		}
	}
	return m, m.cut(avail, cols, prices, gang, split)
}

// staticPrices checks that each pool has a spot price, or fills in all of them
// by the published ratio where the whole capture recorded none.
func (m *market) staticPrices(zones map[string]pool) error {
	none := true
	for _, z := range zones {
		none = none && !z.hasSpot
	}
	if none {
		m.notes = append(m.notes, fmt.Sprintf("no spot prices were recorded: spot = on-demand × %v/%v (NSDI'24)", assumedSpot, assumedOnDemand))
	}
	for i := range m.pools {
		p := &m.pools[i]
		switch {
		case none:
			spot, err := money.FromFloat(p.onDemand.Float() * assumedSpot / assumedOnDemand)
			if err != nil {
				return inputError("zones.csv: on-demand price of %q: %w", p.name, err)
			}
			p.spot, p.hasSpot = money.Rate(spot), true
		case !p.hasSpot:
			return inputError("missing price: pool %q has no spot_usd_per_hour in zones.csv and the market has no price file", p.name)
		}
	}
	return nil
}

// cut lays the rows on a grid and cuts it where nothing was recorded. Without
// split, a hole is an error.
func (m *market) cut(avail *table, cols []int, prices [][]money.Rate, gang int, split bool) error {
	begin := 0
	end := func(to int) { // rows [begin, to)
		if to > begin {
			m.stretches = append(m.stretches, m.grid(avail, cols, prices, gang, begin, to))
		}
	}
	hole := func(row int, format string, args ...any) error {
		if split {
			end(row)
			return nil
		}
		return inputError("%s: hole at row %d (t=%d): %s; give whole data, or replay the stretches on either side of holes (--split)",
			avail.path, row+2, avail.t[row], fmt.Sprintf(format, args...))
	}
	for r := range avail.t {
		if r > begin {
			if gap := time.Duration(avail.t[r]-avail.t[r-1]) * time.Second; gap > 2*m.step {
				if err := hole(r, "%v without a record, the step is %v", gap, m.step); err != nil {
					return err
				}
				begin = r
			}
		}
		for i, c := range cols {
			v := avail.rows[r][c]
			if v == "" {
				if err := hole(r, "pool %q has no value", m.pools[i].name); err != nil {
					return err
				}
				begin = r + 1
				break
			}
			n, err := strconv.Atoi(v)
			if err != nil || n < 0 || !m.counts && n > 1 {
				return inputError("%s: row %d, pool %q: %q is not %s", avail.path, r+2, m.pools[i].name, v,
					map[bool]string{true: "a count", false: "0 or 1"}[m.counts])
			}
		}
	}
	end(len(avail.t))
	if len(m.stretches) == 0 {
		return inputError("%s has no rows for the chosen pools", avail.path)
	}
	return nil
}

func (m *market) grid(avail *table, cols []int, prices [][]money.Rate, gang, from, to int) stretch {
	s := stretch{start: time.Unix(avail.t[from], 0).UTC()}
	step := int64(m.step / time.Second)
	for r, t := from, avail.t[from]; t <= avail.t[to-1]; t += step {
		for r+1 < to && avail.t[r+1] <= t {
			r++
		}
		up, price, count := make([]bool, len(cols)), make([]money.Rate, len(cols)), make([]int, len(cols))
		for i, c := range cols {
			n, _ := strconv.Atoi(avail.rows[r][c]) // checked in cut
			up[i], count[i] = n >= gang, n
			if prices != nil {
				price[i] = prices[r][i]
			} else {
				price[i] = m.pools[i].spot
			}
		}
		s.up, s.price, s.count = append(s.up, up), append(s.price, price), append(s.count, count)
	}
	return s
}

// table is a CSV file with a time column t and one column for each pool.
type table struct {
	path  string
	pools []string
	t     []int64
	rows  [][]string
}

func readAvailability(stem string) (tab *table, counts bool, err error) {
	kinds := []string{".avail", ".count"}
	if filepath.Base(stem) == "count" {
		kinds = append(kinds, "")
	}
	for _, kind := range kinds {
		tab, err := readTable(stem + kind + ".csv")
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return tab, kind != ".avail", err
		}
	}
	return nil, false, inputError("no recorded market %s: neither %s.avail.csv.gz nor %s.count.csv.gz exists%s",
		stem, filepath.Base(stem), filepath.Base(stem), meant(filepath.Base(stem), stemsIn(filepath.Dir(stem))))
}

// stemsIn are the markets of a folder.
func stemsIn(dir string) []string {
	var stems []string
	for _, kind := range []string{".avail.csv", ".count.csv"} {
		files, _ := filepath.Glob(filepath.Join(dir, "*"+kind+"*")) // only a bad pattern fails
		for _, f := range files {
			stem, _, _ := strings.Cut(filepath.Base(f), kind)
			stems = append(stems, stem)
		}
	}
	return stems
}

// foldersIn are the folders of a folder that hold markets.
func foldersIn(dir string) []string {
	files, _ := filepath.Glob(filepath.Join(dir, "*", "zones.csv")) // only a bad pattern fails
	for i, f := range files {
		files[i] = filepath.Base(filepath.Dir(f))
	}
	return files
}

// meant ends an error with the names that are near, or else with those there are.
func meant(name string, names []string) string {
	if hint := nearest.Hint(name, names); hint != "" {
		return "; " + hint
	}
	if len(names) == 0 {
		return ""
	}
	return "; there is " + strings.Join(names, ", ")
}

// readPrices returns the spot price of each row and named pool, or nil if there
// is no price file.
func readPrices(stem string, avail *table, names []string) ([][]money.Rate, error) {
	tab, err := readTable(stem + ".price.csv")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !slices.Equal(tab.t, avail.t) {
		return nil, inputError("%s: its %d rows are not at the times of the %d rows of %s", tab.path, len(tab.t), len(avail.t), avail.path)
	}
	cols := make([]int, len(names))
	for i, name := range names {
		if cols[i] = slices.Index(tab.pools, name); cols[i] < 0 {
			return nil, inputError("missing price: %s has no column for pool %q", tab.path, name)
		}
	}
	prices := make([][]money.Rate, len(tab.rows))
	for r, row := range tab.rows {
		prices[r] = make([]money.Rate, len(cols))
		for i, c := range cols {
			if row[c] == "" {
				return nil, inputError("missing price: %s, row %d (t=%d), pool %q is empty", tab.path, r+2, tab.t[r], names[i])
			}
			if prices[r][i], err = money.RateOf(row[c]); err != nil || prices[r][i] < 0 {
				return nil, inputError("%s, row %d, pool %q: %q is not a price", tab.path, r+2, names[i], row[c])
			}
		}
	}
	return prices, nil
}

// readTable reads path+".gz", or path if that does not exist.
func readTable(path string) (*table, error) {
	records, path, err := readCSV(path)
	if err != nil {
		return nil, err
	}
	if len(records) < 2 || len(records[0]) < 2 || records[0][0] != "t" {
		return nil, inputError("%s: want a header \"t,POOL,…\" and rows", path)
	}
	tab := &table{path: path, pools: records[0][1:]}
	for i, rec := range records[1:] {
		t, err := strconv.ParseInt(rec[0], 10, 64)
		if err != nil {
			return nil, inputError("%s: row %d: time %q is not in whole seconds", path, i+2, rec[0])
		}
		if i > 0 && t <= tab.t[i-1] {
			return nil, inputError("%s: row %d: time %d is not after the row before", path, i+2, t)
		}
		tab.t, tab.rows = append(tab.t, t), append(tab.rows, rec[1:])
	}
	return tab, nil
}

func readCSV(path string) ([][]string, string, error) {
	var r io.Reader
	f, err := os.Open(path + ".gz")
	switch {
	case err == nil:
		defer f.Close()
		path += ".gz"
		if r, err = gzip.NewReader(f); err != nil {
			return nil, path, inputError("%s: %w", path, err)
		}
	case errors.Is(err, fs.ErrNotExist):
		if f, err = os.Open(path); err != nil {
			return nil, path, inputError("%w", err)
		}
		defer f.Close()
		r = f
	default:
		return nil, path, inputError("%w", err)
	}
	records, err := csv.NewReader(r).ReadAll()
	if err != nil {
		return nil, path, inputError("%s: %w", path, err)
	}
	return records, path, nil
}

func readZones(path string) (map[string]pool, error) {
	records, path, err := readCSV(path)
	if err != nil {
		return nil, err
	}
	col := map[string]int{}
	if len(records) > 0 {
		for i, h := range records[0] {
			col[h] = i
		}
	}
	for _, h := range []string{"region", "zone", "on_demand_usd_per_hour", "spot_usd_per_hour", "step_seconds"} {
		if _, ok := col[h]; !ok {
			return nil, inputError("%s: no column %q", path, h)
		}
	}
	zones := map[string]pool{}
	for i, rec := range records[1:] {
		p := pool{name: rec[col["zone"]], region: rec[col["region"]]}
		od := rec[col["on_demand_usd_per_hour"]]
		if od == "" {
			return nil, inputError("missing price: %s, row %d: pool %q has no on_demand_usd_per_hour", path, i+2, p.name)
		}
		if p.onDemand, err = money.RateOf(od); err != nil || p.onDemand <= 0 {
			return nil, inputError("%s, row %d: on-demand price %q is not a positive price", path, i+2, od)
		}
		if spot := rec[col["spot_usd_per_hour"]]; spot != "" {
			if p.spot, err = money.RateOf(spot); err != nil || p.spot < 0 {
				return nil, inputError("%s, row %d: spot price %q is not a price", path, i+2, spot)
			}
			p.hasSpot = true
		}
		secs, err := strconv.Atoi(rec[col["step_seconds"]])
		if err != nil || secs <= 0 || secs > 7*24*3600 {
			return nil, inputError("%s, row %d: step_seconds %q is not a whole number from 1 to a week", path, i+2, rec[col["step_seconds"]])
		}
		p.step = time.Duration(secs) * time.Second
		zones[p.name] = p
	}
	return zones, nil
}
