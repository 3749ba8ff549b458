package backtest

import (
	"math"
	"path/filepath"
	"slices"

	"gpubroker/scheduler/policy"
)

// sequence is the runs of one pool, up and down by turns.
type sequence []spell

// spell is a run: its length in hours, and whether its begin and end were seen.
type spell struct {
	up           bool
	hours        float64
	step         float64 // of the grid
	begun, ended bool
}

// sequences are the runs of all pools of a market.
func (m *market) sequences() []sequence {
	var all []sequence
	for p := range m.pools {
		for i := range m.stretches {
			s := &m.stretches[i]
			var q sequence
			for t := range s.up {
				if t > 0 && s.up[t][p] == s.up[t-1][p] {
					q[len(q)-1].hours += m.step.Hours()
					continue
				}
				if t > 0 {
					q[len(q)-1].ended = true
				}
				q = append(q, spell{up: s.up[t][p], hours: m.step.Hours(), step: m.step.Hours(), begun: t > 0})
			}
			all = append(all, q)
		}
	}
	return all
}

// kinds is how many kinds of up runs, and of down runs, are told apart.
const kinds = 5

// fit finds the prior under which the sequences are likeliest, by expectation
// maximisation: pools are of one of some kinds in their up runs and in their down
// runs, each with its own chances of the phases.
func fit(all []sequence) policy.Knowledge {
	var up, down [kinds]policy.Runs
	for c := range kinds {
		// From short runs to long ones.
		for k := range policy.Phases {
			x := math.Exp(-math.Abs(float64(k) - float64(c)*float64(policy.Phases-1)/(kinds-1)))
			up[c][k], down[c][k] = x, x
		}
		up[c], down[c] = normal(up[c]), normal(down[c])
	}
	var weight [kinds][kinds]float64
	for i := range weight {
		for j := range weight[i] {
			weight[i][j] = 1.0 / (kinds * kinds)
		}
	}
	for range 80 {
		var nUp, nDown [kinds]policy.Runs
		var nWeight [kinds][kinds]float64
		for _, q := range all {
			var lUp, lDown [kinds]float64
			for c := range kinds {
				for _, s := range q {
					if s.up {
						lUp[c] += math.Log(likelihood(&up[c], s, nil))
					} else {
						lDown[c] += math.Log(likelihood(&down[c], s, nil))
					}
				}
			}
			top := math.Inf(-1)
			for i := range kinds {
				for j := range kinds {
					top = max(top, lUp[i]+lDown[j]+math.Log(weight[i][j]))
				}
			}
			var post [kinds][kinds]float64
			sum := 0.0
			for i := range kinds {
				for j := range kinds {
					post[i][j] = math.Exp(lUp[i] + lDown[j] + math.Log(weight[i][j]) - top)
					sum += post[i][j]
				}
			}
			var pUp, pDown [kinds]float64
			for i := range kinds {
				for j := range kinds {
					x := post[i][j] / sum
					nWeight[i][j] += x
					pUp[i] += x
					pDown[j] += x
				}
			}
			for c := range kinds {
				for _, s := range q {
					if !s.begun {
						continue
					}
					from, to, w := &up[c], &nUp[c], pUp[c]
					if !s.up {
						from, to, w = &down[c], &nDown[c], pDown[c]
					}
					if w > 1e-6 {
						likelihood(from, s, func(k int, share float64) { to[k] += w * share })
					}
				}
			}
		}
		// A few runs of all kinds count as seen, so that nothing is impossible.
		var allUp, allDown policy.Runs
		for c := range kinds {
			for k := range policy.Phases {
				allUp[k] += nUp[c][k]
				allDown[k] += nDown[c][k]
			}
		}
		allUp, allDown = normal(allUp), normal(allDown)
		for c := range kinds {
			for k := range policy.Phases {
				nUp[c][k] += 5 * allUp[k]
				nDown[c][k] += 5 * allDown[k]
			}
			up[c], down[c] = normal(nUp[c]), normal(nDown[c])
		}
		for i := range kinds {
			for j := range kinds {
				weight[i][j] = (nWeight[i][j] + 0.5) / (float64(len(all)) + 0.5*kinds*kinds)
			}
		}
	}
	// That a market becomes another after ten days is set, not fitted.
	p := policy.Knowledge{Forget: 240}
	for i := range kinds {
		for j := range kinds {
			p.Types = append(p.Types, policy.Type{Up: digits(up[i]), Down: digits(down[j]), Weight: weight[i][j]})
		}
	}
	return p
}

// digits keeps six digits, so that what is fitted does not depend on the machine.
func digits(r policy.Runs) policy.Runs {
	for k, x := range r {
		r[k] = math.Round(x*1e6) / 1e6
	}
	return normal(r)
}

func normal(r policy.Runs) policy.Runs {
	sum := 0.0
	for _, x := range r {
		sum += x
	}
	for k := range r {
		r[k] /= sum
	}
	return r
}

// likelihood of a spell; share gets the posterior of each phase.
func likelihood(enter *policy.Runs, s spell, share func(k int, share float64)) float64 {
	var parts [policy.Phases]float64
	sum, norm := 0.0, 1.0
	if !s.begun {
		norm = 0
		for k, e := range enter {
			norm += e / policy.Rates[k]
		}
	}
	for k, rate := range policy.Rates {
		e := enter[k]
		if !s.begun {
			e /= rate * norm
		}
		l := e * math.Exp(-rate*(s.hours-s.step))
		if s.ended { // in its last step
			l *= -math.Expm1(-rate * s.step)
		}
		parts[k] = l
		sum += l
	}
	if share != nil {
		for k := range parts {
			share(k, parts[k]/sum)
		}
	}
	return max(sum, 1e-300)
}

// capture is a recorded market and the sizes of gangs for which it tells something.
type capture struct {
	stem  string
	gangs []int
}

// captures are the recorded markets that knowledge is fitted on, under a folder
// of traces.
var captures = []capture{
	{"aws-k80-v100-2022/2022-10-26", []int{1}},
	{"aws-k80-v100-2022/2022-12-13", []int{1}},
	{"aws-v100x1-2023-02/s1", []int{1}},
	{"aws-v100x1-2023-02/s2", []int{1}},
	{"aws-v100x1-2023-02/s3", []int{1}},
	{"gcp-h100x16-2025-10/s1", []int{1, 8, 16}},
	{"gcp-h100x16-2025-10/s2", []int{1, 8, 16}},
	{"gcp-h100x16-2025-10/s3", []int{1, 8, 16}},
	{"aws-v100x4-2023-08/count", []int{4}},
}

// FitTo fits knowledge to the captures under a folder of traces that are there, but
// for the ones named; false if there are none.
func FitTo(traces string, without ...string) (policy.Knowledge, bool, error) {
	var all []sequence
	for _, c := range captures {
		if slices.Contains(without, c.stem) {
			continue
		}
		stem := filepath.Join(traces, filepath.FromSlash(c.stem))
		if there, _ := filepath.Glob(stem + ".*"); len(there) == 0 { // an error is only of the pattern
			continue
		}
		for _, gang := range c.gangs {
			m, err := load(stem, nil, gang, true)
			if err != nil {
				return policy.Knowledge{}, false, err
			}
			all = append(all, m.sequences()...)
		}
	}
	return fit(all), len(all) > 0, nil
}
