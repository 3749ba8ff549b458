package backtest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// cache keeps the optima of some windows in a file named by the digest of all
// that they depend on: what was recorded, the job, and the starts.
type cache struct{ dir, key string }

// digest of windows. The first word changes when the optimum itself does.
func digest(windows []*window) string {
	h := sha256.New()
	fmt.Fprintln(h, "optimum 1")
	var market *market
	var stretch *stretch
	for _, w := range windows {
		if w.market != market {
			market = w.market
			o := w.opt
			fmt.Fprintln(h, market.step, o.Length, o.Deadline, o.Delay, o.Gang, market.regions, market.onDemandAt, market.egress)
			for _, p := range market.pools {
				fmt.Fprintln(h, p.name, int64(p.onDemand))
			}
		}
		if w.stretch != stretch {
			stretch = w.stretch
			fmt.Fprintln(h, stretch.start.Unix(), stretch.up, stretch.price)
		}
		fmt.Fprintln(h, w.first, w.ticks)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func (c cache) path() string { return filepath.Join(c.dir, c.key+".json") }

// load returns n optima, known or still to be found. A file that cannot be read
// is as good as none.
func (c cache) load(n int) ([]float64, bool) {
	if c.dir != "" {
		if b, err := os.ReadFile(c.path()); err == nil {
			var optima []float64
			if json.Unmarshal(b, &optima) == nil && len(optima) == n {
				return optima, true
			}
		}
	}
	return make([]float64, n), false
}

func (c cache) save(optima []float64) error {
	if c.dir == "" {
		return nil
	}
	b, err := json.Marshal(optima)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(c.dir, "optima-*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if errClose := f.Close(); err == nil {
		err = errClose
	}
	if err == nil {
		err = os.Rename(f.Name(), c.path())
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
